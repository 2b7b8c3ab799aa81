"""The tables, and how a file of an older version becomes one of this version.

`PRAGMA user_version` holds the schema version, `PRAGMA application_id` tells the file from other people's
databases. A migration is a list of statements; all that are needed run in one transaction.

Integers: SQLite keeps signed 64-bit ones, the wire carries unsigned ones, and some file systems have
times beyond either. What does not fit is stored as a big-endian BLOB (8 bytes unsigned, else 16 bytes
signed). SQLite sorts every BLOB after every integer and BLOBs bytewise, so unsigned 64-bit values keep
their order in comparisons and indexes. Hence no STRICT tables here.

Partial indexes repeat the column of their condition: only then SQLite 3.40 answers from the index alone.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from .errors import StoreError, StoreNewer

APPLICATION_ID: Final = 0x46525331  # "FRS1"
VERSION: Final = 2

I64_MIN: Final = -(1 << 63)
I64_MAX: Final = (1 << 63) - 1
U64_MAX: Final = (1 << 64) - 1

MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {
    # from version -> statements that lead to the next one
    0: (
        """CREATE TABLE idtable (
            file_guid BLOB PRIMARY KEY NOT NULL,
            parent_guid BLOB NOT NULL,
            name BLOB NOT NULL,
            is_dir INTEGER NOT NULL,
            version INTEGER NOT NULL,
            event_time INTEGER NOT NULL,
            originator_guid BLOB NOT NULL,
            originator_vsn INTEGER NOT NULL,
            md5 BLOB NOT NULL,
            attributes INTEGER NOT NULL,
            size INTEGER NOT NULL,
            deleted INTEGER NOT NULL,
            deleted_time INTEGER NOT NULL,
            flags INTEGER NOT NULL,
            kind TEXT NOT NULL,
            dev INTEGER, ino INTEGER, btime_ns INTEGER, mtime_ns INTEGER, ctime_ns INTEGER,
            fsize INTEGER, mode INTEGER, uid INTEGER, gid INTEGER,
            wide INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX idtable_name ON idtable (parent_guid, name, deleted) WHERE deleted = 0",
        "CREATE INDEX idtable_local ON idtable (ino, dev) WHERE deleted = 0 AND ino IS NOT NULL",
        "CREATE INDEX idtable_origin ON idtable (originator_guid, originator_vsn)",
        "CREATE INDEX idtable_folder ON idtable (is_dir, deleted) WHERE deleted = 0 AND is_dir = 1",
        "CREATE INDEX idtable_tombstone ON idtable (deleted, deleted_time) WHERE deleted = 1",
        """CREATE TABLE outlog (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            co_guid BLOB NOT NULL,
            file_guid BLOB NOT NULL,
            originator BLOB NOT NULL,
            vsn INTEGER NOT NULL,
            flags INTEGER NOT NULL,
            time INTEGER NOT NULL,
            from_members BLOB NOT NULL,
            ext BLOB NOT NULL,
            co BLOB NOT NULL
        )""",
        "CREATE INDEX outlog_co ON outlog (co_guid)",
        "CREATE INDEX outlog_time ON outlog (time, co_guid)",
        """CREATE TABLE inlog (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            co_guid BLOB NOT NULL UNIQUE,
            cxtion_guid BLOB NOT NULL,
            state INTEGER NOT NULL,
            stage_size INTEGER NOT NULL,
            arrival INTEGER NOT NULL,
            retry_count INTEGER NOT NULL,
            first_try_time INTEGER NOT NULL,
            attempt_after INTEGER NOT NULL,
            ext BLOB NOT NULL,
            co BLOB NOT NULL
        )""",
        "CREATE INDEX inlog_arrival ON inlog (arrival)",
        """CREATE TABLE version_vector (
            originator BLOB PRIMARY KEY NOT NULL,
            vsn INTEGER NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE cxtion (
            guid BLOB PRIMARY KEY NOT NULL,
            trailing_seq INTEGER NOT NULL,
            last_join_time INTEGER NOT NULL,
            join_guid BLOB NOT NULL,
            partner_vv BLOB NOT NULL,
            vvjoin_done INTEGER NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE meta (
            key TEXT PRIMARY KEY NOT NULL,
            value BLOB NOT NULL
        ) WITHOUT ROWID""",
    ),
    1: (
        """CREATE TABLE unstored (
            file_guid BLOB PRIMARY KEY NOT NULL,
            what INTEGER NOT NULL,
            value BLOB NOT NULL
        )""",
        "CREATE INDEX unstored_what ON unstored (what)",
    ),
}


def pack_int(value: int) -> int | bytes:
    """`value` as SQLite can hold it; order is kept from -2**63 to 2**64 - 1.

    Raises ValueError for what needs more than 128 bits.
    """
    if I64_MIN <= value <= I64_MAX:
        return value
    try:
        return value.to_bytes(8, "big") if 0 < value <= U64_MAX else value.to_bytes(16, "big", signed=True)
    except OverflowError:
        raise ValueError(f"integer of {value.bit_length()} bits cannot be stored") from None


def unpack_int(value: int | bytes) -> int:
    """The inverse of pack_int()."""
    if isinstance(value, int):
        return value
    return int.from_bytes(value, "big", signed=len(value) == 16)


def pack_u64(value: int) -> int | bytes:
    """As pack_int(), for what must be an unsigned 64-bit number (a VSN). Raises ValueError otherwise."""
    if 0 <= value <= I64_MAX:
        return value
    if not 0 <= value <= U64_MAX:
        raise ValueError(f"{value} is not an unsigned 64-bit number")
    return value.to_bytes(8, "big")


def upgrade(conn: sqlite3.Connection, path: str) -> None:
    """Create the tables in an empty file, or bring an older file to VERSION.

    Raises StoreNewer for a later version, StoreError for a database that is not ours; sqlite3.Error as it
    comes.
    """
    (found,) = conn.execute("PRAGMA user_version").fetchone()
    (application,) = conn.execute("PRAGMA application_id").fetchone()
    if application not in (0, APPLICATION_ID):
        raise StoreError(f"{path}: a database of another program (application_id {application:#x})")
    if found > VERSION:
        raise StoreNewer(
            f"{path}: written by a later version of frs (schema {found}, this one knows up to {VERSION}). "
            f"Run that version, or move the file aside to let the agent start as a new member."
        )
    if found == VERSION and application == APPLICATION_ID:
        return
    conn.execute("BEGIN IMMEDIATE")
    try:
        if application == 0 and conn.execute("SELECT count(*) FROM sqlite_schema").fetchone() != (0,):
            raise StoreError(f"{path}: a database of another program (it has tables, but not our mark)")
        for version in range(found, VERSION):
            for statement in MIGRATIONS[version]:
                conn.execute(statement)
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        conn.execute(f"PRAGMA user_version = {VERSION}")
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
