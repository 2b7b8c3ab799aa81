"""Members that were away for long, or that lost their memory."""

from __future__ import annotations

import pytest

from agent.engine.context import Limits
from agent.engine.events import Install, Installed, Outcome
from agent.files.installing import ResolvedStep
from agent.reporting.causes import Cause
from agent.wire.constants import CMD_RECEIVING_STAGE, CMD_REMOTE_CO_DONE
from agent.wire.filetime import DAY, HOUR, MINUTE, SECOND
from agent.wire.packet import Packet
from tests.simulation.schedule import oneway, star
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, done, kept, make, move, names, remove, started, until, write


def test_many_deletions_at_once_are_told_where_they_were_made_and_where_they_arrive() -> None:
    world = started("abc")
    a = world.members["a"]
    for number in range(12):
        make(a, f"f{number}", b"%d" % number)
    make(a, "stays", b"")
    world.run(60)
    for number in range(12):
        remove(a, f"f{number}")
    all_agree(world)
    told = {name: [r for r in m.reports if r.cause is Cause.MASS_DELETION] for name, m in world.members.items()}
    assert [len(reports) for reports in told.values()] == [1, 1, 1]
    assert "in this tree" in told["a"][0].text
    assert told["b"][0].source == told["c"][0].source == "a"
    assert "by a" in told["b"][0].text
    for member in world.members.values():
        ((mass,)) = member.engine.mass_deletions()
        assert (mass["files"], mass["this_member"]) == (12, member is a)


def test_a_restored_database_gets_its_own_changes_back() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(b, "before", b"1")
    world.run(60)
    b.save_backup()
    make(b, "after", b"2")
    world.run(60)
    assert names(a) == ["after", "before"]
    remove(b, "after")  # the tree is restored too
    node = b.disk.root.children.get("after")
    assert node is None
    b.restore_backup()
    world.run(120)
    assert names(b) == ["after", "before"]
    make(b, "new", b"3")
    assert names(all_agree(world)) == ["after", "before", "new"]


