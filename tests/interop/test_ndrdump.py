"""Samba's ndrdump as a second reader of what is put on the wire.

It decodes a buffer by Samba's own IDL, encodes the result again and compares. It writes MemLen as PktLen + 12
and does not keep bytes that carry no meaning, so packets are given to it in that form.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "wire"))

from wire_samples import (
    ALL_COMMANDS,
    PACKETS,
    STAGES,
    change_orders,
    packet_bytes,
    packets,
    plain_names,
    sample,
    unmask,
)

from agent.wire import comm_packet as cp
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtWin2k
from agent.wire.guid import guid_text
from agent.wire.packet import Packet, decode_packet, encode_packet
from staging.header import StageHeader
from tests.stage_header import ChangeOrderStageHeader

NDRDUMP = shutil.which("ndrdump")
pytestmark = pytest.mark.skipif(NDRDUMP is None, reason="ndrdump of Samba (samba-testsuite) is not installed")

few = settings(
    max_examples=8,
)
DIFFERENT = "WARNING! orig and validated differ"


def ndrdump(folder: Path, what: str, how: str, data: bytes) -> tuple[int, str]:
    """(exit status, all output) of ndrdump --validate on ``data``."""
    path = folder / "stub"
    path.write_bytes(data)
    assert NDRDUMP is not None
    done = subprocess.run(
        [NDRDUMP, "frsrpc", what, how, str(path), "--validate"], capture_output=True, check=False, timeout=60
    )
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def accepted(folder: Path, what: str, how: str, data: bytes) -> str:
    status, output = ndrdump(folder, what, how, data)
    assert status == 0, output
    assert "pull returned Success" in output, output
    assert DIFFERENT not in output, output
    return output


def accepts_packet(folder: Path, packet: Packet) -> str:
    pkt = encode_packet(packet)
    stub = cp.encode_send_comm_pkt(pkt, mem_len=len(pkt) + 12)
    return accepted(folder, "frsrpc_FrsSendCommPkt", "in", stub)


def changed_bytes(output: str, data: bytes) -> set[int]:
    """Offsets at which ndrdump wrote other bytes than ``data``, from its lines marked "+"."""
    assert DIFFERENT in output, output
    changed = set()
    for start, text in re.findall(r"^\+\[([0-9A-F]+)\] ((?:[0-9A-F]{2} +)+)", output, re.MULTILINE):
        for i, byte in enumerate(bytes.fromhex(text)[:16], int(start, 16)):
            if byte != data[i]:
                changed.add(i)
    assert changed, output
    return changed


def cleaned(packet: Packet) -> Packet:
    if packet.remote_co is not None:
        packet.remote_co = packet.remote_co.replace()
    return packet


@pytest.mark.parametrize("entry", PACKETS, ids=[p["section"] for p in PACKETS])
def test_captured_packets(entry: dict[str, Any], tmp_path: Path) -> None:
    captured = packet_bytes(entry).data
    packet = decode_packet(captured)
    output = accepts_packet(tmp_path, cleaned(packet))
    assert f"({entry['command_value']:#x})" in output
    for guid in (packet.to.guid, packet.from_.guid, packet.cxtion.guid, packet.join_guid):
        assert guid_text(guid) in output
    if packet.remote_co is not None:
        assert f"'{packet.remote_co.file_name}'" in output
        assert guid_text(packet.remote_co.file_guid) in output
    # with its stale bytes the capture is still read to its end
    status, output = ndrdump(tmp_path, "frsrpc_FrsSendCommPkt", "in", cp.encode_send_comm_pkt(captured))
    assert status == 0, output
    assert "pull returned Success" in output


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=[c.COMMAND_NAMES[x] for x in ALL_COMMANDS])
def test_every_command(command: int, tmp_path: Path) -> None:
    accepts_packet(tmp_path, sample(command))


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=[c.COMMAND_NAMES[x] for x in ALL_COMMANDS])
@few
@given(data=st.data())
def test_every_command_with_any_content(command: int, tmp_path: Path, data: st.DataObject) -> None:
    accepts_packet(tmp_path, data.draw(packets(command, plain=True)))


def test_an_altered_packet_is_noticed(tmp_path: Path) -> None:
    """The comparison above can fail: other MemLen, a stale byte, a cut stub."""
    pkt = encode_packet(sample(c.CMD_REMOTE_CO))
    stub = cp.encode_send_comm_pkt(pkt, mem_len=len(pkt))
    assert DIFFERENT in ndrdump(tmp_path, "frsrpc_FrsSendCommPkt", "in", stub)[1]
    assert ndrdump(tmp_path, "frsrpc_FrsSendCommPkt", "in", stub[:-4])[0] != 0


@pytest.mark.parametrize("entry", STAGES, ids=[s["section"] for s in STAGES])
def test_captured_stage_headers(entry: dict[str, Any], tmp_path: Path) -> None:
    captured = unmask(entry["header_hex"] or entry["header_template_hex"])
    stage = ChangeOrderStageHeader.decode(captured.data)
    stage.change_order = stage.change_order.replace()
    # Samba knows no empty CocExt (2.2.3.10, note 86) and fills in its fixed fields; all else is the same
    status, output = ndrdump(tmp_path, "frsrpc_StageHeader", "struct", stage.encode())
    assert status == 0
    assert changed_bytes(output, stage.encode()) <= set(range(0x3A8, 0x3A8 + 24))
    stage.header.coc_ext = CoExtWin2k(bytes(16)).encode()
    accepted(tmp_path, "frsrpc_StageHeader", "struct", stage.encode())
    assert entry["file_guid"] in output
    assert f"'{entry['file_name']}'" in output


@few
@given(change_orders(plain_names(260)), st.binary(min_size=16, max_size=16))
def test_stage_headers_with_any_change_order(tmp_path: Path, co: ChangeOrder, object_id: bytes) -> None:
    header = StageHeader(object_id=object_id, compression=c.COMPRESSION_LZNT1)
    header.coc_ext = CoExtWin2k(object_id).encode()
    accepted(tmp_path, "frsrpc_StageHeader", "struct", ChangeOrderStageHeader(header, co).encode())


names = plain_names(40).filter(bool)
guids = st.binary(min_size=16, max_size=16)


@few
@given(
    st.builds(
        cp.StartPromotionParent,
        *[st.none() | names] * 7,
        st.sampled_from([0, 1]),
        *[st.none() | guids] * 3,
    )
)
def test_start_promotion_parent(tmp_path: Path, request_: cp.StartPromotionParent) -> None:
    accepted(tmp_path, "frsrpc_FrsStartPromotionParent", "in", request_.encode())


def test_start_promotion_parent_is_read_as_meant(tmp_path: Path) -> None:
    request_ = cp.StartPromotionParent(
        None, None, "set", "Domain", "up.example", "down.example", "DOM\\DOWN$", 1, b"\1" * 16, b"\2" * 16,
        b"\3" * 16,
    )  # fmt: skip
    output = accepted(tmp_path, "frsrpc_FrsStartPromotionParent", "in", request_.encode())
    for text in ("'set'", "'Domain'", "'up.example'", "'down.example'", "DOWN$'", "03030303-0303-0303-0303"):
        assert text in output


def test_the_other_methods(tmp_path: Path) -> None:
    accepted(tmp_path, "frsrpc_FrsVerifyPromotionParent", "in", cp.VerifyPromotionParent().encode())
    accepted(tmp_path, "frsrpc_FrsNOP", "in", cp.encode_nop())
