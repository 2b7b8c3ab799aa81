"""What a connection has still to carry: how many change orders, the bytes of their files, and since when.

Of the outbound log each row is read once when it has come, and once when it was sent: a log of which nothing was sent
costs nothing more, however long it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from agent.engine import flags as fl
from agent.wire.change_order import ChangeOrder

#: Rows of the log that are read at a time. Of more a part is told, and more of it each time.
MOST: Final = 10_000
#: Of an encoded change order (2.2.3.2): Flags, ContentCmd, LocationCmd, FileAttributes, FileSize.
_HEAD: Final = struct.Struct("<4xI8x3I12xQ")
_FEW: Final = 64


class Waits(NamedTuple):
    """So many change orders, the bytes of their files as these are in the tree, and since when the oldest of them waits
    (FILETIME, 0 for none)."""

    many: int = 0
    size: int = 0
    oldest: int = 0


class Log(Protocol):
    """What this module needs of the store."""

    def outlog_heads(
        self, after_seq: int, upto_seq: int, size: int, limit: int
    ) -> list[tuple[int, bytes, int, bytes]]: ...


def content_bytes(co: ChangeOrder) -> int:
    """The size of the file where the change order brings its content: 0 for folders, renames and deletions."""
    return _bytes(co.flags, co.content_cmd, co.location_cmd, co.file_attributes, co.file_size)


def _bytes(flags: int, content_cmd: int, location_cmd: int, attributes: int, size: int) -> int:
    if not fl.brings_content(location_cmd, flags, content_cmd) or fl.is_folder(location_cmd, flags, attributes):
        return 0
    return size


@dataclass(slots=True)
class Tally:
    """The rows of the log that are numbered above `low`, up to `high`, but for those that come from the partner."""

    low: int = 0
    high: int = 0
    many: int = 0
    size: int = 0
    _first: tuple[int, int] = (0, 0)  # number and time of the first of them, where that is known

    def look(self, log: Log, leading: int, head: int, partner: bytes) -> Waits:
        """What is behind `leading`, the last number that was sent, up to the `head` of the log. A row that cannot be
        read counts as one without content."""
        if not self.low - MOST <= leading <= min(self.high, self.low + MOST):
            self.low, self.high, self.many, self.size = leading, leading, 0, 0
        if leading < self.low:
            self._first = (0, 0)
        self._add(log, leading, self.low, partner)
        self._add(log, self.low, leading, partner, -1)
        self.low = leading
        if self.high < head:
            self.high = self._add(log, self.high, head, partner)
        return Waits(self.many, self.size, self._oldest(log, partner) if self.many else 0)

    def forget(self) -> None:
        """Rows were taken out of the log."""
        self.low = self.high = self.many = self.size = 0
        self._first = (0, 0)

    def _add(self, log: Log, after: int, upto: int, partner: bytes, times: int = 1) -> int:
        """The number up to which they were counted."""
        if after >= upto:
            return upto
        rows = log.outlog_heads(after, upto, _HEAD.size, MOST)
        for _, from_members, _, head in rows:
            if not _is_among(partner, from_members):
                self.many += times
                self.size += times * (_bytes(*_HEAD.unpack(head)) if len(head) == _HEAD.size else 0)
        return rows[-1][0] if len(rows) == MOST else upto

    def _oldest(self, log: Log, partner: bytes) -> int:
        number, when = self._first
        if number > self.low:
            return when
        at = self.low
        while rows := log.outlog_heads(at, self.high, 0, _FEW):
            for seq, from_members, when, _ in rows:
                if not _is_among(partner, from_members):
                    self._first = seq, when
                    return when
            at = rows[-1][0]
        return 0


def _is_among(partner: bytes, members: bytes) -> bool:
    return any(members[i : i + 16] == partner for i in range(0, len(members), 16))
