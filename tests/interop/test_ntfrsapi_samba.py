"""NtFrsApi, as Samba's smbtorture calls it: all four tests of rpc.frsapi, at privacy, over NTLM inside SPNEGO and over
Kerberos with a real KDC, of the interface alone and of running members; what is less than privacy is refused."""

from __future__ import annotations

import asyncio
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.ntfrsapi.access import Access
from agent.ntfrsapi.interface import ntfrsapi_interface
from agent.ntfrsapi.polling import Polling
from agent.rpc.kerberos import Keytab
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import RpcServer
from agent.wire.frsapi import NOT_REPLICATED, Force
from tests.interop.kdc import REALM, Kdc, missing
from tests.ports import free_port

PASSWORD = "a long password"
SMBTORTURE = shutil.which("smbtorture")
TESTS = ["DsPollingIntervalW", "IsPathReplicated", "ForceReplication", "InfoW"]
#: What Samba calls the levels below privacy.
LOWER = ("connect", "packet", "sign")
pytestmark = pytest.mark.skipif(SMBTORTURE is None, reason="smbtorture of Samba (samba-testsuite) is not installed")


class Host:
    """A member that takes part in a set at /srv/docs."""

    def __init__(self) -> None:
        self.forced: list[Force] = []
        self.polls = 0
        self.asked: list[str] = []

    async def info(self, kind: str) -> str:
        self.asked.append(kind)
        return f"{kind}: " + "x" * 5_000

    def replicated(self, path: str, kind: int) -> tuple[bool, int, bool, bytes]:
        return (True, 1, True, bytes(range(16))) if path == "/srv/docs" else NOT_REPLICATED

    def freeze(self, frozen: bool, who: str) -> None: ...

    def too_often(self, who: str) -> None:
        raise AssertionError(who)

    def force(self, asked: Force) -> None:
        self.forced.append(asked)

    def poll(self) -> None:
        self.polls += 1


#: How to call by NTLM, and by Kerberos as a member whose password is known.
ALICE = ("-U", f"FRS/alice%{PASSWORD}")
FILES2 = (f"--realm={REALM}", "-U", f"FILES2$@{REALM}%a-password", "--use-kerberos=required")


async def smbtorture(
    folder: Path,
    port: int,
    test: str,
    binding: str = "seal,spnego",
    who: Sequence[str] = ALICE,
    *,
    succeeds: bool = True,
) -> str:
    """What it says of one test; whether that has succeeded is as it should be."""
    private = folder / "private"
    private.mkdir(exist_ok=True)
    options = "".join(f"  {x} = {private}\n" for x in (
        "private dir", "lock directory", "state directory", "cache directory", "pid directory"))  # fmt: skip
    conf = folder / "smb.conf"
    conf.write_text(f"[global]\n{options}  workgroup = FRS\n  realm = FRS.TEST\n")
    assert SMBTORTURE is not None
    process = await asyncio.create_subprocess_exec(
        SMBTORTURE, "-s", str(conf), *who, f"ncacn_ip_tcp:127.0.0.1[{port},{binding}]", f"rpc.frsapi.frsapi.{test}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder,
    )  # fmt: skip
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    assert (process.returncode == 0) == succeeds, text
    assert (f"success: frsapi.{test}" in text) == succeeds, text
    return text


async def is_refused_below_privacy(folder: Path, port: int, rest: str, who: Sequence[str]) -> None:
    """At each level; with `rest` as the rest of the binding."""
    for level in LOWER:
        said = await smbtorture(folder, port, "InfoW", f"{level},{rest}", who, succeeds=False)
        assert "ACCESS_DENIED" in said, said


@pytest.mark.parametrize("test", TESTS)
async def test_smbtorture(tmp_path: Path, test: str) -> None:
    host, access = Host(), Access({}, ["alice"], [])
    server = RpcServer(
        [ntfrsapi_interface(host, access, Polling(tmp_path / "polling.json"))],
        CredentialStore([Credential("FRS", "alice", PASSWORD)], domain="FRS"),
    )
    await smbtorture(tmp_path, await server.start("127.0.0.1", 0), test)
    await server.close()
    if test == "DsPollingIntervalW":
        assert host.polls == 2
    if test == "ForceReplication":
        assert [one.set_guid for one in host.forced] == [None]
    if test == "InfoW":
        assert len(set(host.asked)) == 10


@pytest.fixture
def kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kdc]:
    """A realm with a member that has services, and one that calls."""
    (tmp_path / "kdc").mkdir()
    one = Kdc(tmp_path / "kdc")
    try:
        one.start()
        one.keytab("files1", "FILES1$", "host/files1.frs.test")
        one.keytab("files2", "FILES2$", password="a-password")
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        yield one
    finally:
        one.stop()


