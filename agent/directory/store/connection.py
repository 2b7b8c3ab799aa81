"""A connection to the database of a directory, whose statements fail in one way: that a disk is full or damaged is
found out by whichever comes first, also by one that only reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Self


class DirectoryStoreError(Exception):
    """The file cannot be used, or a write failed: what to do is in the message."""


class StatementFailed(DirectoryStoreError):
    """What SQLite says of one statement."""


class Connection(sqlite3.Connection):
    """execute() and executemany() raise StatementFailed, as does whoever draws their rows."""

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """As of sqlite3. Raises StatementFailed."""
        return self.cursor(_Cursor).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> sqlite3.Cursor:
        """As of sqlite3. Raises StatementFailed."""
        return self.cursor(_Cursor).executemany(sql, parameters)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> Self:
        try:
            return super().execute(sql, parameters)
        except sqlite3.Error as error:
            raise StatementFailed(str(error)) from error

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Self:
        try:
            return super().executemany(sql, parameters)
        except sqlite3.Error as error:
            raise StatementFailed(str(error)) from error

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except sqlite3.Error as error:
            raise StatementFailed(str(error)) from error

    def fetchone(self) -> Any:
        try:
            return super().fetchone()
        except sqlite3.Error as error:
            raise StatementFailed(str(error)) from error

    def fetchall(self) -> list[Any]:
        try:
            return super().fetchall()
        except sqlite3.Error as error:
            raise StatementFailed(str(error)) from error
