"""What a change asks of the database of each member: statements are counted, not seconds."""

from __future__ import annotations

import re
from collections import Counter

from agent.engine.fresh import MOST
from tests.simulation.simmember import Member
from tests.simulation.users import make, started, write

FILES = 60
ROW = "SELECT idtable by file_guid"


class Statements:
    """Counts the statements of a member's store from now on, by verb and table."""

    def __init__(self, member: Member) -> None:
        self.seen: Counter[str] = Counter()
        member.store._conn.set_trace_callback(self._see)

    def _see(self, text: str) -> None:
        found = re.match(r"(SELECT|INSERT|UPDATE|DELETE)\b.*?\b(?:FROM|INTO|UPDATE) (\w+)", text, re.DOTALL)
        if found:
            by = " by file_guid" if "WHERE file_guid =" in text and "kind" in text else ""
            self.seen[f"{found[1]} {found[2]}{by}"] += 1


def test_a_new_file_is_asked_for_once() -> None:
    """That nothing is known of it is found out once, and nobody can have announced a number above the highest known;
    what was written for a partner is not read again to be sent, or served."""
    world = started("ab")
    a, b = (world.members[name] for name in "ab")
    make(a, "folder", None)
    world.run(60)
    at_a, at_b = Statements(a), Statements(b)
    for number in range(FILES):
        make(a, f"folder/{number}", b"content of %d" % number)
    world.run(120)
    assert len(b.tree()) == FILES + 1
    assert at_a.seen["INSERT outlog"] == FILES
    assert at_a.seen["SELECT outlog"] <= 2, "to see how far the partner is, now and then"
    assert at_a.seen[ROW] <= FILES + 2
    assert at_b.seen[ROW] <= FILES + 2
    assert at_b.seen["SELECT idtable"] <= 2 * FILES + 4, "what has the name, on arrival and before the install"


def test_what_is_written_again_is_not_taken_for_absent() -> None:
    """Also not after the database was closed and opened."""
    world = started("ab")
    a, b = (world.members[name] for name in "ab")
    make(a, "f", b"1")
    world.run(60)
    write(a, "f", b"2")
    world.run(60)
    write(b, "f", b"3")
    world.run(60)
    b.crash()
    b.start()
    world.run(60)
    write(a, "f", b"4")
    world.run(60)
    assert a.tree() == b.tree()
    assert next(iter(a.tree().values())) == b.tree()["f"]


def test_the_end_of_the_log_is_kept_until_it_is_acknowledged() -> None:
    """And not beyond: a partner that is away costs no memory without bound."""
    world = started("ab")
    a, b = (world.members[name] for name in "ab")
    for number in range(20):
        make(a, f"{number}", b"x")
    world.run(120)
    assert len(b.tree()) == 20
    assert len(a.engine.outbound._fresh) == 0
    b.crash()
    world.run(300)
    for number in range(MOST + 10):
        make(a, f"away {number}", b"")
    world.run(600)
    assert 0 < len(a.engine.outbound._fresh) <= MOST
    b.start()
    world.run(3000)
    assert len(b.tree()) == len(a.tree())
    assert len(a.engine.outbound._fresh) == 0
