"""A look into a database that no agent has open, without changing it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote


def peek_meta(path: str | os.PathLike[str], key: str) -> bytes | None:
    """What the database at `path` has under this key of its meta table; None where that cannot be said."""
    try:
        with closing(sqlite3.connect(f"file:{quote(os.fspath(path))}?mode=ro", uri=True, timeout=0.0)) as conn:
            row = conn.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error:
        return None
    return bytes(row[0]) if row is not None else None
