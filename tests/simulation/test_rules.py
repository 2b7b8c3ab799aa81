"""Single rules, each in a small world of simulated members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.engine import events as ev
from agent.engine import flags as fl
from agent.engine.context import Limits
from agent.engine.reconcile import morphed_name
from agent.engine.schedule import QUARTER, is_open, quarter_of
from agent.engine.session import NEVER
from agent.reporting.causes import Cause
from agent.wire.change_order import ChangeOrder
from agent.wire.constants import (
    CMD_JOINING,
    CMD_NEED_JOIN,
    CMD_REMOTE_CO,
    CMD_REMOTE_CO_DONE,
    CMD_START_JOIN,
    CMD_UNJOIN_REMOTE,
)
from agent.wire.filetime import DAY, HOUR, MINUTE, SECOND
from agent.wire.packet import Packet
from tests.simulation.forging import Forger
from tests.simulation.schedule import mesh, ring
from tests.simulation.simmember import Member
from tests.simulation.simworld import START, World


def started(names: str, *, limits: Limits | None = None, minor: int = 9, ringed: bool = False) -> World:
    world = World(names, (ring if ringed else mesh)(names), 1, limits=limits, minor=minor)
    for member in world.members.values():
        member.start()
    world.run(60)
    assert not world.pending()
    return world


def make(member: Member, path: str, content: bytes | None = b"") -> None:
    """A user makes a file, or with None a folder."""
    folder, _, name = path.rpartition("/")
    parent = member.disk.look(folder)
    assert parent is not None
    member.disk.now = member.world.now
    member.disk.add(parent, name, is_dir=content is None, content=content or b"")
    member.touch(member.world.aging)


def move(member: Member, old: str, new: str) -> None:
    node, folder = member.disk.look(old), member.disk.look(new.rpartition("/")[0])
    assert node is not None
    assert folder is not None
    member.disk.detach(node)
    member.disk.attach(node, folder, new.rpartition("/")[2])
    member.touch(member.world.aging)


def remove(member: Member, path: str) -> None:
    node = member.disk.look(path)
    assert node is not None
    member.disk.detach(node)
    member.touch(member.world.aging)


def write(member: Member, path: str, content: bytes) -> None:
    node = member.disk.look(path)
    assert node is not None
    member.disk.now = member.world.now
    node.content, node.mtime = content, member.disk.tick()
    member.touch(member.world.aging)


def names(member: Member) -> list[str]:
    return sorted(member.tree())


def all_agree(world: World) -> Member:
    """Everything settles and nothing is wrong; any member will do then."""
    world.check()
    assert world.violations == []
    return world.members["a"]


def kept(world: World) -> list[tuple[str, bytes]]:
    return [(k.reason.name if k else "", c) for m in world.members.values() for c, k in m.disk.kept]


def test_files_of_one_name_the_later_stays_the_other_is_kept() -> None:
    world = started("abc")
    make(world.members["a"], "hello.txt", b"12345678")
    world.run(2)
    make(world.members["b"], "hello.txt", b"1234567890")
    assert all_agree(world).tree()["hello.txt"][1] == b"1234567890"
    assert ("NAME", b"12345678") in kept(world) or ("DELETED", b"12345678") in kept(world)


@pytest.mark.parametrize("seed", range(12))
def test_a_name_lost_here_is_lost_everywhere(seed: int) -> None:
    """a refuses b's file, and then gives the name up itself: b has not seen the conflict, and must hear of it."""
    world = World("ab", mesh("ab"), seed)
    a, b = world.members["a"], world.members["b"]
    for member in world.members.values():
        member.start()
    world.run(60)
    make(b, "n", b"b")
    world.run(1)
    make(a, "n", b"a, later")
    world.run(2.9)
    world.step(("cut", 0, 1))
    world.run(30)
    move(a, "n", "m")
    world.run(10)
    all_agree(world)


def test_folders_of_one_name_both_stay() -> None:
    world = started("ab")
    make(world.members["a"], "d", None)
    make(world.members["a"], "d/x", b"x")
    world.run(2)
    make(world.members["b"], "d", None)
    make(world.members["b"], "d/y", b"y")
    found = names(all_agree(world))
    assert found[:2] == ["d", "d/x"]
    assert found[2].startswith("d_NTFRS_")
    assert found[3] == found[2] + "/y"


