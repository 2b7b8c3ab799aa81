"""Connections come and go, and change, while members replicate."""

from __future__ import annotations

import random

import pytest

from agent.engine import events as ev
from agent.engine.session import NEVER
from agent.replica.actions import Actions
from agent.wire.filetime import SECOND
from tests.simulation.schedule import MEMBERS_FROM, TOPOLOGY_FROM, Schedule, generate, mesh
from tests.simulation.simworld import World
from tests.simulation.test_schedules import opened
from tests.simulation.users import all_agree, make, names, remove, started, write

CLOSED = bytes(84)


def change(world: World, edges: list[tuple[str, str]]) -> None:
    """All members learn of these edges, one after the other."""
    world.edges[:] = edges
    for member in world.members.values():
        member.after(world.random.randrange(1, 2 * SECOND), member.topology_changed)


def sessions(world: World, member: str) -> dict[str, str]:
    return {one["name"]: one["state"] for one in world.members[member].engine.connections()}


def test_a_member_that_comes_is_seeded_and_the_others_stay_joined() -> None:
    world = World("abc", mesh("ab"), 1)
    for member in world.members.values():
        member.start()
    make(world.members["a"], "n", b"1")
    make(world.members["c"], "m", b"2")
    world.run(60)
    joined_since = {s.since for s in world.members["a"].engine.in_sessions.sessions.values()}
    assert names(world.members["c"]) == ["m"]
    change(world, mesh("abc"))
    world.run(120)
    assert names(all_agree(world)) == ["m", "n"]
    assert joined_since <= {s.since for s in world.members["a"].engine.in_sessions.sessions.values()}


def test_a_connection_that_goes_is_unjoined_and_the_partner_is_told() -> None:
    world = started("abc")
    change(world, [edge for edge in mesh("abc") if set(edge) != {"a", "b"}])
    world.run(30)
    assert set(sessions(world, "a")) == {"c->a", "a->c"}
    assert set(sessions(world, "a").values()) == {"joined"}
    make(world.members["a"], "n", b"1")
    world.run(60)
    assert names(all_agree(world)) == ["n"]
    assert all(m.engine.outbound.flows.keys() == m.engine.out_sessions.sessions.keys() for m in world.members.values())


def test_one_end_alone_unjoins_what_goes() -> None:
    """The partner has not heard of the change yet: it is told with CMD_UNJOIN_REMOTE."""
    world = started("ab")
    world.edges.clear()
    world.members["a"].topology_changed()
    world.run(1)
    assert sessions(world, "a") == {}
    assert "joined" not in sessions(world, "b").values()


def test_a_connection_that_comes_back_goes_on_from_where_it_was() -> None:
    world = started("ab")
    make(world.members["a"], "n", b"1")
    world.run(60)
    change(world, [])
    world.run(60)
    make(world.members["a"], "m", b"2")
    write(world.members["b"], "n", b"3")
    world.run(60)
    change(world, mesh("ab"))
    world.run(3)
    for member in world.members.values():
        for session in member.engine.in_sessions.sessions.values():
            assert session.last_join_time != NEVER
    world.run(60)
    assert names(all_agree(world)) == ["m", "n"]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_former_partner_began_to_send_comes_from_another(seed: int) -> None:
    world = started("abc", seed=seed)
    for number in range(20):
        make(world.members["a"], f"n{number}", bytes([number]) * 100)
    b = world.members["b"]
    for _ in range(2000):
        if b.engine.inbound.entries:
            break
        world.run(0.01)
    assert b.engine.inbound.entries
    world.run(world.random.random() / 20)
    change(world, [edge for edge in mesh("abc") if set(edge) != {"a", "b"}])
    world.run(120)
    assert names(all_agree(world)) == sorted(f"n{number}" for number in range(20))


def test_a_block_that_was_being_read_for_a_former_partner_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started("ab")
    a, read = world.members["a"], Actions._read_stage
    asked = []

    def spy(actions: Actions, action: ev.ReadStage) -> None:
        asked.append(action)
        world.edges.clear()
        a.topology_changed()
        read(actions, action)

    monkeypatch.setattr(Actions, "_read_stage", spy)
    make(a, "n", b"1")
    world.run(60)
    assert asked
    assert sessions(world, "a") == {}
    assert names(world.members["b"]) == []


def test_a_member_that_is_removed_and_added_again_brings_what_it_has() -> None:
    """What it had, what was made there meanwhile, and what the others deleted meanwhile, for it knows nothing of that;
    and it gets what they made. A file that both have changed is kept in both forms."""
    world = started("abc")
    a, b, c = world.members.values()
    for name in ("had", "deleted", "changed"):
        make(a, name, name.encode())
    world.run(60)
    b.remove()
    world.topology_changed()
    world.run(60)
    assert not b.up
    assert set(sessions(world, "a")) == {"a->c", "c->a"}
    make(b, "of b", b"1")
    make(c, "of c", b"2")
    write(b, "changed", b"by b")
    write(a, "changed", b"by a")
    remove(c, "deleted")
    world.run(60)
    assert names(a) == ["changed", "had", "of c"]
    b.add()
    world.topology_changed()
    world.run(300)
    assert set(names(all_agree(world))) >= {"changed", "deleted", "had", "of b", "of c"}
    assert {content for content, _ in b.disk.kept} | {n.content for n in a.disk.walk()} >= {b"by a", b"by b"}


