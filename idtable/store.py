"""The store of one replica set on one member: the IDTable (3.1.1.5), and with its bases the logs, the
version vector and the sessions, all in one SQLite file so that one transaction covers a change.
"""

# ruff: noqa: S608 - what is put into statements here are column lists of this module

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final

from .database import _OPEN, Synchronous
from .logs import Logs
from .records import ZERO_GUID, IDRecord
from .schema import U64_MAX, pack_int, pack_u64, unpack_int
from .sessions import Sessions

_FIELDS: Final = tuple(IDRecord.__dataclass_fields__)
_COLUMNS: Final = ", ".join(_FIELDS) + ", wide"
_SELECT: Final = f"SELECT {_COLUMNS} FROM idtable "
_GET: Final = _SELECT + "WHERE file_guid = ?"
_BY_NAME: Final = (
    "SELECT file_guid FROM idtable WHERE parent_guid = ? AND name = ? AND deleted = 0 ORDER BY file_guid LIMIT 1"
)
_PUT: Final = (
    f"INSERT INTO idtable ({_COLUMNS}) VALUES ({','.join('?' * (len(_FIELDS) + 1))}) "
    f"ON CONFLICT (file_guid) DO UPDATE SET " + ", ".join(f"{c} = excluded.{c}" for c in (*_FIELDS[1:], "wide"))
)
# Most updates leave the columns of these indexes alone: such a statement does not touch the indexes either.
_SAME: Final = ("parent_guid", "name", "is_dir", "deleted", "deleted_time", "dev", "ino")
_CHANGED: Final = tuple(f for f in _FIELDS[1:] if f not in _SAME)
_UPDATE: Final = f"UPDATE idtable SET {', '.join(f'{c} = ?' for c in _CHANGED)} WHERE file_guid = ?"
_fields_of = attrgetter(*_FIELDS)
_same_of = itemgetter(*(_FIELDS.index(f) for f in _SAME))
_changed_of = itemgetter(*(_FIELDS.index(f) for f in (*_CHANGED, "file_guid")))
_BYTES: Final = frozenset(_FIELDS.index(f) for f in ("file_guid", "parent_guid", "name", "originator_guid", "md5"))
_CHUNK: Final = 512
_ORIGINATORS: Final = 4096  # of so many the highest VSN is remembered
#: By the index of originators: as many statements as there are chunks, not as there are originators.
_UNSEEN: Final = (
    "SELECT originator_guid, originator_vsn, file_guid FROM idtable "
    "WHERE (originator_guid, originator_vsn, file_guid) > (?, ?, ?) "
    f"ORDER BY originator_guid, originator_vsn, file_guid LIMIT {_CHUNK}"
)
_LAST_GUID: Final = b"\xff" * 16
_CHANGED_BY: Final = "SELECT file_guid FROM idtable WHERE originator_guid = ? AND originator_vsn = ? LIMIT 1"
_HIGHEST: Final = "SELECT originator_vsn FROM idtable WHERE originator_guid = ? ORDER BY originator_vsn DESC LIMIT 1"
_CHANGES: Final = (
    "SELECT file_guid, originator_vsn FROM idtable WHERE originator_guid = ? AND originator_vsn > ? "
    "ORDER BY originator_vsn, file_guid"
)

Row = tuple[Any, ...]


