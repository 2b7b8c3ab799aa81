"""Change orders and staging files: plausible ones, to be spoilt by the attacks."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any

import zstandard

from agent.engine import flags as fl
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.guid import new_guid
from agent.work.clock import filetime_now
from staging import sd
from staging.compression import COMPRESSION_NONE, compressor
from staging.generate import hash_first
from staging.header import FILE_ATTRIBUTE_ARCHIVE, FILE_ATTRIBUTE_DIRECTORY, HEADER_SIZE, StageHeader
from staging.streams import (
    BACKUP_DATA,
    BACKUP_OBJECT_ID,
    BACKUP_SECURITY_DATA,
    STREAM_CONTAINS_SECURITY,
    stream,
)
from tests.hostile.partner import Line

#: So many staging files the partner keeps at hand.
KEPT_STAGES = 10_000
CREATED = c.REASON_FILE_CREATE | c.REASON_DATA_OVERWRITE | c.REASON_DATA_EXTEND


def created(line: Line, name: str, *, is_dir: bool = False, **changes: Any) -> ChangeOrder:
    """The change order of a new file (or folder) in the root, as the partner's own change; some fields changed."""
    partner = line.partner
    co = ChangeOrder(
        flags=fl.local_created(is_dir=is_dir, has_content=True, compressed=False),
        state=fl.STATE_OUTBOUND_REQUEST,
        content_cmd=c.REASON_FILE_CREATE if is_dir else CREATED,
        location_cmd=fl.location(c.CO_LOCATION_CREATE, is_dir),
        file_attributes=c.FILE_ATTRIBUTE_DIRECTORY if is_dir else c.FILE_ATTRIBUTE_ARCHIVE,
        frs_vsn=partner.next_vsn(),
        change_order_guid=new_guid(),
        originator_guid=partner.originator,
        file_guid=new_guid(),
        old_parent_guid=line.guid,
        new_parent_guid=line.guid,
        cxtion_guid=line.up,
        event_time=filetime_now(),
        file_name=name,
    )
    return _with(co, changes)


def updated(line: Line, old: ChangeOrder, **changes: Any) -> ChangeOrder:
    """The change order of a new version of a file that the member has sent."""
    co = created(
        line,
        old.file_name,
        flags=fl.local_updated(compressed=False),
        content_cmd=c.REASON_DATA_OVERWRITE,
        location_cmd=fl.location(c.CO_LOCATION_NO_CMD, old.is_dir),
        file_attributes=old.file_attributes,
        file_version_number=old.file_version_number + 1,
        file_guid=old.file_guid,
    )
    return _with(co, changes)


def deleted(line: Line, name: str, **changes: Any) -> ChangeOrder:
    """The change order of the removal of a file, which needs no staging file."""
    co = created(
        line,
        name,
        flags=fl.LOCAL_REMOVED,
        content_cmd=c.REASON_FILE_DELETE,
        location_cmd=fl.location(c.CO_LOCATION_DELETE, False),
    )
    return _with(co, changes)


def _with(co: ChangeOrder, changes: dict[str, Any]) -> ChangeOrder:
    for name, value in changes.items():
        setattr(co, name, value)
    return co


# -- staging files --


def security(mode: int = stat.S_IFREG | 0o640, uid: int | None = None, gid: int | None = None) -> bytes:
    """The security stream of a file with this mode and owner (by default whoever runs this)."""
    uid, gid = os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid
    return stream(BACKUP_SECURITY_DATA, sd.build(sd.Posix(mode, uid, gid)), STREAM_CONTAINS_SECURITY)


def identity(file_guid: bytes) -> bytes:
    """The object ID stream."""
    return stream(BACKUP_OBJECT_ID, file_guid.ljust(64, b"\0"))


def header(
    file_guid: bytes,
    *,
    size: int = 0,
    attributes: int = FILE_ATTRIBUTE_ARCHIVE,
    compression: bytes = COMPRESSION_NONE,
    reparse: bytes = b"",
) -> bytes:
    """The head of a staging file, up to the streams, for a file of `size` bytes."""
    head = StageHeader(object_id=file_guid, compression=compression)
    head.info.end_of_file = size
    head.info.file_attributes = attributes
    head.info.last_write_time = filetime_now()
    if reparse:
        head.reparse_present = True
        head.data_offset = HEADER_SIZE + len(reparse) + 16
        return head.encode() + reparse + bytes(16)
    return head.encode()


def packed(streams: bytes, compression: bytes) -> bytes:
    """The streams as they stand in a staging file."""
    packer = compressor(compression)
    return bytes(packer.block(streams)) + packer.finish()


def plain_file(file_guid: bytes, content: bytes, mode: int = stat.S_IFREG | 0o640) -> tuple[bytes, bytes]:
    """A staging file that is as it should be, and its checksum."""
    streams = security(mode) + stream(BACKUP_DATA, content) + identity(file_guid)
    return header(file_guid, size=len(content)) + streams, checksum(streams)


def plain_folder(file_guid: bytes) -> tuple[bytes, bytes]:
    """As plain_file(), of a folder."""
    streams = security(stat.S_IFDIR | 0o750) + identity(file_guid)
    return header(file_guid, attributes=FILE_ATTRIBUTE_DIRECTORY) + streams, checksum(streams)


def offer_plain(line: Line, co: ChangeOrder, content: bytes) -> None:
    """Announce the change; the staging file is as it should be, and sent when asked for (of the last thousands)."""
    stages = line.partner.stages
    data, md5 = plain_folder(co.file_guid) if co.is_dir else plain_file(co.file_guid, content)
    stages[co.change_order_guid] = data
    if len(stages) > KEPT_STAGES:
        del stages[next(iter(stages))]
    line.offer(co, md5)


def checksum(streams: bytes) -> bytes:
    """The MD5 that the change order announces."""
    md5 = hashlib.md5(usedforsecurity=False)
    hash_first(md5, streams)
    return md5.digest()


def zeros(size: int) -> bytes:
    """`size` zeros (rounded down to 16 MiB) compressed with zstd: about 560 bytes for each 16 MiB."""
    piece = 16 << 20
    return zstandard.ZstdCompressor(level=3).compress(bytes(piece)) * (size // piece)
