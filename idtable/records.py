"""The rows of a store as plain objects.

GUIDs are 16 bytes in wire order, times are FILETIMEs (100 ns since 1601-01-01 UTC) unless a name ends
in `_ns` (Unix nanoseconds), names are `str` as os.fsdecode gives them.
"""

from __future__ import annotations

from dataclasses import dataclass

ZERO_GUID = bytes(16)
"""The GUID that names nothing: the parent of the root of a replica tree."""

ZERO_MD5 = bytes(16)
"""The checksum of what has none (a tombstone, for instance)."""


@dataclass(slots=True)
class IDRecord:
    """One entry of the IDTable (3.1.1.5): a file, folder or link, or the tombstone of one.

    `is_dir`, `kind` ("file", "folder", "symlink") and `attributes` (FILE_ATTRIBUTE_*) say what it is;
    `version`, `event_time`, `originator_guid` and `originator_vsn` are what conflicts are decided by;
    `size` is the allocation size in bytes or 0; `flags` holds change order flags that later joins must see
    (CO_FLAG_SKIP_VV_UPDATE, 3.1.1.10.5). A tombstone has `deleted` True and the time in `deleted_time`.

    `dev`, `ino` and `btime_ns` are the local key; with the remaining fields they are the fingerprint under
    which the file was last known equal to this record. All of them are None when the object is not in the
    local tree. `fsize` is the size in bytes, `mode` is st_mode.
    """

    file_guid: bytes
    parent_guid: bytes
    name: str
    is_dir: bool
    version: int = 0
    event_time: int = 0
    originator_guid: bytes = ZERO_GUID
    originator_vsn: int = 0
    md5: bytes = ZERO_MD5
    attributes: int = 0
    size: int = 0
    deleted: bool = False
    deleted_time: int = 0
    flags: int = 0
    kind: str = "file"
    dev: int | None = None
    ino: int | None = None
    btime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None
    fsize: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(slots=True)
class OutlogRow:
    """One change order of the outbound log (3.1.1.7).

    `seq` numbers the rows upwards and is never given twice. `co` and `ext` are the encoded change order and
    its extension. `from_members` is the GUIDs of the members known to have it already, joined without
    separators. `time` is when it was logged.
    """

    seq: int
    co: bytes
    ext: bytes
    co_guid: bytes
    file_guid: bytes
    originator: bytes
    vsn: int
    from_members: bytes
    flags: int
    time: int = 0


@dataclass(slots=True)
class InlogRow:
    """One change order of the inbound log (3.1.1.6), with how far it has come.

    `arrival` orders the log (a FILETIME or a running number; rows that arrive at the same value keep the
    order in which they were first put). `attempt_after` is the time before which it is not retried.
    """

    co_guid: bytes
    cxtion_guid: bytes
    co: bytes
    ext: bytes
    state: int = 0
    stage_size: int = 0
    arrival: int = 0
    retry_count: int = 0
    first_try_time: int = 0
    attempt_after: int = 0


@dataclass(slots=True)
class CxtionRow:
    """What outlives a session on one connection (3.1.1.8).

    `trailing_seq` is the outbound log number up to which the partner has acknowledged everything.
    """

    guid: bytes
    trailing_seq: int = 0
    last_join_time: int = 0
    join_guid: bytes = ZERO_GUID
    partner_vv: bytes = b""
    vvjoin_done: bool = False
