"""The database of a directory that is damaged, or of a version before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import Type
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Partition
from agent.directory.store.store import DirectoryStore, DirectoryStoreError

MEMBER, SET = b"m" * 16, b"d" * 16
READS: dict[str, Callable[[DirectoryStore], object]] = {
    "get": lambda store: store.get(MEMBER),
    "find": lambda store: store.find(Type.FRS_SET, "docs"),
    "named": lambda store: store.named(Type.FRS_MEMBER, "a"),
    "of_type": lambda store: store.of_type(Type.FRS_MEMBER, ENTERPRISE_PARTITION),
    "identifiers": lambda store: store.identifiers(Type.FRS_MEMBER),
    "changed": lambda store: store.changed(ENTERPRISE_PARTITION, 0, 99, 9),
    "count_after": lambda store: store.count_after(ENTERPRISE_PARTITION, 0),
    "nth_newest": lambda store: store.nth_newest(ENTERPRISE_PARTITION, 0),
}


def member() -> DsObject:
    properties = {2102: SET, 2103: "a", 2104: "a.example.org", 2105: 1}
    return DsObject(Type.FRS_MEMBER, MEMBER, ENTERPRISE_PARTITION, 7, properties)


@pytest.mark.parametrize("read", READS)
def test_whoever_reads_what_cannot_be_read_hears_of_the_store(tmp_path: Path, read: str) -> None:
    """And not of SQLite: what asks the store knows what to answer then."""
    store = DirectoryStore(tmp_path / "directory.db", durable=False)
    with store.transaction():
        store.put(member())
    READS[read](store)
    store._conn.execute("ALTER TABLE object RENAME TO elsewhere")
    with pytest.raises(DirectoryStoreError, match="no such table"):
        READS[read](store)
    store.close()


DAMAGE: dict[str, Callable[[DirectoryStore], object]] = {
    "UPDATE object SET properties = x'ffffffff00'": lambda store: store.get(MEMBER),
    "UPDATE object SET type = 99": lambda store: store.get(MEMBER),
    "UPDATE deleted SET type = 99": lambda store: store.deleted(SET),
    "UPDATE partition SET state = 99": lambda store: store.partitions(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_nor_is_damage_in_a_row_anything_else(tmp_path: Path, damage: str) -> None:
    store = DirectoryStore(tmp_path / "directory.db", durable=False)
    with store.transaction():
        store.put(member())
        store.remove(DeletedObject(SET, ENTERPRISE_PARTITION, 8, Type.FRS_SET))
        store.put_partition(Partition(ENTERPRISE_PARTITION, "dir1"))
    DAMAGE[damage](store)
    store._conn.execute(damage)
    with pytest.raises(DirectoryStoreError, match="is damaged"):
        DAMAGE[damage](store)
    store.close()


def test_members_of_a_database_of_before_get_their_names(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "directory.db", durable=False)
    with store.transaction():
        store.put(member())
        store._conn.execute("UPDATE object SET name = NULL")
    store.close()
    store = DirectoryStore(tmp_path / "directory.db", durable=False)
    assert store.named(Type.FRS_MEMBER, "A") == [member()]
    store.close()
