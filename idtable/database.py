"""The SQLite connection under a store: opening, transactions, errors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

from . import schema
from .errors import StoreDamaged, StoreError, TransactionError, damaged, translate

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]
Params = Sequence[Any]
T = TypeVar("T")

_IDLE: Final = 0
_OPEN: Final = 1
_FAILED: Final = 2


class Database:
    """One open file (or ":memory:") with explicit transactions.

    Not for use by two threads at once. Reads may happen at any time, writes only between begin() and
    commit(). After anything has failed in SQLite the transaction can only be rolled back, so nothing is ever
    committed by halves. While it is open nobody else can open the file: what is kept in memory stays true.
    `on_damage` is told, in whatever thread it is, when the file turns out to be damaged; the caller that came upon it
    gets the same StoreDamaged.

    The parts of a store that keep copies in memory override `_rolled_back` (calling super) to forget them; those that
    put writes off to the end of the transaction override `_write_late`, and call _catch_up() before they read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "FULL",
        lock_timeout_s: float = 1.0,
        cache_kib: int = 32768,
    ) -> None:
        """Open `path`, creating it (mode 0600) when missing.

        `synchronous` FULL makes every commit durable against power loss before commit() returns; NORMAL
        survives kill -9 but may lose the last commits to a power cut; OFF may lose the file to one.
        `lock_timeout_s` is how long to wait for another opener to go. `cache_kib` bounds SQLite's page cache.
        Raises StoreDamaged, StoreNewer, StoreLocked, StoreError, OSError.
        """
        if synchronous not in ("OFF", "NORMAL", "FULL", "EXTRA"):
            raise ValueError(f"synchronous={synchronous!r}")
        self.path = os.fspath(path)
        self.on_damage: Callable[[StoreDamaged], None] = lambda error: None
        self._state = _IDLE
        if self.path != ":memory:":
            _create_private(self.path)
        conn: sqlite3.Connection | None = None
        try:
            conn = sqlite3.connect(
                self.path,
                timeout=lock_timeout_s,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            _configure(conn, self.path, synchronous, cache_kib)
            schema.upgrade(conn, self.path)
        except sqlite3.Error as exc:
            if conn is not None:
                conn.close()
            raise translate(exc, self.path) from exc
        except BaseException:
            if conn is not None:
                conn.close()
            raise
        self._conn = conn
        self._execute = conn.execute
        self._executemany = conn.executemany
        self._file = _file_at(self.path)

    # -- transactions

    @property
    def in_transaction(self) -> bool:
        """Whether begin() has been called and neither commit() nor rollback()."""
        return self._state != _IDLE

    def begin(self) -> None:
        """Open a transaction. Raises TransactionError when one is open, StoreLocked."""
        if self._state != _IDLE:
            raise TransactionError("begin(): a transaction is open already")
        self._read("BEGIN IMMEDIATE")
        self._state = _OPEN

    def commit(self) -> None:
        """Make the transaction's writes durable (as far as `synchronous` says).

        On any error the transaction has been rolled back and the store is as before begin(). Raises
        TransactionError when none is open or something in it has failed, StoreFull, StoreError.
        """
        if self._state != _OPEN:
            if self._state == _IDLE:
                raise TransactionError("commit(): no transaction is open")
            self.rollback()
            raise TransactionError("commit(): something had failed; the transaction has been rolled back")
        try:
            self._write_late()
            self._execute("COMMIT")
        except sqlite3.Error as exc:
            self.rollback()
            raise self._translated(exc) from exc
        except BaseException:
            self.rollback()
            raise
        self._state = _IDLE

    def rollback(self) -> None:
        """Undo all since begin(). Raises TransactionError when no transaction is open."""
        if self._state == _IDLE:
            raise TransactionError("rollback(): no transaction is open")
        try:
            if self._conn.in_transaction:  # SQLite has ended it by itself after some errors
                self._execute("ROLLBACK")
        except sqlite3.Error as exc:
            raise self._translated(exc) from exc
        finally:
            self._state = _IDLE
            self._rolled_back()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """begin() .. commit() around a block; rollback() when it raises."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def close(self) -> None:
        """Roll back what is open and close the file. May be called twice."""
        if self._state != _IDLE:
            self.rollback()
        self._conn.close()

    def check(self, *, thorough: bool = False) -> list[str]:
        """What SQLite finds wrong with the file; [] when it is sound. Takes seconds for large ones.

        `thorough` also compares every index with its table. Raises StoreDamaged when it cannot even be read.
        """
        pragma = "integrity_check" if thorough else "quick_check"
        found = [str(row[0]) for row in self._rows(f"PRAGMA {pragma}")]
        return [] if found == ["ok"] else found

    def require_sound(self) -> None:
        """check(), with an error for what is found. Takes about 2 ms for a thousand records. Raises StoreDamaged."""
        if found := self.check():
            raise self.damage("; ".join(line for text in found[:3] for line in text.splitlines() if line[:3] != "***"))

    def missing(self) -> str:
        """What to say when the file that is open is not at its path any more; empty while it is. SQLite goes on writing
        to a file that was removed, and all of that is gone with this process."""
        try:
            if _file_at(self.path) == self._file:
                return ""
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return ""  # that cannot be told now
        return (
            f"20202 the database {self.path} is not at its place any more: it, or the state directory, was removed or "
            f"moved away while the agent ran (or something is mounted over it); nothing goes on, for it would be "
            f"forgotten. Stop the agent, put the state directory back if it is still there, and start again; if it is "
            f"lost, start without it: this member begins anew then, with what the others have"
        )

    # -- for the parts of a store

    def _write_late(self) -> None:
        """Write what was put off. Raises sqlite3.Error."""

    def _catch_up(self) -> None:
        """What was put off is to be read now."""
        if self._state == _OPEN:
            try:
                self._write_late()
            except sqlite3.Error as exc:
                raise self._failed(exc) from exc

    def _rolled_back(self) -> None:
        """The transaction has been undone: what is kept in memory may not be true any more."""

    def _read(self, sql: str, params: Params = ()) -> sqlite3.Cursor:
        try:
            return self._execute(sql, params)
        except sqlite3.Error as exc:
            raise self._failed(exc) from exc

    def _rows(self, sql: str, params: Params = ()) -> list[Any]:
        try:
            return self._execute(sql, params).fetchall()
        except sqlite3.Error as exc:
            raise self._failed(exc) from exc

    def _row(self, sql: str, params: Params = ()) -> Any:
        try:
            return self._execute(sql, params).fetchone()
        except sqlite3.Error as exc:
            raise self._failed(exc) from exc

    def _write(self, sql: str, params: Params = ()) -> sqlite3.Cursor:
        if self._state != _OPEN:
            raise self._not_writable()
        try:
            return self._execute(sql, params)
        except sqlite3.Error as exc:
            raise self._failed(exc) from exc

    def _failed(self, exc: sqlite3.Error) -> StoreError:
        """The error to raise for `exc`. An open transaction can only be rolled back from now on: SQLite may
        have done so by itself, and then the next write would be a transaction of its own."""
        if self._state == _OPEN:
            self._state = _FAILED
        return self._translated(exc)

    def _translated(self, exc: sqlite3.Error) -> StoreError:
        error = translate(exc, self.path)
        if isinstance(error, StoreDamaged):
            self.on_damage(error)
        return error

    def damage(self, what: object) -> StoreDamaged:
        """The error to raise when what was read makes no sense."""
        if self._state == _OPEN:
            self._state = _FAILED
        error = damaged(self.path, what)
        self.on_damage(error)
        return error

    def _sense(self, make: Callable[[Any], T], row: Any) -> T:
        """What `make` makes of a stored row. Raises StoreDamaged when it cannot."""
        try:
            return make(row)
        except (TypeError, ValueError, AttributeError, IndexError) as exc:
            raise self.damage(f"a stored row makes no sense: {exc}") from exc

    def _require_transaction(self) -> None:
        if self._state != _OPEN:
            raise self._not_writable()

    def _not_writable(self) -> StoreError:
        if self._state == _IDLE:
            return TransactionError("a write outside a transaction: call begin() first")
        return TransactionError("something in this transaction has failed: only rollback() is possible")


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file has the path, by device and inode. Raises OSError."""
    if path == ":memory:":
        return None
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _create_private(path: str) -> None:
    """Make sure the file exists, readable by its owner only, and that its directory entry is durable."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    os.close(fd)
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _configure(conn: sqlite3.Connection, path: str, synchronous: Synchronous, cache_kib: int) -> None:
    """Set what must be set on every connection before its first use."""
    memory = path == ":memory:"
    if not memory:
        # Before the first access to the log: then SQLite needs no shared memory file beside it either.
        conn.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = conn.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != ("memory" if memory else "wal"):
        raise StoreError(f"{path}: the file system does not allow a write-ahead log (journal mode {mode!r})")
    conn.execute(f"PRAGMA synchronous = {synchronous}")
    conn.execute(f"PRAGMA cache_size = -{cache_kib:d}")
    conn.execute("PRAGMA temp_store = MEMORY")
    conn.execute("PRAGMA wal_autocheckpoint = 2000")
    conn.execute("PRAGMA journal_size_limit = 67108864")
    conn.execute("PRAGMA trusted_schema = OFF")
