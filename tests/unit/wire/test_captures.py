"""The codecs against the packets, staging files and stub that [MS-FRS1] prints."""

from __future__ import annotations

from typing import Any

import pytest
from wire_samples import PACKETS, STAGES, load, packet_bytes, unmask

from agent.wire import constants
from agent.wire.change_order import ChangeOrder
from agent.wire.comm_packet import (
    decode_result,
    decode_send_comm_pkt,
    encode_result,
    encode_send_comm_pkt,
)
from agent.wire.guid import guid_from_text, guid_text
from agent.wire.packet import Packet, decode_packet, describe, encode_packet
from tests.stage_header import ChangeOrderStageHeader, stage_change_order

by_section = pytest.mark.parametrize("entry", PACKETS, ids=[p["section"] for p in PACKETS])
by_stage = pytest.mark.parametrize("entry", STAGES, ids=[s["section"] for s in STAGES])

CHANGE_ORDER_FIELDS = {
    "SequenceNumber": "sequence_number",
    "Flags": "flags",
    "IFlags": "iflags",
    "State": "state",
    "ContentCmd": "content_cmd",
    "LocationCmd": "location_cmd",
    "FileAttributes": "file_attributes",
    "FileVersionNumber": "file_version_number",
    "PartnerAckSeqNumber": "partner_ack_seq_number",
    "FileSize": "file_size",
    "FileOffset": "file_offset",
    "FrsVsn": "frs_vsn",
    "FileUsn": "file_usn",
    "JrnlUsn": "jrnl_usn",
    "JrnlFirstUsn": "jrnl_first_usn",
    "OriginalReplicaNum": "original_replica_num",
    "NewReplicaNum": "new_replica_num",
    "ChangeOrderGuid": "change_order_guid",
    "OriginatorGuid": "originator_guid",
    "FileGuid": "file_guid",
    "OldParentGuid": "old_parent_guid",
    "NewParentGuid": "new_parent_guid",
    "CxtionGuid": "cxtion_guid",
    "AckVersion": "ack_version",
    "EventTime": "event_time",
    "FileName": "file_name",
}


def check_change_order(co: ChangeOrder, expected: dict[str, Any]) -> None:
    for theirs, ours in CHANGE_ORDER_FIELDS.items():
        want = expected["fields"][theirs]
        got = getattr(co, ours)
        if theirs.endswith("Guid") and want is not None and "?" not in want:
            got = guid_text(got)
        if want is not None and "?" not in str(want):
            assert got == want, theirs
    location = expected["LocationCmd_decoded"]
    assert co.is_dir == bool(location["DirOrFile"])
    assert getattr(constants, location["Command"]) == co.location_command


def check_element(packet: Packet, element: dict[str, Any]) -> None:
    kind = element["type"]
    if kind in ("COMM_TO", "COMM_FROM", "COMM_REPLICA", "COMM_CXTION"):
        field = {"COMM_TO": packet.to, "COMM_FROM": packet.from_, "COMM_REPLICA": packet.replica}
        named = field.get(kind, packet.cxtion)
        assert (guid_text(named.guid), named.name) == (element["guid"], element["name"])
    elif kind == "COMM_COMMAND":
        assert packet.command == element["data"]
        assert packet.command_name == element["name"]
    elif kind == "COMM_JOIN_GUID":
        assert element["guid"] in (None, guid_text(packet.join_guid))  # None: not legible
    elif kind == "COMM_LAST_JOIN_TIME":
        assert element["filetime"] in (None, packet.last_join_time)
    elif kind == "COMM_VVECTOR":
        assert (element["vsn"], element["guid"]) in [(v, guid_text(g)) for v, g in packet.vvector]
    elif kind == "COMM_JOIN_TIME":
        assert packet.join_time == element["filetime"]
    elif kind == "COMM_REPLICA_VERSION_GUID":
        assert packet.replica_version_guid == guid_from_text(element["guid"])
    elif kind == "COMM_COMPRESSION_GUID":
        assert guid_from_text(element["guid"]) in packet.compression_guids
    elif kind == "COMM_BLOCK":
        assert packet.block is not None
        assert len(packet.block) == element["data_length"] == packet.block_size
    elif kind in ("COMM_BLOCK_SIZE", "COMM_FILE_SIZE", "COMM_FILE_OFFSET", "COMM_CO_SEQUENCE_NUMBER"):
        assert getattr(packet, kind.removeprefix("COMM_").lower()) == element["data"]
    elif kind == "COMM_GVSN":
        assert packet.gvsn == (element["vsn"], guid_from_text(element["guid"]))
    elif kind == "COMM_CO_GUID":
        assert packet.co_guid == guid_from_text(element["guid"])
    elif kind == "COMM_REMOTE_CO":
        assert packet.remote_co is not None
        check_change_order(packet.remote_co, element["change_order"])
    elif kind == "COMM_CO_EXTENSION_2":
        extension, want = packet.co_extension_2, element["extension"]
        assert extension is not None
        assert extension.major == want["Major"]
        if want["DataChecksum"]["Data"] is not None:
            assert extension.checksum.hex() == want["DataChecksum"]["Data"] == (packet.checksum or b"").hex()
        if want["DataRetryTimeout"]["FirstTryTime"] is not None:
            assert extension.first_try_time == want["DataRetryTimeout"]["FirstTryTime"]
            assert extension.retry_count == want["DataRetryTimeout"]["Count"]
    else:
        assert kind in ("COMM_BOP", "COMM_EOP")


