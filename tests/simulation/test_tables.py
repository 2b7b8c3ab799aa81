"""Every row of [MS-FRS1] 3.3.4.1.x, 3.3.4.4.4.1.x, 3.3.4.4.6.1 and 3.3.4.4.6.2, against packets of real engines.

What is expected is typed from the specification. Where a capture says otherwise, a comment names the ruling of
tests/vectors (R1 to R17) or the line of its "Text against captures" (TC) that decides. Where the engine does otherwise,
the row says what it sends (`otherwise`), and fails too when that is no longer so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.wire import constants
from agent.wire.change_order import ChangeOrder
from agent.wire.packet import Packet
from tests.simulation import tap
from tests.simulation.tap import TEXT, ZERO, Tap, check_head, differences, guid_of, order, the

# 2.2.3.2 Flags
ABORT, ACTIVATED, CONTENT, LOCATION, LOCAL, RETRY, NEW = 0x1, 0x2, 0x4, 0x8, 0x20, 0x40, 0x400
DIRECTED, VVJOIN, COMPRESSED, SKIP_VV = 0x2000, 0x40000, 0x01000000, 0x02000000
# 2.2.3.2 ContentCmd
OVERWRITE, EXTEND, CREATE, NEW_NAME, BASIC = 0x1, 0x2, 0x100, 0x2000, 0x8000
# 2.2.3.6.2
REMOTE_CO, SEND_STAGE, RECEIVING_STAGE, REMOTE_CO_DONE = 0x218, 0x228, 0x238, 0x250
FILE_ATTRIBUTE_ARCHIVE, FILE_ATTRIBUTE_DIRECTORY = 0x20, 0x10  # [MS-FSCC]
FILE, FOLDER = False, True

Act = Callable[[Tap, bool], bytes]
Otherwise = dict[str, Any]


def both(expected: dict[str, Any], otherwise: Otherwise) -> dict[str, tuple[Any, Any]]:
    """The differences that there are to be."""
    return {name: (expected[name], value) for name, value in otherwise.items()}


def named(section: str, is_dir: bool, compressed: bool) -> str:
    return f"{section} {'folder' if is_dir else 'file'}{', compressed' if compressed else ''}"


# ---- CMD_REMOTE_CO ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A row of 3.3.4.1.x or 3.3.4.4.4.1.x. Flags are those of an uncompressed staging file."""

    section: str
    act: Act
    is_dir: bool
    flags: int
    content: int
    location: int
    version: int = 0
    size: int = len(TEXT)
    otherwise: Otherwise = field(default_factory=dict)


