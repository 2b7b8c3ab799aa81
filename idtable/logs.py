"""The outbound log (3.1.1.7) and the inbound log (3.1.1.6)."""

# ruff: noqa: S608 - what is put into statements here are column lists of this module

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .database import Database
from .records import InlogRow, OutlogRow
from .schema import pack_int, pack_u64, unpack_int

_OUT: Final = "seq, co, ext, co_guid, file_guid, originator, vsn, from_members, flags, time"
_IN: Final = "co_guid, cxtion_guid, co, ext, state, stage_size, arrival, retry_count, first_try_time, attempt_after"
_CHUNK: Final = 256
_PUT: Final = (
    f"INSERT INTO inlog ({_IN}) VALUES (?,?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT (co_guid) DO UPDATE SET cxtion_guid = excluded.cxtion_guid, co = excluded.co, "
    "ext = excluded.ext, state = excluded.state, stage_size = excluded.stage_size, "
    "arrival = excluded.arrival, retry_count = excluded.retry_count, "
    "first_try_time = excluded.first_try_time, attempt_after = excluded.attempt_after"
)


class Logs(Database):
    """The part of a store that holds change orders on their way. What a transaction writes is written with its end, all
    rows at once: what comes and goes within it never is."""

    _head: int | None = None
    _inlog_count: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See Database."""
        self._late_out: list[tuple[Any, ...]] = []
        self._late_in: dict[bytes, tuple[Any, ...] | None] = {}  # None: to be removed
        super().__init__(*args, **kwargs)

    # -- outbound log

    def outlog_append(
        self,
        co: bytes,
        ext: bytes,
        co_guid: bytes,
        file_guid: bytes,
        originator: bytes,
        vsn: int,
        from_members: bytes = b"",
        flags: int = 0,
        time: int = 0,
    ) -> int:
        """Add a change order and return its number: one more than the last, whatever has been trimmed since.

        `time` is the FILETIME that outlog_trim() compares. Numbers given in a transaction that is rolled back
        are given again. Raises TransactionError, ValueError for a `vsn` that is no unsigned 64-bit number.
        """
        self._require_transaction()
        seq = self.outlog_head() + 1
        packed = pack_u64(vsn), from_members, pack_int(flags), pack_int(time)
        self._late_out.append((seq, co, ext, co_guid, file_guid, originator, *packed))
        self._head = seq
        return seq

    def outlog_get(self, seq: int) -> OutlogRow | None:
        """The row of that number, None when it never was or has been trimmed."""
        self._catch_up()
        row = self._row(f"SELECT {_OUT} FROM outlog WHERE seq = ?", (pack_int(seq),))
        return None if row is None else self._sense(_outlog_row, row)

    def outlog_iter(self, after_seq: int = 0, limit: int = -1) -> list[OutlogRow]:
        """Up to `limit` rows (all when negative) with numbers above `after_seq`, ascending."""
        self._catch_up()
        rows = self._rows(f"SELECT {_OUT} FROM outlog WHERE seq > ? ORDER BY seq LIMIT ?", (pack_int(after_seq), limit))
        return [self._sense(_outlog_row, row) for row in rows]

    def outlog_heads(self, after_seq: int, upto_seq: int, size: int, limit: int) -> list[tuple[int, bytes, int, bytes]]:
        """Of up to `limit` rows with numbers above `after_seq`, up to `upto_seq`, ascending: number, `from_members`,
        `time`, and the first `size` bytes of `co`."""
        self._catch_up()
        rows = self._rows(
            "SELECT seq, from_members, time, substr(co, 1, ?) FROM outlog WHERE seq > ? AND seq <= ? "
            "ORDER BY seq LIMIT ?",
            (size, pack_int(after_seq), pack_int(upto_seq), limit),
        )
        return self._sense(_outlog_heads, rows)

    def outlog_by_co(self, co_guid: bytes) -> OutlogRow | None:
        """The row of that change order GUID (the newest, should there be several)."""
        self._catch_up()
        row = self._row(f"SELECT {_OUT} FROM outlog WHERE co_guid = ? ORDER BY seq DESC LIMIT 1", (co_guid,))
        return None if row is None else self._sense(_outlog_row, row)

    def outlog_head(self) -> int:
        """The last number given, 0 before the first."""
        if self._head is None:
            self._catch_up()
            row = self._row("SELECT seq FROM sqlite_sequence WHERE name = 'outlog'")
            self._head = 0 if row is None else int(row[0])
        return self._head

    def outlog_first(self) -> int:
        """The lowest number still present; outlog_head() + 1 when there is none."""
        self._catch_up()
        (first,) = self._row("SELECT min(seq) FROM outlog")
        return self.outlog_head() + 1 if first is None else int(first)

    def outlog_holds(self, after_seq: int, before_time: int) -> bool:
        """A row numbered above `after_seq` was logged before `before_time`."""
        self._catch_up()
        query = "SELECT 1 FROM outlog WHERE time < ? AND +seq > ? LIMIT 1"
        return self._row(query, (pack_int(before_time), pack_int(after_seq))) is not None

    def outlog_trim(self, upto_seq: int, before_time: int) -> list[bytes]:
        """Remove the rows numbered up to `upto_seq` and logged before `before_time`.

        Returns the change order GUIDs that the log no longer holds at all, oldest first. Raises
        TransactionError.
        """
        self._require_transaction()
        self._catch_up()
        rows = self._rows(
            "SELECT seq, co_guid FROM outlog WHERE time < ? AND +seq <= ? ORDER BY +seq",
            (pack_int(before_time), pack_int(upto_seq)),
        )
        for seq, _ in rows:
            self._write("DELETE FROM outlog WHERE seq = ?", (seq,))
        gone = dict.fromkeys(bytes(co_guid) for _, co_guid in rows)
        return [g for g in gone if self._row("SELECT 1 FROM outlog WHERE co_guid = ?", (g,)) is None]

    # -- inbound log

    def inlog_put(self, row: InlogRow) -> None:
        """Add a change order, or replace the row of the same `co_guid`. Raises TransactionError."""
        self._require_transaction()
        self._inlog_count = None
        if self._late_in.get(row.co_guid, b"") is None:
            self._catch_up()  # it is to be removed first: what comes after that is a new row, behind the others
        self._late_in[row.co_guid] = (
            row.co_guid,
            row.cxtion_guid,
            row.co,
            row.ext,
            pack_int(row.state),
            pack_int(row.stage_size),
            pack_int(row.arrival),
            pack_int(row.retry_count),
            pack_int(row.first_try_time),
            pack_int(row.attempt_after),
        )

    def inlog_get(self, co_guid: bytes) -> InlogRow | None:
        """The row of that change order, or None."""
        self._catch_up()
        row = self._row(f"SELECT {_IN} FROM inlog WHERE co_guid = ?", (co_guid,))
        return None if row is None else self._sense(_inlog_row, row)

    def inlog_delete(self, co_guid: bytes) -> None:
        """Remove a finished change order, if it is there. Raises TransactionError."""
        self._require_transaction()
        self._inlog_count = None
        self._late_in[co_guid] = None

    def inlog_iter(self) -> Iterator[InlogRow]:
        """All rows in order of arrival. Writes may happen meanwhile; they show in what is still ahead."""
        arrival: int | bytes = pack_int(-(1 << 63))
        last = -1
        while True:
            self._catch_up()
            rows = self._rows(
                f"SELECT {_IN}, id FROM inlog WHERE (arrival, id) > (?, ?) ORDER BY arrival, id LIMIT {_CHUNK}",
                (arrival, last),
            )
            for row in rows:
                yield self._sense(_inlog_row, row[:-1])
            if len(rows) < _CHUNK:
                return
            arrival, last = rows[-1][6], rows[-1][-1]

    def inlog_count(self) -> int:
        """How many change orders wait in the inbound log."""
        if self._inlog_count is None:
            self._catch_up()
            self._inlog_count = int(self._row("SELECT count(*) FROM inlog")[0])
        return self._inlog_count

    def _write_late(self) -> None:
        super()._write_late()
        if self._late_out:
            self._executemany(f"INSERT INTO outlog ({_OUT}) VALUES (?,?,?,?,?,?,?,?,?,?)", self._late_out)
            self._late_out.clear()
        if self._late_in:
            gone = [(co_guid,) for co_guid, row in self._late_in.items() if row is None]
            self._executemany("DELETE FROM inlog WHERE co_guid = ?", gone)
            self._executemany(_PUT, [row for row in self._late_in.values() if row is not None])
            self._late_in.clear()

    def _rolled_back(self) -> None:
        super()._rolled_back()
        self._late_out.clear()
        self._late_in.clear()
        self._head = None
        self._inlog_count = None


def _outlog_row(row: Any) -> OutlogRow:
    out = OutlogRow(*row)
    _require_bytes(out.co, out.ext, out.co_guid, out.file_guid, out.originator, out.from_members)
    out.vsn, out.flags, out.time = unpack_int(out.vsn), unpack_int(out.flags), unpack_int(out.time)
    return out


def _outlog_heads(rows: Any) -> list[tuple[int, bytes, int, bytes]]:
    found = [(seq, members, unpack_int(time), head) for seq, members, time, head in rows]
    for _, members, _, head in found:
        _require_bytes(members, head)
    return found


def _inlog_row(row: Any) -> InlogRow:
    _require_bytes(*row[:4])
    return InlogRow(*row[:4], *map(unpack_int, row[4:]))


def _require_bytes(*values: object) -> None:
    for value in values:
        if not isinstance(value, bytes):
            raise TypeError(f"{value!r} is not bytes")
