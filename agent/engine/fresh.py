"""The end of the outbound log as it was made: what was just written for the partners need not be read and decoded again
to be sent, and to be served."""

from __future__ import annotations

from typing import Final, NamedTuple

from agent.engine.stored import change_order_of, extension_of
from agent.wire.change_order import ChangeOrder, CoExtension2
from idtable.records import OutlogRow

#: Rows that are kept, of those that a partner has not acknowledged: some 2 MiB.
MOST: Final = 2048


class Logged(NamedTuple):
    """A change order of the outbound log; nobody changes it any more. `row` has no bytes of it where it was just
    made."""

    row: OutlogRow
    co: ChangeOrder
    extension: CoExtension2


def logged(row: OutlogRow) -> Logged:
    """What the store has. Raises Unreadable."""
    return Logged(row, change_order_of(row), extension_of(row))


class Fresh:
    """The last change orders of the log, by their numbers, without gaps."""

    def __init__(self) -> None:
        self._rows: dict[int, Logged] = {}
        self._numbers: dict[bytes, int] = {}  # of each change order, the last

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, item: Logged) -> None:
        """The next one has been written."""
        self._rows[item.row.seq] = item
        self._numbers[item.row.co_guid] = item.row.seq
        if len(self._rows) > MOST:
            self._forget(next(iter(self._rows)))

    def after(self, number: int, limit: int) -> list[Logged]:
        """Up to `limit` of those that follow that number; none when the next one is not here."""
        found: list[Logged] = []
        while len(found) < limit and (item := self._rows.get(number + 1 + len(found))) is not None:
            found.append(item)
        return found

    def of(self, co_guid: bytes) -> Logged | None:
        """The last one of that change order GUID."""
        number = self._numbers.get(co_guid)
        return None if number is None else self._rows[number]

    def acknowledged(self, upto: int) -> None:
        """Nobody asks for these any more."""
        while self._rows and (number := next(iter(self._rows))) <= upto:
            self._forget(number)

    def clear(self) -> None:
        """Rows were taken out of the log."""
        self._rows.clear()
        self._numbers.clear()

    def _forget(self, number: int) -> None:
        item = self._rows.pop(number)
        if self._numbers.get(item.row.co_guid) == number:
            del self._numbers[item.row.co_guid]