CHANGES = [
    Change("3.3.4.1.1 created", tap.new, FILE, LOCAL | LOCATION | CONTENT, OVERWRITE | EXTEND, 0),
    Change("3.3.4.1.1 created in a folder", tap.new_below, FILE, LOCAL | LOCATION | CONTENT, OVERWRITE | EXTEND, 0),
    Change("3.3.4.1.1 created of size zero", tap.new_empty, FILE, LOCAL | LOCATION, OVERWRITE | EXTEND, 0, size=0),
    # 3.3.4.1.1 has CO_FLAG_CONTENT_CMD "if creating a file that is non zero in size", and nothing for an update. By
    # 2.2.3.2 the flag says that ContentCmd is valid, and by 3.3.4.4.6 an update without it is never fetched.
    Change("3.3.4.1.1 updated", tap.update, FILE, LOCAL | CONTENT, OVERWRITE | EXTEND, 0xE, 1, size=13),
    Change("3.3.4.1.2 removed", tap.delete, FILE, LOCAL | LOCATION, 0, 0x2, 1),  # R15: 0x28
    Change("3.3.4.1.3 renamed", tap.rename, FILE, LOCAL | CONTENT, NEW_NAME, 0xE, 1),
    Change("3.3.4.1.4 created", tap.new, FOLDER, LOCAL | LOCATION, 0, 0x1, size=0),
    Change("3.3.4.1.4 created in a folder", tap.new_below, FOLDER, LOCAL | LOCATION, 0, 0x1, size=0),
    # 3.3.4.1.4 has "CO_FLAG_CONTENT_CMD if folder is updated" for a compressed staging file only; as above.
    Change("3.3.4.1.4 updated", tap.update, FOLDER, LOCAL | CONTENT, BASIC, 0xF, 1, size=0),
    Change("3.3.4.1.5 removed", tap.delete, FOLDER, LOCAL | LOCATION, 0, 0x3, 1, size=0),  # R15: 0x28
    Change("3.3.4.1.6 renamed", tap.rename, FOLDER, LOCAL | CONTENT, NEW_NAME, 0xF, 1, size=0),
    # No section has moves. 2.2.3.2 has CO_LOCATION_MOVEDIR, 6, which needs CO_FLAG_LOCATION_CMD; else a renaming.
    Change("2.2.3.2 moved", tap.move, FILE, LOCAL | CONTENT | LOCATION, NEW_NAME, 0xC, 1),
    Change("2.2.3.2 moved", tap.move, FOLDER, LOCAL | CONTENT | LOCATION, NEW_NAME, 0xD, 1, size=0),
]  # fmt: skip
SEEDS = [
    Change("3.3.4.4.4.1.2 initial", tap.seed, FILE, VVJOIN | LOCAL | LOCATION, CREATE, 0),
    Change("3.3.4.4.4.1.3 initial", tap.seed, FOLDER, VVJOIN | LOCAL | LOCATION, CREATE, 1, size=0),  # R15: 0x40028
    Change("3.3.4.4.4.1.3 initial, before its turn", tap.seed_ahead, FOLDER, VVJOIN | LOCAL | LOCATION, CREATE, 1, 1,
           size=0, otherwise={"flags": SKIP_VV | VVJOIN | LOCAL | LOCATION}),
    # No section has what was removed and the partner does not know of: as in 3.3.4.1.2 and 3.3.4.1.5.
    Change("3.3.4.4.4.1.2 removed", tap.seed_gone, FILE, VVJOIN | LOCAL | LOCATION, 0, 2, 1),
    Change("3.3.4.4.4.1.3 removed", tap.seed_gone, FOLDER, VVJOIN | LOCAL | LOCATION, 0, 3, 1, size=0),
]  # fmt: skip
NEVER_COMPRESSED = (tap.delete, tap.seed, tap.seed_ahead, tap.seed_gone)  # their tables have one list of flags


def check_change_order(world: Tap, row: Change, source: str, target: str, guid: bytes, flags: int) -> None:
    packet = the(world, REMOTE_CO, source, target, guid)
    check_head(world, packet, source, target)
    co = order(packet)
    record = world.a.store.get(guid)
    assert record is not None
    root = world.members[target].guid  # R9
    parent = root if record.parent_guid == world.a.root else record.parent_guid
    expected = {
        "flags": flags,
        "content_cmd": row.content,
        "location_cmd": row.location,
        "iflags": 0,
        "state": 0x14,
        "file_attributes": FILE_ATTRIBUTE_DIRECTORY if row.is_dir else FILE_ATTRIBUTE_ARCHIVE,
        "file_version_number": row.version,
        "partner_ack_seq_number": co.sequence_number,
        "file_size": row.size,
        "file_offset": 0,
        "frs_vsn": world.a.engine.ctx.vv[guid_of("originator", "a")],
        "originator_guid": guid_of("originator", "a"),
        "file_guid": guid,
        "old_parent_guid": root if row.act is tap.move else parent,
        "new_parent_guid": parent,
        "cxtion_guid": packet.cxtion.guid,
        "event_time": record.event_time if flags & VVJOIN else world.acted,
        "file_name": record.name,
    }
    assert differences(co, expected) == both(expected, row.otherwise)
    assert co.change_order_guid != ZERO
    head = world.members[source].store.outlog_head()
    # "Larger than any previous SequenceNumber in the outbound log"; else the number in the log
    assert co.sequence_number > head if flags & VVJOIN else co.sequence_number == head
    assert packet.co_extension_2 is not None
    assert packet.co_extension_2.retry_count == 0
    if not record.deleted:
        assert packet.checksum == record.md5 != ZERO  # 2.2.3.7


