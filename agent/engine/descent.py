"""Which changes were made from the version that is here: by a mark of the version that each change order names (see
records), and by those of the versions in between that were never installed here."""

from __future__ import annotations

from typing import Final

from agent.engine.records import MARKS, mark, mark_of
from agent.wire.change_order import ChangeOrder
from idtable.records import IDRecord

#: Versions that are remembered of one file, and files of which any are.
_MARKS: Final = 256
_FILES: Final = 4096


class Descent:
    """Remembers the versions that were passed over."""

    def __init__(self) -> None:
        self._passed: dict[bytes, tuple[int, dict[int, None]]] = {}  # by file GUID: mark of its version here, theirs

    def descends(self, co: ChangeOrder, record: IDRecord) -> bool:
        """The change was made by somebody who knew the record's version, or a change made from it."""
        base = co.ack_version & MARKS
        here = mark_of(record)
        seen, line = self._passed.get(co.file_guid, (0, dict[int, None]()))
        return base == here or (base != 0 and seen == here and base in line)

    def passed_over(self, co: ChangeOrder, record: IDRecord | None) -> None:
        """A version that is never installed here: if it was made from the one that is, what is made from it is, too."""
        if record is None or record.deleted or not self.descends(co, record):
            return
        here = mark_of(record)
        seen, marks = self._passed.pop(co.file_guid, (here, {}))
        if seen != here:
            marks = {}
        marks[mark(co.originator_guid, co.frs_vsn)] = None
        self._passed[co.file_guid] = (here, marks)
        # What is forgotten may cost that something is kept which need not be.
        if len(marks) > _MARKS:
            del marks[next(iter(marks))]
        if len(self._passed) > _FILES:
            del self._passed[next(iter(self._passed))]