def test_a_file_gives_way_to_a_folder() -> None:
    world = started("ab")
    make(world.members["a"], "n", b"file")
    make(world.members["b"], "n", None)
    found = names(all_agree(world))
    assert found[0] == "n"
    assert found[1].startswith("n_NTFRS_")
    assert world.members["b"].tree()[found[1]][1] == b"file"


def test_each_folder_moved_into_the_other() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    for name in ("x", "y"):
        make(a, name, None)
        make(a, f"{name}/{name}", name.encode())
    world.run(60)
    move(a, "x", "y/x")
    move(b, "y", "x/y")
    tree = all_agree(world).tree()
    assert sorted(c for _, c in tree.values() if c) == [b"x", b"y"]


def test_rename_against_rename() -> None:
    world = started("abc")
    make(world.members["a"], "n", b"1")
    world.run(60)
    move(world.members["a"], "n", "one")
    move(world.members["b"], "n", "two")
    assert len(names(all_agree(world))) == 1


@pytest.mark.parametrize("late", [5, 2400])
def test_update_against_delete(late: float) -> None:
    """The later one wins beyond half an hour; the version made by somebody who did not know is kept or stays."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    world.step(("cut", 0, 1))
    write(a, "n", b"2")
    world.run(late)
    remove(b, "n")
    tree = all_agree(world).tree()
    assert not tree
    assert ("DELETED", b"2") in kept(world)


def test_a_new_file_brings_its_deleted_folder_back() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "d", None)
    world.run(60)
    make(a, "d/new", b"new")
    remove(b, "d")
    assert names(all_agree(world)) == ["d", "d/new"]


def test_what_nobody_brings_a_folder_back_for_goes_to_the_root() -> None:
    """The folder is removed on both members, and who made the file in it has forgotten it, but not before it was
    announced."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "d", None)
    world.run(60)
    a.save_backup()
    world.step(("cut", 0, 1))
    make(a, "d/f", b"content")
    remove(b, "d")
    world.run(30)
    world.cut.clear()
    waiting = lambda: any(e.waits_for is ev.Outcome.PARENT_MISSING for e in b.engine.inbound.entries.values())  # noqa: E731
    for _ in range(2000):
        if waiting():
            break
        world.run(0.1)
    assert waiting()
    a.crash()
    remove(a, "d")
    a.restore_backup()
    world.run(12 * 3600)
    assert waiting()
    world.run(24 * 3600)
    member = all_agree(world)
    assert [name.partition("_NTFRS_")[0] for name in names(member)] == ["f"]
    assert [content for _, content in member.tree().values()] == [b"content"]


def test_a_folder_that_cannot_be_removed_for_what_is_excluded_comes_back() -> None:
    world = started("ab")
    a, b = world.members.values()
    make(a, "d", None)
    make(a, "d/n", b"1")
    world.run(60)
    make(b, "d/n.tmp", b"2")
    left = b.disk.look("d/n.tmp")
    assert left is not None
    left.excluded = True
    remove(a, "d")
    world.run(HOUR / SECOND)
    assert names(a) == names(b) == ["d"]
    assert b.disk.look("d/n.tmp") is left
    all_agree(world)


def test_identical_content_is_no_conflict() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    world.step(("cut", 0, 1))
    write(a, "n", b"same")
    write(b, "n", b"same")
    all_agree(world)
    assert kept(world) == []