@pytest.mark.parametrize(
    ("row", "compressed"),
    [
        pytest.param(row, compressed, id=named(row.section, row.is_dir, compressed))
        for row in CHANGES + SEEDS
        for compressed in ([False] if row.act in NEVER_COMPRESSED else [False, True])
    ],
)
def test_what_is_announced(row: Change, compressed: bool) -> None:
    world = Tap(compressed)
    guid = row.act(world, row.is_dir)
    world.settle()
    check_change_order(world, row, "a", "b", guid, row.flags | (COMPRESSED if compressed else 0))


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: named(row.section, row.is_dir, False))
def test_what_is_passed_on(row: Change) -> None:
    """CO_FLAG_LOCALCO "if originating on the upstream partner", which b is not."""
    world = Tap(False, chained=True)
    guid = row.act(world, row.is_dir)
    world.settle()
    check_change_order(world, row, "b", "c", guid, row.flags & ~LOCAL)


def test_sequence_numbers_count_what_goes_into_the_outbound_log() -> None:
    """3.3.4.1: from 0 on, one more for each, the same to every partner."""
    world = Tap(False)
    world.together()
    for number in range(5):
        world.a.create(world.a.root, f"n{number}", TEXT)
    world.settle()
    assert [order(packet).sequence_number for packet in world.of(REMOTE_CO, "a", "b")] == [1, 2, 3, 4, 5]


# ---- the answers --------------------------------------------------------------------------------------------


def compressed_initial(packet: Packet) -> None:
    """Another vendor's initial sync says that its staging files are compressed, 3.3.4.4.4.1.2 does not."""
    if packet.remote_co is not None:
        packet.remote_co = packet.remote_co.replace(flags=packet.remote_co.flags | COMPRESSED)


def compressed_after_all(packet: Packet) -> None:
    """As in 4.4: only ChangeOrderCommand.Flags in the header of the staging file says that it is compressed (R15)."""
    if packet.command == RECEIVING_STAGE and packet.block is not None:
        block = bytearray(packet.block)
        block[0x54:0x58] = (VVJOIN | COMPRESSED | NEW | LOCATION).to_bytes(4, "little")
        packet.block = bytes(block)


def initial(packet: Packet) -> None:
    if packet.remote_co is not None:
        packet.remote_co = packet.remote_co.replace(flags=packet.remote_co.flags | VVJOIN)


def stranger(packet: Packet) -> None:
    """A renaming bears no mark of ours (see records), so that its staging file is asked for."""
    if packet.remote_co is not None:
        packet.remote_co = packet.remote_co.replace(ack_version=0)


def foreign_cxtion(packet: Packet) -> None:
    if packet.remote_co is not None:
        packet.remote_co = packet.remote_co.replace(cxtion_guid=guid_of("of the upstream member"))


SAME = "what CMD_REMOTE_CO has"


@dataclass(frozen=True)
class Answer:
    """A row of 3.3.4.4.6.1 or 3.3.4.4.6.2."""

    what: str
    act: Act
    is_dir: bool
    compressed: bool
    flags: int
    state: int
    content: int | str
    alter: tap.Alter | None = None
    otherwise: Otherwise = field(default_factory=dict)


def answer_ids(row: Answer) -> str:
    return named(row.what, row.is_dir, row.compressed)


