"""Numbers that cannot be true: from a partner, in a database of before, from a clock that was wrong."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from agent.engine import plausible
from agent.engine.context import Limits
from agent.engine.entry import Stage
from agent.engine.session import JoinState
from agent.reporting.causes import Cause
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.constants import CMD_JOINED, CMD_JOINING, CMD_REMOTE_CO, CMD_SEND_STAGE, CO_FLAG_SKIP_VV_UPDATE
from agent.wire.filetime import DAY, HOUR, MINUTE, SECOND
from agent.wire.guid import guid_text
from agent.wire.packet import Gvsn, Packet, encode_packet
from idtable.records import InlogRow
from idtable.reserved import PREINSTALL
from tests.simulation.forging import Forger
from tests.simulation.schedule import mesh
from tests.simulation.simdisk import stage_of
from tests.simulation.simmember import Member
from tests.simulation.simtree import Node
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, make, move, names, remove, started, write

SKEW = 30 * MINUTE
I64, U64, U32 = (1 << 63) - 1, (1 << 64) - 1, (1 << 32) - 1


def incidents(member: Member, cause: Cause) -> list[str]:
    return [r.text for r in member.reports if r.cause is cause]


def sound(world: World) -> None:
    """No member has numbers that the others would refuse."""
    for member in world.here():
        now = world.now
        assert all(plausible.vector_fault(vsn, now) is None for vsn in member.store.vv_get().values())
        vsn = now + plausible.VSN_AHEAD
        assert member.store.beyond(event_time=now + SKEW, version=plausible.versions(now), vsn=vsn) == []


def everything_goes_on(world: World, *, but: str = "") -> None:
    """Whatever users do on the members, except one that is gone, all of them get."""
    if but:
        world.leave(world.members[but])
        world.run(60)
    here = world.here()
    for number, member in enumerate(here):
        make(member, f"later of {member.name}", b"%d" % number)
        world.run(60)
        for path in [node.path() for node in member.disk.walk() if not node.is_dir]:
            write(member, path, b"written by %s" % member.name.encode())
        world.run(60)
        for other in here:
            assert other.tree() == member.tree(), f"{other.name} has not what {member.name} wrote"
    world.finish()
    assert len({tuple(sorted(m.tree().items())) for m in here}) == 1
    assert all(m.pending() == [] for m in here)
    sound(world)


REFUSED: dict[str, dict[str, int]] = {
    "the last VSN of all": {"frs_vsn": U64},
    "the last VSN of 63 bits": {"frs_vsn": I64},
    "a VSN of the year 16215": {"frs_vsn": 1 << 62},
    "the last version": {"file_version_number": U32},
    "the last version of 31 bits": {"file_version_number": (1 << 31) - 1},
    "the last event time of all": {"event_time": U64},
    "the last event time of 63 bits": {"event_time": I64},
    "a size that no file has": {"file_size": U64},
    "all at once": {"frs_vsn": U64, "file_version_number": U32, "event_time": U64, "file_size": U64},
}


@pytest.mark.parametrize("originator", "abc")
@pytest.mark.parametrize("numbers", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("known", [False, True])
def test_numbers_that_leave_no_room_are_refused(numbers: dict[str, int], originator: str, known: bool) -> None:
    """Nothing of them is taken over, of a new file or of one that all have; and their sender gets an answer."""
    world = started("abc")
    b = world.members["b"]
    make(world.members["c"], "n", b"1")
    world.run(60)
    before, vv = b.store.by_name(b.root, "n"), dict(b.engine.ctx.vv)
    assert before is not None
    forger = Forger(world, "a", "b")
    more: dict[str, Any] = {"file_guid": before.file_guid, "file_version_number": 1} if known else {}
    co = forger.change_order("n" if known else "forged", **(more | numbers))
    forger.send_change_orders(co.replace(originator_guid=world.guid_of("originator", originator)))
    world.run(60)
    assert forger.acknowledged == [co.change_order_guid]
    (told,) = incidents(b, Cause.IMPLAUSIBLE)
    assert f"refused change order {guid_text(co.change_order_guid)} of '{co.file_name}'" in told
    assert b.store.by_name(b.root, "n") == before
    assert (b.store.by_name(b.root, "forged"), b.engine.ctx.vv) == (None, vv)
    everything_goes_on(world, but="a")
    assert set(names(b)) == {"n", "later of b", "later of c"}


def at_the_edge(now: int) -> dict[str, dict[str, int]]:
    """The last numbers that are taken at once, and the last that are not refused."""
    return {
        "event time": {"event_time": now + SKEW},
        "VSN": {"frs_vsn": now + plausible.VSN_AHEAD},
        "version": {"file_version_number": plausible.versions(now)},
        "event time, waits": {"event_time": now + SKEW + DAY - MINUTE},
        "VSN, waits": {"frs_vsn": now + plausible.VSN_AHEAD + DAY - MINUTE},
        "version, waits": {"file_version_number": plausible.versions(now + DAY - MINUTE)},
        "own VSN": {"frs_vsn": now + plausible.VSN_AHEAD - DAY},
        "vector": {"frs_vsn": now + plausible.VSN_AHEAD - 2 * DAY},
    }


@pytest.mark.parametrize("originator", "abc")
@pytest.mark.parametrize("edge", at_the_edge(0))
def test_the_last_numbers_that_are_taken_stop_nobody(
    edge: str, originator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of c is behind, so what is plausible for b is not yet for c: c waits, and nothing differs in the end.
    Meanwhile all that b and c change is replicated."""
    world = started("abc")
    a, b, c = world.members.values()
    c.set_clock(-25 * MINUTE)
    send = world.send
    forged: dict[str, Any] = {}

    def mad(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        co = packet.remote_co if packet.remote_co and packet.remote_co.file_name == "forged" else None
        if co is not None and source is a and packet.command == CMD_REMOTE_CO:
            forged.update(at_the_edge(b.now)[edge] if not forged else {})
            packet.remote_co = co.replace(**forged, originator_guid=world.guid_of("originator", originator))
        if co is not None and partner == a.guid and packet.command == CMD_SEND_STAGE:
            true = a.store.get(co.file_guid)
            assert true is not None
            packet.remote_co = co.replace(originator_guid=true.originator_guid, frs_vsn=true.originator_vsn)
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", mad)
    make(a, "forged", b"forged")
    world.run(60)
    assert ("forged" in names(b)) is ("waits" not in edge)
    assert incidents(b, Cause.IMPLAUSIBLE) == []
    for member in (b, c):
        make(member, f"meanwhile of {member.name}", b"1")
        world.run(60)
        assert f"meanwhile of {member.name}" in names(b)
        assert f"meanwhile of {member.name}" in names(c)
    world.run(2 * DAY / SECOND)
    if a.up:
        assert names(b) == names(c)
        assert "forged" in names(b)
        assert b.tree() == c.tree()
    everything_goes_on(world, but="a")


def test_what_is_dated_ahead_of_the_clock_is_in_nobodys_way() -> None:
    """A file that all have: what is to come to it tomorrow does not keep what users do today from being replicated."""
    world = started("abc")
    b, c = world.members["b"], world.members["c"]
    make(c, "n", b"1")
    world.run(60)
    record = b.store.by_name(b.root, "n")
    assert record is not None
    forger = Forger(world, "a", "b")
    co = forger.change_order(
        "n", file_guid=record.file_guid, file_version_number=1, event_time=b.now + SKEW + 12 * HOUR, frs_vsn=b.now + 1
    )
    forger.send_change_orders(co)
    world.run(10)
    assert any("dated ahead of the clock" in line for line in b.pending())
    for number, member in enumerate((b, c, b)):
        write(member, "n", b"%d" % number)
        world.run(60)
        assert {m.tree()["n"][1] for m in (b, c)} == {b"%d" % number}
    b.crash()
    b.start()
    world.run(60)
    assert any("dated ahead of the clock" in line for line in b.pending())
    write(c, "n", b"after the start")
    world.run(60)
    assert b.tree()["n"][1] == b"after the start"


def test_who_made_a_change_may_replace_it_before_its_time() -> None:
    """What waits for the clock does not come back over what its own maker has made of the file since."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    a.set_clock(4 * HOUR)
    make(a, "n", b"4 hours ahead")
    world.run(60)
    assert names(b) == []
    assert any("dated ahead of the clock" in line for line in b.pending())
    a.set_clock(0)
    world.run(60)
    assert b.tree()["n"][1] == b"4 hours ahead", "announced anew with the right time"
    write(a, "n", b"now")
    world.run(60)
    assert b.tree()["n"][1] == b"now"
    world.run(DAY / SECOND)
    assert all_agree(world).tree()["n"][1] == b"now"
    sound(world)


@pytest.mark.parametrize(
    ("ahead", "restarted"),
    [(h * HOUR, r) for h in (2, 30, 720) for r in (False, True)] + [(3650 * DAY, False)],  # else it is seeded again
)
def test_a_clock_that_was_far_ahead(ahead: int, restarted: bool) -> None:
    """What was made, changed and removed meanwhile is announced anew once the clock is right, and nothing is lost."""
    world = started("abc")
    a, b, c = world.members.values()
    for name in ("changed", "removed", "untouched", "by c"):
        make(a, name, b"before")
    world.run(60)
    a.set_clock(ahead)
    if restarted:
        a.crash()
        a.start()
        world.run(10)
    make(a, "made", b"made")
    make(a, "d", None)
    make(a, "d/deep", b"deep")
    write(a, "changed", b"changed")
    write(a, "by c", b"by a")
    remove(a, "removed")
    world.run(60)
    write(c, "by c", b"by c, later")
    world.run(60)
    a.set_clock(0)
    if restarted:
        a.crash()
        a.start()
    world.run(600)
    for member in (a, b, c):
        tree = member.tree()
        assert sorted(tree) == ["by c", "changed", "d", "d/deep", "made", "untouched"]
        assert tree["changed"][1] == b"changed"
    kept = {content for m in world.members.values() for content, _ in m.disk.kept}
    assert {a.tree()["by c"][1], *kept} >= {b"by a", b"by c, later"}
    assert incidents(a, Cause.CLOCK)
    assert all_agree(world)
    everything_goes_on(world)


def test_a_clock_that_is_behind_is_no_reason_to_change_anything() -> None:
    """A host without a clock of its own starts in 1970, until it is told the time."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    versions = [(m.store.by_name(m.root, "n"), m.store.vv_get()) for m in (a, b)]
    a.crash()
    a.set_clock(116_444_736_000_000_000 - world.now)
    a.start()
    world.run(300)
    assert any("set the clocks right" in r.text for r in b.reports)
    a.set_clock(0)
    world.run(3600)
    assert [(m.store.by_name(m.root, "n"), m.store.vv_get()) for m in (a, b)] == versions
    assert incidents(a, Cause.CLOCK) == []
    everything_goes_on(world)


@pytest.mark.parametrize(("of", "vsn"), [*itertools.product("abc", (U64, I64, 1 << 62)), ("b", 0)])
def test_a_version_vector_that_cannot_be_true_is_refused(of: str, vsn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partner is not joined, and told why in the log and in `frs status`; the others are. 0: what others could have
    issued, and b could not, for its next changes would be refused everywhere."""
    world = World("abc", mesh("abc"), 1)
    vsn = vsn or world.now + plausible.VSN_AHEAD - DAY // 2
    a, b, c = world.members.values()
    send, mad = world.send, [True]

    def joining(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if mad and source is a and partner == b.guid and packet.command == CMD_JOINING:
            packet.vvector = [g for g in packet.vvector if g.guid != world.guid_of("originator", of)]
            packet.vvector.append(Gvsn(vsn, world.guid_of("originator", of)))
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", joining)
    for member in world.members.values():
        member.start()
    world.run(60)
    assert "Join refused: the version vector of a cannot be true" in incidents(b, Cause.IMPLAUSIBLE)[0]
    (refused,) = [one for one in b.engine.connections() if one["name"] == "b->a"]
    assert refused["state"] != "joined"
    assert "remove its state" in refused["last_error"]
    make(b, "n", b"1")
    world.run(60)
    assert names(c) == names(a) == ["n"]  # by c
    mad.clear()
    world.run(3600)
    all_agree(world)
    everything_goes_on(world)


def test_a_join_time_that_cannot_be_true_is_only_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """CMD_JOINED names the time by which the two know the session again; whatever it is, it can be shown."""
    world = World("ab", mesh("ab"), 1)
    a, b = world.members["a"], world.members["b"]
    send = world.send

    def odd(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is a and packet.command == CMD_JOINED:
            packet.last_join_time = U64
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", odd)
    for member in world.members.values():
        member.start()
    make(a, "n", b"1")
    world.run(600)
    assert names(b) == ["n"]
    assert {s.state for s in b.engine.in_sessions.sessions.values()} == {JoinState.JOINED}
    assert next(iter(b.engine.in_sessions.sessions.values())).since < world.now


def poison(member: Member, *, own: bool = False, foreign: bytes = b"") -> None:
    """Have the database of a member that is down say what one of an earlier version could be made to say."""
    originator = member.world.guid_of("originator", member.name)
    with member.store.transaction():
        for record in list(member.store.all_live()):
            if record.name:
                record.event_time = U64 if own else I64
                record.version = U32 - 1 if own else (1 << 31) - 1
                record.originator_guid = originator if own else foreign
                record.originator_vsn = I64
                member.store.put(record)
        member.store.vv_set(originator if own else foreign, I64)
        member.store.meta_set("own numbers", ((1 << 62) - 1).to_bytes(8, "big"))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("who", ["a", "b", "ab"])
def test_a_database_that_holds_such_numbers_recovers(own: bool, who: str) -> None:
    world = started("ab")
    for name in ("one", "two"):
        make(world.members["a"], name, name.encode())
    world.run(60)
    for member in world.members.values():
        member.crash()
    for name in who:
        poison(world.members[name], own=own, foreign=world.guid_of("originator", "z"))
    for member in world.members.values():
        member.start()
    world.run(300)
    for name in who:
        assert incidents(world.members[name], Cause.CLOCK)
        originator = world.members[name].engine.ctx.config.originator_guid
        assert (originator != world.guid_of("originator", name)) is own
    assert names(all_agree(world)) == ["one", "two"]
    everything_goes_on(world)
    for member in world.members.values():  # and what was mended stays so
        said = len(incidents(member, Cause.CLOCK))
        originator = member.engine.ctx.config.originator_guid
        member.crash()
        member.start()
        world.run(60)
        assert len(incidents(member, Cause.CLOCK)) == said
        assert member.engine.ctx.config.originator_guid == originator
    everything_goes_on(world)


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("change", ["written", "renamed"])
def test_what_it_made_as_another_originator_is_kept_like_its_own(change: str, another: bool) -> None:
    """It loses a conflict, and is kept where it was changed last; nothing but its originator GUID tells that of what
    was renamed."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(b, "n", b"1")
    world.run(60)
    b.crash()
    if change == "written":
        write(a, "n", b"of a")
    else:
        move(a, "n", "m")
    world.run(60)
    a.crash()
    if another:
        with a.store.transaction():
            a.store.vv_set(world.guid_of("originator", "a"), I64)
    b.start()
    world.run(60)
    write(b, "n", b"of b, and later")
    world.run(60)
    a.start()
    world.run(300)
    assert (a.engine.ctx.config.originator_guid != world.guid_of("originator", "a")) is another
    assert all_agree(world).tree() == b.tree()
    kept = [content for content, keep in a.disk.kept if keep is not None]
    assert kept == [b"of a" if change == "written" else b"1"]
    a.crash()
    a.start()
    assert world.guid_of("originator", "a") in a.engine.ctx.own_originators, "and that is remembered"
    everything_goes_on(world)


def in_the_log(b: Member, co: ChangeOrder, stage: Stage) -> None:
    """An earlier version of the program took it in from a."""
    ext = CoExtension2(checksum=bytes(16), retry_count=0, first_try_time=b.now)
    cxtion = b.world.guid_of("cxtion", "a", "b")
    row = InlogRow(
        co.change_order_guid,
        cxtion,
        co.encode(),
        ext.encode(),
        state=int(stage),
        arrival=b.now,
        first_try_time=b.now,
    )
    b.crash()
    with b.store.transaction():
        b.store.inlog_put(row)
    b.start()


@pytest.mark.parametrize("what", ["name of ours", "no name", "the root", "a member", "in itself"])
def test_an_inbound_log_that_names_what_is_nobodys_to_name_stops_nobody(what: str) -> None:
    world = started("abc")
    a, b = world.members["a"], world.members["b"]
    forger = Forger(world, "a", "b")
    forged = world.guid_of("file", "forged")
    names_it: dict[str, dict[str, Any]] = {
        "name of ours": {"file_name": PREINSTALL},
        "no name": {"file_name": "n/m"},
        "the root": {"file_guid": b.root},
        "a member": {"file_guid": a.guid},
        "in itself": {"new_parent_guid": forged},
    }
    fields: dict[str, Any] = {"old_parent_guid": b.root, "new_parent_guid": b.root}
    fields |= names_it[what]
    co = forger.change_order(**fields)
    b.disk.stages[co.change_order_guid] = stage_of(Node(0, False, b"forged"), co.file_guid)
    in_the_log(b, co, Stage.FETCHED)
    world.run(60)
    assert b.pending() == []
    assert b.store.inlog_count() == 0
    assert names(b) == []
    everything_goes_on(world)


@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.INSTALLING, Stage.FINISHED, Stage.PASSED_EARLY])
@pytest.mark.parametrize("what", REFUSED)
def test_an_inbound_log_that_holds_such_numbers_stops_nobody(what: str, stage: Stage) -> None:
    """They came in before such numbers were refused."""
    numbers = REFUSED[what]
    patience = HOUR if what == "a size that no file has" else 7 * DAY  # else it is asked for 100,000 times
    world = started("abc", limits=Limits(max_retry_time=patience))
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    forger = Forger(world, "a", "b")
    gone: dict[str, Any] = {"originator_guid": world.guid_of("originator", "z"), "frs_vsn": b.now}
    co = forger.change_order(old_parent_guid=b.root, new_parent_guid=b.root, **gone | numbers)
    in_the_log(b, co, stage)
    world.run(300)
    make(a, "m", b"1")
    world.run(120)
    assert b.tree() == a.tree()
    if what in ("the last version of 31 bits", "a size that no file has") and stage < Stage.FINISHED:
        assert b.pending(), "it waits for a clock that comes to this, or for the file"
        world.run((patience + DAY) / SECOND)  # and is given up like all that waits
    assert b.pending() == []
    assert b.store.inlog_count() == 0
    everything_goes_on(world)