def test_who_knew_the_version_replaces_it_without_a_conflict() -> None:
    world = started("abc")
    make(world.members["a"], "n", b"1")
    world.run(60)
    for number, name in enumerate("bcabc"):
        write(world.members[name], "n", b"%d" % number)
        world.run(60)
    remove(world.members["a"], "n")
    all_agree(world)
    assert kept(world) == []


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
    b.dirty = False
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
    assert sorted(kept(world)) == [("FORGOTTEN", b"deep"), ("FORGOTTEN", b"goes")]


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
    while not c.engine.reseed.active or a.name not in done(c):
        world.run(0.1)
    assert not c.engine.ctx.online
    c.crash()
    b.crash()
    world.slow[frozenset("ac")] = SECOND
    c.start()
    world.run(300)
    assert c.engine.ctx.online
    b.start()
    assert names(all_agree(world)) == ["stays"]
    assert kept(world) == [("FORGOTTEN", b"goes")]


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
    alive = "b is alive but does not answer a Join: it is in initial sync too, or refuses"
    assert any(line.startswith(alive) for line in a.engine.pending_text())
    world.run(3 * 3600)
    assert all(any("seeded again" in r.text for r in m.reports) for m in (b, c))
    assert [m for m in world.members.values() if any("seeds the others" in r.text for r in m.reports)] == [a]
    assert names(all_agree(world)) == ["goes too", "more", "news", "stays"]  # as on the primary member, and what is new
    assert ("FORGOTTEN", b"goes") in kept(world)


def done(member: Member) -> set[str]:
    """The upstream partners that have sent all they have."""
    sessions = member.engine.in_sessions.sessions.values()
    return {s.cxtion.partner.name for s in sessions if s.last_join_time != NEVER}


def test_online_after_a_vvjoin_with_every_partner_that_answers() -> None:
    world = World("abcd", mesh("abcd"), 1)
    a, b, c, d = world.members.values()
    for member in (a, b):
        member.start()
    world.run(60)
    world.step(("cut", 0, 1))
    for number in range(20):
        make(b, f"n{number}", b"only b has it")
    world.run(60)
    world.slow[frozenset("bc")] = SECOND
    c.start()  # d is not there at all
    begun = world.now
    while not c.engine.ctx.online and world.now < begun + HOUR:
        world.run(0.1)
    assert done(c) == {"a", "b"}
    assert len(names(c)) == 20
    assert world.now - begun < 10 * MINUTE
    world.cut.clear()
    d.start()
    all_agree(world)


def test_new_members_do_not_wait_for_each_other() -> None:
    world = World("abcd", mesh("abcd"), 1)
    for member in world.members.values():
        member.start()
    world.run(20)
    assert all(m.engine.ctx.online for m in world.members.values())


def test_what_is_in_the_way_of_the_initial_sync_is_kept_or_used() -> None:
    world = World("ab", mesh("ab"), 1)
    a, b = world.members["a"], world.members["b"]
    a.start()
    make(a, "d", None)
    make(a, "d/same", b"same")
    make(a, "n", b"theirs")
    world.run(60)
    make(b, "d", None)
    make(b, "n", b"ours")
    b.start()
    assert names(all_agree(world)) == ["d", "d/same", "n"]
    assert kept(world) == [("IN_THE_WAY", b"ours")]


def test_a_folder_that_left_its_place_in_the_initial_sync_keeps_nobody_waiting() -> None:
    """A user renames it, and makes another of its name; then it is removed elsewhere, with what was in it, and that is
    in the next VVJoin. Where the folder is now, only a look at the tree would tell, which comes when the initial sync
    is over."""
    world = World("ab", mesh("ab"), 1)
    a, b = world.members["a"], world.members["b"]
    a.start()
    make(a, "d", None)
    make(a, "d/e", None)
    make(a, "d/e/f", b"content")
    for number in range(300):
        make(a, f"later {number}", b"%d" % number)
    world.run(60)
    b.start()
    while "d/e/f" not in names(b):
        world.run(0.001)
    world.slow[frozenset("ab")] = MINUTE
    move(b, "d/e", "moved")
    make(b, "d/e", None)
    remove(a, "d")
    world.run(5)
    assert not b.engine.ctx.online
    b.crash()
    world.slow.clear()
    b.start()
    world.run(300)
    assert b.engine.ctx.online
    assert "moved/f" in names(all_agree(world))


