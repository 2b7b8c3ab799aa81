"""tshark reads what our client and server say to each other, and with the keytab also what is sealed."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.frsrpc import FRSRPC, OP_NOP, OP_SEND_COMM_PKT, frsrpc_interface
from agent.rpc.kerberos import FRS_SERVICE, KerberosCredential, Keytab
from agent.rpc.security import CredentialStore
from agent.rpc.server import RpcServer
from agent.service.service import Service
from agent.wire import constants as w
from agent.wire.comm_packet import encode_send_comm_pkt
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import NamedGuid, Packet, encode_packet
from config.load import load_agent_config
from config.write import topology_text, write_file
from tests.interop.kdc import REALM, Kdc, missing
from tests.ports import port_base

pytest.importorskip("gssapi", reason="the extra kerberos is not installed")
LACKING = [*missing(), *([] if shutil.which("tshark") else ["tshark"])]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")

T = 60.0
#: All that go from one member to the other when nothing fails.
COMMANDS = (
    w.CMD_NEED_JOIN, w.CMD_START_JOIN, w.CMD_JOINING, w.CMD_JOINED, w.CMD_VVJOIN_DONE, w.CMD_REMOTE_CO,
    w.CMD_SEND_STAGE, w.CMD_RECEIVING_STAGE, w.CMD_REMOTE_CO_DONE,
)  # fmt: skip
HOST = "127.0.0.1"


@pytest.fixture
def kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kdc]:
    (tmp_path / "kdc").mkdir()
    one = Kdc(tmp_path / "kdc")
    try:
        one.start()
        one.keytab("files1", "FILES1$", f"{FRS_SERVICE}/{HOST}")
        one.keytab("files2", "FILES2$")
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        yield one
    finally:
        one.stop()


class Recorder:
    """Stands between clients and a server, and keeps what passes as the packets of their TCP connections."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._clients = itertools.count(40_000)
        self.passed: list[tuple[int, bool, bytes]] = []  # the port of the client, and whether by it

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._connected, self._host, port)
        port = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        further, number = await asyncio.open_connection(self._host, self._port), next(self._clients)
        await asyncio.gather(
            self._pass(reader, further[1], number, True), self._pass(further[0], writer, number, False)
        )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, client: bool
    ) -> None:
        try:
            while data := await reader.read(32_000):
                self.passed.append((number, client, data))
                writer.write(data)
        except ConnectionError:
            pass  # an association that was given up
        writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()

    def save(self, path: Path, port: int) -> None:
        """As a capture of raw IP: connected, and then each piece as a segment."""
        out = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)
        sent: dict[tuple[int, bool], int] = {}

        def segment(number: int, client: bool, data: bytes, flags: int) -> bytes:
            ends = (number, port) if client else (port, number)
            at = sent[number, client]
            tcp = struct.pack(">HHIIBBHHH", *ends, at, sent[number, not client], 0x50, flags, 65535, 0, 0)
            sent[number, client] = at + len(data) + bool(flags & 2)
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0) + bytes((127, 0, 0, 1)) * 2
            packet = ip + tcp + data
            return struct.pack("<IIII", 0, len(out) % 1_000_000, len(packet), len(packet)) + packet

        for number, client, data in self.passed:
            if (number, True) not in sent:
                sent[number, True], sent[number, False] = 1000, 5000
                for whose, flags in ((True, 0x02), (False, 0x12), (True, 0x10)):
                    out += segment(number, whose, b"", flags)
            out += segment(number, client, data, 0x18)
        path.write_bytes(out)


def packet(name: str) -> bytes:
    one = NamedGuid(os.urandom(16), name)
    return encode_packet(
        Packet(
            command=w.CMD_NEED_JOIN,
            to=one,
            from_=one,
            replica=one,
            cxtion=one,
            join_guid=ZERO_GUID,
            last_join_time=w.INVALID_JOIN_TIME,
        )
    )


