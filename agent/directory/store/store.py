"""The store of a directory server: partitions, objects, tombstones, acknowledgements, reigns, in one SQLite file.

Methods are those of agent.directory.replication.ports.Store. For one thread at a time; writes between `transaction()`
and its end, and durable after it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import NAME, PROPERTIES, Type
from agent.directory.objects.values import Reader, Value, decode_value, encode_value
from agent.directory.replication.messages import DirectoryChange
from agent.directory.replication.ports import Partition, Reign, State
from agent.directory.store.connection import Connection, DirectoryStoreError, StatementFailed
from agent.wire.errors import WireError

__all__ = ["DirectoryStore", "DirectoryStoreError"]

VERSION: Final = 1
_APPLICATION: Final = 0x46524453  # "FRDS"
_SCHEMA: Final = """
CREATE TABLE partition (
    id BLOB PRIMARY KEY, authority TEXT NOT NULL, last INTEGER NOT NULL, purged INTEGER NOT NULL,
    state INTEGER NOT NULL, whole INTEGER NOT NULL, epoch INTEGER NOT NULL, disputed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE object (
    guid BLOB PRIMARY KEY, type INTEGER NOT NULL, partition BLOB NOT NULL, seq INTEGER NOT NULL, name TEXT,
    properties BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX object_seq ON object (partition, seq);
CREATE INDEX object_type ON object (type, partition);
CREATE INDEX object_name ON object (type, name);
CREATE TABLE deleted (
    guid BLOB PRIMARY KEY, type INTEGER NOT NULL, partition BLOB NOT NULL, seq INTEGER NOT NULL, scope INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX deleted_seq ON deleted (partition, seq);
CREATE TABLE ack (partition BLOB, server TEXT, seq INTEGER NOT NULL, PRIMARY KEY (partition, server)) WITHOUT ROWID;
CREATE TABLE reign (partition BLOB, first INTEGER, base INTEGER NOT NULL, PRIMARY KEY (partition, first)) WITHOUT ROWID;
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


#: What has come of synchronisations that are under way; gone with the connection, like what is known of these.
_SCHEMA_OF_ARRIVING: Final = """
CREATE TEMP TABLE arriving (
    partition BLOB, number INTEGER, change BLOB NOT NULL, PRIMARY KEY (partition, number)
) WITHOUT ROWID
"""
#: Made where it is missing: databases of before have none.
_SCHEMA_OF_FORMER: Final = """
CREATE TABLE IF NOT EXISTS former (
    guid BLOB PRIMARY KEY, name TEXT NOT NULL, key BLOB NOT NULL, seq INTEGER NOT NULL
) WITHOUT ROWID
"""
#: Of so many members that are deleted the key is remembered, by which they may read that they are.
MOST_FORMER: Final = 1000
#: Before the name of a former member among those that may call, so that none is taken for a member.
FORMER_PREFIX: Final = "former/"
_NAME, _KEY = 2103, 2106


class DirectoryStore:
    """One open file, or ":memory:"."""

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Open the file; where there is none it is made, for its owner alone. Raises DirectoryStoreError, OSError."""
        self.path = os.fspath(path)
        if self.path != ":memory:":
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._conn = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=1.0, factory=Connection
        )
        try:
            self._open(durable)
        except (sqlite3.Error, StatementFailed) as error:
            self._conn.close()
            raise DirectoryStoreError(f"{self.path} cannot be opened: {error}") from None
        except BaseException:
            self._conn.close()
            raise

    def _open(self, durable: bool) -> None:
        conn = self._conn
        conn.execute("PRAGMA locking_mode = EXCLUSIVE")
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        found = conn.execute("PRAGMA application_id").fetchone()[0], conn.execute("PRAGMA user_version").fetchone()[0]
        if found == (0, 0) and conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            conn.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION}; "
                "COMMIT;"
            )
        elif found[0] != _APPLICATION or found[1] > VERSION:
            raise DirectoryStoreError(f"{self.path} is no directory, or one of a newer version of this program")
        conn.execute(_SCHEMA_OF_FORMER)
        conn.execute(_SCHEMA_OF_ARRIVING)
        self._name_all()

    def _name_all(self) -> None:
        """Members and connections of sets have no name in databases of before."""
        query = "SELECT guid FROM object WHERE name IS NULL AND type IN (?, ?)"
        nameless = self._conn.execute(query, (int(Type.FRS_MEMBER), int(Type.FRS_CONNECTION))).fetchall()
        if nameless:
            with self.transaction():
                for (guid,) in nameless:
                    if (one := self.get(guid)) is not None:
                        self.put(one)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside is there as a whole afterwards, durable, or not at all. Raises DirectoryStoreError."""
        try:
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._conn.execute("ROLLBACK")
                raise
            self._conn.execute("COMMIT")
        except StatementFailed as error:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            raise DirectoryStoreError(f"{self.path} cannot be written: {error}") from error

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """In a transaction: what is written inside is undone where that ends with an exception."""
        self._conn.execute("SAVEPOINT all_or_none")
        try:
            yield
        except BaseException:
            self._conn.execute("ROLLBACK TO all_or_none")
            raise
        finally:
            self._conn.execute("RELEASE all_or_none")

    def close(self) -> None:
        """Close the file."""
        self._conn.close()

    def image(self) -> bytes:
        """The whole database, for a backup."""
        return self._conn.serialize()

    @classmethod
    def from_image(cls, image: bytes) -> Self:
        """A store in memory with that content."""
        store = cls(":memory:")
        store._conn.deserialize(image)
        return store

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the whole database, which is consistent whatever goes on. Raises DirectoryStoreError."""
        try:
            with contextlib.closing(sqlite3.connect(path)) as copy:
                self._conn.backup(copy)
        except sqlite3.Error as error:
            raise DirectoryStoreError(f"{os.fspath(path)} cannot be written: {error}") from None

    # -- settings --

    def setting(self, name: str) -> str | None:
        """Something that is remembered beside the directory."""
        row = self._conn.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set_setting(self, name: str, value: str) -> None:
        """Remember it."""
        self._conn.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, value))

    # -- partitions --

    def partitions(self) -> list[Partition]:
        """All of them."""
        rows = self._conn.execute(
            "SELECT id, authority, last, purged, state, whole, epoch, disputed FROM partition ORDER BY id"
        )
        with self._undamaged():
            return [
                Partition(key, authority, last, purged, State(state), bool(whole), epoch, bool(disputed))
                for key, authority, last, purged, state, whole, epoch, disputed in rows
            ]

    def put_partition(self, partition: Partition) -> None:
        """It is like this from now on."""
        one = partition
        self._conn.execute(
            "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (one.id, one.authority, one.last, one.purged, int(one.state), one.whole, one.epoch, one.disputed),
        )

    def drop_partition(self, partition: bytes) -> None:
        """It is gone, with all that is in it."""
        self._conn.execute("DELETE FROM partition WHERE id = ?", (partition,))
        for table in ("object", "deleted", "ack", "reign"):
            self._conn.execute(f"DELETE FROM {table} WHERE partition = ?", (partition,))  # noqa: S608
        self._forget_former()

    # -- objects --

    def get(self, guid: bytes) -> DsObject | None:
        """The object."""
        return next(self._objects("guid = ?", guid), None)

    def find(self, type_: Type, name: str) -> DsObject | None:
        """The object of that type and name."""
        return next(self._objects("type = ? AND name = ?", int(type_), name.casefold()), None)

    def named(self, type_: Type, name: str) -> list[DsObject]:
        """All objects of that type and name."""
        return list(self._objects("type = ? AND name = ? ORDER BY guid", int(type_), name.casefold()))

    def of_type(self, type_: Type, partition: bytes) -> list[DsObject]:
        """The objects of a type in a partition, by identifier."""
        return list(self._objects("type = ? AND partition = ? ORDER BY guid", int(type_), partition))

    def identifiers(self, type_: Type) -> list[bytes]:
        """Those of all objects of a type, in whatever partition."""
        return [guid for (guid,) in self._conn.execute("SELECT guid FROM object WHERE type = ?", (int(type_),))]

    def put(self, found: DsObject) -> None:
        """It is like this from now on."""
        self._conn.execute("DELETE FROM deleted WHERE guid = ?", (found.guid,))
        if found.type == Type.FRS_MEMBER:
            self._conn.execute("DELETE FROM former WHERE guid = ?", (found.guid,))
        name = found.name.casefold() if found.name is not None and found.type in NAME else None
        self._conn.execute(
            "INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?, ?)",
            (found.guid, int(found.type), found.partition, found.seq, name, encode_properties(found.properties)),
        )

    def remove(self, deleted: DeletedObject) -> None:
        """The object is gone, and this is its tombstone."""
        old = self.get(deleted.guid) if deleted.type == Type.FRS_MEMBER else None
        if old is not None and old.data(_KEY):
            known_by = (old.guid, old.text(_NAME), old.data(_KEY), deleted.seq)
            self._conn.execute("INSERT OR REPLACE INTO former VALUES (?, ?, ?, ?)", known_by)
            newest = "SELECT guid FROM former ORDER BY seq DESC LIMIT ?"
            self._conn.execute(f"DELETE FROM former WHERE guid NOT IN ({newest})", (MOST_FORMER,))  # noqa: S608
        self._conn.execute("DELETE FROM object WHERE guid = ?", (deleted.guid,))
        row = (deleted.guid, int(deleted.type), deleted.partition, deleted.seq, deleted.scope)
        self._conn.execute("INSERT OR REPLACE INTO deleted VALUES (?, ?, ?, ?, ?)", row)

    def deleted(self, guid: bytes) -> DeletedObject | None:
        """The tombstone."""
        return next(self._tombstones("guid = ?", guid), None)

    def tombstones(self, type_: Type, partition: bytes) -> list[DeletedObject]:
        """Those of a type in a partition."""
        return list(self._tombstones("type = ? AND partition = ? ORDER BY guid", int(type_), partition))

    def former(self) -> list[tuple[bytes, str, bytes]]:
        """Members whose tombstones are here, the newest last: identifier, name, public key."""
        return list(self._conn.execute("SELECT guid, name, key FROM former ORDER BY seq"))

    def _forget_former(self) -> None:
        self._conn.execute("DELETE FROM former WHERE guid NOT IN (SELECT guid FROM deleted)")

    def changed(self, partition: bytes, first: int, to: int, most: int) -> list[DsObject | DeletedObject]:
        """Objects and tombstones with numbers in (first, to], the lowest first."""
        where = "partition = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
        arguments = (partition, first, min(to, (1 << 63) - 1), most)
        both: list[DsObject | DeletedObject] = [*self._objects(where, *arguments), *self._tombstones(where, *arguments)]
        return sorted(both, key=lambda one: one.seq)[:most]

    def count_after(self, partition: bytes, seq: int) -> int:
        """How many objects and tombstones have a higher number."""
        tables = ("object", "deleted")
        query = "SELECT count(*) FROM {} WHERE partition = ? AND seq > ?"
        rows = [self._conn.execute(query.format(table), (partition, seq)).fetchone() for table in tables]
        return sum(row[0] for row in rows)

    def nth_newest(self, partition: bytes, n: int) -> int:
        """The number that n objects and tombstones have a higher one than."""
        row = self._conn.execute(
            "SELECT seq FROM object WHERE partition = ? UNION ALL SELECT seq FROM deleted WHERE partition = ? "
            "ORDER BY seq DESC LIMIT 1 OFFSET ?",
            (partition, partition, n),
        ).fetchone()
        return row[0] if row else 0

    def mark(self, partition: bytes) -> None:
        """All objects and tombstones get the number 0."""
        for table in ("object", "deleted"):
            self._conn.execute(f"UPDATE {table} SET seq = 0 WHERE partition = ?", (partition,))  # noqa: S608

    def drop_marked(self, partition: bytes) -> None:
        """Those that have it still are gone."""
        for table in ("object", "deleted"):
            self._conn.execute(f"DELETE FROM {table} WHERE partition = ? AND seq = 0", (partition,))  # noqa: S608
        self._forget_former()

    def begin_arriving(self, partition: bytes) -> None:
        """What an earlier synchronisation has brought and did not end is forgotten."""
        self._conn.execute("DELETE FROM arriving WHERE partition = ?", (partition,))

    def put_arriving(self, partition: bytes, changes: Iterable[DirectoryChange]) -> None:
        """These have come, and wait for the rest."""
        query = "SELECT coalesce(max(number), 0) FROM arriving WHERE partition = ?"
        (last,) = self._conn.execute(query, (partition,)).fetchone()
        rows = ((partition, last + number, change.encode()) for number, change in enumerate(changes, 1))
        self._conn.executemany("INSERT INTO arriving VALUES (?, ?, ?)", rows)

    def arriving(self, partition: bytes) -> Iterator[DirectoryChange]:
        """All that wait, in the order in which they came."""
        query = "SELECT change FROM arriving WHERE partition = ? ORDER BY number"
        for (change,) in self._conn.execute(query, (partition,)):
            yield DirectoryChange.decode(Reader(change, "arriving"))

    def purge(self, partition: bytes, to: int) -> None:
        """Tombstones with numbers up to that one are gone."""
        self._conn.execute("DELETE FROM deleted WHERE partition = ? AND seq <= ?", (partition, to))
        self._forget_former()

    # -- what the owner of a partition remembers --

    def acked(self, partition: bytes) -> dict[str, int]:
        """How far each server has acknowledged the partition."""
        return dict(self._conn.execute("SELECT server, seq FROM ack WHERE partition = ?", (partition,)))

    def put_ack(self, partition: bytes, server: str, seq: int) -> None:
        """It has acknowledged it so far."""
        self._conn.execute("INSERT OR REPLACE INTO ack VALUES (?, ?, ?)", (partition, server, seq))

    def reigns(self, partition: bytes) -> list[Reign]:
        """Those of the owner of this partition that is here."""
        rows = self._conn.execute("SELECT first, base FROM reign WHERE partition = ? ORDER BY first", (partition,))
        return [Reign(*row) for row in rows]

    def put_reign(self, partition: bytes, reign: Reign) -> None:
        """A reign begins."""
        row = (partition, reign.first, reign.base)
        self._conn.execute("INSERT OR REPLACE INTO reign VALUES (?, ?, ?)", row)

    # -- rows --

    def _objects(self, where: str, *arguments: Any) -> Iterator[DsObject]:
        query = f"SELECT type, guid, partition, seq, properties FROM object WHERE {where}"  # noqa: S608
        with self._undamaged():
            for type_, guid, partition, seq, properties in self._conn.execute(query, arguments):
                yield DsObject(Type(type_), guid, partition, seq, decode_properties(properties))

    def _tombstones(self, where: str, *arguments: Any) -> Iterator[DeletedObject]:
        query = f"SELECT guid, partition, seq, type, scope FROM deleted WHERE {where}"  # noqa: S608
        with self._undamaged():
            for guid, partition, seq, type_, scope in self._conn.execute(query, arguments):
                yield DeletedObject(guid, partition, seq, Type(type_), scope)

    @contextlib.contextmanager
    def _undamaged(self) -> Iterator[None]:
        """Rows are made into something. Raises DirectoryStoreError where that cannot be."""
        try:
            yield
        except (WireError, ValueError) as error:
            raise DirectoryStoreError(f"{self.path} is damaged: {error}") from error


def encode_properties(properties: Mapping[int, Value]) -> bytes:
    """Properties as bytes: identifier and value, one after the other, by identifier. Raises WireError."""
    pieces = []
    for prop in sorted(properties):
        pieces += [prop.to_bytes(4, "little"), encode_value(PROPERTIES[prop].vt, properties[prop])]
    return b"".join(pieces)


def decode_properties(data: bytes) -> dict[int, Value]:
    """The reverse. Raises WireError."""
    reader, found = Reader(data, "properties"), dict[int, Value]()
    while reader.left:
        prop = reader.integer(4)
        if prop not in PROPERTIES:
            raise WireError("properties", reader.at - 4, f"{prop} is not known")
        found[prop] = decode_value(PROPERTIES[prop].vt, reader)
    return found
