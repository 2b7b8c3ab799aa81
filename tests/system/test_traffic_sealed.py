"""What passes between members shows neither names nor contents, and nobody without a key or the secret is served.

The traffic is looked at twice: as a capture of the loopback (where a capture program may run), and as the bytes
that pass through proxies between the members (everywhere).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import string
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from impacket.dcerpc.v5 import rpcrt, transport
from impacket.dcerpc.v5.rpcrt import DCERPCException
from impacket.uuid import uuidtup_to_bin

from agent.rpc.negotiate import OID_MEMBER_KEY
from agent.wire.comm_packet import encode_send_comm_pkt
from config.keys import public_key
from config.load import load_agent_config
from staging import lznt1
from tests.ports import free_port
from tests.system.corpora import set_attribute
from tests.system.demo import Demo

FRSRPC = uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1"))
LETTERS = string.ascii_letters + string.digits

#: Windows of a secret this long are looked for: compression leaves shorter literal runs, chance makes longer ones.
WINDOW = 6


class Secrets:
    """Names and contents that occur nowhere else, written into a tree."""

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)
        self.words = ["".join(rng.choices(LETTERS, k=24)) for _ in range(6)]
        self.noise = rng.randbytes(200_000)

    def write(self, root: Path) -> None:
        """A folder, files with text and with incompressible content, a link, and an attribute."""
        folder, name, text, target, attribute, other = self.words
        (root / folder).mkdir()
        (root / folder / name).write_text(f"{text}\n" * 50 + "filler " * 500 + text)
        (root / folder / f"{name}.16").write_bytes(text.encode("utf-16-le") * 20)
        (root / folder / f"{name}.noise").write_bytes(self.noise)
        (root / folder / other).symlink_to(target)
        set_attribute(root / folder / name, "user.note", attribute.encode())

    def found_in(self, traffic: bytes) -> list[str]:
        """Which windows of the secrets are there in UTF-8 or UTF-16, and which 16 bytes of the noise."""
        seen = []
        for word in self.words:
            for at in range(len(word) - WINDOW + 1):
                part = word[at : at + WINDOW]
                for encoding in ("utf-8", "utf-16-le"):
                    if part.encode(encoding) in traffic:
                        seen.append(f"{part} of {word} in {encoding}")
        for at in range(0, len(self.noise) - 16, 500):
            if self.noise[at : at + 16] in traffic:
                seen.append(f"noise at {at}")
        return seen


def test_the_search_finds_what_it_looks_for() -> None:
    """In the clear, in UTF-16 and LZNT1 compressed the secrets are found; in other bytes they are not."""
    secrets = Secrets("control")
    for word in secrets.words:
        for encoding in ("utf-8", "utf-16-le"):
            clear = os.urandom(1000) + word.encode(encoding) + os.urandom(1000)
            assert secrets.found_in(clear), encoding
            assert secrets.found_in(lznt1.compress(clear)), f"{encoding} in LZNT1"
    assert secrets.found_in(lznt1.compress(secrets.noise))
    assert secrets.found_in(os.urandom(2_000_000)) == []


# ---------------------------------------------------------------- through proxies


class Recorder:
    """A TCP proxy on loopback that keeps every byte of both directions."""

    def __init__(self, listen: int, target: int) -> None:
        self.target = target
        self.parts: list[bytes] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", listen))
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self.parts.append(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def traffic(self) -> bytes:
        """All bytes so far, in the order they passed."""
        with self._lock:
            return b"".join(self.parts)

    def close(self) -> None:
        """End all connections."""
        self._server.close()
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@contextlib.contextmanager
def proxies_between(demo: Demo) -> Iterator[dict[str, Recorder]]:
    """Move every member to another port, with a recorder on the port that the topology gives its partners."""
    ports: dict[str, tuple[int, int]] = {}
    for name, member in demo.members.items():
        demo.kill9(name)
        ports[name] = (member.rpc_port, free_port())
        with open(member.config, "a") as config:
            config.write(f'\n[listen]\nhost = "127.0.0.1"\nport = {ports[name][1]}\n')
    recorders = {name: Recorder(*pair) for name, pair in ports.items()}
    try:
        for name in demo.members:
            demo.restart(name)
        yield recorders
    finally:
        for one in recorders.values():
            one.close()


@pytest.mark.slow
def test_proxies_between_the_members_see_no_name_and_no_content(tmp_path: Path) -> None:
    """A tree written at a and a rename at b pass through the proxies; only sealed bytes do."""
    secrets = Secrets("proxy")
    with (
        Demo(tmp_path / "demo", members=2, aging=0.3) as demo,
        proxies_between(demo) as recorders,
    ):
        secrets.write(demo.members["a"].root)
        demo.wait_converged()
        folder = demo.members["b"].root / secrets.words[0]
        assert (folder / f"{secrets.words[1]}.noise").read_bytes() == secrets.noise
        (folder / secrets.words[1]).rename(folder / f"{secrets.words[1]} renamed")
        demo.wait_converged()
        assert (demo.members["a"].root / secrets.words[0] / f"{secrets.words[1]} renamed").exists()
        traffic = {name: one.traffic() for name, one in recorders.items()}
    for name, data in traffic.items():
        assert FRSRPC[:16] in data, f"nobody bound to frsrpc at {name}: the proxy saw no traffic"
        assert secrets.found_in(data) == [], f"at {name}"
    assert len(b"".join(traffic.values())) > len(secrets.noise), "the content did not pass through the proxies"


# ---------------------------------------------------------------- a capture


def capture_program(target: Path, ports: list[int]) -> list[str] | None:
    """The command that captures these loopback ports into a file, None if there is none."""
    wanted = " or ".join(f"tcp port {port}" for port in ports)
    for program, options in (
        ("tcpdump", ["-i", "lo", "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w", os.fspath(target), wanted]),
        ("dumpcap", ["-i", "lo", "-s", "0", "-B", "64", "-f", wanted, "-w", os.fspath(target)]),
        ("tshark", ["-i", "lo", "-s", "0", "-B", "64", "-f", wanted, "-w", os.fspath(target)]),
    ):
        found = shutil.which(program)
        if found:
            return [found, *options]
    return None


@contextlib.contextmanager
def captured(target: Path, ports: list[int]) -> Iterator[None]:
    """Capture the ports during the block; skips the test where that is not possible."""
    command = capture_program(target, ports)
    if command is None:
        pytest.skip("no capture program (tcpdump, dumpcap, tshark) is installed")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "listening on" in line or "Capturing on" in line or line.startswith("File:"):
            break
    else:
        process.wait()
        pytest.skip(f"cannot capture here: {''.join(said).strip()}")
    drain = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
    drain.start()
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        drain.join()
    assert not any("dropped by kernel" in one and not one.startswith("0 ") for one in said), said


@pytest.mark.slow
def test_a_capture_of_the_loopback_holds_no_name_and_no_content(tmp_path: Path) -> None:
    """The same with a capture program; members start and join while it runs, so that logon is in it too."""
    secrets = Secrets("capture")
    target = tmp_path / "capture.pcap"
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        ports = [one.rpc_port for one in demo.members.values()]
        with captured(target, ports):
            demo.kill9("b")
            demo.restart("b")
            secrets.write(demo.members["a"].root)
            demo.wait_converged()
            noise = demo.members["b"].root / secrets.words[0] / f"{secrets.words[1]}.noise"
            assert noise.read_bytes() == secrets.noise
            # The kernel hands packets over in batches; what it still holds when the capture ends is not written.
            demo.until("the content is in the capture", lambda: target.stat().st_size > len(secrets.noise))
        keys = [load_agent_config(one.config).key for one in demo.members.values()]
    traffic = target.read_bytes()
    assert FRSRPC[:16] in traffic, "the capture is empty"
    assert len(traffic) > len(secrets.noise), "the content is not in the capture at all"
    assert secrets.found_in(traffic) == []
    assert OID_MEMBER_KEY in traffic, "the logon is not in the capture"
    for key in keys:
        assert key is not None
        assert key not in traffic
        assert public_key(key) not in traffic


# ---------------------------------------------------------------- strangers


def connect(port: int, *, user: str = "", password: str = "", domain: str = "", level: int = 0):
    """An impacket connection to frsrpc, not yet bound. ``level`` 0: no authentication at all."""
    wire = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]")
    wire.set_connect_timeout(60)
    wire.set_credentials(user, password, domain)
    dce = wire.get_dce_rpc()
    if level:
        dce.set_auth_type(rpcrt.RPC_C_AUTHN_WINNT)
        dce.set_auth_level(level)
    dce.connect()
    return dce


def refused(port: int, opnum: int, stub: bytes, **who: object) -> tuple[bool, str]:
    """Whether a call was refused, and with what words; an answer with data is not refused."""
    dce = None
    try:
        dce = connect(port, **who)
        dce.bind(FRSRPC)
        dce.call(opnum, stub)
        answer = dce.recv()
    except DCERPCException as error:
        return True, str(error)
    except OSError as error:
        return True, repr(error)
    finally:
        if dce is not None:
            with contextlib.suppress(OSError):
                dce.disconnect()
    return False, f"answered with {len(answer)} bytes"


@pytest.mark.slow
def test_who_does_not_know_the_secret_gets_an_access_error(tmp_path: Path) -> None:
    """No authentication, a wrong password, a wrong user, an empty password, and too low a level."""
    with Demo(tmp_path / "demo", members=2, aging=0.3, options=("--shared-secret",)) as demo:
        port = demo.members["a"].rpc_port
        pid = demo.pid("a")
        ntlm = demo.description["ntlm"]
        good = {"user": ntlm["user"], "password": ntlm["password"], "domain": ntlm["domain"]}
        stub = encode_send_comm_pkt(bytes(64))
        strangers = {
            "nobody": {"level": 0},
            "nobody, with a name": {**good, "level": 0},
            "a wrong password": {**good, "password": "guessed", "level": rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY},
            "no password": {**good, "password": "", "level": rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY},
            "a wrong user": {**good, "user": "root", "level": rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY},
            "only signed": {**good, "level": rpcrt.RPC_C_AUTHN_LEVEL_PKT_INTEGRITY},
            "only authenticated": {**good, "level": rpcrt.RPC_C_AUTHN_LEVEL_CONNECT},
        }
        for who, how in strangers.items():
            # 0 FrsRpcSendCommPkt, 1 and 2 the promotions, 3 FrsNOP
            for opnum in (0, 1, 2):
                was, words = refused(port, opnum, stub, **how)
                assert was, f"{who}, opnum {opnum}: {words}"
                assert "access" in words.lower() or "denied" in words.lower() or "0x5" in words.lower(), (
                    f"{who}, opnum {opnum}: refused, but not with an access error: {words}"
                )
        # The door is not simply shut: who knows the secret is answered.
        was, words = refused(port, 3, b"", **good, level=rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY)
        assert not was, words
        assert demo.pid("a") == pid
        (demo.members["a"].root / "still there").write_bytes(b"x")
        demo.wait_converged()
        assert (demo.members["b"].root / "still there").read_bytes() == b"x"