class Store(Logs, Sessions):
    """What one member knows about one replica set.

    Records handed out are the caller's own: changing one changes nothing until put(). Reads see the writes of
    the open transaction. A cache of recent rows serves get().
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "FULL",
        lock_timeout_s: float = 1.0,
        cache_kib: int = 32768,
        cached_records: int = 16384,
    ) -> None:
        """Open or create; see Database. `cached_records` bounds the rows kept in memory, about 1 KiB each."""
        super().__init__(path, synchronous=synchronous, lock_timeout_s=lock_timeout_s, cache_kib=cache_kib)
        # Two generations: when the young one is full it becomes the old one, and the old one is forgotten.
        self._generation = max(cached_records // 2, 1)
        self._young: dict[bytes, Row] = {}
        self._old: dict[bytes, Row] = {}
        self._absent: set[bytes] = set()  # some GUIDs that no record has
        self._highest: dict[bytes, int] = {}  # originator -> no record of it has a VSN above that
        self._counts: tuple[int, int, int] | None = None

    # -- one record

    def get(self, file_guid: bytes) -> IDRecord | None:
        """The record of that Object ID, tombstones too, or None."""
        row = self._young.get(file_guid) or self._row_of(file_guid)
        return None if row is None else IDRecord(*row)

    def by_name(self, parent_guid: bytes, name: str) -> IDRecord | None:
        """The live record of exactly that name in that folder, or None.

        Should there be several (name_clashes()), it is the one with the lowest GUID.
        """
        row = self._row(_BY_NAME, (parent_guid, name.encode("utf-8", "surrogatepass")))
        record = None if row is None else self.get(row[0])
        if row is not None and (record is None or (record.parent_guid, record.name) != (parent_guid, name)):
            raise self.damage(f"the index of names has {name!r} where the table has another record, or none")
        return record

    def by_local_key(self, dev: int, ino: int, btime_ns: int | None) -> list[IDRecord]:
        """The live records of that device, inode and birth time (None: of an unknown birth time), by GUID."""
        rows = self._rows(
            _SELECT + "WHERE ino = ? AND dev = ? AND btime_ns IS ? AND deleted = 0 ORDER BY file_guid",
            (pack_int(ino), pack_int(dev), None if btime_ns is None else pack_int(btime_ns)),
        )
        return self._records(rows)

    def children(self, parent_guid: bytes) -> list[IDRecord]:
        """The live records of a folder, by the bytes of their names in UTF-8."""
        rows = self._rows(_SELECT + "WHERE parent_guid = ? AND deleted = 0 ORDER BY name, file_guid", (parent_guid,))
        return self._records(rows)

    def has_children(self, parent_guid: bytes) -> bool:
        """Whether a folder has live records."""
        return (
            self._row("SELECT 1 FROM idtable WHERE parent_guid = ? AND deleted = 0 LIMIT 1", (parent_guid,)) is not None
        )

    def put(self, record: IDRecord) -> None:
        """Add the record or replace the one of the same `file_guid`.

        Raises TransactionError; ValueError for GUIDs that are not 16 bytes, a VSN that is not an unsigned
        64-bit number, other integers beyond 128 bits.
        """
        if self._state != _OPEN:
            raise self._not_writable()
        fields = _fields_of(record)
        guid = fields[0]
        if len(guid) != 16 or len(fields[1]) != 16 or len(fields[6]) != 16:
            raise ValueError("a GUID of an IDTable record is not 16 bytes")
        vsn = fields[7]
        if not 0 <= vsn <= U64_MAX:
            raise ValueError(f"originator_vsn {vsn} is not an unsigned 64-bit number")
        before = self._young.pop(guid, None) or self._old.pop(guid, None)
        if vsn > self._highest.get(fields[6], vsn):
            self._highest[fields[6]] = vsn
        if self._counts is not None:
            self._count(guid, before, bool(fields[3]), bool(fields[11]))
        try:
            if before is None or _same_of(before) != _same_of(fields) or not self._update(fields):
                self._upsert(fields)
        except sqlite3.Error as exc:
            raise self._failed(exc) from exc
        except BaseException:
            self._counts = None
            raise
        self._absent.discard(guid)
        self._remember(guid, fields)

    def unstored(self, file_guid: bytes) -> bytes:
        """What is remembered of what was sent of a file and is not in the tree; empty when that is nothing."""
        row = self._row("SELECT value FROM unstored WHERE file_guid = ?", (file_guid,))
        return b"" if row is None else row[0]

    def put_unstored(self, file_guid: bytes, value: bytes) -> None:
        """Remember that, or nothing where the value is empty; its first byte tells the kinds, one bit each.

        Raises TransactionError.
        """
        self._require_transaction()
        if value:
            self._write("INSERT OR REPLACE INTO unstored VALUES (?, ?, ?)", (file_guid, value[0], value))
        else:
            self._write("DELETE FROM unstored WHERE file_guid = ?", (file_guid,))

    def unstored_counts(self) -> dict[int, int]:
        """Of how many files something is remembered, by the first byte of what that is."""
        return dict(self._rows("SELECT what, count(*) FROM unstored GROUP BY what"))

    def path_of(self, file_guid: bytes, *, through_tombstones: bool = False) -> str | None:
        """The path of a record relative to the root of the replica tree, "" for the root.

        The root is the zero GUID, or a record without a name whose parent is the zero GUID or itself. None
        when a parent is missing, is a tombstone (unless `through_tombstones`), or when the parents form a
        circle. The record itself may be a tombstone: then this is where it was.
        """
        names: list[str] = []
        seen: set[bytes] = set()
        guid = file_guid
        while guid != ZERO_GUID:
            row = self._young.get(guid) or self._row_of(guid)
            if row is None or guid in seen:
                return None
            if row[11] and seen and not through_tombstones:
                return None
            seen.add(guid)
            parent, name = row[1], row[2]
            if not name:
                if parent not in (ZERO_GUID, guid):
                    return None
                break
            names.append(name)
            guid = parent
        names.reverse()
        return "/".join(names)

    # -- many records

    def iter_vvjoin(self, vv: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes, int]]:
        """The records (tombstones too) a member with the version vector `vv` has not seen: file GUID, originator
        GUID and VSN.

        Those are the ones whose originator_vsn is above `vv`'s entry for their originator, or above 0 where
        it has none; they come in order of (originator_guid, originator_vsn), each once, as of the call: what
        changes meanwhile does not disturb the iteration (get() then tells the present state). Costs 24
        bytes a record and as many an originator. Raises ValueError when `vv` holds what is no unsigned 64-bit number.
        """
        known = {guid: pack_u64(vsn) for guid, vsn in vv.items()}
        files, vsns = bytearray(), array("Q")
        originators, ends = bytearray(), array("Q")  # of each run of records of one originator
        originator: bytes = b""
        at: tuple[bytes, int | bytes, bytes] = (b"", 0, b"")
        while rows := self._rows(_UNSEEN, at):
            for at in rows:
                vsn = unpack_int(at[1])
                if vsn > vv.get(at[0], 0):
                    if at[0] != originator:
                        originator = at[0]
                        originators += originator
                        ends.append(len(vsns))
                    files += at[2]
                    vsns.append(vsn)
                    ends[-1] += 1
            if unpack_int(at[1]) <= vv.get(at[0], 0):
                at = (at[0], known.get(at[0], 0), _LAST_GUID)  # past all that is known of this originator
        return _unseen(files, vsns, originators, ends)

    def changed_by(self, originator: bytes, vsn: int) -> bytes | None:
        """The GUID of a record (a tombstone, too) that bears this originator and this VSN."""
        packed = pack_u64(vsn)
        if originator not in self._highest:
            if len(self._highest) >= _ORIGINATORS:
                self._highest.clear()
            row = self._row(_HIGHEST, (originator,))
            self._highest[originator] = -1 if row is None else unpack_int(row[0])
        if vsn > self._highest[originator]:
            return None
        row = self._row(_CHANGED_BY, (originator, packed))
        return None if row is None else bytes(row[0])

    def changes_of(self, originator: bytes, above: int) -> list[tuple[bytes, int]]:
        """The records (tombstones too) that bear this originator and a VSN above the one given: file GUID and VSN, in
        order of VSN. Raises ValueError for a VSN that is no unsigned 64-bit number."""
        rows = self._rows(_CHANGES, (originator, pack_u64(above)))
        return [(guid, unpack_int(vsn)) for guid, vsn in rows]

    def beyond(self, *, event_time: int, version: int, vsn: int) -> list[bytes]:
        """The file GUIDs of the records (tombstones too) of which one number is above the one given. Reads all."""
        rows = self._rows(
            "SELECT file_guid FROM idtable WHERE event_time > ? OR version > ? OR originator_vsn > ?",
            (pack_int(event_time), pack_int(version), pack_u64(vsn)),
        )
        return [row[0] for row in rows]

    def records_by_originator(self) -> dict[bytes, int]:
        """How many records (tombstones too) bear the GUID of each originator. Reads the whole index."""
        return dict(self._rows("SELECT originator_guid, count(*) FROM idtable GROUP BY originator_guid"))

    def all_live(self) -> Iterator[IDRecord]:
        """All live records by GUID. Records put meanwhile are seen or not; the others exactly once."""
        last = b""
        while True:
            rows = self._rows(
                _SELECT + f"WHERE file_guid > ? AND deleted = 0 ORDER BY file_guid LIMIT {_CHUNK}", (last,)
            )
            yield from self._records(rows)
            if len(rows) < _CHUNK:
                return
            last = rows[-1][0]

    def counts(self) -> tuple[int, int, int]:
        """(live files, live folders, tombstones); symbolic links count as files."""
        if self._counts is None:
            (all_records,) = self._row("SELECT count(*) FROM idtable")
            (folders,) = self._row("SELECT count(*) FROM idtable WHERE deleted = 0 AND is_dir = 1")
            (dead,) = self._row("SELECT count(*) FROM idtable WHERE deleted = 1")
            self._counts = (all_records - folders - dead, folders, dead)
        return self._counts

    def move_to_device(self, dev: int) -> int:
        """Give all records that have a local key the device number `dev`, as that of the tree is another one than it
        was; tells how many it was. Memory is bounded whatever the number of records.

        Raises TransactionError.
        """
        self._require_transaction()
        self._young.clear()
        self._old.clear()
        statement = "UPDATE idtable SET dev = ? WHERE dev IS NOT NULL AND dev IS NOT ?"
        return self._write(statement, (pack_int(dev),) * 2).rowcount

    def purge_tombstones(self, before: int) -> int:
        """Forget the tombstones with a deleted_time below `before` (FILETIME), and tell how many.

        Raises TransactionError.
        """
        self._require_transaction()
        rows = self._rows("SELECT file_guid FROM idtable WHERE deleted = 1 AND deleted_time < ?", (pack_int(before),))
        for (guid,) in rows:
            self._write("DELETE FROM idtable WHERE file_guid = ?", (guid,))
            self._write("DELETE FROM unstored WHERE file_guid = ?", (guid,))
            self._young.pop(guid, None)
            self._old.pop(guid, None)
        if self._counts is not None:
            files, folders, dead = self._counts
            self._counts = (files, folders, dead - len(rows))
        return len(rows)

    def name_clashes(self) -> list[tuple[bytes, str]]:
        """(parent_guid, name) of every name that several live records bear: [] unless a rule is broken."""
        rows = self._rows(
            "SELECT parent_guid, name FROM idtable WHERE deleted = 0 GROUP BY parent_guid, name HAVING count(*) > 1"
        )
        return [(bytes(parent), name.decode("utf-8", "surrogatepass")) for parent, name in rows]

    # -- inside

    def _update(self, fields: Row) -> bool:
        """Write a row of which only the columns of _CHANGED differ; whether that could be done so."""
        try:
            return self._execute(_UPDATE, _changed_of(fields)).rowcount == 1
        except OverflowError:
            return False

    def _upsert(self, fields: Row) -> None:
        """Write a row whatever was there before."""
        name = fields[2].encode("utf-8", "surrogatepass")
        try:
            self._execute(_PUT, (fields[0], fields[1], name, *fields[3:], 0))
        except OverflowError:
            packed = [pack_int(f) if isinstance(f, int) else f for f in fields[3:]]
            self._execute(_PUT, (fields[0], fields[1], name, *packed, 1))

    def _row_of(self, guid: bytes) -> Row | None:
        """A row in its normal form from the cache's old generation or from the table."""
        row = self._old.pop(guid, None)
        if row is None:
            if guid in self._absent:
                return None
            stored = self._row(_GET, (guid,))
            if stored is None:
                if len(self._absent) >= self._generation:
                    self._absent.clear()
                self._absent.add(guid)
                return None
            row = self._normal(stored)
        self._remember(guid, row)
        return row

    def _remember(self, guid: bytes, row: Row) -> None:
        if len(self._young) >= self._generation:
            self._old = self._young
            self._young = {}
        self._young[guid] = row

    def _count(self, guid: bytes, row: Row | None, is_dir: bool, deleted: bool) -> None:
        """Adjust the counts for a put() about to happen."""
        assert self._counts is not None
        counts = list(self._counts)
        if row is not None:
            before = (row[3], row[11])
        elif guid in self._absent:
            before = None
        else:
            before = self._row("SELECT is_dir, deleted FROM idtable WHERE file_guid = ?", (guid,))
        if before is not None:
            counts[2 if before[1] else 1 if before[0] else 0] -= 1
        counts[2 if deleted else 1 if is_dir else 0] += 1
        self._counts = (counts[0], counts[1], counts[2])

    def _rolled_back(self) -> None:
        super()._rolled_back()
        self._young.clear()
        self._old.clear()
        self._absent.clear()  # _highest stays: it is no lower than it need be
        self._counts = None

    def _normal(self, row: Row) -> Row:
        """A stored row as the fields of an IDRecord."""
        return self._sense(_normal, row)

    def _records(self, rows: list[Row]) -> list[IDRecord]:
        return [IDRecord(*self._normal(row)) for row in rows]


def _normal(row: Row) -> Row:
    """A stored row as the fields of an IDRecord."""
    if row[-1]:
        row = tuple(unpack_int(v) if isinstance(v, bytes) and i not in _BYTES else v for i, v in enumerate(row))
    name = row[2].decode("utf-8", "surrogatepass")
    return (row[0], row[1], name, row[3] == 1, *row[4:11], row[11] == 1, *row[12:-1])


def _unseen(
    files: bytearray, vsns: array[int], originators: bytearray, ends: array[int]
) -> Iterator[tuple[bytes, bytes, int]]:
    """See Store.iter_vvjoin()."""
    begin = 0
    for number, end in enumerate(ends):
        originator = bytes(originators[16 * number : 16 * number + 16])
        for at in range(begin, end):
            yield bytes(files[16 * at : 16 * at + 16]), originator, vsns[at]
        begin = end
