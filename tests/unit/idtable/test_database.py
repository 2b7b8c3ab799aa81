"""Opening, transactions, damage, and what else can be wrong with the file."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import idtable
from idtable import schema
from idtable.errors import StoreDamaged, StoreError, StoreFull, StoreLocked, StoreNewer, TransactionError
from idtable.records import CxtionRow, IDRecord, InlogRow
from idtable.store import Store
from tests.damage import damage

ROOT = Path(idtable.__file__).parents[1]


def guid(n: int) -> bytes:
    return n.to_bytes(16, "big")


def fill(path: Path, count: int = 400) -> None:
    store = Store(path, synchronous="OFF")
    with store.transaction():
        for n in range(1, count):
            store.put(IDRecord(guid(n), guid(n // 10), f"name{n}", n % 10 == 0, originator_guid=guid(5), ino=n, dev=1))
            store.outlog_append(bytes(0x318), b"", guid(n), guid(n), guid(5), n)
            store.inlog_put(InlogRow(guid(n), guid(6), bytes(0x318), b"", arrival=n))
        store.vv_set(guid(5), 1)
        store.cxtion_put(CxtionRow(guid(6)))
        store.meta_set("k", b"v")
    store.close()


def test_the_name_of_a_new_database_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may leave a member without what it has acknowledged."""
    synced: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    Store(tmp_path / "frs.db").close()
    assert synced == [tmp_path.stat().st_ino]
    Store(tmp_path / "frs.db").close()
    assert len(synced) == 1, "one that was there has its name"