async def read(capture: Path, port: int, *options: str) -> str:
    """What tshark makes of a capture, with every field."""
    program = await asyncio.create_subprocess_exec(
        "tshark", "-r", capture, "-d", f"tcp.port=={port},dcerpc", "-V", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    return output.decode(errors="replace")


def assert_decoded(said: str) -> None:
    """tshark found nothing wrong in it."""
    for wrong in ("Malformed", "Expert Info (Error", "Dissector bug"):
        assert wrong not in said


@pytest.mark.parametrize("level", [c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
async def test_kerberos_traffic_is_read_with_the_keytab(kdc: Kdc, tmp_path: Path, level: int) -> None:
    """Bind, three legs, requests with signed headers and answers: nothing is malformed, and what is sealed is read by
    whoever has the key of the service, and by nobody else."""
    keytab = str(kdc.folder / "files1.keytab")
    store = CredentialStore(keytab=Keytab(keytab, f"FILES1$@{REALM}"), principals={f"FILES2$@{REALM}": "files2"})
    server = RpcServer([frsrpc_interface(lambda context, packet: 0, min_level=level)], store)
    recorder = Recorder(await server.start(HOST))
    port = await recorder.start()
    account = KerberosCredential(Keytab(str(kdc.folder / "files2.keytab"), f"FILES2$@{REALM}"), REALM)
    client = await RpcClient.connect(HOST, port, FRSRPC, account, timeout=T, level=level)
    await client.call(OP_SEND_COMM_PKT, encode_send_comm_pkt(packet("a-name-to-look-for")), T)
    await client.call(OP_NOP, b"", T)
    await client.close()
    await server.close()
    await recorder.close()
    recorder.save(tmp_path / "capture", port)
    decrypted = await read(tmp_path / "capture", port, "-o", "kerberos.decrypt:TRUE", "-o", f"kerberos.file:{keytab}")
    assert_decoded(decrypted)
    for said in (
        "Ctx Item[1]: Context ID:0, FRSRPC, 32bit NDR", "Packet type: Alter_context (14)", "mechListMIC",
        "cname-string: 1 item\n", "Operation: FrsSendCommPkt (0)", "Operation: FrsNOP (3)",
    ):  # fmt: skip
        assert said in decrypted, said
    plain = await read(tmp_path / "capture", port)
    name = "a-name-to-look-for"
    assert name in decrypted
    assert (name in plain) == (level != c.LEVEL_PRIVACY)


async def test_what_members_say_to_each_other(kdc: Kdc, tmp_path: Path) -> None:
    """Two members replicate by Kerberos: files of one block and of several, folders, new names, removals."""
    hosts = {"a": "127.0.0.2", "b": "127.0.0.3"}
    made = prepare(
        DemoOptions(tmp_path / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05)
    )
    members = {
        name: replace(one, key=None, host=hosts[name], principal=f"FILES-{name.upper()}$@{REALM}")
        for name, one in made.set.members.items()
    }
    ports = {name: one.port for name, one in members.items()}
    for name, host in hosts.items():
        kdc.keytab(name, f"FILES-{name.upper()}$@{REALM}", f"{FRS_SERVICE}/{host}")
    write_file(made.topology_file, topology_text([replace(made.set, members=members)], "by Kerberos"))
    recorders, listening = {}, {}
    for member in made.members:
        with socket.socket() as one:
            one.bind((hosts[member.name], 0))
            listening[member.name] = one.getsockname()[1]
        recorders[member.name] = Recorder(listening[member.name], hosts[member.name])
        text = member.config.read_text().replace('key = "key.toml"', f'keytab = "{kdc.folder}/{member.name}.keytab"')
        member.config.write_text(f"{text}\n[listen]\nport = {listening[member.name]}\n")
        await recorders[member.name].start(ports[member.name])
    roots = {name: made.directory / name / "root" for name in hosts}
    services = [Service(load_agent_config(member.config)) for member in made.members]

    async def until(condition: Callable[[], bool]) -> None:
        for _ in range(6000):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(condition)

    try:
        (roots["a"] / "folder").mkdir()
        (roots["a"] / "folder" / "early").write_bytes(os.urandom(200_000))
        for service in services:
            await service.start()
        await until((roots["b"] / "folder" / "early").exists)
        for name, other in ("ab", "ba"):
            (roots[name] / f"small of {name}").write_bytes(b"some words\n")
            (roots[name] / f"large of {name}").write_bytes(b"some words\n" * 30_000 + os.urandom(99_999))
            await until((roots[other] / f"large of {name}").exists)
            await until((roots[other] / f"small of {name}").exists)
        (roots["b"] / "small of a").rename(roots["b"] / "folder" / "moved")
        (roots["b"] / "large of b").unlink()
        await until((roots["a"] / "folder" / "moved").exists)
        await until(lambda: not (roots["a"] / "large of b").exists())
    finally:
        for service in services:
            await service.close()
        for recorder in recorders.values():
            await recorder.close()
    said = ""
    for name, recorder in recorders.items():
        recorder.save(tmp_path / name, ports[name])
        keytab = str(kdc.folder / f"{name}.keytab")
        said += await read(tmp_path / name, ports[name], "-o", "kerberos.decrypt:TRUE", "-o", f"kerberos.file:{keytab}")
    assert_decoded(said)
    for number in COMMANDS:
        assert f"({number})\n" in said, f"{number:#x}"
    for word in ("early", "moved", "small of b"):
        assert word in said, word