def test_all_the_captures_are_there() -> None:
    assert len(PACKETS) == 33
    assert len(STAGES) == 5
    assert sum(p["pkt_hex"] is not None for p in PACKETS) == 12


@by_section
def test_packet_encodes_to_the_bytes_it_came_from(entry: dict[str, Any]) -> None:
    captured = packet_bytes(entry)
    assert len(captured.data) == entry["pkt_len"]
    encoded = encode_packet(decode_packet(captured.data))
    assert captured.differences(encoded) == []
    if entry["pkt_hex"] is not None:
        assert encoded.hex() == entry["pkt_hex"]


@by_section
def test_packet_has_the_fields_of_the_capture(entry: dict[str, Any]) -> None:
    packet = decode_packet(packet_bytes(entry).data)
    for element in entry["elements"]:
        check_element(packet, element)


@by_section
def test_line_for_the_log(entry: dict[str, Any]) -> None:
    line = describe(decode_packet(packet_bytes(entry).data))
    assert line.startswith(entry["command"] + " ")
    assert entry["sender"]["name"] in line
    assert "\n" not in line


@by_section
def test_packet_travels_in_an_ndr_stub(entry: dict[str, Any]) -> None:
    pkt = packet_bytes(entry).data
    got = decode_send_comm_pkt(encode_send_comm_pkt(pkt, minor=8, mem_len=0x20000))
    assert (got.major, got.minor, got.cs_id, got.upk_len) == (0, 8, 1, 0)
    assert (got.mem_len, got.pkt_len, got.pkt) == (0x20000, len(pkt), pkt)


def test_captured_stub() -> None:
    ndr = load("ndr.json")
    for request in ndr["requests"]:
        stub = bytes.fromhex(request["stub_hex"])
        got = decode_send_comm_pkt(stub)
        values = {field["field"].removeprefix("CommPkt->"): field["value"] for field in request["layout"]}
        assert got[:6] == tuple(values[n] for n in ("Major", "Minor", "CsId", "MemLen", "PktLen", "UpkLen"))
        assert encode_send_comm_pkt(got.pkt, minor=got.minor, mem_len=got.mem_len) == stub
        assert encode_packet(decode_packet(got.pkt)) == got.pkt
    for response in ndr["responses"]:
        stub = bytes.fromhex(response["stub_hex"])
        assert encode_result(decode_result(stub)) == stub


@by_stage
def test_stage_header_encodes_to_the_bytes_it_came_from(entry: dict[str, Any]) -> None:
    captured = unmask(entry["header_hex"] or entry["header_template_hex"])
    stage = ChangeOrderStageHeader.decode(captured.data)
    assert captured.differences(stage.encode()) == []
    if entry["header_hex"] is not None:
        assert stage.encode().hex() == entry["header_hex"]


@by_stage
def test_stage_header_has_the_fields_of_the_capture(entry: dict[str, Any]) -> None:
    captured = unmask(entry["header_hex"] or entry["header_template_hex"])
    stage = ChangeOrderStageHeader.decode(captured.data)
    check_change_order(stage.change_order, entry["header"]["ChangeOrderCommand"])
    assert guid_text(stage.header.object_id) == entry["file_guid"]
    assert stage.header.minor == entry["header"]["Minor"]
    assert stage_change_order(stage.change_order)[266:] == stage.change_order.encode()[266:]


def test_change_order_of_a_packet_goes_into_a_header_without_its_stale_pointer() -> None:
    entry = next(p for p in PACKETS if p["section"] == "4.5.1.2")
    co = decode_packet(packet_bytes(entry).data).remote_co
    assert co is not None
    stale, clean = co.encode(), stage_change_order(co)
    assert stale[248:252] != bytes(4)
    assert clean[248:252] == bytes(4)
    # the pointer and the stale character after the name's terminator, nothing else
    assert {i for i in range(792) if stale[i] != clean[i]} <= {*range(248, 252), 266 + 24}
    assert ChangeOrder.decode(clean) == co