@pytest.mark.parametrize("count", [3, 300])
def test_changes_during_a_vvjoin(count: int) -> None:
    """The last file of a VVJoin is changed before its turn comes, after another was made: both arrive."""
    world = World("ab", mesh("ab"), 1, limits=None if count > 256 else Limits(window=1))
    a, b = world.members["a"], world.members["b"]
    a.start()
    world.run(10)
    for number in range(count):
        make(a, f"f{number}", b"%d" % number)
    world.run(60)
    b.start()
    session = a.engine.out_sessions.sessions[world.guid_of("cxtion", "a", "b")]
    while not session.joined:
        world.run(0.001)
    assert len(names(b)) < count - 1
    world.slow[frozenset("ab")] = 10 * SECOND
    make(a, "new", b"new")
    world.run(1)
    write(a, f"f{count - 1}", b"later")
    world.run(5)
    assert len(names(b)) < count - 1
    world.slow.clear()
    tree = all_agree(world).tree()
    assert tree["new"][1] == b"new"
    assert tree[f"f{count - 1}"][1] == b"later"


def test_a_join_is_offered_until_it_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """a starts anew, and the first CMD_START_JOIN is lost without a word: b still believes in the session it had."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    send, lost = world.send, []

    def lossy(source: Member, partner: bytes, packet: Packet) -> None:
        if source is a and packet.command == CMD_START_JOIN and not lost:
            lost.append(packet)
        elif not (source is b and packet.command == CMD_NEED_JOIN):
            send(source, partner, packet)

    monkeypatch.setattr(world, "send", lossy)
    a.crash()
    a.start()
    make(a, "n", b"1")
    world.run(60)
    assert len(lost) == 1
    assert names(b) == ["n"]


def test_a_clock_too_far_off_is_told_and_refused() -> None:
    world = World("ab", mesh("ab"), 1)
    world.members["b"].skew = 31 * 60 * 10_000_000
    for member in world.members.values():
        member.start()
    world.run(120)
    for member in world.members.values():  # b, which is in initial sync, too
        assert any("set the clocks right" in r.text for r in member.reports)
        assert all(r.cause for r in member.reports if "Join refused" in r.text), "a bounded rate for a storm of Joins"
    assert world.pending()
    all_agree(world)


def test_a_clock_too_far_off_is_told_where_it_cannot_be_known() -> None:
    """Over a connection in one direction only, the member downstream hears nothing of its partner's clock."""
    world = World("ab", [("a", "b")], 1)
    world.members["b"].skew = 31 * 60 * 10_000_000
    for member in world.members.values():
        member.start()
    world.run(600)
    assert any("set the clocks right" in r.text for r in world.members["a"].reports)
    assert any("compare them, and see its log" in r.text for r in world.members["b"].reports)
    (inbound,) = world.members["b"].engine.connections()
    assert "clocks differ" in inbound["last_error"]


def test_each_fills_a_folder_that_the_other_removes() -> None:
    """With more changes than fit into the window: what is under way waits for removals that stand behind it."""
    world = started("ab", limits=Limits(window=5))
    a, b = world.members["a"], world.members["b"]
    for folder in "xy":
        make(a, folder, None)
    world.run(60)
    world.step(("cut", 0, 1))
    for i in range(10):
        make(a, f"x/{i}", b"a")
        make(b, f"y/{i}", b"b")
    world.run(30)
    remove(a, "y")
    remove(b, "x")
    world.run(30)
    world.cut.clear()
    assert names(all_agree(world)) == sorted([*"xy", *(f"{folder}/{i}" for folder in "xy" for i in range(10))])


@pytest.mark.parametrize("minor", range(10))
def test_partners_of_every_minor_version(minor: int) -> None:
    world = started("ab", minor=minor)
    make(world.members["a"], "d", None)
    make(world.members["a"], "d/n", b"1")
    world.run(60)
    move(world.members["b"], "d/n", "n")
    assert names(all_agree(world)) == ["d", "n"]


