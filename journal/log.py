"""The USN records on disk, so that what aged when the agent died is looked at when it is back (3.1.5.1)."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_RESERVE: Final = 1 << 20


@dataclass(slots=True)
class Row:
    """One record: all that happened to a path while it aged. Fields as in Aged."""

    first_usn: int
    usn: int
    path: str
    reason: int
    is_dir: bool
    deep: bool
    event_time: int
    moved_to: str | None


class JournalLog:
    """A small SQLite file. Used by one thread at a time.

    The records only say where to look first: a scan at the start finds the same changes. So a file that is, or turns
    out to be, damaged is put aside and a new one begun (`damaged` tells), and commits do not wait for the disk.
    Numbers are never given twice: they are reserved ahead, and a new file begins at a number made from the
    time of day. Raises sqlite3.Error, OSError when the file cannot be made at all.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.damaged = False
        self.next_usn = 0
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._begin_anew(error)

    def _begin_anew(self, error: Exception) -> None:
        logger.warning("20604 %s is damaged (%s); a new one is begun", self._path, error)
        self.damaged = True
        os.replace(self._path, self._path + ".damaged")
        for suffix in ("-wal", "-shm"):
            if os.path.exists(self._path + suffix):
                os.unlink(self._path + suffix)
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise RuntimeError(f"{self._path} was written by a newer version (schema {version})")
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "CREATE TABLE IF NOT EXISTS usn (first_usn INTEGER PRIMARY KEY, usn INTEGER NOT NULL, path BLOB"
                " NOT NULL, reason INTEGER NOT NULL, is_dir INTEGER NOT NULL, deep INTEGER NOT NULL,"
                " event_time INTEGER NOT NULL, moved_to BLOB)"
            )
            db.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL)")
            db.execute("INSERT OR IGNORE INTO meta VALUES ('next_usn', ?)", (int(time.time()) << 20,))
            (next_usn,) = db.execute("SELECT value FROM meta WHERE key = 'next_usn'").fetchone()
            self.next_usn = max(self.next_usn, next_usn)
            self._reserved = self.next_usn + _RESERVE
            db.execute("UPDATE meta SET value = ? WHERE key = 'next_usn'", (self._reserved,))
            db.execute(f"PRAGMA user_version={_VERSION}")
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def take_usn(self) -> int:
        """The next number; never given before."""
        usn: int = self.next_usn
        if usn >= self._reserved:
            self._reserve(usn + _RESERVE)
        self.next_usn = usn + 1
        return usn

    def _reserve(self, upto: int) -> None:
        try:
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'next_usn'", (upto,))
        except sqlite3.DatabaseError as error:
            self._replace_damaged(error)  # in the new one numbers are reserved already
            return
        self._reserved = upto

    def _replace_damaged(self, error: sqlite3.DatabaseError) -> None:
        """Begin a new file where the present one turned out to be damaged. What was in it is looked for by the next
        start's scan. Raises the error when it says something else."""
        if (error.sqlite_errorcode or 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise error
        self._db.close()
        self._begin_anew(error)

    def load(self) -> list[Row]:
        """The records not retired, by number."""
        rows = self._db.execute(
            "SELECT first_usn, usn, path, reason, is_dir, deep, event_time, moved_to FROM usn ORDER BY first_usn"
        )
        return [
            Row(
                r[0], r[1], os.fsdecode(r[2]), r[3], bool(r[4]), bool(r[5]), r[6],
                None if r[7] is None else os.fsdecode(r[7]),
            )
            for r in rows
        ]  # fmt: skip

    def commit(self, puts: Iterable[Row], deletes: Iterable[int]) -> None:
        """Store records (by first_usn) and remove others, in one transaction. Raises sqlite3.Error."""
        puts, deletes = list(puts), list(deletes)
        try:
            self._commit(puts, deletes)
        except sqlite3.DatabaseError as error:
            self._replace_damaged(error)
            self._commit(puts, deletes)

    def _commit(self, puts: Iterable[Row], deletes: Iterable[int]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("DELETE FROM usn WHERE first_usn = ?", ((usn,) for usn in deletes))
            self._db.executemany(
                "INSERT OR REPLACE INTO usn VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        r.first_usn, r.usn, os.fsencode(r.path), r.reason, r.is_dir, r.deep, r.event_time,
                        None if r.moved_to is None else os.fsencode(r.moved_to),
                    )
                    for r in puts
                ),
            )  # fmt: skip
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite rolls back by itself when the disk is full
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Give back the numbers reserved but not used, and close."""
        try:
            self._reserve(self.next_usn)
        except sqlite3.Error:
            logger.warning("20605 %s: the journal cannot be closed", self._path, exc_info=True)
        self._db.close()