@pytest.mark.parametrize("how", ["removed", "its folder removed", "another in its place", "a file in its way"])
def test_a_file_that_is_not_at_its_place_any_more(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    with contextlib.closing(Store(folder / "frs.db", synchronous="OFF")) as store:
        assert store.missing() == ""
        with store.transaction():
            store.meta_set("k", b"v")
        assert store.missing() == ""
        aside = folder.rename(tmp_path / "aside")
        if how != "its folder removed":
            folder.touch() if how == "a file in its way" else folder.mkdir()
        if how == "another in its place":
            (folder / "frs.db").touch()
        assert f"the database {folder / 'frs.db'} is not at its place any more" in store.missing()
        if folder.is_dir():
            shutil.rmtree(folder)
        folder.unlink(missing_ok=True)
        aside.rename(folder)
        assert store.missing() == ""
    assert Store(":memory:").missing() == ""


def test_transactions_do_not_nest() -> None:
    store = Store(":memory:")
    for wrong in (store.commit, store.rollback):
        with pytest.raises(TransactionError, match="no transaction is open"):
            wrong()
    store.begin()
    assert store.in_transaction
    with pytest.raises(TransactionError, match="open already"):
        store.begin()
    store.commit()
    assert not store.in_transaction
    store.close()


def test_transaction_rolls_back_what_raises() -> None:
    store = Store(":memory:")
    with pytest.raises(KeyError), store.transaction():
        store.meta_set("k", b"v")
        raise KeyError
    assert store.meta_get("k") is None
    assert not store.in_transaction
    store.close()


def test_close_keeps_only_what_was_committed(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    with store.transaction():
        store.meta_set("a", b"1")
    store.begin()
    store.meta_set("b", b"1")
    store.close()
    store.close()
    assert os.listdir(tmp_path) == ["s.db"]
    store = Store(tmp_path / "s.db")
    assert (store.meta_get("a"), store.meta_get("b")) == (b"1", None)
    store.close()


def test_the_file_is_private_and_marked(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = Store(tmp_path / "s.db")
    finally:
        os.umask(old)
    for name in os.listdir(tmp_path):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600
    store.close()
    conn = sqlite3.connect(tmp_path / "s.db")
    assert conn.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    assert conn.execute("PRAGMA application_id").fetchone() == (schema.APPLICATION_ID,)
    conn.close()


@pytest.mark.parametrize(("level", "number"), [("OFF", 0), ("NORMAL", 1), ("FULL", 2), ("EXTRA", 3)])
def test_synchronous_is_what_was_asked(tmp_path: Path, level: str, number: int) -> None:
    store = Store(tmp_path / "s.db", synchronous=level)  # type: ignore[arg-type]
    assert store._conn.execute("PRAGMA synchronous").fetchone() == (number,)
    assert store._conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
    with pytest.raises(ValueError):
        Store(tmp_path / "s.db", synchronous="full; DROP TABLE idtable")  # type: ignore[arg-type]


def test_full_is_the_default(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    assert store._conn.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_a_later_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    fill(path, 3)
    conn = sqlite3.connect(path)
    conn.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    conn.close()
    before = path.read_bytes()
    with pytest.raises(StoreNewer, match="later version"):
        Store(path)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE theirs (x)")
    conn.commit()
    with pytest.raises(StoreError, match="another program"):
        Store(path, lock_timeout_s=0)
    conn.execute("PRAGMA application_id = 77")
    conn.commit()
    conn.close()
    with pytest.raises(StoreError, match="another program"):
        Store(path)


def test_migrations_run_in_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    fill(path, 20)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "VERSION", schema.VERSION + 1)
        patch.setitem(schema.MIGRATIONS, schema.VERSION - 1, ("CREATE TABLE extra (x)", "a mistake"))
        with pytest.raises(StoreError, match="syntax error"):
            Store(path)
        patch.setitem(schema.MIGRATIONS, schema.VERSION - 1, ("CREATE TABLE extra (x)",))
        store = Store(path)  # fails with "table extra already exists" had the first try left it behind
        assert store._conn.execute("SELECT count(*) FROM extra").fetchone() == (0,)
        assert store.get(guid(7)) is not None
        store.close()
    with pytest.raises(StoreNewer):
        Store(path)


def test_only_one_may_open_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = Store(path)
    code = (
        "import sys; from idtable.store import Store; from idtable.errors import StoreLocked\n"
        "try: Store(sys.argv[1], lock_timeout_s=0)\n"
        "except StoreLocked as exc: print(exc)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "in use by another process" in run.stdout
    with pytest.raises(StoreLocked):
        Store(path, lock_timeout_s=0)
    store.close()
    Store(path).close()


def test_a_directory_or_nothing_there(tmp_path: Path) -> None:
    with pytest.raises((StoreError, OSError)):
        Store(tmp_path)
    with pytest.raises((StoreError, OSError)):
        Store(tmp_path / "no" / "s.db")


def test_a_full_disk_undoes_the_transaction(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    with store.transaction():
        store.put(IDRecord(guid(1), guid(2), "kept", False))
        store.vv_set(guid(3), 1)
    (pages,) = store._conn.execute("PRAGMA page_count").fetchone()
    store._conn.execute(f"PRAGMA max_page_count = {pages + 3}")
    store.begin()
    store.vv_set(guid(3), 2)
    store.put(IDRecord(guid(1), guid(2), "changed", False))
    with pytest.raises(StoreFull, match="no space"):
        for n in range(10, 1000):
            store.put(IDRecord(guid(n), guid(2), "x" * 200, False))
    with pytest.raises(TransactionError, match="rollback"):
        store.put(IDRecord(guid(4), guid(2), "y", False))
    with pytest.raises(TransactionError, match="rolled back"):
        store.commit()
    assert not store.in_transaction
    assert store.vv_get() == {guid(3): 1}
    assert [r.name for r in store.all_live()] == ["kept"]
    store._conn.execute("PRAGMA max_page_count = 100000")
    with store.transaction():
        store.put(IDRecord(guid(4), guid(2), "after", False))
    assert store.counts() == (2, 0, 0)
    store.close()


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="move this file") as caught:
        Store(path)
    assert isinstance(caught.value, sqlite3.DatabaseError)
    assert path.read_bytes() == content


def use_everything(store: Store) -> None:
    for n in range(1, 400):
        store.get(guid(n))
        store.by_name(guid(n // 10), f"name{n}")
        store.by_local_key(1, n, None)
        store.path_of(guid(n))
        store.outlog_get(n)
        store.inlog_get(guid(n))
    for n in range(40):
        store.children(guid(n))
    list(store.iter_vvjoin({}))
    list(store.all_live())
    list(store.inlog_iter())
    store.outlog_iter()
    store.counts()
    store.vv_get()
    store.cxtion_all()
    store.meta_get("k")
    with store.transaction():
        for n in range(1, 400, 7):
            store.put(IDRecord(guid(n), guid(3), f"new{n}", False))
            store.outlog_append(b"", b"", guid(n), guid(n), guid(5), n)
            store.inlog_delete(guid(n))
        store.outlog_trim(100, 1)


def test_damage_is_called_damage(tmp_path: Path) -> None:
    """Pages overwritten at random: whatever happens, the error is one of ours; mostly it is StoreDamaged."""
    good = tmp_path / "good.db"
    fill(good)
    content = good.read_bytes()
    rng = random.Random(20)
    named = 0
    for trial in range(40):
        broken = bytearray(content)
        for _ in range(6):
            at = rng.randrange(4096, len(broken) - 600)
            broken[at : at + 600] = rng.randbytes(600)
        path = tmp_path / f"{trial}.db"
        path.write_bytes(broken)
        try:
            store = Store(path, synchronous="OFF")
            try:
                use_everything(store)
            finally:
                store.close()
        except StoreDamaged:
            named += 1
        except StoreError:
            pass
        os.unlink(path)
    assert named > 30


@pytest.mark.parametrize("change", ["name = x'ff'", "name = 7"])
def test_a_record_that_makes_no_sense_is_damage(tmp_path: Path, change: str) -> None:
    path = tmp_path / "s.db"
    fill(path, 20)
    conn = sqlite3.connect(path)
    conn.execute(f"UPDATE idtable SET {change}")
    conn.commit()
    conn.close()
    store = Store(path)
    for read in (lambda: store.get(guid(1)), lambda: store.children(guid(1)), lambda: list(store.all_live())):
        with pytest.raises(StoreDamaged, match="makes no sense"):
            read()
    store.close()


def test_check(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    fill(path)
    store = Store(path)
    assert store.check() == []
    assert store.check(thorough=True) == []
    (root,) = store._conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'idtable_origin'").fetchone()
    store.close()
    with path.open("r+b") as f:
        f.seek((root - 1) * 4096 + 3)
        f.write(b"\xff\xff")
    store = Store(path)
    try:
        assert store.check() != []
    except StoreDamaged:
        pass
    store.close()


def damaged(path: Path) -> tuple[Store, list[StoreDamaged]]:
    """A store, and what it tells of damage."""
    store, told = Store(path), []
    store.on_damage = told.append
    return store, told


def statement(path: Path, sql: str) -> None:
    conn = sqlite3.connect(path)
    conn.execute(sql)
    conn.commit()
    conn.close()


@pytest.mark.parametrize("tree", ["idtable", "idtable_name", "idtable_local", "outlog", "inlog", "version_vector"])
def test_a_damaged_page_is_found_and_told(tmp_path: Path, tree: str) -> None:
    path = tmp_path / "s.db"
    fill(path)
    damage(path, tree)
    store, told = damaged(path)
    with pytest.raises(StoreDamaged, match=r"damaged .* Stop the agent, move") as raised:
        store.require_sound()
    assert str(path) in str(raised.value)
    assert told[0].args == raised.value.args
    reads = {
        "idtable": lambda: store.get(guid(1)),
        "idtable_name": lambda: store.by_name(guid(0), "name1"),
        "idtable_local": lambda: store.by_local_key(1, 1, None),
        "outlog": lambda: store.outlog_iter(),
        "inlog": lambda: store.inlog_get(guid(1)),
        "version_vector": lambda: store.vv_get(),
    }
    told.clear()
    with pytest.raises(StoreDamaged, match="damaged"):
        reads[tree]()
    assert len(told) == 1
    store.close()


def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    store, told = damaged(tmp_path / "s.db")
    store.require_sound()
    assert told == []
    store.close()


def test_an_index_that_says_something_else_than_the_table(tmp_path: Path) -> None:
    """SQLite finds no fault with the pages: the index has the names of before."""
    path = tmp_path / "s.db"
    fill(path, 20)
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA writable_schema = ON")
    before = "CREATE INDEX idtable_name ON idtable (parent_guid, name, deleted) WHERE deleted = 0"
    conn.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'deleted = 0', 'deleted = 9') WHERE name = 'idtable_name'"
    )
    conn.commit()
    conn.close()
    statement(path, "UPDATE idtable SET name = x'78' WHERE name = x'6e616d6531'")
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA writable_schema = ON")
    conn.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'idtable_name'", (before,))
    conn.commit()
    conn.close()
    store, told = damaged(path)
    with pytest.raises(StoreDamaged, match="index of names"):
        store.by_name(guid(0), "name1")
    assert len(told) == 1
    assert store.by_name(guid(0), "name2") == store.get(guid(2))
    store.close()


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("UPDATE outlog SET co = 'text'", lambda store: store.outlog_iter()),
        ("UPDATE outlog SET vsn = 'text'", lambda store: store.outlog_get(1)),
        ("UPDATE inlog SET co = 1", lambda store: list(store.inlog_iter())),
        ("UPDATE inlog SET ext = 1.5", lambda store: store.inlog_get(guid(1))),
        ("UPDATE version_vector SET vsn = 'text'", lambda store: store.vv_get()),
        ("UPDATE cxtion SET last_join_time = 'text'", lambda store: store.cxtion_all()),
        ("UPDATE meta SET value = 'text'", lambda store: store.meta_get("k")),
        ("UPDATE idtable SET kind = CAST(x'ff' AS TEXT)", lambda store: store.children(guid(1))),
    ],
)
def test_rows_that_make_no_sense(tmp_path: Path, change: str, read: Callable[[Store], object]) -> None:
    path = tmp_path / "s.db"
    fill(path, 20)
    statement(path, change)
    store, told = damaged(path)
    with pytest.raises(StoreDamaged, match="damaged"):
        read(store)
    assert len(told) == 1
    store.begin()
    with pytest.raises(StoreDamaged):
        read(store)
    with pytest.raises(TransactionError, match="had failed"):
        store.commit()
    store.close()
