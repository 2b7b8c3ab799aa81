"""tshark reads what our client and server say to each other, and with the keytab also what is sealed."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.frsrpc import FRSRPC, OP_NOP, OP_SEND_COMM_PKT, frsrpc_interface
from agent.rpc.kerberos import FRS_SERVICE, KerberosCredential, Keytab
from agent.rpc.security import CredentialStore
from agent.rpc.server import RpcServer
from agent.wire import constants as w
from agent.wire.comm_packet import encode_send_comm_pkt
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import NamedGuid, Packet, encode_packet
from tests.interop.kdc import REALM, Kdc, missing

pytest.importorskip("gssapi", reason="the extra kerberos is not installed")
LACKING = [*missing(), *([] if shutil.which("tshark") else ["tshark"])]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")

T = 60.0
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
    """Stands between a client and a server, and keeps what passes as the packets of one TCP connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.passed: list[tuple[bool, bytes]] = []  # whether by the client

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        further = await asyncio.open_connection(HOST, self._port)
        await asyncio.gather(self._pass(reader, further[1], True), self._pass(further[0], writer, False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: bool) -> None:
        while data := await reader.read(32_000):
            self.passed.append((client, data))
            writer.write(data)
        writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()

    def save(self, path: Path, port: int) -> None:
        """As a capture of raw IP: connected, and then each piece as a segment."""
        numbers = {True: 1000, False: 5000}
        out = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)

        def segment(client: bool, data: bytes, flags: int) -> bytes:
            ends = (40000, port) if client else (port, 40000)
            tcp = struct.pack(">HHIIBBHHH", *ends, numbers[client], numbers[not client], 0x50, flags, 65535, 0, 0)
            numbers[client] += len(data) + bool(flags & 2)
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0) + bytes((127, 0, 0, 1)) * 2
            packet = ip + tcp + data
            return struct.pack("<IIII", 0, len(out) % 1_000_000, len(packet), len(packet)) + packet

        for client, data, flags in ((True, b"", 0x02), (False, b"", 0x12), (True, b"", 0x10)):
            out += segment(client, data, flags)
        for client, data in self.passed:
            out += segment(client, data, 0x18)
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
    assert "Malformed" not in decrypted
    for said in (
        "Ctx Item[1]: Context ID:0, FRSRPC, 32bit NDR", "Packet type: Alter_context (14)", "mechListMIC",
        "cname-string: 1 item\n", "Operation: FrsSendCommPkt (0)", "Operation: FrsNOP (3)",
    ):  # fmt: skip
        assert said in decrypted, said
    plain = await read(tmp_path / "capture", port)
    name = "a-name-to-look-for"
    assert name in decrypted
    assert (name in plain) == (level != c.LEVEL_PRIVACY)
