"""Damaging pages of a store's database."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

#: Tables and indexes of which a page is damaged.
TREES = ("idtable", "idtable_name", "idtable_local", "outlog")


def damage(path: Path, tree: str, conn: sqlite3.Connection | None = None) -> None:
    """Overwrites the root page of a table or an index in the file. `conn`: the connection of the store that has it open
    in this process, which is made to forget what it has read."""
    own = sqlite3.connect(path) if conn is None else conn
    own.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (page,) = own.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).fetchone()
    (size,) = own.execute("PRAGMA page_size").fetchone()
    if conn is None:
        own.close()
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, b"\xa5" * size, (page - 1) * size)
    finally:
        os.close(descriptor)
    if conn is not None:
        conn.execute("PRAGMA shrink_memory").fetchall()
