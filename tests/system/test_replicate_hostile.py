"""A partner that knows the secret but sends rubbish costs itself the call, never the process."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from impacket.dcerpc.v5 import rpcrt
from impacket.dcerpc.v5.rpcrt import DCERPCException

from agent.wire.comm_packet import encode_send_comm_pkt
from tests.system.corpora import connect_frsrpc, set_counters
from tests.system.demo import Demo


def captured_packets() -> list[bytes]:
    """The complete packets of the captures that come with the tests."""
    folder = Path(__file__).parents[1] / "vectors"
    found: list[bytes] = []

    def look(value: object) -> None:
        if isinstance(value, str):
            text = value.replace(" ", "")
            if len(text) >= 64 and len(text) % 2 == 0 and all(c in "0123456789abcdefABCDEF" for c in text):
                found.append(bytes.fromhex(text))
        elif isinstance(value, list):
            for one in value:
                look(one)
        elif isinstance(value, dict):
            for one in value.values():
                look(one)

    look(json.loads((folder / "packets.json").read_text()))
    assert found
    return found


def rubbish() -> Iterator[tuple[str, bytes]]:
    """Stubs for FrsRpcSendCommPkt, each wrong in its own way."""
    rng = random.Random(20240501)
    yield "empty", b""
    yield "short", b"\0" * 7
    yield "noise", rng.randbytes(500)
    yield "noise in a proper stub", encode_send_comm_pkt(rng.randbytes(500))
    yield "an empty packet", encode_send_comm_pkt(b"")
    yield "a length beyond the end", encode_send_comm_pkt(struct.pack("<HI", 3, 0xFFFFFFFF) + bytes(20))
    yield "an unknown element", encode_send_comm_pkt(struct.pack("<HI", 0x7FFF, 4) + bytes(4))
    for packet in captured_packets()[:8]:
        yield "a packet cut in the middle", encode_send_comm_pkt(packet[: len(packet) // 2])
        yield "a packet twice", encode_send_comm_pkt(packet + packet)
        for _ in range(6):
            spoilt = bytearray(packet)
            for _ in range(3):
                spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
            yield "a packet with three bytes changed", encode_send_comm_pkt(bytes(spoilt))
    yield "large", encode_send_comm_pkt(rng.randbytes(200_000))


@pytest.mark.slow
def test_rubbish_costs_the_call_and_not_the_process(tmp_path: Path) -> None:
    """Every stub gets an answer or a fault; then the member serves and replicates as before."""
    with Demo(tmp_path / "demo", members=2, aging=0.3, options=("--shared-secret",)) as demo:
        (demo.members["a"].root / "before").write_bytes(b"before")
        demo.wait_converged()
        port = demo.members["b"].rpc_port
        pid = demo.pid("b")
        in_error = set_counters(demo, "b")["Packets Received in Error"]
        dce = connect_frsrpc(port, demo.description["ntlm"])
        faults = 0
        for what, stub in rubbish():
            try:
                dce.call(0, stub)
                answer = dce.recv()
                status = struct.unpack("<I", answer[:4])[0]
                faults += status != 0
            except DCERPCException:
                faults += 1
            except OSError:
                faults += 1
                dce = connect_frsrpc(port, demo.description["ntlm"])
            assert demo.pid("b") == pid, f"the process ended on {what}"
        assert faults > 10, "rubbish was taken for packets"
        for opnum in (4, 11, 0xFFFF):
            with pytest.raises(DCERPCException):
                _call(dce, opnum)
            dce = connect_frsrpc(port, demo.description["ntlm"])
        assert set_counters(demo, "b")["Packets Received in Error"] > in_error
        (demo.members["a"].root / "after").write_bytes(b"after")
        demo.wait_converged()
        found = {path.name: path.read_bytes() for path in demo.members["b"].root.iterdir()}
        assert found == {"before": b"before", "after": b"after"}


def _call(dce: rpcrt.DCERPC_v5, opnum: int) -> None:
    dce.call(opnum, b"")
    dce.recv()


@pytest.mark.slow
def test_rubbish_below_rpc_costs_the_connection_only(tmp_path: Path) -> None:
    """Bytes that are no PDU, half a PDU and silence, a fragment that claims to be huge; many at once."""
    rng = random.Random(7)
    header = bytes([5, 0, 11, 3, 0x10, 0, 0, 0])
    openings = [
        rng.randbytes(5000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        header + struct.pack("<HHI", 0xFFFF, 0, 1),
        header + struct.pack("<HHI", 5, 0, 1),
        header + struct.pack("<HHI", 72, 0xFFFF, 1) + rng.randbytes(56),
        header[:3],
        b"",
    ]
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        port = demo.members["b"].rpc_port
        pid = demo.pid("b")
        held = []
        for _ in range(8):
            for opening in openings:
                one = socket.create_connection(("127.0.0.1", port), timeout=60)
                one.sendall(opening)
                held.append(one)
        (demo.members["a"].root / "meanwhile").write_bytes(b"meanwhile")
        demo.wait_converged()
        assert (demo.members["b"].root / "meanwhile").read_bytes() == b"meanwhile"
        assert demo.pid("b") == pid
        for one in held:
            one.close()
