"""The initial sync, and Joins."""

from __future__ import annotations

import pytest

from agent.engine.context import Limits
from agent.wire.constants import (
    CMD_NEED_JOIN,
    CMD_START_JOIN,
)
from agent.wire.filetime import MINUTE, SECOND
from agent.wire.packet import Packet
from tests.simulation.schedule import mesh
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, done, kept, make, move, names, remove, started, until, write


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
    world.slow[frozenset("bc")] = SECOND // 2  # and answers within join_answer
    c.start()  # d is not there at all
    begun = world.now
    until(world, lambda: c.engine.ctx.online)
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
    until(world, lambda: "d/e/f" in names(b), step=0.001)
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


@pytest.mark.parametrize("gone", ["removed", "renamed"])
@pytest.mark.parametrize(
    ("change", "there"),
    [
        ("moved out", {"g": b"content"}),
        ("removed", {}),
        ("replaced", {"d/f": b"another"}),
        ("written", {"d/f": b"later"}),
        ("written and renamed", {"d/g": b"later"}),
    ],
)
def test_what_was_in_a_folder_that_is_gone_in_the_initial_sync_keeps_nobody_waiting(
    change: str, there: dict[str, bytes], gone: str
) -> None:
    """A user removes or renames the folder, and what was in it is changed elsewhere. What became of the folder is
    looked at only when the initial sync is over."""
    world = World("ab", mesh("ab"), 1)
    a, b = world.members["a"], world.members["b"]
    a.start()
    make(a, "d", None)
    make(a, "d/f", b"content")
    for number in range(300):
        make(a, f"later {number}", b"x")
    world.run(60)
    b.start()
    until(world, lambda: "d/f" in names(b), step=0.001)
    world.slow[frozenset("ab")] = MINUTE
    if gone == "removed":
        remove(b, "d")
    else:
        move(b, "d", "e")
    match change:
        case "moved out":
            move(a, "d/f", "g")
        case "removed" | "replaced":
            remove(a, "d/f")
        case _:
            write(a, "d/f", b"later")
    if change == "replaced":
        make(a, "d/f", b"another")
    world.run(5)
    if change == "written and renamed":
        move(a, "d/f", "d/g")
        world.run(5)
    assert not b.engine.ctx.online
    b.crash()
    world.slow.clear()
    b.start()
    world.run(300)
    assert b.engine.ctx.online
    found = all_agree(world).disk.walk()
    files = {node.path(): node.content for node in found if not node.is_dir and node.content != b"x"}
    assert files == there | ({"e/f": b"content"} if gone == "renamed" else {})


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
    until(world, lambda: session.joined, step=0.001)
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

    def lossy(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is a and packet.command == CMD_START_JOIN and not lost:
            lost.append(packet)
        elif not (source is b and packet.command == CMD_NEED_JOIN):
            send(source, partner, packet, **way)

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

    def heard(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is b:
            record, node = b.store.by_name(b.root, "one"), b.disk.look("one")
            said.append(record is not None and node is not None and record.md5 == node.md5(record.file_guid))
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", heard)
    b.start()
    world.run(60)
    assert said[0], "it spoke before it knew of the edit"
    assert all_agree(world).tree()["one"][1] == b"edited"
