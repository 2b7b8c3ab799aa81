"""Captured packets of [MS-FRS1] section 4, and Hypothesis strategies for made ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2, CoExtWin2k
from agent.wire.packet import Gvsn, NamedGuid, Packet

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


class Masked(NamedTuple):
    """Bytes of which some are unknown: those are 0 in ``data`` and in ``known``, where the others are 1."""

    data: bytes
    known: bytes

    def differences(self, other: bytes) -> list[int]:
        """Offsets of the known bytes that ``other`` does not have; a wrong length is a difference too."""
        if len(other) != len(self.data):
            return [min(len(other), len(self.data))]
        return [i for i, known in enumerate(self.known) if known and self.data[i] != other[i]]


def unmask(text: str) -> Masked:
    """Hex with ``??`` for unknown bytes."""
    pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
    return Masked(bytes(0 if p == "??" else int(p, 16) for p in pairs), bytes(0 if p == "??" else 1 for p in pairs))


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text("utf-8"))


def packet_bytes(entry: dict[str, Any]) -> Masked:
    """The Pkt buffer of one entry of packets.json."""
    whole = entry["pkt_hex"] or entry["pkt_template_hex"]
    if whole:
        return unmask(whole)
    head, tail = unmask(entry["pkt_head_hex"]), unmask(entry["pkt_tail_hex"])
    gap = bytes(entry["pkt_len"] - len(head.data) - len(tail.data))
    return Masked(head.data + gap + tail.data, head.known + gap + tail.known)


PACKETS: list[dict[str, Any]] = load("packets.json")["packets"]
STAGES: list[dict[str, Any]] = load("stages.json")["stages"]


def elements_of(pkt: bytes) -> list[tuple[int, bytes]]:
    """(CommType, data) of each element, read without the code under test."""
    out, pos = [], 0
    while pos < len(pkt):
        comm_type, length = struct.unpack_from("<HI", pkt, pos)
        out.append((comm_type, pkt[pos + 6 : pos + 6 + length]))
        pos += 6 + length
    assert pos == len(pkt)
    return out


def join(elements: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack("<HI", comm_type, len(data)) + data for comm_type, data in elements)


u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
guids = st.binary(min_size=16, max_size=16)
gvsns = st.builds(Gvsn, u64, guids)


def _from_units(units: list[int]) -> str:
    return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", "surrogatepass")


def names(max_units: int) -> st.SearchStrategy[str]:
    """Names of any UTF-16 units but NUL, lone surrogates among them."""
    units = st.one_of(st.integers(1, 0xFFFF), st.integers(0x20, 0x7E), st.integers(0xD800, 0xDFFF))
    return st.lists(units, max_size=max_units).map(_from_units)


def plain_names(max_units: int) -> st.SearchStrategy[str]:
    """Names that every decoder of UTF-16 takes."""
    return st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFD, exclude_categories=("Cs",)), max_size=max_units)


def change_orders(file_names: st.SearchStrategy[str]) -> st.SearchStrategy[ChangeOrder]:
    return st.builds(
        ChangeOrder, u32, u32, u32, u32, u32, u32, u32, u32, u32, u64, u64, u64, u64, u64, u64, u32, u32,
        guids, guids, guids, guids, guids, guids, u64, u64, file_names,
    )  # fmt: skip


extensions_2 = st.builds(CoExtension2, guids, u32, u64, st.sampled_from([0, 1]))
extensions_win2k = st.builds(CoExtWin2k, guids)

_STAGE = {
    "block_size": u64,
    "file_size": u64,
    "file_offset": u64,
    "co_guid": guids,
    "co_sequence_number": u32,
}


def _extra(command: int, file_names: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments of Packet for the elements that the table of 2.2.3.5 gives the command."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    if command == c.CMD_JOINING:
        fields = {
            "vvector": st.lists(gvsns, max_size=5),
            "join_time": u64,
            "replica_version_guid": guids,
            "compression_guids": st.lists(guids, max_size=3),
        }
    elif command == c.CMD_RECEIVING_STAGE:
        fields = {**_STAGE, "block": st.binary(min_size=1, max_size=300)}
    elif command in (c.CMD_SEND_STAGE, c.CMD_ABORT_FETCH, c.CMD_RETRY_FETCH, c.CMD_REMOTE_CO_DONE):
        fields = dict(_STAGE)
        if command == c.CMD_RETRY_FETCH:
            del fields["file_size"]
        if command == c.CMD_REMOTE_CO_DONE:
            fields["gvsn"] = gvsns
    if command in (c.CMD_REMOTE_CO, c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE):
        fields["remote_co"] = change_orders(file_names)
        extension = st.one_of(
            st.fixed_dictionaries({"co_extension_2": extensions_2}),
            st.fixed_dictionaries({"co_ext_win2k": extensions_win2k}),
        )
        return st.builds(lambda a, b: {**a, **b}, st.fixed_dictionaries(fields), extension)
    return st.fixed_dictionaries(fields)


def packets(command: int, *, plain: bool = False) -> st.SearchStrategy[Packet]:
    """Packets of one command with any content; ``plain`` leaves out what only this project's names allow."""
    make = plain_names if plain else names
    named = st.builds(NamedGuid, guids, make(30))

    def build(
        to: NamedGuid,
        from_: NamedGuid,
        replica: NamedGuid,
        cxtion: NamedGuid,
        guid: bytes,
        time: int,
        extra: dict[str, Any],
    ) -> Packet:
        if "block" in extra:
            extra = {**extra, "block_size": len(extra["block"])}
        return Packet(command, to, from_, replica, cxtion, guid, time, **extra)

    return st.builds(build, named, named, named, named, guids, u64, _extra(command, make(260)))


ALL_COMMANDS = sorted(c.COMMAND_NAMES)


def sample(command: int) -> Packet:
    """One small packet of each command, the same each time."""
    member = NamedGuid(bytes(range(16)), "member-a")
    other = NamedGuid(bytes(range(16, 32)), "member-b")
    co = ChangeOrder(sequence_number=7, flags=0x24, frs_vsn=99, file_guid=b"\5" * 16, file_name="report.txt")
    stage: dict[str, Any] = {
        "block_size": 0, "file_size": 2000, "file_offset": 0x10000, "co_guid": b"\3" * 16,
        "co_sequence_number": 7,
    }  # fmt: skip
    change: dict[str, Any] = {"remote_co": co, "co_extension_2": CoExtension2(b"\4" * 16, 1, 132)}
    extra: dict[str, Any] = {}
    if command == c.CMD_JOINING:
        extra = {
            "vvector": [Gvsn(5, b"\1" * 16), Gvsn(6, b"\2" * 16)],
            "join_time": 132,
            "replica_version_guid": b"\6" * 16,
            "compression_guids": [c.COMPRESSION_LZNT1, c.COMPRESSION_ZSTD],
        }
    elif command == c.CMD_REMOTE_CO:
        extra = change
    elif command == c.CMD_SEND_STAGE:
        extra = {**stage, **change}
    elif command == c.CMD_REMOTE_CO_DONE:
        extra = {**stage, **change, "gvsn": Gvsn(99, b"\1" * 16)}
    elif command == c.CMD_RECEIVING_STAGE:
        extra = {**stage, "block": b"some data", "block_size": 9}
    elif command == c.CMD_ABORT_FETCH:
        extra = stage
    elif command == c.CMD_RETRY_FETCH:
        extra = {k: v for k, v in stage.items() if k != "file_size"}
    return Packet(command, member, other, member, NamedGuid(b"\7" * 16, "cxtion"), b"\x08" * 16, 131, **extra)
