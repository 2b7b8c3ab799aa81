"""Counters of change orders: each total is that of its halves, and each retry is at one place."""

from __future__ import annotations

from agent.wire.filetime import SECOND
from tests.simulation.simhost import Tally
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, counted, make, move, started, write

WHAT = ["Aborted", "Issued", "Morphed", "Propagated", "Retired", "Sent", "Retried", "Retried at Fetch",
        "Retried at Generate", "Retried at Install", "Retried at Rename"]  # fmt: skip


def check(world: World) -> None:
    for member in world.members.values():
        values = counted(member)
        for what in WHAT:
            halves = values[f"Local Change Orders {what}"], values[f"Remote Change Orders {what}"]
            assert values[f"Change Orders {what}"] == sum(halves), (member.name, what)
        for kind in ("", "Local ", "Remote "):
            places = [
                values[f"{kind}Change Orders Retried at {at}"] for at in ("Fetch", "Generate", "Install", "Rename")
            ]
            assert values[f"{kind}Change Orders Retried"] == sum(places), (member.name, kind)


def test_sums_after_conflicts_and_retries() -> None:
    world = started("abc", counters=Tally)
    a, b, c = (world.members[name] for name in "abc")
    world.step(("cut", 0, 1))
    for member in (a, b):
        make(member, "d", None)
        make(member, f"d/{member.name}", b"1")
        make(member, "f", member.name.encode())
    world.run(60)
    world.cut.clear()
    world.run(300)
    node = b.disk.look("f")
    assert node is not None
    b.disk.busy[node.ino] = world.now + 60 * 10_000_000
    write(a, "f", b"2")
    c.disk.full = True
    write(a, "f", b"3")
    world.run(60)
    c.disk.full = False
    move(a, "f", "g")
    all_agree(world)
    check(world)
    assert sum(counted(member)["Change Orders Retried"] for member in (a, b, c)) > 0


def test_a_morphed_name_is_counted_once_however_often_it_is_tried() -> None:
    """A folder waits three times for a name that stays taken, then goes to another one."""
    world = started("ab", counters=Tally)
    a, b = world.members["a"], world.members["b"]
    world.step(("cut", 0, 1))
    make(a, "d", None)
    make(b, "d", None)
    world.run(60)
    world.cut.clear()
    all_agree(world)
    check(world)
    assert len(a.tree()) == 2
    morphed = [counted(member)["Change Orders Morphed"] for member in (a, b)]
    assert sorted(morphed) in ([0, 1], [1, 1])


def test_how_long_a_change_was_on_its_way() -> None:
    """b hears of one change within seconds, and of the other after the ten minutes for which the line was cut."""
    world = started("ab", counters=Tally)
    a, b = (world.members[name] for name in "ab")
    make(a, "d", None)
    make(a, "d/f", b"1")
    world.run(60)
    before = counted(b)
    quick = {name: n for name, n in before.items() if name.startswith("Replication Latency up to") and n}
    assert sum(quick.values()) == 2
    assert set(quick) <= {f"Replication Latency up to {n} s" for n in (1, 2, 5, 10)}
    world.step(("cut", 0, 1))
    write(a, "d/f", b"2")
    world.run(600)
    world.cut.clear()
    all_agree(world)
    more = counted(b) - before
    assert {name: n for name, n in more.items() if name.startswith("Replication Latency up to")} == {
        "Replication Latency up to 15 min": 1
    }
    assert 600_000 <= more["Replication Latency in ms"] < 900_000
    assert not any(name.startswith("Replication") for name in counted(a)), "nothing came to a"


def test_what_waits_for_a_partner_is_told_in_bytes_and_since_when() -> None:
    """While the line is cut, a has a folder, two files and a name to tell of; the folder was made first."""
    world = started("ab")
    a, b = (world.members[name] for name in "ab")
    make(a, "old", bytes(5))
    world.run(60)
    world.step(("cut", 0, 1))
    world.run(60)
    begin = world.now
    make(a, "d", None)
    world.run(60)
    make(a, "d/f", bytes(300))
    make(a, "d/g", bytes(2000))
    move(a, "old", "new")
    world.run(600)
    (out,) = (one for one in a.engine.connections() if one["direction"] == "outbound")
    assert (out["backlog"], out["backlog_bytes"]) == (4, 2300)
    assert 0 <= (out["oldest"] - begin) / SECOND < 30, "when the folder was told of, after it had aged"
    world.cut.clear()
    all_agree(world)
    told = [(x["backlog"], x["backlog_bytes"], x["oldest"]) for x in a.engine.connections()]
    assert told == [(0, 0, None)] * 2
    # What cannot be installed waits in b, since it came.
    node = b.disk.look("d/f")
    assert node is not None
    b.disk.busy[node.ino] = world.now + 3600 * SECOND
    begin = world.now
    write(a, "d/f", bytes(70))
    world.run(60)
    (come,) = (one for one in b.engine.connections() if one["direction"] == "inbound")
    assert (come["backlog"], come["backlog_bytes"]) == (1, 70)
    assert 0 <= (come["oldest"] - begin) / SECOND < 30
