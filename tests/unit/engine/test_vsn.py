"""This member's own volume sequence numbers, through starts and restorations of its database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engine.vsn import OwnNumbers

WEEK = 7 * 24 * 3600 * 10_000_000


class Database:
    """What a member remembers: meta values, and its entry of its own version vector."""

    def __init__(self) -> None:
        self.meta: dict[str, bytes] = {}
        self.known = 0

    def meta_get(self, key: str) -> bytes | None:
        return self.meta.get(key)

    def meta_set(self, key: str, value: bytes) -> None:
        self.meta[key] = value

    def copy(self) -> Database:
        other = Database()
        other.meta, other.known = dict(self.meta), self.known
        return other


class Member:
    def __init__(self, lifetime: int = WEEK) -> None:
        self.clock = 1000
        self.lifetime = lifetime
        self.database = Database()
        self.backup = self.database.copy()
        self.remembered: set[int] = set()
        self.in_backup: set[int] = set()
        self.ever: set[int] = set()
        self.start()

    def start(self) -> None:
        self.numbers = OwnNumbers(self.database, self.database.known, self.lifetime)

    def issue(self) -> int:
        number = self.numbers.next(self.database.known, self.clock)
        assert number > max(self.remembered, default=0)
        self.database.known = number
        self.remembered.add(number)
        self.ever.add(number)
        return number

    def act(self, what: str) -> None:
        self.clock += 100
        if what == "issue":
            self.issue()
        elif what == "start":
            self.start()
        elif what == "save":
            self.backup, self.in_backup = self.database.copy(), set(self.remembered)
        else:
            self.database, self.remembered = self.backup.copy(), set(self.in_backup)
            self.start()


ACTS = st.lists(st.sampled_from(("issue", "issue", "issue", "start", "save", "restore")), max_size=40)


@given(ACTS)
def test_what_was_forgotten_is_told_from_what_is_remembered(acts: list[str]) -> None:
    member = Member()
    for act in acts:
        member.act(act)
    assert {n for n in member.ever if member.numbers.issued(n)} == member.remembered


@given(ACTS, st.data())
def test_what_may_be_taken_for_known_is_told_once(acts: list[str], data: st.DataObject) -> None:
    """Others know a number that was forgotten: those below it that were issued after the restoration are named."""
    member = Member()
    for act in acts:
        member.act(act)
    forgotten = sorted(member.ever - member.remembered)
    if not forgotten:
        return
    number = data.draw(st.sampled_from(forgotten))
    above = member.numbers.settle(number, member.clock)
    lost_since = min(forgotten)
    since = {n for n in member.remembered if lost_since < n <= number}
    assert all(above < n for n in since)
    assert member.numbers.issued(number)
    assert member.issue() > number
    member.start()
    assert member.numbers.issued(number)
    assert all(member.numbers.issued(n) for n in member.remembered)


def test_gaps_are_forgotten_after_their_lifetime() -> None:
    member = Member(lifetime=1000)
    member.act("issue")
    member.act("save")
    member.act("issue")
    lost = max(member.ever)
    member.act("restore")
    member.act("issue")
    assert not member.numbers.issued(lost)
    member.clock += 2000
    member.act("start")
    member.act("issue")
    assert member.numbers.issued(lost)


@pytest.mark.parametrize("known", [0, 5000])
def test_the_first_number_is_the_clock_or_above_what_is_known(known: int) -> None:
    numbers = OwnNumbers(Database(), known, WEEK)
    assert numbers.next(known, 3000) == max(3000, known + 1)
    assert numbers.next(known, 9000) == max(3001, known + 1) + (known > 0)


def test_no_more_than_a_hundred_gaps_are_remembered() -> None:
    member = Member()
    for _ in range(150):
        member.act("issue")
        member.act("start")
    (raw,) = member.database.meta.values()
    assert len(raw) == 8 * (1 + 2 * 100)
