"""The version vector (3.1.1.11), what outlives a session on a connection (3.1.1.8), and named values."""

# ruff: noqa: S608 - what is put into statements here are column lists of this module

from __future__ import annotations

from typing import Any, Final

from .database import Database
from .records import CxtionRow
from .schema import pack_int, pack_u64, unpack_int

_CXTION: Final = "guid, trailing_seq, last_join_time, join_guid, partner_vv, vvjoin_done"


class Sessions(Database):
    """The part of a store that says how far this member and its partners have come."""

    _vv: dict[bytes, int] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See Database."""
        self._late_vv: dict[bytes, int | bytes] = {}  # set in this transaction, to be written with its end
        self._late_cxtions: dict[bytes, tuple[Any, ...]] = {}
        super().__init__(*args, **kwargs)

    def vv_get(self) -> dict[bytes, int]:
        """The version vector: originator GUID -> VSN. The caller owns the answer."""
        if self._vv is None:
            self._catch_up()
            rows = self._rows("SELECT originator, vsn FROM version_vector")
            self._vv = dict(self._sense(_vv_entry, row) for row in rows)
        return self._vv.copy()

    def vv_set(self, originator: bytes, vsn: int) -> None:
        """Set one entry, up or down.

        Raises TransactionError, ValueError for a `vsn` that is no unsigned 64-bit number.
        """
        self._require_transaction()
        self._late_vv[originator] = pack_u64(vsn)
        if self._vv is not None:
            self._vv[originator] = vsn

    def vv_forget(self, originator: bytes) -> None:
        """Take one entry out. Raises TransactionError."""
        self._late_vv.pop(originator, None)
        self._write("DELETE FROM version_vector WHERE originator = ?", (originator,))
        if self._vv is not None:
            self._vv.pop(originator, None)

    def cxtion_get(self, guid: bytes) -> CxtionRow | None:
        """What is known of a connection, or None."""
        self._catch_up()
        row = self._row(f"SELECT {_CXTION} FROM cxtion WHERE guid = ?", (guid,))
        return None if row is None else self._sense(_cxtion_row, row)

    def cxtion_put(self, row: CxtionRow) -> None:
        """Add or replace a connection. Raises TransactionError."""
        self._require_transaction()
        self._late_cxtions[row.guid] = (
            row.guid,
            row.trailing_seq,
            pack_int(row.last_join_time),
            row.join_guid,
            row.partner_vv,
            bool(row.vvjoin_done),
        )

    def cxtion_delete(self, guid: bytes) -> bool:
        """Forget a connection; whether it was known. Raises TransactionError."""
        self._catch_up()
        return self._write("DELETE FROM cxtion WHERE guid = ?", (guid,)).rowcount > 0

    def cxtion_all(self) -> list[CxtionRow]:
        """All connections, by GUID."""
        self._catch_up()
        return [self._sense(_cxtion_row, row) for row in self._rows(f"SELECT {_CXTION} FROM cxtion ORDER BY guid")]

    def meta_get(self, key: str) -> bytes | None:
        """The value of that name, or None."""
        row = self._row("SELECT value FROM meta WHERE key = ?", (key,))
        return None if row is None else self._sense(lambda found: bytes(found[0]), row)

    def meta_set(self, key: str, value: bytes) -> None:
        """Set a named value. Raises TransactionError."""
        self._write("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def _write_late(self) -> None:
        super()._write_late()
        if self._late_vv:
            self._executemany(
                "INSERT INTO version_vector (originator, vsn) VALUES (?, ?) "
                "ON CONFLICT (originator) DO UPDATE SET vsn = excluded.vsn",
                self._late_vv.items(),
            )
            self._late_vv.clear()
        if self._late_cxtions:
            self._executemany(
                f"INSERT OR REPLACE INTO cxtion ({_CXTION}) VALUES (?,?,?,?,?,?)", self._late_cxtions.values()
            )
            self._late_cxtions.clear()

    def _rolled_back(self) -> None:
        super()._rolled_back()
        self._vv = None
        self._late_vv.clear()
        self._late_cxtions.clear()


def _vv_entry(row: Any) -> tuple[bytes, int]:
    originator, vsn = row
    return bytes(originator), unpack_int(vsn)


def _cxtion_row(row: Any) -> CxtionRow:
    guid, trailing, joined, join_guid, partner_vv, done = row
    return CxtionRow(guid, trailing, unpack_int(joined), join_guid, partner_vv, bool(done))