def test_a_new_member_gets_what_a_mended_one_has() -> None:
    world = World("ab", mesh("ab"), 1)
    a, b = world.members["a"], world.members["b"]
    a.start()
    make(a, "d", None)
    make(a, "d/n", b"1")
    world.run(60)
    a.crash()
    poison(a, own=True)
    a.start()
    b.start()
    world.run(300)
    assert names(b) == ["d", "d/n"]
    all_agree(world)
    everything_goes_on(world)


def test_a_partner_that_makes_up_changes_of_this_member_has_it_ask_for_everything_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = started("abc")
    b, c = world.members["b"], world.members["c"]
    joins: list[Packet] = []
    send = world.send

    def heard(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is b and partner == c.guid and packet.command == CMD_JOINING:
            joins.append(packet)
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", heard)
    forger = Forger(world, "a", "b")
    for number in range(20):
        co = forger.change_order(
            f"forged {number}", frs_vsn=b.now + number * HOUR, originator_guid=world.guid_of("originator", "b")
        )
        forger.send_change_orders(co)
        make(c, f"n{number}", b"1")
        world.run(60)
        assert f"n{number}" in names(b)
    assert len(joins) <= 2  # perhaps once more, when what a had was through
    assert any("restored from a backup" in text for text in incidents(b, Cause.RESTORED))
    everything_goes_on(world, but="a")


@pytest.mark.parametrize("ends", ["lost", "installed"])
def test_changes_made_up_for_another_member_do_not_hide_its_own(ends: str) -> None:
    """Their numbers are plausible, so b's version vector moves to them, and what c has numbered below would be known.
    c hears of them from b, and numbers its changes above; nobody starts anew, and nobody joins anew."""
    world = started("abc")
    b, c = world.members["b"], world.members["c"]
    make(c, "n", b"1")
    world.run(60)
    record = b.store.by_name(b.root, "n")
    assert record is not None
    forger = Forger(world, "a", "b")
    forged = forger.change_order(
        "n" if ends == "lost" else "unknown",
        originator_guid=world.guid_of("originator", "c"),
        frs_vsn=world.now + 365 * DAY,
        location_cmd=2,
        content_cmd=0,
        flags=8,
        **({"file_guid": record.file_guid, "event_time": 1} if ends == "lost" else {}),
    )
    forger.send_change_orders(forged)
    world.members["a"].crash()
    world.run(60)
    assert b.engine.ctx.vv[forged.originator_guid] >= forged.frs_vsn
    for number in range(3):
        write(c, "n", b"%d" % number)
        make(c, f"n{number}", b"%d" % number)
        world.run(60)
        assert b.tree() == c.tree()
    world.members["a"].start()
    all_agree(world)


@pytest.mark.parametrize("finished", [False, True])
def test_of_two_changes_with_one_number_the_second_is_refused(finished: bool) -> None:
    """b would take it for known by the time that it has the first."""
    world = World("abc", mesh("abc"), 1, limits=Limits(window=1))
    a, b, _ = world.members.values()
    for member in world.members.values():
        member.start()
    world.run(60)
    for name in ("f", "g"):
        make(b, name, name.encode())
    world.run(60)
    forger = Forger(world, "c", "a")
    numbers = {"originator_guid": world.guid_of("nobody"), "frs_vsn": world.now}
    for name in ("f", "g"):
        record = a.store.by_name(a.root, name)
        assert record is not None
        co = forger.change_order(
            name, file_guid=record.file_guid, file_version_number=9, location_cmd=2, content_cmd=0, flags=8, **numbers
        )
        forger.send_change_orders(co.replace(flags=8 | (CO_FLAG_SKIP_VV_UPDATE if finished else 0)))
        if finished:
            world.run(60)
    world.run(60)
    assert names(a) == names(b) == ["g"]
    assert len(set(forger.acknowledged)) == 2
    (told,) = incidents(a, Cause.IMPLAUSIBLE)
    assert "another file was changed with its originator and VSN" in told
    assert not a.engine.inbound.numbered
    everything_goes_on(world)


def test_who_tells_two_members_of_two_changes_with_one_number_leaves_them_equal() -> None:
    """a has carried out one of them, b the other: who hears of the other's refuses it, and says what it has."""
    world = World("abc", mesh("abc"), 1)
    a, b, _ = world.members.values()
    for member in world.members.values():
        member.start()
    world.run(60)
    for name in ("f", "g"):
        make(b, name, name.encode())
    world.run(60)
    numbers = {"originator_guid": world.guid_of("nobody"), "frs_vsn": world.now}
    for member, name in ((a, "f"), (b, "g")):
        forger, record = Forger(world, "c", member.name), member.store.by_name(member.root, name)
        assert record is not None
        co = forger.change_order(
            name, file_guid=record.file_guid, file_version_number=9, location_cmd=2, content_cmd=0, **numbers
        )
        member.receive(encode_packet(forger.offer(co.replace(flags=8 | CO_FLAG_SKIP_VV_UPDATE))))
    world.run(120)
    assert incidents(a, Cause.IMPLAUSIBLE) or incidents(b, Cause.IMPLAUSIBLE)
    assert names(a) == names(b)
    everything_goes_on(world)


def test_what_is_dated_ahead_of_the_clock_is_told_in_one_line_behind_all_else() -> None:
    """Thousands of such change orders hide nothing that somebody could do something about."""
    world = started("abc")
    b = world.members["b"]
    forger = Forger(world, "a", "b")
    ahead = [
        forger.change_order(f"n{n}", event_time=b.now + SKEW + (n + 1) * HOUR // 10, frs_vsn=b.now + n)
        for n in range(50)
    ]
    forger.send_change_orders(*ahead)
    world.run(10)
    told = b.pending()
    assert len(told) == 1, told
    assert told[0].startswith("S: 50 change orders of a are dated ahead of the clock, by up to 5.5 hours")
