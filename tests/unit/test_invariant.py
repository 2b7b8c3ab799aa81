"""The copy of a database that a running agent writes to."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import invariant


def test_a_checkpoint_between_the_copies_of_the_two_files_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copyfile, checkpoints = shutil.copyfile, 0
    database = tmp_path / "frs.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE numbers (number INTEGER)")
        conn.execute("INSERT INTO numbers VALUES (1)")

        def copied(source: Path, to: Any) -> Any:
            nonlocal checkpoints
            done = copyfile(source, to)
            if not checkpoints:
                checkpoints += 1
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return done

        monkeypatch.setattr(shutil, "copyfile", copied)
        (tmp_path / "copy").mkdir()
        there = invariant._copied(database, tmp_path / "copy")
    assert checkpoints == 1
    with closing(sqlite3.connect(there)) as conn:
        assert conn.execute("SELECT number FROM numbers").fetchall() == [(1,)]
