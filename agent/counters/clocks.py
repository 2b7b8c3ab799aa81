"""When samples were taken, though clocks are wrong.

Samples are ordered by (start, ``mono_us``), which no clock disturbs. What the wall clock was ahead of that time is one
number for each start: what most of its samples say, of those that can be. Then no start may reach into the next one,
nor beyond the time at which its last sample was first seen. So one sample of a clock that was a day ahead changes
nothing, and a start that began in 1970 is where its neighbours leave room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from agent.counters.stretches import Stretch

S: Final = 10**6
#: No agent ran before.
EARLIEST_US: Final = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp()) * S
#: A clock that is so far ahead of this one is still believed.
AHEAD_US: Final = 300 * S
#: What starts overlap by, or move by, is let be where it is less.
_TOLERANCE_US: Final = S


@dataclass
class Start:
    """What is known of one start, of all its files, ``covered``: which numbers of samples have been seen, as pairs of
    the first and the last. ``seen_us``: when the last was first seen. ``correction_us`` is added to its monotonic time.
    """

    host: str = ""
    member: str = ""
    low_us: int = -1
    high_us: int = -1
    seen_us: int = 0
    correction_us: int | None = None
    covered: list[tuple[int, int]] = field(default_factory=list)
    clocks: dict[int, int] = field(default_factory=dict)
    instances: dict[str, tuple[str, str]] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)

    def add(self, stretch: Stretch, now_us: int) -> bool:
        """Take in what a file has; False where all of it was known."""
        low, high = stretch.seqs
        if low < high and any(first <= low <= last for first, last in self.covered):
            low += 1  # a file begins with the last sample of the one before
        if any(first <= low and high <= last for first, last in self.covered):
            return False
        self.covered = _united([*self.covered, stretch.seqs])
        if stretch.high_us > self.high_us:
            self.high_us, self.seen_us = stretch.high_us, now_us
            self.host, self.member = stretch.host, stretch.member
        self.low_us = stretch.low_us if self.low_us < 0 else min(self.low_us, stretch.low_us)
        for offset, rows in stretch.clocks:
            same = next((one for one in self.clocks if abs(one - offset) < 60 * S), offset)
            self.clocks[same] = self.clocks.get(same, 0) + rows
        self.instances.update(stretch.instances)
        self.counters.update(stretch.counters)
        return True

    def clock_us(self) -> int | None:
        """What most of the samples say, of those that can be."""
        can_be = [
            (rows, -ahead)
            for ahead, rows in self.clocks.items()
            if ahead + self.low_us >= EARLIEST_US and ahead + self.high_us <= self.seen_us + AHEAD_US
        ]
        return -max(can_be)[1] if can_be else None

    def wrong_s(self) -> int:
        """By how many seconds the clock was wrong at most, at any time."""
        right = self.correction_us or 0
        return max((abs(ahead - right) for ahead in self.clocks), default=0) // S

    def as_json(self) -> list[Any]:
        return [
            self.host, self.member, self.low_us, self.high_us, self.seen_us, self.correction_us, self.covered,
            list(self.clocks.items()), self.instances, self.counters,
        ]  # fmt: skip

    @classmethod
    def of_json(cls, told: list[Any]) -> Start:
        host, member, low, high, seen, correction, covered, clocks, instances, counters = told
        pairs = [(first, last) for first, last in covered]
        there = {guid: (set_name, name) for guid, (set_name, name) in instances.items()}
        return cls(host, member, low, high, seen, correction, pairs, dict(clocks), there, counters)


def place(starts: Sequence[Start]) -> list[Start]:
    """Correct the starts of one member, given in their order; returns those that moved."""
    ends: list[int | None] = []
    latest: int | None = None
    for start in starts:  # one whose clock cannot be believed begins where the one before ended
        clock = start.clock_us()
        begin = latest if clock is None else clock + start.low_us
        ends.append(None if begin is None else begin + start.high_us - start.low_us)
        latest = max((end for end in (latest, ends[-1]) if end is not None), default=None)
    moved, following = [], None
    for start, told in zip(reversed(starts), reversed(ends), strict=True):
        end = told
        if end is None or start.clock_us() is None:
            end = start.seen_us if end is None else min(end, start.seen_us)
        if following is not None and end > following + _TOLERANCE_US:
            end -= -(-(end - following) // S) * S
        following = end - (start.high_us - start.low_us)
        correction = max(end - start.high_us, 0)
        if start.correction_us is None or abs(correction - start.correction_us) > _TOLERANCE_US:
            start.correction_us = correction
            moved.append(start)
    return moved


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in as few ranges as can be."""
    united: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if united and low <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], high))
        else:
            united.append((low, high))
    return united