def test_numbers_go_on_above_those_a_partner_knows() -> None:
    """The database is restored and the clock set back too: what was numbered below is announced anew."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    b.save_backup()
    make(b, "one", b"1")
    world.run(60)
    known = a.engine.ctx.vv[world.guid_of("originator", "b")]
    world.step(("cut", 0, 1))
    b.skew = -1200 * 10_000_000
    b.restore_backup()
    make(b, "two", b"2")
    world.run(30)
    assert b.engine.ctx.vv[world.guid_of("originator", "b")] < known
    world.cut.clear()
    world.run(600)
    assert names(a) == ["one", "two"]
    assert a.engine.ctx.vv[world.guid_of("originator", "b")] > known
    assert any("restored from a backup" in r.text for r in b.reports)
    all_agree(world)


def test_away_longer_than_tombstones_are_kept() -> None:
    world = started("abc", limits=Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR))
    a, c = world.members["a"], world.members["c"]
    for name in ("stays", "goes", "changes"):
        make(a, name, name.encode())
    make(a, "d", None)
    make(a, "d/deep", b"deep")
    world.run(60)
    c.crash()
    remove(a, "goes")
    remove(a, "d")
    write(a, "changes", b"changed")
    world.run(5 * 86400)
    assert a.store.counts()[2] == 3  # c may still come back in time for some other partner
    world.run(9 * 86400)
    assert a.store.counts()[2] == 0  # no tombstone is left
    assert a.store.outlog_first() == a.store.outlog_head() + 1  # nor does the log wait for c
    make(c, "news", b"news")
    c.start()
    world.run(300)
    assert any("seeded again" in r.text for r in c.reports)
    assert names(all_agree(world)) == ["changes", "news", "stays"]
    assert a.tree()["changes"][1] == b"changed"
    assert sorted(kept(world)) == [("AWAY", b"deep"), ("AWAY", b"goes")]


def test_away_too_long_and_then_upstream_of_a_new_member() -> None:
    """What was only passed on is no news of the member that was away, though nobody downstream ever had it: else a new
    member would be given what the others removed."""
    limits = Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR)
    world = World("abcd", oneway("abcd"), 1, limits=limits)
    a, b, c, d = world.members.values()
    for member in (a, b, c):
        member.start()
    make(a, "goes", b"goes")
    world.run(60)
    c.crash()
    remove(a, "goes")
    make(a, "stays", b"stays")
    world.run(14 * 86400)
    assert b.store.counts()[2] == 0  # no tombstone is left
    c.start()
    d.start()
    assert names(all_agree(world)) == ["stays"]
    assert any("seeded again" in r.text for r in c.reports)
    assert kept(world) == [("AWAY", b"goes")]


def test_away_too_long_and_news_that_others_had_and_removed() -> None:
    """The acknowledgement was lost: what may be news is announced anew, with the folder that it is in, so that all have
    it, or none."""
    world = started("abc", limits=Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR))
    a, b, c = (world.members[n] for n in "abc")
    make(a, "d", None)
    world.run(60)
    send = world.send

    def lossy(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if partner != c.guid or packet.command != CMD_REMOTE_CO_DONE:
            send(source, partner, packet, **way)

    world.send = lossy  # type: ignore[method-assign]
    make(c, "d/news", b"news")
    until(world, lambda: "d/news" in {*names(a), *names(b)})
    c.crash()
    world.send = send  # type: ignore[method-assign]
    world.run(60)
    assert names(a) == names(b) == ["d", "d/news"]
    remove(a, "d")
    world.run(14 * 86400)
    c.start()
    assert names(all_agree(world)) == ["d", "d/news"]


def test_seeded_again_by_one_that_has_not_got_it_yet() -> None:
    """It is removed, for it seems to be gone; when it comes after all, the version vector seems to know it."""
    limits = Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR)
    world = World("abc", oneway("abc"), 1, limits=limits)
    a, b, c = world.members.values()
    for member in (a, b, c):
        member.start()
    world.run(60)
    world.step(("full", 2, True))
    make(a, "late", b"late")
    world.run(60)
    assert [names(member) for member in (a, b, c)] == [["late"], ["late"], []]
    a.crash()
    world.run(3 * 86400)
    a.start()
    world.run(300)
    assert any("seeded again" in r.text for r in a.reports)
    assert names(a) == []
    a.crash()
    a.start()
    world.run(60)
    world.step(("full", 2, False))
    world.run(600)
    assert not world.pending()
    assert [names(member) for member in (a, b, c)] == [["late"]] * 3


def test_a_folder_removed_while_away_too_long_comes_back_for_what_is_new_in_it() -> None:
    """The others learn of the removal only after the member has what waits for the folder."""
    world = started("ab", limits=Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR))
    a, b = world.members["a"], world.members["b"]
    for name in ("d", "d/deeper", "gone", "gone/too"):
        make(a, name, None)
    world.run(60)
    world.cut.add(frozenset("ab"))
    world.break_wires(a, b)
    make(a, "d/deeper/new", b"new")
    remove(b, "d")
    remove(b, "gone")
    world.run(3 * 86400)
    world.cut.clear()
    world.run(2 * 3600)
    assert any("seeded again" in r.text for r in b.reports)
    assert names(all_agree(world)) == ["d", "d/deeper", "d/deeper/new"]


def test_seeded_again_and_stopped_before_the_end() -> None:
    """What the first partner had confirmed when the member stopped is not taken for gone."""
    world = started("abc", limits=Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR))
    a, b, c = (world.members[n] for n in "abc")
    for name in ("stays", "goes"):
        make(a, name, name.encode())
    world.run(60)
    c.crash()
    remove(a, "goes")
    world.run(14 * 86400)
    world.slow[frozenset("bc")] = 5 * SECOND
    c.start()
    until(world, lambda: c.engine.reseed.active and a.name in done(c))
    assert not c.engine.ctx.online
    c.crash()
    b.crash()
    world.slow[frozenset("ac")] = SECOND
    c.start()
    world.run(300)
    assert c.engine.ctx.online
    b.start()
    assert names(all_agree(world)) == ["stays"]
    assert kept(world) == [("AWAY", b"goes")]


def test_when_all_were_away_too_long_the_primary_member_seeds_the_others() -> None:
    world = started("abc", limits=Limits(tombstone_lifetime=2 * DAY, outlog_most=2 * DAY, outlog_history=HOUR))
    a, b, c = (world.members[n] for n in "abc")
    for name in ("stays", "goes", "goes too"):
        make(a, name, name.encode())
    world.run(60)
    for pair in ("ab", "bc", "ac"):
        world.cut.add(frozenset(pair))
        world.break_wires(*(world.members[n] for n in pair))
    remove(a, "goes")
    remove(b, "goes too")
    make(b, "news", b"news")
    make(c, "more", b"more")
    world.run(20 * 86400)  # longer than tombstones are kept that nobody acknowledged
    for member in world.members.values():
        assert member.store.counts()[2] == 0
    world.cut.clear()
    world.run(3 * 3600)
    alive = "20301 b is alive but does not answer a Join: it is in initial sync too, or refuses"
    assert any(line.startswith(alive) for line in a.engine.pending_text())
    world.run(3 * 3600)
    assert all(any("seeded again" in r.text for r in m.reports) for m in (b, c))
    assert [m for m in world.members.values() if any("seeds the others" in r.text for r in m.reports)] == [a]
    assert names(all_agree(world)) == ["goes too", "more", "news", "stays"]  # as on the primary member, and what is new
    assert ("AWAY", b"goes") in kept(world)


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "stays"])
def test_what_is_here_is_passed_on_though_something_before_it_does_not_come(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sent it falls silent, or goes: which may be for long."""
    world = World("abc", star("abc"), 1)
    for member in world.members.values():
        member.start()
    world.run(60)
    a, b, c = world.members.values()
    send, kept_back = world.send, {b""}

    def without(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if packet.remote_co is not None and packet.remote_co.file_name == "first" and kept_back:
            kept_back.add(packet.remote_co.change_order_guid)
        if packet.command != CMD_RECEIVING_STAGE or packet.co_guid not in kept_back:
            send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", without)
    make(c, "first", b"1")
    make(c, "second", b"2")
    until(world, lambda: names(a) == ["second"])
    if leaves:
        c.crash()
    world.run(60)
    assert names(b) == names(a) == ["second"]
    kept_back.clear()
    if leaves:
        c.start()
    assert names(all_agree(world)) == ["first", "second"]


def content_of(member: Member) -> dict[str, bytes]:
    return {name: content for name, (_, content) in member.tree().items()}


@pytest.mark.parametrize("restart", [False, True], ids=["goes on", "restarts"])
@pytest.mark.parametrize("fault", [Outcome.STAGE_DAMAGED, Outcome.SHARING_VIOLATION], ids=lambda fault: fault.name)
def test_where_a_file_stands_is_known_to_all_though_its_change_order_comes_to_no_end(
    fault: Outcome, restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its renaming was carried out, its content was not, and waits: for a partner that has left, or for a user."""
    world = World("abc", star("abc"), 1)
    for member in world.members.values():
        member.start()
    world.run(60)
    a, b, c = world.members.values()
    make(c, "old", b"1")
    world.run(60)
    content = a.disk._content

    def fails(action: Install, place: ResolvedStep) -> Installed:
        if fault is Outcome.STAGE_DAMAGED:
            c.crash()
        return Installed(action.co_guid, fault)

    monkeypatch.setattr(a.disk, "_content", fails)
    move(c, "old", "new")
    write(c, "new", b"2")
    until(world, lambda: names(a) == ["new"])
    if restart:
        a.crash()
        a.start()
    world.run(300)
    assert content_of(b) == content_of(a) == {"new": b"1"}
    monkeypatch.setattr(a.disk, "_content", content)
    if not c.up:
        c.start()
    assert content_of(all_agree(world)) == {"new": b"2"}


@pytest.mark.parametrize("how", ["off", "clock"])
def test_what_waits_is_not_given_up_for_time_in_which_it_was_not_tried(how: str) -> None:
    """The file is in use; then the member is off for longer than such a thing is tried, or its clock is wrong for a
    moment."""
    world = started("ab", limits=Limits(max_retry_time=HOUR))
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    node = b.disk.look("n")
    assert node is not None
    b.disk.busy[node.ino] = world.now + 2 * HOUR + 30 * MINUTE
    write(a, "n", b"2")
    world.run(600)
    if how == "off":
        b.crash()
        world.run(2 * 3600)
        b.start()
    else:
        b.set_clock(10 * DAY)
        world.run(120)
        b.disk.busy.clear()
        b.set_clock(0)
    world.run(600)
    assert b.pending() or content_of(b) == {"n": b"2"}
    world.run(3600)
    assert content_of(all_agree(world)) == {"n": b"2"}
