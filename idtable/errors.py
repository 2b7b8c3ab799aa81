"""What can go wrong with a store, and what the user can do about it."""

from __future__ import annotations

import sqlite3


class StoreError(Exception):
    """Base of all errors of this package."""


class StoreDamaged(StoreError, sqlite3.DatabaseError):
    """The file is not a database, or its pages contradict each other."""


class StoreNewer(StoreError):
    """The file was written by a later version of this program."""


class StoreLocked(StoreError):
    """Another process (or another Store of this process) holds the file."""


class StoreFull(StoreError):
    """No space is left for the file; the transaction did not happen."""


class TransactionError(StoreError):
    """begin() twice, a write outside a transaction, or going on after a failure."""


class StateLocked(StoreError):
    """Another agent runs on the same state directory. `pid` names it where that could be found out."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


def damaged(path: str, what: object) -> StoreDamaged:
    """The error for a file of which something tells that it is damaged, with the remedy."""
    return StoreDamaged(
        f"13513 {path}: damaged ({what}). The replicated files themselves are not in it. Stop the agent, move "
        f"this file and its -wal companion aside (keep them), and start again: the agent then scans the "
        f"tree and joins its partners as a new member would, keeping what differs."
    )


def translate(exc: sqlite3.Error, path: str) -> StoreError:
    """The error of this package that says the same as `exc`, with the file and the remedy named."""
    code = getattr(exc, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    # Text that is no text is told by Python alone, without a code.
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(exc).startswith("Could not decode to UTF-8"):
        return damaged(path, exc)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(f"{path}: in use by another process ({exc}). Only one agent may run on a state directory.")
    if primary == sqlite3.SQLITE_FULL:
        return StoreFull(f"13511 {path}: no space left ({exc}). Free some and the agent carries on.")
    return StoreError(f"{path}: {exc}")