@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("options", ["seal,krb5", "seal,spnego,krb5"])
async def test_smbtorture_by_kerberos(tmp_path: Path, kdc: Kdc, test: str, options: str) -> None:
    """At privacy, with and without SPNEGO; who may call is said by the name of the member."""
    pytest.importorskip("gssapi", reason="the extra kerberos is not installed")
    host, access = Host(), Access({}, ["files2"], [])
    keytab = Keytab(str(kdc.folder / "files1.keytab"), f"FILES1$@{REALM}")
    server = RpcServer(
        [ntfrsapi_interface(host, access, Polling(tmp_path / "polling.json"))],
        CredentialStore(keytab=keytab, principals={f"FILES2$@{REALM}": "files2"}),
    )
    port = await server.start("127.0.0.1", 0)
    await smbtorture(tmp_path, port, test, f"{options},target_hostname=files1.frs.test", FILES2)
    await server.close()


async def test_a_running_member_is_asked(tmp_path: Path) -> None:
    """The account is that of the secret, for a partner that has no key."""
    frs, config = Path(sys.executable).with_name("frs"), tmp_path / "agent.toml"
    root, state = tmp_path / "root", tmp_path / "state"
    root.mkdir()
    (root / "a file").write_text("content")
    made = await asyncio.create_subprocess_exec(
        frs, "init", "--member", "a", "--root", root, "--state", state, "--set", "docs", "--config", config,
        "--address", f"127.0.0.1:{free_port()}", "--peer", f"b=127.0.0.1:{free_port()}",
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    text = config.read_text().replace("\nkey = ", '\nsecret = "secret.toml"\nkey = ', 1).partition("[dashboard]")[0]
    config.write_text(f'{text}\n[ntfrsapi]\nreaders = ["alice"]\n')
    secret = tmp_path / "secret.toml"
    secret.touch(0o600)
    secret.write_text(f'domain = "FRS"\nuser = "alice"\npassword = "{PASSWORD}"\n')
    async with running(config) as port:
        for test in TESTS:
            said = await smbtorture(tmp_path, port, test)
            if test == "InfoW":
                for word in ("member: a", "name: docs", "'a file'", "threads:", "docs: outlog"):
                    assert word in said, word
        await is_refused_below_privacy(tmp_path, port, "spnego", ALICE)
        await smbtorture(tmp_path, port, "InfoW", "seal,ntlm", succeeds=False)  # raw_ntlm is not set


@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
async def test_a_running_member_is_asked_by_kerberos(tmp_path: Path, kdc: Kdc) -> None:
    """By the partner whose principal is in the topology; there is neither key nor secret."""
    pytest.importorskip("gssapi", reason="the extra kerberos is not installed")
    (tmp_path / "root").mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'member = "files1"\ntopology = "topology.toml"\nstate = "state"\nkeytab = "{kdc.folder}/files1.keytab"\n'
        '[[set]]\nname = "docs"\nroot = "root"\n[listen]\nport = 0\n[ntfrsapi]\nreaders = ["files2"]\n'
    )
    members = "".join(
        f'[[set.member]]\nname = "{name}"\nguid = "{uuid.uuid4()}"\nhost = "127.0.0.1"\nport = {port}\n'
        f'principal = "{name.upper()}$@{REALM}"\n'
        for name, port in (("files1", 1), ("files2", 2))
    )
    connections = "".join(
        f'[[set.connection]]\nguid = "{uuid.uuid4()}"\nupstream = "{one}"\ndownstream = "{other}"\n'
        for one, other in (("files1", "files2"), ("files2", "files1"))
    )
    (tmp_path / "topology.toml").write_text(
        f'[[set]]\nname = "docs"\nguid = "{uuid.uuid4()}"\nprimary = "files1"\n{members}{connections}'
    )
    rest = "spnego,krb5,target_hostname=files1.frs.test"
    async with running(config) as port:
        for test in TESTS:
            said = await smbtorture(tmp_path, port, test, f"seal,{rest}", FILES2)
            assert test != "InfoW" or "member: files1" in said
        await is_refused_below_privacy(tmp_path, port, rest, FILES2)


@asynccontextmanager
async def running(config: Path) -> AsyncIterator[int]:
    """A member runs; the port of its RPC server."""
    frs = Path(sys.executable).with_name("frs")
    member = await asyncio.create_subprocess_exec(
        frs, "run", "--config", config, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        assert member.stdout is not None
        told = ""
        while " is running, RPC on " not in told:
            line = await member.stdout.readline()
            assert line, told
            told += line.decode()
        yield int(told.rpartition(":")[2])
    finally:
        member.terminate()
        await member.communicate()
