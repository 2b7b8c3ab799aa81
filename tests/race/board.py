"""What campaign and attackers tell each other: numbers in memory that they share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import Final

RESTING, ATTACKING, ENDED = 0, 1, 2
_SIZE: Final = 4096
_ORDER: Final = 0
_ALONE: Final = 1
_FOCUS: Final = 8  # indexes into layout.TARGETS, each plus one
_FOCUS_SIZE: Final = 6
_FIRST: Final = 32
_EACH: Final = 32

#: What each attacker counts. Only `swaps` are exchanges that took place; `tries` failed for lack of one of the two.
COUNTS: Final = ("state", "swaps", "tries", "edits", "removals", "inside", "preinstall", "refilled")


class Board:
    """The order of the campaign (RESTING, ATTACKING, ENDED), what is changed just now, and what the attackers count."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("race") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _SIZE)
        self._cells = memoryview(mmap.mmap(self.fd, _SIZE)).cast("Q")

    @property
    def order(self) -> int:
        return self._cells[_ORDER]

    @order.setter
    def order(self, order: int) -> None:
        self._cells[_ORDER] = order

    def point_at(self, targets: Iterable[int], *, alone: bool = False) -> None:
        """Tell the attackers what is being changed now, in place of what was; `alone`: nothing else is worth while."""
        self._cells[_ALONE] = alone
        cells = [target + 1 for target in targets][:_FOCUS_SIZE]
        for number, cell in enumerate(cells + [0] * (_FOCUS_SIZE - len(cells))):
            self._cells[_FOCUS + number] = cell

    def pointed_at(self) -> list[int]:
        """The indexes of the targets that are being changed."""
        return [cell - 1 for cell in self._cells[_FOCUS : _FOCUS + _FOCUS_SIZE] if cell]

    @property
    def alone(self) -> bool:
        """Whether nothing but pointed_at() is worth while."""
        return bool(self._cells[_ALONE])

    def count(self, attacker: int, what: str, more: int = 1) -> None:
        self._cells[_FIRST + attacker * _EACH + COUNTS.index(what)] += more

    def set_state(self, attacker: int, state: int) -> None:
        self._cells[_FIRST + attacker * _EACH] = state

    def of(self, attacker: int, what: str) -> int:
        return self._cells[_FIRST + attacker * _EACH + COUNTS.index(what)]
