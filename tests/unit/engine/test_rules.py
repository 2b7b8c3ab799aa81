"""The rules that are pure functions: who wins, names, schedules, priority classes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engine import seeding
from agent.engine.context import Cxtion
from agent.engine.reconcile import Version, against_version, change_order_wins, morphed_name
from agent.engine.schedule import QUARTER, is_open, merged, next_change, next_trigger
from agent.engine.session import NEVER, JoinState, Session
from agent.wire.packet import NamedGuid

A, B = bytes([1] * 16), bytes([2] * 16)
T = 133_000_000_000_000_000
EVENT_TIME_WINDOW = 18_000_000_000  # 30 minutes
VERSIONS = st.builds(
    Version,
    st.integers(0, 4).map(lambda n: T + n * EVENT_TIME_WINDOW // 2),
    st.integers(0, 3),
    st.integers(0, 1),
    st.sampled_from([A, B]),
    st.integers(0, 50),
)


@pytest.mark.parametrize(
    ("co", "local", "wins"),
    [
        (Version(T + EVENT_TIME_WINDOW + 1, 0, 0, A, 1), Version(T, 9, 9, B, 2), True),  # more than 30 minutes
        (Version(T - EVENT_TIME_WINDOW - 1, 9, 9, B, 1), Version(T, 0, 0, A, 2), False),
        (Version(T + EVENT_TIME_WINDOW, 0, 9, B, 1), Version(T, 1, 0, A, 2), False),  # 30 minutes are not more
        (Version(T - EVENT_TIME_WINDOW, 2, 0, A, 1), Version(T, 1, 0, B, 2), True),
        (Version(T, 1, 5, A, 1), Version(T, 1, 4, B, 2), True),  # size
        (Version(T, 1, 4, A, 1), Version(T, 1, 4, B, 2), False),  # originator GUID
        (Version(T, 1, 4, B, 1), Version(T, 1, 4, A, 2), True),
        (Version(T, 1, 4, A, 3), Version(T, 1, 4, A, 3), True),  # the local file loses
    ],
)
def test_last_writer_wins(co: Version, local: Version, wins: bool) -> None:
    assert change_order_wins(co, local) is wins


@given(VERSIONS, VERSIONS)
def test_two_members_decide_alike(one: Version, other: Version) -> None:
    if one != other:
        assert change_order_wins(one, other) != change_order_wins(other, one)


MINUTE = 600_000_000
CIRCLE = [Version(T, 3, 0, A, 1), Version(T + 20 * MINUTE, 2, 0, B, 2), Version(T + 40 * MINUTE, 1, 0, A, 3)]


def test_three_versions_can_beat_each_other_in_a_circle() -> None:
    one, two, three = CIRCLE
    assert change_order_wins(one, two)
    assert change_order_wins(two, three)
    assert change_order_wins(three, one)
    assert against_version(three, one)
    assert not against_version(one, two)


def settle(orders: list[list[Version]]) -> list[Version | None]:
    """What two members hold in the end that meet the versions in these orders, and announce anew what won by time
    against the version numbers."""
    held: list[Version | None] = [None, None]
    inboxes = [list(order) for order in orders]
    vsn = 1000
    for _ in range(500):
        for number, inbox in enumerate(inboxes):
            if not inbox:
                continue
            coming, here = inbox.pop(0), held[number]
            if here is None or coming == here:
                held[number] = coming
                continue
            winner, loser = (coming, here) if change_order_wins(coming, here) else (here, coming)
            if against_version(coming, here):
                vsn += 1
                winner = Version(winner.event_time, loser.version + 1, winner.size, [A, B][number], vsn)
                for other in inboxes:
                    other.append(winner)
            held[number] = winner
    assert not any(inboxes)
    return held


@pytest.mark.parametrize("first", list(itertools.permutations(CIRCLE)))
@pytest.mark.parametrize("second", list(itertools.permutations(CIRCLE)))
def test_a_circle_ends_alike(first: tuple[Version, ...], second: tuple[Version, ...]) -> None:
    one, other = settle([list(first), list(second)])
    assert one == other


@given(st.lists(VERSIONS, min_size=2, max_size=4, unique=True), st.data())
def test_any_order_of_arrival_ends_alike(versions: list[Version], data: st.DataObject) -> None:
    one, other = settle([data.draw(st.permutations(versions)) for _ in range(2)])
    assert one == other


def test_morphed_names() -> None:
    guid = bytes.fromhex("78563412" + "00" * 12)
    assert morphed_name("new folder", guid) == "new folder_NTFRS_12345678"
    long = morphed_name("é" * 127, guid)
    assert len(long.encode()) <= 255
    assert long.endswith("_NTFRS_12345678")


def filetime(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 10_000_000 + 116_444_736_000_000_000  # type: ignore[misc,arg-type]


def week(*quarters: int) -> bytes:
    bits = bytearray(84)
    for q in quarters:
        bits[q // 8] |= 1 << q % 8
    return bytes(bits)


SUNDAY = filetime(2026, 3, 1)


def test_schedule_bits() -> None:
    first = week(0)
    assert is_open(first, SUNDAY)
    assert is_open(first, SUNDAY + QUARTER - 1)
    assert not is_open(first, SUNDAY + QUARTER)
    assert not is_open(first, SUNDAY - 1)
    wednesday = week((3 * 24 + 13) * 4 + 2)
    assert is_open(wednesday, filetime(2026, 3, 4, 13, 30))
    assert not is_open(wednesday, filetime(2026, 3, 4, 13, 45))
    assert is_open(None, SUNDAY)
    assert not is_open(bytes(84), SUNDAY)


def test_schedule_changes() -> None:
    schedule = week(0, 1, 5)
    assert next_change(schedule, SUNDAY + 1) == SUNDAY + 2 * QUARTER
    assert next_change(schedule, SUNDAY + 2 * QUARTER) == SUNDAY + 5 * QUARTER
    assert next_trigger(schedule, SUNDAY) == SUNDAY + QUARTER
    assert next_trigger(schedule, SUNDAY + 6 * QUARTER) == SUNDAY + 672 * QUARTER
    assert next_change(b"\xff" * 84, SUNDAY) is None
    assert next_change(bytes(84), SUNDAY) is None
    assert next_trigger(bytes(84), SUNDAY) is None
    assert next_change(None, SUNDAY) is None


def test_two_way_sync() -> None:
    assert merged(week(0), week(9)) == week(0, 9)
    assert merged(week(0), None) is None


def session(
    priority: int,
    *,
    done: bool = False,
    state: JoinState = JoinState.UNJOINED,
    asked: int = 0,
    silent: bool = False,
) -> Session:
    found = Session(Cxtion(bytes(16), "u->d", "", NamedGuid(bytes(16), "u"), True, priority=priority))
    found.last_join_time = 5 if done else NEVER
    found.state, found.asked, found.silent = state, asked, silent
    return found


def test_one_partner_at_a_time() -> None:
    one, other = session(7, state=JoinState.VVJOIN), session(7)
    assert not seeding.may_join([one, other], other)
    assert seeding.may_join([one, other], one)
    assert not seeding.is_over([one, other])


@pytest.mark.parametrize(
    ("before", "asked", "allowed"),
    [
        ([(1, False)], 9, False),
        ([(1, True), (1, False)], 9, False),
        ([(2, True), (2, True)], 0, True),
        ([(3, False), (3, False)], 9, False),
        ([(4, True), (4, False)], 0, True),
        ([(5, False)], 0, False),
        ([(5, False)], 2, True),
    ],
)
def test_priority_classes(before: list[tuple[int, bool]], asked: int, allowed: bool) -> None:
    earlier = [session(priority, done=done, asked=asked) for priority, done in before]
    wanted = session(6)
    assert seeding.may_join([*earlier, wanted], wanted) is allowed
    last = session(0)
    assert seeding.may_join([*earlier, last], last) is allowed
    assert seeding.may_join([*earlier, wanted], earlier[0])


def test_initial_sync_is_over() -> None:
    assert not seeding.is_over([])
    assert not seeding.is_over([session(7)])
    assert not seeding.is_over([session(7, silent=True)])
    assert not seeding.is_over([session(7, done=True), session(7)])
    assert not seeding.is_over([session(7, done=True), session(7, state=JoinState.VVJOIN)])
    assert seeding.is_over([session(7, done=True), session(7, done=True)])
    assert seeding.is_over([session(7, done=True), session(7, silent=True), session(0, silent=True)])
    assert not seeding.is_over([session(1, done=True), session(1, silent=True)])
    assert seeding.is_over([session(3, done=True), session(3, silent=True)])
    assert not seeding.is_over([session(7, done=True), session(4, silent=True)])