@pytest.mark.parametrize("minor", range(10))
def test_compressions_are_told_from_minor_version_4_on(minor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    send = World.send

    def spy(world: World, source: Member, partner: bytes, packet: Packet) -> None:
        if packet.command == CMD_JOINING:
            told.append(bool(packet.compression_guids))
        send(world, source, partner, packet)

    monkeypatch.setattr(World, "send", spy)
    started("ab", minor=minor)
    assert set(told) == {minor >= 4}


def test_a_start_drops_the_staging_files_that_nobody_needs() -> None:
    """Those that were acknowledged but not dropped yet, or staged and not recorded, when the member was killed."""
    world = started("ab")
    a = world.members["a"]
    world.step(("cut", 0, 1))
    make(a, "n", b"waits for b")
    world.run(30)
    (needed,) = a.disk.stages
    a.disk.stages[b"nobody needs it."] = b"left"
    content = a.disk.stages[needed]
    a.crash()
    a.disk.stages[needed] = content  # a crash may cost it
    a.start()
    world.run(30)
    assert list(a.disk.stages) == [needed]
    world.cut.clear()
    assert names(all_agree(world)) == ["n"]
    assert not a.disk.stages


def test_an_incomplete_install_stays_in_the_outbound_log() -> None:
    world = started("ab")
    a = world.members["a"]
    world.members["b"].disk.full = True
    make(a, "n", b"1")
    world.run(10)
    flow = next(iter(a.engine.outbound.flows.values()))
    assert flow.unacked
    (seq, guid), trailing = next(iter(flow.unacked.items())), flow.trailing
    session = flow.session
    packet = session.packet(a.engine.ctx, 0x250)
    row = a.store.outlog_by_co(guid)
    assert row is not None
    packet.co_guid, packet.co_sequence_number = guid, seq
    packet.remote_co = ChangeOrder.decode(row.co).replace(flags=0x80)
    with a.store.transaction():
        a.engine.outbound.acknowledged(session, packet)
    assert seq in flow.unacked
    assert flow.trailing == trailing
    packet.remote_co.flags = 0
    with a.store.transaction():
        a.engine.outbound.acknowledged(session, packet)
    assert flow.trailing > trailing


def held_open_for_days() -> tuple[World, Member, Member]:
    """Two members with a file `n`, which somebody has open for writing on the second for longer than is tried."""
    world = started("ab", limits=Limits(max_retry_time=DAY))
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    node = b.disk.look("n")
    assert node is not None
    b.disk.busy[node.ino] = world.now + 10 * DAY
    return world, a, b


def test_tries_end_with_the_limits() -> None:
    world, a, b = held_open_for_days()
    write(a, "n", b"2")
    world.run(2 * 86400)
    assert any("given up" in r.text for r in b.reports)
    assert not world.pending()


def test_the_very_change_that_the_version_vector_names_is_dampened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change comes once more, and is the last one known of its maker; the file was changed since."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    send, sent = world.send, []

    def heard(source: Member, partner: bytes, packet: Packet) -> None:
        if packet.remote_co is not None:
            sent.append(packet)
        send(source, partner, packet)

    monkeypatch.setattr(world, "send", heard)
    make(a, "n", b"1")
    world.run(60)
    offer = next(p for p in sent if p.command == CMD_REMOTE_CO)
    write(b, "n", b"2")
    world.run(60)
    sent.clear()
    assert b.engine.ctx.vv[offer.remote_co.originator_guid] == offer.remote_co.frs_vsn
    b.post(ev.PacketReceived(offer, 9))
    world.run(60)
    (answer,) = sent
    assert answer.command == CMD_REMOTE_CO_DONE
    assert answer.remote_co.flags == fl.done_dampened(compressed=False)


#: What a change order says, by the names of the members concerned, and the cause of its refusal.
NOT_FOR_FILES = [
    ({"file_guid": ("member", "b")}, Cause.IDENTITY),  # its own member GUID
    ({"file_guid": ("member", "a")}, Cause.IDENTITY),  # the sender's
    ({"file_guid": ("member", "c")}, Cause.IDENTITY),  # a member further on
    ({"file_guid": ("root", "b")}, Cause.IDENTITY),
    ({"file_guid": bytes(16)}, Cause.IDENTITY),
    ({"new_parent_guid": "itself"}, Cause.IDENTITY),
    ({"new_parent_guid": ("member", "a")}, Cause.IDENTITY),
    ({"new_parent_guid": bytes(16)}, Cause.IDENTITY),
    ({"file_name": ".frs-preinstall"}, Cause.NAME),
    ({"file_name": ".frs-preinstall.0123456789abcdef"}, Cause.NAME),
    ({"file_name": ".FRS-PreInstall"}, Cause.NAME),  # the same on many file systems
    ({"file_name": "frs-swap-00000001-0002-0003-0405-060708090a0b"}, Cause.NAME),
    ({"file_name": "../odd"}, Cause.NAME),
]


@pytest.mark.parametrize("is_dir", [False, True])
@pytest.mark.parametrize(("said", "cause"), NOT_FOR_FILES)
def test_what_is_not_a_partner_s_to_name_is_refused(
    said: dict[str, object], cause: Cause, is_dir: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends there, is counted as an incident of the partner, and everything else goes on: what the change really is
    comes by the other partner."""
    world = started("abc", ringed=True)
    a, b = world.members["a"], world.members["b"]
    send = world.send

    def value(wanted: object, co: ChangeOrder) -> object:
        if wanted == "itself":
            return co.file_guid
        if isinstance(wanted, tuple):
            return b.root if wanted[0] == "root" else world.guid_of(*wanted)
        return wanted

    def mad(source: Member, partner: bytes, packet: Packet) -> None:
        mine = source is a and partner == b.guid and packet.command == CMD_REMOTE_CO
        if mine and packet.remote_co is not None and packet.remote_co.file_name == "odd":
            told = packet.remote_co
            packet.remote_co = told.replace(**{k: value(v, told) for k, v in said.items()})
        send(source, partner, packet)

    monkeypatch.setattr(world, "send", mad)
    make(a, "odd", None if is_dir else b"1")
    make(a, "even", b"2")
    world.run(120)
    incidents = [r for r in b.reports if r.cause is not None]
    assert {(r.cause, r.source) for r in incidents} == {(cause, "a")}
    assert repr(said.get("file_name", "odd")) in incidents[0].text
    make(b, "later", b"3")
    world.run(120)
    assert names(all_agree(world)) == ["even", "later", "odd"]
    assert not world.pending()


def test_what_was_taken_in_before_it_was_refused_ends_with_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inbound log of an earlier version may hold it."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    b.disk.full = True
    make(a, "odd", b"1")
    world.run(60)
    (row,) = list(b.store.inlog_iter())
    co = ChangeOrder.decode(row.co).replace(file_name=".frs-preinstall")
    b.crash()
    b.disk.full = False
    with b.store.transaction():
        b.store.inlog_put(replace(row, co=co.encode()))
    b.start()
    world.run(120)
    assert ".frs-preinstall" not in names(b)
    all_agree(world)
    assert names(b) == ["odd"]


def test_what_lies_in_a_folder_that_passed_for_a_member_stays_out_of_the_root() -> None:
    """An earlier version may have let such a folder into the IDTable, and a user puts more into it."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "mine", None)
    world.run(60)
    node = a.disk.look("mine")
    assert node is not None
    (known,) = a.store.by_local_key(1, node.ino, node.ino)
    a.crash()
    with a.store.transaction():
        a.store.put(replace(known, file_guid=b.guid))
        a.store.put(replace(known, deleted=True, ino=None))
    a.start()
    make(a, "mine/passwd", b"of a user")
    make(a, "passwd", b"of root")
    world.run(120)
    assert b.tree()["passwd"][1] == b"of root"
    assert {r.cause for r in b.reports} >= {Cause.IDENTITY}


@pytest.mark.parametrize("name", [".frs-preinstall", "frs-swap-1"])
def test_names_of_the_agent_s_own_are_so_in_the_root_alone(name: str) -> None:
    """A morphed name can stand there, for that is where what has lost its folder goes."""
    world = started("ab")
    a = world.members["a"]
    make(a, "d", None)
    world.run(60)
    make(a, f"d/{name}", b"1")
    world.run(60)
    assert names(world.members["b"]) == ["d", f"d/{name}"]
    assert morphed_name(name, bytes(16)) == f"_{name}_NTFRS_00000000"
    all_agree(world)


def test_a_removal_that_is_given_up_is_undone_everywhere() -> None:
    world, a, b = held_open_for_days()
    remove(a, "n")
    world.run(86400 / 2)
    assert names(a) == []
    world.run(2 * 86400)
    assert any("given up" in r.text for r in b.reports)
    assert names(all_agree(world)) == ["n"]


def opened(*offsets: int) -> bytes:
    """Open in the quarters that begin so many quarters after the start of the world's clock."""
    bits = bytearray(84)
    for offset in offsets:
        quarter = quarter_of(START + offset * QUARTER)
        bits[quarter // 8] |= 1 << quarter % 8
    return bytes(bits)


def scheduled(schedule: bytes, **more: object) -> World:
    world = World("ab", mesh("ab"), 1)
    world.cxtion_options = {"schedule": schedule, **more}
    for member in world.members.values():
        member.start()
    return world


def states(world: World) -> set[str]:
    return {x["state"] for m in world.members.values() for x in m.engine.connections()}


def test_a_schedule_opens_and_closes_the_connection() -> None:
    schedule = opened(2, 3)
    world = scheduled(schedule)
    make(world.members["a"], "n", b"1")
    world.run(600)
    assert not is_open(schedule, world.now)
    assert states(world) <= {"unjoined", "start_join"}
    assert names(world.members["b"]) == []
    world.run(1500)
    assert states(world) == {"joined"}
    assert names(world.members["b"]) == ["n"]
    world.run(1800)
    assert states(world) == {"unjoined"}
    make(world.members["a"], "later", b"2")
    world.run(600)
    assert names(world.members["b"]) == ["n"]
    for member in world.members.values():
        member.post(ev.ForceReplication())
    world.run(120)
    assert names(world.members["b"]) == ["later", "n"]


def test_the_initial_join_may_ignore_the_schedule() -> None:
    world = scheduled(opened(50), ignore_schedule=True)
    make(world.members["a"], "n", b"1")
    world.run(120)
    assert names(world.members["b"]) == ["n"]


def test_a_trigger_schedule_ends_after_what_was_there() -> None:
    world = scheduled(opened(2), trigger=True)
    make(world.members["a"], "n", b"1")
    world.run(2 * 900 + 120)
    assert names(world.members["b"]) == ["n"]
    world.run(1200)
    assert states(world) <= {"unjoined", "start_join", "need_join"}


@pytest.mark.parametrize(("of", "joined"), [("this session", False), ("an earlier one", True), ("none", True)])
def test_an_unjoin_is_for_the_session_it_names(of: str, joined: bool) -> None:
    """On the connection that a->b changes take, from its sender; what comes late must not end the session after it."""
    world = started("ab")
    forger = Forger(world, "a", "b")
    packet = forger.packet(CMD_UNJOIN_REMOTE)
    if of != "this session":
        packet.join_guid = world.new_guid() if of == "an earlier one" else bytes(16)
    forger.at_once(packet)
    session = next(s for s in forger.to.engine.in_sessions.sessions.values())
    assert session.joined is joined


def test_a_member_knows_its_tree_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user did while it was down was before what comes now: a file edited here keeps the name it has here."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "one", b"1")
    make(a, "two", b"2")
    world.run(60)
    b.crash()
    move(a, "one", "passing")
    move(a, "two", "one")
    move(a, "passing", "two")
    world.run(60)
    write(b, "one", b"edited")
    said: list[bool] = []
    send = world.send

    def heard(source: Member, partner: bytes, packet: Packet) -> None:
        if source is b:
            record, node = b.store.by_name(b.root, "one"), b.disk.look("one")
            said.append(record is not None and node is not None and record.md5 == node.md5(record.file_guid))
        send(source, partner, packet)

    monkeypatch.setattr(world, "send", heard)
    b.start()
    world.run(60)
    assert said[0], "it spoke before it knew of the edit"
    assert all_agree(world).tree()["one"][1] == b"edited"


def test_an_engine_that_is_told_twice_to_go_on_keeps_its_inbound_log() -> None:
    """Else what is on disk of it would be taken for doubles, and be lost with the next crash."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    b.disk.full = True
    make(a, "n", b"1")
    world.run(5)
    rows = [row.co_guid for row in b.store.inlog_iter()]
    assert rows
    b.crash()
    b.start()
    world.run(1)
    for event in (ev.Resumed(frozenset(b.disk.stages)), ev.Started(frozenset(b.disk.stages))):
        with b.store.transaction():
            b.engine.handle(event, b.now)
        assert [row.co_guid for row in b.store.inlog_iter()] == rows
    b.disk.full = False
    world.run(600)
    all_agree(world)
