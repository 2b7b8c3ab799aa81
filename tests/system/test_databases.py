"""A SQLite database in a replicated tree: open on one member and read on the other, and written on both. Its two files
are two files to everybody (docs/filesystems.md)."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tests.system.demo import Demo, compare_trees, conflicts, listed

NAME = "app.db"
WAL, SHM = f"{NAME}-wal", f"{NAME}-shm"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes with a write-ahead log, and has it written back after every few pages."""
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        database.execute("PRAGMA wal_autocheckpoint=8")
        yield database


def write(database: sqlite3.Connection, who: str, turn: int) -> None:
    """One transaction: every row gets the same content, and there is a row more."""
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE IF NOT EXISTS rows (text)")
    database.execute("INSERT INTO rows VALUES ('')")
    database.execute("UPDATE rows SET text = ?", (f"{who} {turn:04d} " * 60,))
    database.execute("COMMIT")


def content(database: sqlite3.Connection) -> str:
    """Who wrote it last, and when; nothing of it may be from another transaction. Raises sqlite3.Error."""
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    ((text, count),) = database.execute("SELECT DISTINCT text, (SELECT count(*) FROM rows) FROM rows")
    who, turn = text.split()[:2]
    assert count >= int(turn) > 0
    return f"{who} {int(turn)}"


def alone(path: Path) -> str:
    """The content of a database that is one file, as nobody writes to it."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
        return content(database)


def copied(root: Path, folder: Path) -> str | None:
    """What a reader finds who takes the files as they are; None where SQLite says that they are damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in (NAME, WAL):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(root / name, folder / name)
    try:
        with contextlib.closing(sqlite3.connect(folder / NAME)) as database:
            return content(database)
    except (sqlite3.Error, AssertionError, ValueError):
        return None


def kept_contents(demo: Demo) -> list[bytes]:
    """All versions of the database that lost a conflict, as `frs conflicts list` shows them."""
    found = []
    for member, one in demo.members.items():
        folder = one.state / "sets" / demo.description["set_guid"] / "kept"
        found += [(folder / item["id"]).read_bytes() for item in listed(demo, member) if item["path"] == NAME]
    return found


def test_a_database_that_is_open_here_is_read_there(tmp_path: Path) -> None:
    """What its backup makes is whole there whenever somebody looks, and never goes back. Its own two files are a
    database there once it is closed here, whatever a reader there has done to them; and who has it open here misses
    nothing."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        with opened(a / NAME) as database:
            for turn in range(1, 4):
                write(database, "a", turn)
                with contextlib.closing(sqlite3.connect(tmp_path / "backup")) as backup:
                    database.backup(backup)
                    backup.execute("PRAGMA journal_mode=DELETE")
                shutil.copyfile(tmp_path / "backup", tmp_path / "new")
                (tmp_path / "new").rename(a / "copy.db")
                seen = [0]

                def has_come(turn: int = turn, seen: list[int] = seen) -> bool:
                    if not (b / "copy.db").exists():
                        return False
                    seen.append(int(alone(b / "copy.db").split()[1]))
                    assert seen[-2] <= seen[-1] <= turn, "it went back"
                    copied(b, tmp_path / "read")  # this may find anything
                    return seen[-1] == turn

                demo.until("the backup has come", has_come)
            demo.until("the files have come", (b / WAL).exists)
            before = (b / NAME).read_bytes()
            with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(b / NAME)) as reader:
                reader.execute("SELECT count(*) FROM rows").fetchall()
            after = (b / NAME).read_bytes()
            write(database, "a", 4)
            assert content(database) == "a 4"
        closed = (a / NAME).read_bytes()
        demo.wait_converged()
        assert compare_trees(a, b) == []
        assert {path.name for path in a.iterdir()} >= {NAME, "copy.db"}
        assert alone(a / "copy.db") == alone(b / "copy.db") == "a 3"
        # Who reads a database may write to it: then that was a version of its own, and the later one stays.
        found = copied(a, tmp_path / "read")
        assert copied(b, tmp_path / "read") == found
        everywhere, kept = (a / NAME).read_bytes(), kept_contents(demo)
        assert (found == "a 4" and everywhere == closed) or (everywhere == after and closed in kept)
        assert after in (before, everywhere, *kept)


def test_a_database_that_is_written_on_two_members(tmp_path: Path) -> None:
    """Nobody gets another database under his hands. Once both are closed, one of the two is everybody's, the other is
    in `frs conflicts list`, and both can be had."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        roots = {name: demo.members[name].root for name in "ab"}
        with opened(roots["a"] / NAME) as first:
            write(first, "base", 1)
        demo.wait_converged()
        assert copied(roots["b"], tmp_path / "read") == "base 1"
        with opened(roots["a"] / NAME) as here, opened(roots["b"] / NAME) as there:
            for turn in range(2, 6):
                write(here, "a", turn)
                write(there, "b", turn)
            for database in (here, there):
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

            def held() -> bool:
                waiting = [one for name in "ab" for entry in demo.status(name)["sets"] for one in entry["waiting"]]
                return any(
                    one["path"] == NAME and os.getpid() in {holder["pid"] for holder in one["held_by"]}
                    for one in waiting
                )

            demo.until("the version of the other waits until the database is closed", held)
            for database, who in ((here, "a"), (there, "b")):
                assert content(database) == f"{who} 5"
                write(database, who, 6)
        closed = {name: (root / NAME).read_bytes() for name, root in roots.items()}
        demo.wait_converged()
        assert compare_trees(roots["a"], roots["b"]) == []
        found = copied(roots["a"], tmp_path / "read")
        assert found in ("a 6", "b 6")
        won, lost = found[0], "b" if found[0] == "a" else "a"
        assert (roots["a"] / NAME).read_bytes() == closed[won]
        assert closed[lost] in kept_contents(demo)
        for member in "ab":
            for item in listed(demo, member):
                if item["path"] == NAME and item["size"] == len(closed[lost]):
                    conflicts(demo, member, "restore", item["id"], "--to", f"{item['id']}.db")
        demo.wait_converged()
        restored = [alone(path) for path in roots[won].glob("*.db") if path.name != NAME]
        assert f"{lost} 6" in restored
        assert compare_trees(roots["a"], roots["b"]) == []