def common(world: Tap, asked: Packet, co_in: ChangeOrder) -> dict[str, Any]:
    """3.3.4.4.6: the fields that both answers have."""
    same = (
        "file_attributes", "file_version_number", "partner_ack_seq_number", "file_size", "frs_vsn", "originator_guid",
        "change_order_guid", "file_guid", "ack_version", "event_time", "file_name",
    )  # fmt: skip
    root, down = world.b.root, world.b.guid  # R9: the root GUID of the downstream member
    return {name: getattr(co_in, name) for name in same} | {
        "sequence_number": 1,  # TC of 3.3.4.4.6
        "file_offset": 0,
        "old_parent_guid": root if co_in.old_parent_guid == down else co_in.old_parent_guid,
        "new_parent_guid": root if co_in.new_parent_guid == down else co_in.new_parent_guid,
        "cxtion_guid": asked.cxtion.guid,  # R10
    }


def check_answer(
    world: Tap, row: Answer, guid: bytes, command: int, iflags: int, location: int | str, wrong: Otherwise
) -> tuple[Packet, Packet]:
    asked, answer = the(world, REMOTE_CO, "a", "b", guid), the(world, command, "b", "a", guid)
    check_head(world, answer, "b", "a")
    co_in, co_out = order(asked), order(answer)
    expected = common(world, asked, co_in) | {
        "flags": row.flags,
        "iflags": iflags,
        "state": row.state,
        "content_cmd": co_in.content_cmd if row.content == SAME else row.content,
        "location_cmd": co_in.location_cmd if location == SAME else location,
    }
    assert differences(co_out, expected) == both(expected, wrong)
    assert (answer.join_guid, answer.last_join_time) == (asked.join_guid, asked.last_join_time)
    assert answer.block_size == answer.file_size == answer.file_offset == 0  # the first request, and the answer
    assert answer.co_guid == co_in.change_order_guid
    return asked, answer


# ContentCmd of a file: the text has 0x2, REASON_DATA_EXTEND; TC of 3.3.4.4.6.1: that of CMD_REMOTE_CO. Of a folder: 0,
# as 4.4.6 has it, where CMD_REMOTE_CO has 0x100.
REQUESTS = [
    Answer("initial", tap.seed, FILE, True, VVJOIN | COMPRESSED | NEW | LOCATION | CONTENT, 5, SAME,
           compressed_initial),
    Answer("initial", tap.seed, FILE, False, VVJOIN | NEW | LOCATION | CONTENT, 5, SAME),
    Answer("new", tap.new, FILE, True, COMPRESSED | NEW | LOCATION | CONTENT, 6, SAME),  # R15: 0x0100040c
    Answer("new", tap.new, FILE, False, NEW | LOCATION | CONTENT, 6, SAME),
    Answer("new in a folder", tap.new_below, FILE, False, NEW | LOCATION | CONTENT, 6, SAME),
    Answer("new, of size zero", tap.new_empty, FILE, False, NEW | LOCATION | CONTENT, 6, SAME),
    Answer("not new", tap.update, FILE, True, COMPRESSED | LOCATION | CONTENT, 6, SAME),
    Answer("not new", tap.update, FILE, False, LOCATION | CONTENT, 6, SAME),
    Answer("renamed", tap.rename, FILE, True, COMPRESSED | CONTENT, 6, NEW_NAME, stranger),  # R15: 0x01000004
    Answer("renamed", tap.rename, FILE, False, CONTENT, 6, NEW_NAME, stranger),
    Answer("moved", tap.move, FILE, False, CONTENT, 6, NEW_NAME, stranger),
    Answer("initial", tap.seed, FOLDER, False, VVJOIN | NEW | LOCATION, 5, 0),  # R15: 0x40408
    Answer("initial", tap.seed, FOLDER, True, VVJOIN | NEW | LOCATION, 5, 0, compressed_initial),
    Answer("new", tap.new, FOLDER, True, COMPRESSED | NEW | LOCATION, 6, 0),
    Answer("new", tap.new, FOLDER, False, NEW | LOCATION, 6, 0),
    Answer("not new", tap.update, FOLDER, True, COMPRESSED | LOCATION, 6, 0),
    Answer("not new", tap.update, FOLDER, False, LOCATION, 6, 0),
    Answer("renamed", tap.rename, FOLDER, True, COMPRESSED | CONTENT, 6, NEW_NAME, stranger),
    Answer("renamed", tap.rename, FOLDER, False, CONTENT, 6, NEW_NAME, stranger),
    Answer("moved", tap.move, FOLDER, False, CONTENT, 6, NEW_NAME, stranger),
    Answer("R10", tap.new, FILE, False, NEW | LOCATION | CONTENT, 6, SAME, foreign_cxtion),
]  # fmt: skip


