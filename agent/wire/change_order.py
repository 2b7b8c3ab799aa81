"""CHANGE_ORDER_COMMAND (2.2.3.2) and its two record extensions (2.2.3.3, 2.2.3.4).

A decoded change order keeps the bytes that carry no meaning (spare fields, the stale Extension pointer,
what lies after the name's terminator) in ``raw_rest``, so that it encodes to the very bytes it came from;
``replace`` drops them, because what this member sends on is its own.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from agent.wire.constants import CHANGE_ORDER_SIZE, MAX_FILE_NAME_UNITS
from agent.wire.errors import WireError
from agent.wire.guid import ZERO_GUID

Buffer: TypeAlias = bytes | bytearray | memoryview

# up to FileNameLength; the pad bytes are Notused and Spare2Ull .. Spare2Bin
_FIXED = struct.Struct("<9I4x6Q2I16s16s16s16s16s16sQ56xQH")
_pack, _unpack = _FIXED.pack, _FIXED.unpack_from
_NAME = _FIXED.size
_NAME_AREA = CHANGE_ORDER_SIZE - _NAME  # FileName[261] and Padding
_MAX_NAME = 2 * MAX_FILE_NAME_UNITS
_ZEROS = bytes(CHANGE_ORDER_SIZE)
_ZERO_4, _ZERO_56 = bytes(4), bytes(56)
assert _NAME == 266


@dataclass(slots=True)
class ChangeOrder:
    """One CHANGE_ORDER_COMMAND. GUIDs are 16 bytes in wire order, times FILETIMEs, sizes bytes.

    ``file_name`` is the name alone, never a path; lone surrogates stand for themselves. The codec gives
    back whatever name arrives: whoever touches a file system has to judge it first.
    """

    sequence_number: int = 0
    flags: int = 0
    iflags: int = 0
    state: int = 0
    content_cmd: int = 0
    location_cmd: int = 0
    file_attributes: int = 0
    file_version_number: int = 0
    partner_ack_seq_number: int = 0
    file_size: int = 0
    file_offset: int = 0
    frs_vsn: int = 0
    file_usn: int = 0
    jrnl_usn: int = 0
    jrnl_first_usn: int = 0
    original_replica_num: int = 0
    new_replica_num: int = 0
    change_order_guid: bytes = ZERO_GUID
    originator_guid: bytes = ZERO_GUID
    file_guid: bytes = ZERO_GUID
    old_parent_guid: bytes = ZERO_GUID
    new_parent_guid: bytes = ZERO_GUID
    cxtion_guid: bytes = ZERO_GUID
    ack_version: int = 0
    event_time: int = 0
    file_name: str = ""
    raw_rest: bytes | None = field(default=None, compare=False, repr=False)
    """None when every ignored byte is zero; else Notused (4), Spare2Ull to Spare2Bin (56) and all bytes
    from the end of the name on."""

    @property
    def is_dir(self) -> bool:
        """DirOrFile: the change is for a folder."""
        return bool(self.location_cmd & 1)

    @property
    def location_command(self) -> int:
        """The CO_LOCATION_ command in LocationCmd, without DirOrFile and the filler bits."""
        return self.location_cmd >> 1 & 0xF

    def replace(self, **changes: Any) -> ChangeOrder:
        """A copy with some fields changed and all ignored bytes zero; AttributeError for a name that is no
        field."""
        copy = ChangeOrder(*_meaning(self))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def encode(self) -> bytes:
        """The 0x318 bytes of 2.2.3.2; WireError if a value does not fit, above all a name of more than
        260 UTF-16 units."""
        name = self.file_name.encode("utf-16-le", "surrogatepass")
        size = len(name)
        if size > _MAX_NAME:
            raise WireError("FileName", -1, f"{size // 2} UTF-16 units, more than {MAX_FILE_NAME_UNITS}")
        guids = (
            self.change_order_guid,
            self.originator_guid,
            self.file_guid,
            self.old_parent_guid,
            self.new_parent_guid,
            self.cxtion_guid,
        )
        a, b, c, d, e, f = guids
        if not len(a) == len(b) == len(c) == len(d) == len(e) == len(f) == 16:
            raise WireError("CHANGE_ORDER_COMMAND", -1, "a GUID that is not 16 bytes long")
        try:
            fixed = _pack(
                self.sequence_number,
                self.flags,
                self.iflags,
                self.state,
                self.content_cmd,
                self.location_cmd,
                self.file_attributes,
                self.file_version_number,
                self.partner_ack_seq_number,
                self.file_size,
                self.file_offset,
                self.frs_vsn,
                self.file_usn,
                self.jrnl_usn,
                self.jrnl_first_usn,
                self.original_replica_num,
                self.new_replica_num,
                *guids,
                self.ack_version,
                self.event_time,
                size,
            )
        except struct.error as error:
            raise WireError("CHANGE_ORDER_COMMAND", -1, str(error)) from None
        rest = self.raw_rest
        if rest is None:
            return fixed + name + _ZEROS[: _NAME_AREA - size]
        stale = rest[60:]
        if len(rest) < 60 or len(stale) != _NAME_AREA - size:
            stale = _ZEROS[: _NAME_AREA - size]  # the name was set anew
        return b"".join((fixed[:36], rest[:4], fixed[40:200], rest[4:60], fixed[256:], name, stale))

    @classmethod
    def decode(cls, buf: Buffer, offset: int = 0) -> ChangeOrder:
        """Read one from ``buf`` at ``offset``; WireError if it is cut or its FileNameLength cannot be."""
        end = offset + CHANGE_ORDER_SIZE
        if len(buf) < end:
            raise WireError("CHANGE_ORDER_COMMAND", offset, f"{len(buf) - offset} of 0x318 bytes")
        values: list[Any] = list(_unpack(buf, offset))
        size = values[-1]
        if size > _MAX_NAME or size & 1:
            raise WireError("FileNameLength", offset + _NAME - 2, f"{size} bytes")
        name_end = offset + _NAME + size
        name = str(buf[offset + _NAME : name_end], "utf-16-le", "surrogatepass")
        notused, spares, stale = (
            buf[offset + 36 : offset + 40],
            buf[offset + 200 : offset + 256],
            buf[name_end:end],
        )
        rest = None
        if spares != _ZERO_56 or stale != _ZEROS[: end - name_end] or notused != _ZERO_4:
            rest = b"".join((notused, spares, stale))
        values[-1:] = name, rest
        return cls(*values)


_meaning = attrgetter(*(f.name for f in dataclasses.fields(ChangeOrder) if f.name != "raw_rest"))

_EXTENSION_2 = struct.Struct("<IHHIIIIII16sIIIIQ")
_EXTENSION_2_FIXED = (72, 2, 0x18, 0x30, 0)
_EXT_WIN2K = struct.Struct("<IHHIIII16s")


class CoExtension2(NamedTuple):
    """CHANGE_ORDER_RECORD_EXTENSION (2.2.3.4): MD5 of the staging file's streams, and the retries.

    ``checksum`` is 16 bytes, all zero where there is none; ``first_try_time`` is a FILETIME.
    """

    checksum: bytes
    retry_count: int = 0
    first_try_time: int = 0
    major: int = 1

    def encode(self) -> bytes:
        """The 0x48 bytes; WireError if a value does not fit."""
        if len(self.checksum) != 16:
            raise WireError("DATA_EXTENSION_CHECKSUM", -1, f"{len(self.checksum)} bytes instead of 16")
        try:
            return _EXTENSION_2.pack(
                72, self.major, 2, 0x18, 0x30, 0, 0, 24, 1, self.checksum,
                24, 2, self.retry_count, 0, self.first_try_time,
            )  # fmt: skip
        except struct.error as error:
            raise WireError("CHANGE_ORDER_RECORD_EXTENSION", -1, str(error)) from None

    @classmethod
    def decode(cls, buf: Buffer, offset: int = 0) -> CoExtension2:
        """Read one from ``buf`` at ``offset``; WireError if it is cut or a fixed field is wrong."""
        if len(buf) < offset + 72:
            raise WireError("CHANGE_ORDER_RECORD_EXTENSION", offset, f"{len(buf) - offset} of 72 bytes")
        (size, major, count, off0, off1, last, _, md5_size, md5_type, checksum,
         retry_size, retry_type, retries, _, first_try) = _EXTENSION_2.unpack_from(buf, offset)  # fmt: skip
        if (size, count, off0, off1, last) != _EXTENSION_2_FIXED or major > 1:
            raise WireError("CHANGE_ORDER_RECORD_EXTENSION", offset, "sizes, version or offsets")
        if md5_size != 24 or md5_type != 1:
            raise WireError("DATA_EXTENSION_CHECKSUM", offset + 24, f"size {md5_size}, type {md5_type}")
        if retry_size != 24 or retry_type != 2:
            raise WireError("DATA_EXTENSION_RETRY_TIMEOUT", offset + 48, f"size {retry_size}, type {retry_type}")
        return cls(checksum, retries, first_try, major)


class CoExtWin2k(NamedTuple):
    """CO_RECORD_EXTENSION_WIN2K (2.2.3.3), for partners of minor version 3 and lower."""

    checksum: bytes

    def encode(self) -> bytes:
        """The 0x28 bytes; WireError if the checksum is not 16 bytes long."""
        if len(self.checksum) != 16:
            raise WireError("DATA_EXTENSION_CHECKSUM", -1, f"{len(self.checksum)} bytes instead of 16")
        return _EXT_WIN2K.pack(40, 0, 1, 0x10, 0, 24, 1, self.checksum)

    @classmethod
    def decode(cls, buf: Buffer, offset: int = 0) -> CoExtWin2k:
        """Read one from ``buf`` at ``offset``; WireError if it is cut or a fixed field is wrong."""
        if len(buf) < offset + 40:
            raise WireError("CO_RECORD_EXTENSION_WIN2K", offset, f"{len(buf) - offset} of 40 bytes")
        size, major, count, off, last, md5_size, md5_type, checksum = _EXT_WIN2K.unpack_from(buf, offset)
        if (size, major, count, off, last) != (40, 0, 1, 0x10, 0):
            raise WireError("CO_RECORD_EXTENSION_WIN2K", offset, "sizes, version or offset")
        if md5_size != 24 or md5_type != 1:
            raise WireError("DATA_EXTENSION_CHECKSUM", offset + 16, f"size {md5_size}, type {md5_type}")
        return cls(checksum)