def test_a_schedule_that_changes_closes_and_opens_at_once() -> None:
    world = started("ab")
    world.cxtion_options["schedule"] = CLOSED
    change(world, mesh("ab"))
    world.run(5)
    assert "joined" not in sessions(world, "a").values()
    make(world.members["a"], "n", b"1")
    world.run(600)
    assert names(world.members["b"]) == []
    world.cxtion_options["schedule"] = opened(0, 1, 2)
    change(world, mesh("ab"))
    world.run(60)
    assert set(sessions(world, "a").values()) == {"joined"}
    assert names(world.members["b"]) == ["n"]


def test_both_ends_of_what_has_closed_are_unjoined_without_waiting_for_anything() -> None:
    """Also where the partner does not know of it yet."""
    world = started("ab")
    world.cxtion_options["schedule"] = CLOSED
    world.members["a"].topology_changed()
    world.run(0.02)
    assert "joined" not in sessions(world, "a").values()


def test_what_only_the_priority_changes_of_stays_joined() -> None:
    world = started("ab")
    since = [s.since for s in world.members["a"].engine.in_sessions.sessions.values()]
    world.priorities["b", "a"] = 1
    change(world, mesh("ab"))
    world.run(10)
    assert [s.cxtion.priority for s in world.members["a"].engine.in_sessions.sessions.values()] == [1]
    assert [s.since for s in world.members["a"].engine.in_sessions.sessions.values()] == since


def test_a_member_that_becomes_the_primary_one_in_its_first_initial_sync_is_online() -> None:
    world = World("ab", mesh("ab"), 1)
    world.members["b"].start()  # its partner, the primary member, never comes
    make(world.members["b"], "n", b"1")
    world.run(60)
    assert not world.members["b"].engine.ctx.online
    world.names.reverse()
    world.members["b"].topology_changed()
    world.run(10)
    assert world.members["b"].engine.ctx.online
    world.members["a"].start()
    world.run(120)
    assert names(all_agree(world)) == ["n"]


def test_another_primary_member_changes_nothing_for_those_that_are_online() -> None:
    world = started("ab")
    make(world.members["a"], "n", b"1")
    world.run(60)
    world.names.reverse()
    change(world, mesh("ab"))
    world.run(10)
    assert {m.engine.ctx.config.primary for m in world.members.values()} == {True, False}
    assert set(sessions(world, "a").values()) == {"joined"}
    assert names(all_agree(world)) == ["n"]


def test_before_the_tree_is_known_nothing_is_joined() -> None:
    """As after a restart of a member that is online: what comes then is joined when the member begins."""
    world = started("ab")
    b = world.members["b"]
    b.crash()
    b.start()
    assert not b.replica.running.started
    world.edges.clear()
    b.topology_changed()
    world.edges[:] = mesh("ab")
    b.topology_changed()
    b.after(SECOND // 100, lambda: None)
    world.run(0.1)
    if not b.replica.running.started:
        assert set(sessions(world, "b").values()) == {"unjoined"}
    world.run(60)
    assert set(sessions(world, "b").values()) == {"joined"}


@pytest.mark.parametrize("seed", range(10))
def test_connections_come_and_go_while_users_work(seed: int) -> None:
    rng = random.Random(seed)
    world = started("abcd", seed=seed)
    made = set()
    for number in range(40):
        pairs = [pair for pair in mesh("abcd") if pair[0] < pair[1] and rng.random() < 0.6]
        world.cxtion_options["schedule"] = rng.choice([None, None, CLOSED])
        world.priorities = {edge: rng.randrange(8) for edge in mesh("abcd")}
        change(world, [edge for up, down in pairs for edge in ((up, down), (down, up))])
        for one in range(rng.randrange(4)):
            name = f"{number}-{one}"
            make(world.members[rng.choice("abcd")], name, name.encode())
            made.add(name)
        if rng.random() < 0.1:
            member = world.members[rng.choice("abcd")]
            member.crash()
            member.start()
        world.run(rng.choice([0.1, 1, 5, 30]))
    world.cxtion_options["schedule"] = None
    change(world, mesh("abcd"))
    world.run(120)
    assert set(names(all_agree(world))) == made


#: What was found by schedules in which the topology changes.
FOUND = {
    # A partner that only stood in for a former one, which came back with its offer, was taken for one with the file.
    "stand-in": Schedule(
        2000001524, "abc", "star",
        (("start", 0), ("start", 1), ("run", 60), ("op", 2, "mkdir", 20, 41, 54), ("start", 2), ("full", 0, True),
         ("run", 9.53), ("disconnect", 0, 2), ("run", 3.11)),
    ),
    # What was answered at once, being dated ahead, came to nothing without its sender, and counted as known afterwards.
    "comes back": Schedule(
        2000000828, "abcd", "chain",
        (("start", 0), ("start", 1), ("start", 2), ("run", 120), ("start", 3), ("skew", 1, 1700), ("skew", 1, 1000),
         ("op", 1, "mkdir", 21, 50, 40), ("run", 1.86), ("disconnect", 1, 2), ("run", 1989.3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("schedule", FOUND.values(), ids=FOUND.keys())
def test_what_was_found(schedule: Schedule) -> None:
    assert schedule.run() == []


@pytest.mark.parametrize("seed", range(TOPOLOGY_FROM, TOPOLOGY_FROM + 60))
def test_schedules_in_which_the_topology_changes(seed: int) -> None:
    assert generate(seed).run() == []


@pytest.mark.parametrize("first", [0, TOPOLOGY_FROM])
def test_schedules_in_which_members_come_and_go(first: int) -> None:
    for seed in range(MEMBERS_FROM + first, MEMBERS_FROM + first + 15):
        assert generate(seed).run() == [], seed