@pytest.mark.parametrize("row", REQUESTS, ids=answer_ids)
def test_what_is_asked_for(row: Answer) -> None:
    """3.3.4.4.6.1"""
    world = Tap(row.compressed, row.alter)
    guid = row.act(world, row.is_dir)
    world.settle()
    asked, request = check_answer(world, row, guid, SEND_STAGE, 0, SAME, row.otherwise)
    assert request.co_sequence_number == 0
    assert request.checksum == (ZERO if row.flags & NEW else asked.checksum)


def test_no_staging_file_is_asked_for_when_none_is_needed() -> None:
    for is_dir in (False, True):
        world = Tap(False)
        tap.delete(world, is_dir)
        world.settle()
        assert not world.of(SEND_STAGE, "b", "a")


@pytest.mark.parametrize("act", [tap.new, tap.seed])
def test_the_blocks_that_are_asked_for(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMM_FILE_OFFSET is n*0x10000 (R6; the text has n*0x100), COMM_FILE_SIZE 0 first and then the size. Of a partner
    that does not say that it has larger blocks."""
    monkeypatch.setattr(tap, "TEXT", bytes(0x2FFFF))

    def smaller(packet: Packet) -> None:
        if packet.compression_guids:
            packet.compression_guids = [guid for guid in packet.compression_guids if guid != constants.LARGE_BLOCKS]

    world = Tap(False, smaller)
    guid = tap.new(world, False, tap.TEXT) if act is tap.new else act(world, False)
    world.settle()
    size = 0x2FFFF + 0x400
    found = [(p.file_offset, p.file_size) for p in world.of(SEND_STAGE, "b", "a")]
    assert found == [(0, 0), (0x10000, size), (0x20000, size), (0x30000, size)]
    assert {order(p).file_guid for p in world.of(SEND_STAGE, "b", "a")} == {guid}


DAMPENED = SKIP_VV | DIRECTED | RETRY | CONTENT | ACTIVATED | ABORT
LOST = CONTENT | ACTIVATED | ABORT
DONE = [
    Answer("initial", tap.seed, FILE, True, VVJOIN | COMPRESSED | NEW | LOCATION | CONTENT | ACTIVATED, 0x16, 0,
           compressed_initial),
    Answer("initial", tap.seed, FILE, False, VVJOIN | NEW | LOCATION | CONTENT | ACTIVATED, 0x16, 0),
    Answer("new", tap.new, FILE, True, COMPRESSED | NEW | LOCATION | CONTENT | ACTIVATED, 0x16, SAME),  # R15
    Answer("new", tap.new, FILE, False, NEW | LOCATION | CONTENT | ACTIVATED, 0x16, SAME),
    Answer("new in a folder", tap.new_below, FILE, False, NEW | LOCATION | CONTENT | ACTIVATED, 0x16, SAME),
    Answer("not new", tap.update, FILE, True, COMPRESSED | LOCATION | CONTENT | ACTIVATED, 0x16, SAME),
    Answer("not new", tap.update, FILE, False, LOCATION | CONTENT | ACTIVATED, 0x16, SAME),
    Answer("conflict winner", tap.win, FILE, False, LOCATION | CONTENT | ACTIVATED, 0x16, SAME),
    Answer("conflict winner", tap.win, FILE, True, COMPRESSED | LOCATION | CONTENT | ACTIVATED, 0x16, SAME),
    *[
        row
        for is_dir in (False, True)
        for act in (tap.rename, tap.move)
        for row in (
            Answer(act.__name__, act, is_dir, True, COMPRESSED | CONTENT | ACTIVATED, 0x16, NEW_NAME),  # R15: 0x1000006
            Answer(act.__name__, act, is_dir, False, LOCATION | ACTIVATED, 0x16, NEW_NAME),
        )
    ],
    Answer("initial", tap.seed, FOLDER, True, VVJOIN | COMPRESSED | NEW | LOCATION | ACTIVATED, 0x16, 0,
           compressed_initial),
    Answer("initial", tap.seed, FOLDER, False, VVJOIN | NEW | LOCATION | ACTIVATED, 0x16, 0),
    # R15: 0x0104040a, though neither CMD_REMOTE_CO nor CMD_SEND_STAGE has CO_FLAG_COMPRESSED_STAGE
    Answer("initial, by its header", tap.seed, FOLDER, True, VVJOIN | COMPRESSED | NEW | LOCATION | ACTIVATED, 0x16, 0,
           compressed_after_all),
    Answer("new", tap.new, FOLDER, True, COMPRESSED | NEW | LOCATION | ACTIVATED, 0x16, SAME),
    Answer("new", tap.new, FOLDER, False, NEW | LOCATION | ACTIVATED, 0x16, SAME),
    Answer("not new", tap.update, FOLDER, True, COMPRESSED | LOCATION | ACTIVATED, 0x16, SAME),
    Answer("not new", tap.update, FOLDER, False, LOCATION | ACTIVATED, 0x16, SAME),
    Answer("removed", tap.delete, FILE, False, 0xA, 0x16, 0),
    Answer("removed", tap.delete, FOLDER, False, 0xA, 0x16, 0),
    Answer("removed, initial", tap.seed_gone, FILE, False, 0xA, 0x16, 0),
    Answer("R10", tap.new, FILE, False, NEW | LOCATION | CONTENT | ACTIVATED, 0x16, SAME, foreign_cxtion),
]  # fmt: skip
NOT_DONE = [
    *[
        Answer(f"dampened {act.__name__}", act, is_dir, compressed, DAMPENED | COMPRESSED * compressed, 8, SAME)
        for act in (tap.new, tap.update, tap.rename, tap.delete)
        for is_dir in (False, True)
        for compressed in ([False] if act is tap.delete else [False, True])
    ],
    Answer("dampened initial", tap.seed, FILE, False, DAMPENED, 8, 0),
    Answer("dampened initial", tap.seed, FOLDER, True, DAMPENED | COMPRESSED, 8, 0, compressed_initial),
    *[
        Answer("conflict loser", tap.lose, is_dir, compressed, LOST | COMPRESSED * compressed, 0, SAME)
        for is_dir in (False, True)
        for compressed in (False, True)
    ],
    Answer("conflict loser, removed", tap.lose_delete, FILE, False, LOST, 0, 0),
    Answer("conflict loser, removed", tap.lose_delete, FOLDER, False, LOST, 0, 0),
    Answer("conflict loser, name", tap.lose_name, FILE, False, LOST, 0, SAME),
    Answer("conflict loser, name", tap.lose_name, FILE, True, LOST | COMPRESSED, 0, SAME),
    Answer("conflict loser, initial", tap.lose, FILE, False, LOST, 0, 0, initial),
]


@pytest.mark.parametrize("row", DONE + NOT_DONE, ids=answer_ids)
def test_what_is_acknowledged(row: Answer) -> None:
    """3.3.4.4.6.2"""
    world = Tap(row.compressed, row.alter)
    guid = row.act(world, row.is_dir)
    world.settle()
    dampened = row.state == 8
    if dampened:
        tap.again(world, guid)
    location = SAME if row.state == 0x16 else 0xF if row.is_dir else 0xE
    asked, done = check_answer(world, row, guid, REMOTE_CO_DONE, 0 if dampened else 1, location, row.otherwise)
    co_in = order(asked)
    assert done.gvsn == (co_in.frs_vsn, co_in.originator_guid)  # R8
    assert done.co_sequence_number == co_in.partner_ack_seq_number
