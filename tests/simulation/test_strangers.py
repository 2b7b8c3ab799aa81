"""Partners that are not ours: what they say beside a change order, and what they do that ours never do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from agent.engine import events as ev
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.filetime import SECOND
from agent.wire.guid import guid_text
from agent.wire.packet import NamedGuid, Packet
from idtable.records import IDRecord
from tests.simulation.forging import Forger
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.tap import Tap, guid_of
from tests.simulation.users import make, move, names, started

Sent = list[tuple[str, Packet]]
REPLIES = {
    c.CMD_START_JOIN, c.CMD_JOINING, c.CMD_JOINED, c.CMD_SEND_STAGE, c.CMD_RECEIVING_STAGE, c.CMD_REMOTE_CO_DONE,
}  # fmt: skip


def tapped(world: World, *, stops: Callable[[str, Packet], bool] = lambda source, packet: False) -> Sent:
    """What the members send from now on; `stops` says what of it never arrives."""
    sent: Sent = []
    send = world.send

    def spy(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        sent.append((source.name, packet))
        if not stops(source.name, packet):
            send(source, partner, packet, **way)

    world.send = spy  # type: ignore[method-assign]
    return sent


def of(sent: Sent, source: str, command: int) -> list[Packet]:
    return [packet for name, packet in sent if (name, packet.command) == (source, command)]


def test_replies_have_the_names_of_the_partner() -> None:
    """3.3.4.4.1: COMM_REPLICA.Name and COMM_CXTION as they were received."""

    def other_names(packet: Packet) -> None:
        packet.replica = NamedGuid(packet.replica.guid, "s")
        packet.cxtion = NamedGuid(packet.cxtion.guid, "Its Connection")

    world = Tap(False, other_names)
    world.together()
    world.sent.clear()
    world.a.crash()
    world.a.start()
    world.settle()
    world.a.create(world.a.root, "n", b"1")
    world.b.create(world.b.root, "o", b"2")
    world.settle()
    replies = [p for source, _, p in world.sent if source == "b" and p.command in REPLIES]
    assert {p.command for p in replies} == REPLIES
    assert {(p.replica.name, p.cxtion.name, p.replica.guid) for p in replies} == {("s", "Its Connection", world.a.guid)}


def test_a_name_without_end_is_not_said_back() -> None:
    world = Tap(False, lambda packet: setattr(packet, "cxtion", NamedGuid(packet.cxtion.guid, "x" * 256)))
    world.together()
    shown = {guid_text(guid_of("cxtion", *ends)).upper() for ends in ("ab", "ba")}
    assert {p.cxtion.name for source, _, p in world.sent if source == "b"} == shown


def into(forger: Forger, folder: bytes, record: IDRecord, **fields: int) -> ChangeOrder:
    """A file is moved to a folder; no staging file is needed for that."""
    co = forger.change_order(
        record.name,
        file_guid=record.file_guid,
        flags=c.CO_FLAG_LOCATION_CMD,
        content_cmd=0,
        location_cmd=c.CO_LOCATION_MOVEDIR << 1,
        new_parent_guid=folder,
        file_version_number=record.version + 1,
    )
    return co.replace(flags=co.flags | fields.pop("flags", 0), **fields)


def with_file(world: World) -> IDRecord:
    make(world.members["a"], "n", b"1")
    world.run(30)
    record = world.members["b"].store.by_name(world.members["b"].root, "n")
    assert record is not None
    return record


def test_what_is_answered_is_what_came_last() -> None:
    """A change order comes twice, with another AckVersion and PartnerAckSeqNumber, before it can be carried out."""
    world = started("ab")
    a, b, forger, held = world.members["a"], world.members["b"], Forger(world, "a", "b"), list[Packet]()
    record = with_file(world)

    def holds_folder(source: str, packet: Packet) -> bool:
        folder = packet.remote_co is not None and packet.command == c.CMD_REMOTE_CO and packet.remote_co.is_dir
        if folder and source == "a":
            held.append(packet)
        return folder and source == "a"

    sent = tapped(world, stops=holds_folder)
    make(a, "d", None)
    world.run(10)
    assert held[0].remote_co is not None
    co = into(forger, held[0].remote_co.file_guid, record)
    forger.send_change_orders(co.replace(ack_version=1, partner_ack_seq_number=5))
    world.run(5)
    forger.send_change_orders(co.replace(ack_version=2, partner_ack_seq_number=6))
    b.post(ev.PacketReceived(held[0], 9))
    world.run(60)
    (done,) = (p for p in of(sent, "b", c.CMD_REMOTE_CO_DONE) if p.co_guid == co.change_order_guid)
    assert done.remote_co is not None
    assert (done.co_sequence_number, done.remote_co.partner_ack_seq_number, done.remote_co.ack_version) == (6, 6, 2)


def test_the_tries_of_others_are_counted_and_passed_on() -> None:
    """DATA_EXTENSION_RETRY_TIMEOUT (2.2.3.9) goes with the change order to whom it is passed on, and back."""
    world = started("abc")
    sent = tapped(world)
    record, forger = with_file(world), Forger(world, "a", "b")
    offer = forger.offer(into(forger, b"", record, flags=0).replace(location_cmd=c.CO_LOCATION_DELETE << 1))
    offer.remote_co = offer.remote_co and offer.remote_co.replace(new_parent_guid=world.members["b"].guid)
    sent.clear()
    since = world.now - 90 * SECOND
    offer.co_extension_2 = CoExtension2(bytes(16), 7, since)
    forger.send(offer)
    world.run(10)
    assert offer.remote_co is not None
    mine = offer.remote_co.change_order_guid
    (done,) = (p for p in of(sent, "b", c.CMD_REMOTE_CO_DONE) if p.co_guid == mine and p.to.name == "a")
    offered = [(p, p.remote_co) for p in of(sent, "b", c.CMD_REMOTE_CO) if p.to.name == "c"]
    passed = [p for p, co in offered if co is not None and co.change_order_guid == mine]
    assert passed
    for packet in (done, *passed):
        assert packet.co_extension_2 is not None
        assert packet.co_extension_2[1:3] == (7, since)


def test_own_tries_are_added_and_survive_a_restart() -> None:
    world = started("ab")
    b, forger = world.members["b"], Forger(world, "a", "b")
    offer = forger.offer(co := into(forger, world.guid_of("folder"), with_file(world)))
    offer.co_extension_2 = CoExtension2(bytes(16), 7, since := world.now - 90 * SECOND)
    forger.send(offer)
    world.run(20)
    entry = b.engine.inbound.entry_of(co.change_order_guid)
    assert entry is not None
    assert entry.attempts > 0
    assert entry.extension(bytes(16))[1:3] == (7 + entry.attempts, since)
    b.crash()
    b.start()
    world.run(1)
    again = b.engine.inbound.entry_of(co.change_order_guid)
    assert again is not None
    assert (again.tries_before, again.tried_since) == (7, since)


@pytest.mark.parametrize(("count", "flags", "waits"), [(3001, c.CO_FLAG_RETRY, False), (5, c.CO_FLAG_RETRY, True),
                                                       (3001, 0, True)])  # fmt: skip
def test_a_retry_without_its_folder_ends_with_the_tries_of_others(count: int, flags: int, waits: bool) -> None:
    """3.1.1.10.2, note 35"""
    world = started("ab")
    b, forger = world.members["b"], Forger(world, "a", "b")
    offer = forger.offer(co := into(forger, world.guid_of("folder that never comes"), with_file(world), flags=flags))
    offer.co_extension_2 = CoExtension2(bytes(16), count, world.now)
    forger.send(offer)
    world.run(60)
    assert (b.engine.inbound.entry_of(co.change_order_guid) is not None) == waits
    assert (co.change_order_guid in forger.acknowledged) != waits


def test_a_control_change_order_is_no_file() -> None:
    world = started("ab")
    b, forger = world.members["b"], Forger(world, "a", "b")
    sent = tapped(world)
    co = forger.change_order("control", flags=c.CO_FLAG_CONTROL)
    forger.send_change_orders(co)
    world.run(60)
    assert not of(sent, "b", c.CMD_SEND_STAGE)
    assert co.change_order_guid in forger.acknowledged
    assert names(b) == []


def test_what_is_being_aborted_is_not_carried_out() -> None:
    """A change order waits for its folder here, and its sender gives it up; another one comes as aborted at once."""
    world = started("ab")
    b, forger = world.members["b"], Forger(world, "a", "b")
    waits = into(forger, world.guid_of("folder"), with_file(world))
    forger.send_change_orders(waits)
    world.run(20)
    assert b.engine.pending()["inbound"] == 1
    never = forger.change_order("never", flags=c.CO_FLAG_LOCATION_CMD | c.CO_FLAG_ABORT_CO, location_cmd=1)
    forger.send_change_orders(waits.replace(flags=waits.flags | c.CO_FLAG_ABORT_CO), never)
    world.run(20)
    assert b.engine.pending()["inbound"] == 0
    assert {waits.change_order_guid, never.change_order_guid} <= set(forger.acknowledged)
    assert names(b) == ["n"]


def test_an_object_id_that_was_set_back_brings_no_content() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(30)
    forger, sent = Forger(world, "a", "b"), tapped(world)
    record = b.store.by_name(b.root, "n")
    assert record is not None
    co = forger.change_order(
        "n",
        file_guid=record.file_guid,
        flags=c.CO_FLAG_CONTENT_CMD | c.CO_FLAG_JUST_OID_RESET,
        content_cmd=c.REASON_OBJECT_ID_CHANGE,
        location_cmd=c.CO_LOCATION_NO_CMD << 1,
        file_version_number=record.version + 1,
    )
    offer = forger.offer(co)
    offer.co_extension_2 = CoExtension2(record.md5)
    forger.send(offer)
    world.run(30)
    assert not of(sent, "b", c.CMD_SEND_STAGE)
    assert co.change_order_guid in forger.acknowledged
    after = b.store.by_name(b.root, "n")
    assert after is not None
    assert after.version > record.version
    assert names(b) == ["n"]


@pytest.mark.parametrize("understands", [True, False])
def test_compressed_is_only_what_the_partner_can_read(understands: bool) -> None:
    """CO_FLAG_COMPRESSED_STAGE speaks of the staging file that this partner will get."""

    def silent(packet: Packet) -> None:
        if packet.command == c.CMD_JOINING and not understands:
            packet.compression_guids = []

    world = Tap(False, silent)
    world.b.compressed = True
    world.together()
    world.ready()
    world.b.create(world.b.root, "n", b"1")
    world.settle()
    (packet,) = world.of(c.CMD_REMOTE_CO, "b", "a")
    assert packet.remote_co is not None
    assert bool(packet.remote_co.flags & c.CO_FLAG_COMPRESSED_STAGE) == understands


def test_a_staging_file_that_stays_damaged_ends_its_change_order() -> None:
    """3.3.4.4.8"""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]

    def damage(source: str, packet: Packet) -> bool:
        if packet.command == c.CMD_RECEIVING_STAGE:
            packet.block = bytes(packet.block or b"")[:-1] + b"\xff"
        return False

    sent = tapped(world, stops=damage)
    make(a, "n", b"content")
    world.run(600)
    assert len(of(sent, "b", c.CMD_SEND_STAGE)) == 3
    (done,) = of(sent, "b", c.CMD_REMOTE_CO_DONE)
    assert done.remote_co is not None
    assert done.remote_co.flags & c.CO_FLAG_ABORT_CO
    assert names(b) == []
    assert [r for r in b.reports if "was damaged 3 times" in r.text and "'n'" in r.text and r.level == "error"]
    assert not world.pending()


def test_the_same_block_is_asked_for_again_after_five_seconds() -> None:
    """3.3.4.4.11: what came before it is kept, and CO_FLAG_RETRY is set."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    asked: list[tuple[int, int, int]] = []

    def busy(source: str, packet: Packet) -> bool:
        if packet.command != c.CMD_SEND_STAGE:
            return False
        assert packet.remote_co is not None
        assert packet.file_offset is not None
        asked.append((packet.file_offset, packet.remote_co.flags & c.CO_FLAG_RETRY, world.now))
        if packet.file_offset != 0x20000 or len([1 for one in asked if one[0] == 0x20000]) > 2:
            return False
        session = a.engine.out_sessions.sessions[packet.cxtion.guid]
        back = session.packet(a.engine.ctx, c.CMD_RETRY_FETCH)
        back.block_size, back.file_offset, back.co_guid, back.co_sequence_number = 0, 0x20000, packet.co_guid, 0
        b.post(ev.PacketReceived(back, 9))
        return True

    tapped(world, stops=busy)
    b.engine.ctx.zstd_members.clear()  # one block at a time, as it is with other vendors' partners
    make(a, "n", b"1" * 0x30000)
    world.run(60)
    assert [(offset, flag) for offset, flag, _ in asked] == [
        (0, 0), (0x10000, 0), (0x20000, 0), (0x20000, 0x40), (0x20000, 0x40), (0x30000, 0x40),
    ]  # fmt: skip
    times = [when for offset, _, when in asked if offset == 0x20000]
    assert [(later - earlier) // SECOND for earlier, later in pairwise(times)] == [5, 5]
    assert names(b) == ["n"]


def test_a_request_on_a_connection_that_is_not_joined_is_answered() -> None:
    """3.3.4.4.7: CMD_RETRY_FETCH, in the session that the partner believes in."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    sent = tapped(world)
    cxtion = world.guid_of("cxtion", "a", "b")
    believed = b.engine.in_sessions.sessions[cxtion]
    packet = believed.packet(b.engine.ctx, c.CMD_SEND_STAGE)
    packet.block_size = packet.file_size = packet.co_sequence_number = 0
    packet.file_offset, packet.co_guid = 0x10000, bytes(range(16))
    packet.remote_co = Forger(world, "a", "b").change_order().replace(change_order_guid=packet.co_guid)
    with a.store.transaction():
        a.engine.out_sessions.unjoin(a.engine.out_sessions.sessions[cxtion], "for the test")
        actions = a.engine.handle(ev.PacketReceived(packet, 9), a.now)
    (answer,) = (one.packet for one in actions if isinstance(one, ev.Send) and one.packet.command == c.CMD_RETRY_FETCH)
    assert (answer.join_guid, answer.file_offset, answer.co_guid) == (packet.join_guid, 0x10000, packet.co_guid)
    assert not sent


class TreeOrder:
    """Has `a` send its VVJoin as another vendor may: change orders with GUIDs that say nothing, a folder first
    and unmarked, and what is in it once the folder is acknowledged. The names are those of what is in the folder."""

    def __init__(self, world: World, names: set[str]) -> None:
        self.world, self.names = world, names
        self.acknowledged: list[bytes] = []
        self.held: list[Packet] = []
        self.given: dict[bytes, bytes] = {}
        self.joins: list[Packet] = []
        self.cut_after: int | None = None
        self.send = world.send
        world.send = self.pass_on  # type: ignore[method-assign]

    def pass_on(self, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        names = self.given if source.name == "a" else {new: old for old, new in self.given.items()}
        co = packet.remote_co
        if source.name == "a" and co is not None and co.flags & c.CO_FLAG_VVJOIN_TO_ORIG:
            self.given.setdefault(co.change_order_guid, bytes(byte ^ 0xFF for byte in co.change_order_guid))
            packet.remote_co = co.replace(
                flags=co.flags & ~c.CO_FLAG_SKIP_VV_UPDATE, change_order_guid=self.given[co.change_order_guid]
            )
            if co.file_name in self.names:
                self.held.append(packet)
                return
        elif co is not None:
            packet.remote_co = co.replace(change_order_guid=names.get(co.change_order_guid, co.change_order_guid))
        if packet.co_guid is not None:
            packet.co_guid = names.get(packet.co_guid, packet.co_guid)
        if source.name == "b" and packet.command == c.CMD_JOINING:
            self.joins.append(packet)
        self.send(source, partner, packet, **way)
        if source.name == "b" and packet.command == c.CMD_REMOTE_CO_DONE:
            self.acknowledged.append(packet.co_guid or b"")

    def let_go(self) -> None:
        a, b = self.world.members["a"], self.world.members["b"]
        held, self.held, self.names = self.held, [], set()
        for packet in held:
            self.send(a, b.guid, packet)


def with_a_late_folder() -> World:
    """`a` has a file in a folder whose last change is later; `b` is new."""
    world = World("ab", [("a", "b"), ("b", "a")], 1)
    a = world.members["a"]
    a.start()
    world.run(60)
    make(a, "d", None)
    make(a, "d/n", b"1")
    world.run(60)
    move(a, "d", "e")
    world.run(60)
    folder = a.store.by_name(a.root, "e")
    assert folder is not None
    file = a.store.by_name(folder.file_guid, "n")
    assert file is not None
    assert file.originator_vsn < folder.originator_vsn
    return world


def test_a_vvjoin_by_the_tree_leaves_nothing_out() -> None:
    world = with_a_late_folder()
    other = TreeOrder(world, {"n"})
    b = world.members["b"]
    b.start()
    world.run(60)
    assert other.acknowledged
    assert names(b) == ["e"]
    assert b.engine.ctx.vv[world.guid_of("originator", "a")] > 0
    other.let_go()
    world.run(60)
    assert names(b) == ["e", "e/n"]
    assert not world.pending()
    session = b.engine.in_sessions.sessions[world.guid_of("cxtion", "a", "b")]
    assert not session.everything


def test_a_vvjoin_by_the_tree_that_was_cut_short_begins_anew() -> None:
    world = with_a_late_folder()
    other = TreeOrder(world, {"n"})
    b = world.members["b"]
    b.start()
    world.run(60)
    assert names(b) == ["e"]
    other.held.clear()
    other.names, before = set(), len(other.joins)
    b.crash()
    b.start()
    world.run(200)
    assert other.joins[before].vvector == [(0, world.guid_of("originator", "b"))]
    assert names(b) == ["e", "e/n"]
    assert not world.pending()


def unjoined_early(world: World) -> tuple[Forger, Packet]:
    """A change order waits for its folder, whose change order is held up, and the partner unjoins."""
    a, forger, held = world.members["a"], Forger(world, "a", "b"), list[Packet]()
    record = with_file(world)

    def holds_folder(source: str, packet: Packet) -> bool:
        co = packet.remote_co
        if source != "a" or packet.command != c.CMD_REMOTE_CO or co is None or not co.is_dir:
            return False
        held.append(packet)
        return True

    tapped(world, stops=holds_folder)
    make(a, "d", None)
    world.run(10)
    assert held[0].remote_co is not None
    forger.send(forger.offer(into(forger, held[0].remote_co.file_guid, record)))
    forger.send(forger.packet(c.CMD_UNJOIN_REMOTE))
    world.run(5)
    return forger, held[0]


def with_trigger() -> World:
    world = World("ab", [("a", "b")], 1)
    world.cxtion_options = {"schedule": b"\xff" * 84, "trigger": True}
    for member in world.members.values():
        member.start()
    world.run(60)
    return world


def test_a_sysvol_connection_unjoins_when_all_is_carried_out() -> None:
    """3.3.4.4.13"""
    world = with_trigger()
    _, folder = unjoined_early(world)
    b = world.members["b"]
    session = b.engine.in_sessions.sessions[world.guid_of("cxtion", "a", "b")]
    assert session.joined
    b.post(ev.PacketReceived(folder, 9))
    world.run(5)
    assert names(b) == ["d", "d/n"]
    assert not session.joined


def test_a_sysvol_connection_joins_anew_when_its_schedule_opens_again() -> None:
    world = with_trigger()
    unjoined_early(world)
    b = world.members["b"]
    session = b.engine.in_sessions.sessions[world.guid_of("cxtion", "a", "b")]
    first = session.join_guid
    world.run(16 * 60)
    assert session.joined
    assert session.join_guid != first


def test_any_other_connection_unjoins_at_once() -> None:
    world = started("ab")
    unjoined_early(world)
    assert not world.members["b"].engine.in_sessions.sessions[world.guid_of("cxtion", "a", "b")].joined


@pytest.mark.parametrize("ours", [True, False])
def test_names_that_windows_cannot_hold(ours: bool) -> None:
    """They go as stand-ins to whom they have to, and come back as they were, also to a third member."""

    def another_kind(packet: Packet) -> None:
        if packet.command == c.CMD_JOINING and not ours:
            packet.compression_guids = [c.COMPRESSION_NONE, c.COMPRESSION_LZNT1]

    world = Tap(False, another_kind)
    world.together()
    world.ready()
    world.b.create(world.b.root, "a:b.", b"1")
    world.settle()
    (packet,) = world.of(c.CMD_REMOTE_CO, "b", "a")
    assert packet.remote_co is not None
    assert packet.remote_co.file_name == ("a:b." if ours else "a\uf022b\uf029")
    (record,) = (r for r in world.a.store.all_live() if r.name)
    assert record.name == "a:b."
    world.a.create(world.a.root, "c\\d \uf022", b"2")
    world.settle()
    assert {r.name for r in world.b.store.all_live() if r.name} == {"a:b.", "c\\d \uf022"}
