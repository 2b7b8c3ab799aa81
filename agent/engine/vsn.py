"""This member's own volume sequence numbers: the next one, and which it remembers to have issued ([MS-FRS1] 3.1.1.11).

Numbers only grow, and every run of the member starts them from its clock. So between the last number before a start
and the first after it lies a gap that this member never issued. A partner that knows a number in a gap, or above the
last one, knows a change that this member has forgotten: its database was restored from a backup.
"""

from __future__ import annotations

from typing import Final, Protocol

from agent.engine.plausible import may_be_own

_MOST = 100


class Meta(Protocol):
    """Where gaps are remembered. Every call happens inside an open transaction."""

    def meta_get(self, key: str) -> bytes | None: ...
    def meta_set(self, key: str, value: bytes) -> None: ...


class OwnNumbers:
    """The numbers of one member in one replica set, as unsigned 64-bit integers.

    `lifetime` (FILETIME units) is how long a gap is remembered: a change that a partner has got and not yet passed on
    or told of by then is given up by the partner, too.
    """

    KEY: Final = "own numbers"

    def __init__(self, meta: Meta, at_start: int, lifetime: int) -> None:
        self._meta = meta
        self._lifetime = lifetime
        self._at_start = at_start
        self._first = self._last = 0  # of this run; 0: none issued yet
        raw = meta.meta_get(self.KEY) or bytes(8)
        found = [int.from_bytes(raw[i : i + 8], "big") for i in range(0, len(raw), 8)]
        self._settled = found[0]  # up to here everything that was forgotten is asked for
        self._gaps = list(zip(found[1::2], found[2::2]))  # last number before, first number after

    def next(self, known: int, now: int) -> int:
        """The next number, above `known`, this member's entry of its version vector; the first from the clock."""
        number = max(self._last + 1, known + 1, now if self._last == 0 else 0)
        if self._first == 0:
            self._first = number
            if number > self._at_start + 1:
                recent = [gap for gap in self._gaps if gap[1] > now - self._lifetime]
                self._gaps = [*recent[1 - _MOST :], (self._at_start, number)]
                self._save()
        self._last = number
        return number

    def issued(self, number: int) -> bool:
        """This member remembers this number of a change of its own, or has asked for what it does not remember."""
        if number <= self._settled:
            return True
        top = self._last if self._first else self._at_start
        return number <= top and not any(after < number < first for after, first in self._gaps)

    def settle(self, number: int, now: int) -> int:
        """Others know this number, which was not issued: everything is asked for now, and numbers go on above it.

        Returns the number above which own changes may be of the time after the restoration: up to `number`, who knows
        that one takes them for known.
        """
        above = min((after for after, first in self._gaps if first <= number), default=number)
        above = max(above, self._settled)
        self._settled = number
        self._gaps = [gap for gap in self._gaps if gap[1] > number]
        self._last = max(self._last, number, now)
        self._save()
        return above

    def sound(self, now: int) -> None:
        """At start: forget what this member cannot have issued, or been told of (see plausible)."""
        gaps = [gap for gap in self._gaps if may_be_own(gap[1], now)]
        settled = self._settled if may_be_own(self._settled, now) else 0
        if (settled, gaps) != (self._settled, self._gaps):
            self._settled, self._gaps = settled, gaps
            self._save()

    def _save(self) -> None:
        values = [self._settled, *(number for gap in self._gaps for number in gap)]
        self._meta.meta_set(self.KEY, b"".join(value.to_bytes(8, "big") for value in values))
