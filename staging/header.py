"""STAGE_HEADER, [MS-FRS1] 2.2.3.10: the first 0x400 bytes of every staging file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from staging.errors import StagingError

HEADER_SIZE: Final = 0x400
CHANGE_ORDER_SIZE: Final = 0x318
REPARSE_HEADER_SIZE: Final = 0x18

MAJOR: Final = 0
NTFRS_STAGE_MINOR_1: Final = 1
NTFRS_STAGE_MINOR_2: Final = 2
NTFRS_STAGE_MINOR_3: Final = 3

FILE_ATTRIBUTE_READONLY: Final = 0x1
FILE_ATTRIBUTE_DIRECTORY: Final = 0x10
FILE_ATTRIBUTE_ARCHIVE: Final = 0x20
FILE_ATTRIBUTE_NORMAL: Final = 0x80
FILE_ATTRIBUTE_SPARSE_FILE: Final = 0x200
FILE_ATTRIBUTE_REPARSE_POINT: Final = 0x400

ZERO_GUID: Final = bytes(16)
EPOCH_AS_FILETIME: Final = 116444736000000000  # 1970-01-01 in 100 ns units since 1601-01-01
_KEEPS_CREATION: Final = 100
_FILETIME_MAX: Final = (1 << 63) - 1

# Major Minor DataHigh DataLow Compression NotUsed | Attributes | change order | FileObjId | CocExt |
# CompressionGuid EncryptedDataHigh/Low/Size ReparseDataPresent ReparsePointDataHigh/Low Padding2
_HEADER: Final = struct.Struct("<4IH6x 6qI4x 792s 16s48x 40s 16s 2IQ 3I4x")
assert _HEADER.size == HEADER_SIZE


def filetime(unix_ns: int) -> int:
    """Unix nanoseconds as FILETIME (rounded down to 100 ns, never below 0)."""
    return min(max(unix_ns // 100 + EPOCH_AS_FILETIME, 0), _FILETIME_MAX)


def unix_ns(time: int) -> int:
    """A FILETIME as Unix nanoseconds."""
    return (time - EPOCH_AS_FILETIME) * 100


@dataclass(slots=True)
class NetworkOpenInformation:
    """FILE_NETWORK_OPEN_INFORMATION ([MS-FSCC] 2.4.27): times are FILETIMEs, sizes are bytes.

    A FILETIME cannot hold the last two digits of a modification time in nanoseconds. Agents of this project
    write LastAccessTime = LastWriteTime + (those two digits) (access times are not replicated, and any
    value is a valid one), so `mtime_ns` is exact between them. 100 more says that somebody keeps the time of creation,
    which else is just when the file came to be on the sender's disk; so does any other access time, of other agents.
    """

    creation_time: int = 0
    last_access_time: int = 0
    last_write_time: int = 0
    change_time: int = 0
    allocation_size: int = 0
    end_of_file: int = 0
    file_attributes: int = 0

    @classmethod
    def exact(
        cls,
        *,
        birth_ns: int,
        mtime_ns: int,
        ctime_ns: int,
        allocation_size: int,
        end_of_file: int,
        attributes: int,
        created: int | None = None,
    ) -> NetworkOpenInformation:
        """The information of a file whose times are Unix nanoseconds, keeping `mtime_ns` exact; `created`: the FILETIME
        of creation where that is kept."""
        write = filetime(mtime_ns)
        return cls(
            filetime(birth_ns or mtime_ns) if created is None else created,
            write + mtime_ns % 100 + (0 if created is None else _KEEPS_CREATION),
            write,
            filetime(ctime_ns),
            allocation_size,
            end_of_file,
            attributes,
        )

    @property
    def mtime_ns(self) -> int:
        """The modification time in Unix nanoseconds, exact when an agent of this project wrote it."""
        rest = self.last_access_time - self.last_write_time
        return unix_ns(self.last_write_time) + (rest % 100 if 0 <= rest < 2 * _KEEPS_CREATION else 0)

    @property
    def keeps_creation(self) -> bool:
        """Whether the time of creation is to be kept."""
        return self.creation_time > 0 and not 0 <= self.last_access_time - self.last_write_time < _KEEPS_CREATION


@dataclass(slots=True)
class StageHeader:
    """STAGE_HEADER. `change_order` is a CHANGE_ORDER_COMMAND of 0x318 bytes, opaque here.

    `coc_ext` is CO_RECORD_EXTENSION_WIN2K (0x28 bytes; zero for partners of minor version 4 or above).
    Fields that MUST be ignored on receipt are not kept, and written as 0.
    """

    info: NetworkOpenInformation = field(default_factory=NetworkOpenInformation)
    object_id: bytes = ZERO_GUID
    compression: bytes = ZERO_GUID
    change_order: bytes = bytes(CHANGE_ORDER_SIZE)
    coc_ext: bytes = bytes(0x28)
    data_offset: int = HEADER_SIZE
    reparse_present: bool = False
    reparse_offset: int = HEADER_SIZE
    minor: int = NTFRS_STAGE_MINOR_3
    major: int = MAJOR

    def encode(self) -> bytes:
        """The 0x400 bytes of the header. Raises StagingError when a field has the wrong length or range."""
        if (
            len(self.object_id) != 16
            or len(self.compression) != 16
            or len(self.change_order) != CHANGE_ORDER_SIZE
            or len(self.coc_ext) != 0x28
        ):
            raise StagingError("stage header: a field has the wrong length")
        i = self.info
        try:
            return _HEADER.pack(
                self.major,
                self.minor,
                self.data_offset >> 32,
                self.data_offset & 0xFFFFFFFF,
                0,
                i.creation_time,
                i.last_access_time,
                i.last_write_time,
                i.change_time,
                i.allocation_size,
                i.end_of_file,
                i.file_attributes,
                self.change_order,
                self.object_id,
                self.coc_ext,
                self.compression,
                0,
                0,
                0,
                int(self.reparse_present),
                self.reparse_offset >> 32,
                self.reparse_offset & 0xFFFFFFFF,
            )
        except struct.error as error:
            raise StagingError(f"stage header: {error}") from error

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> StageHeader:
        """Reads the header at the start of `data`.

        Raises StagingError for a truncated header, an unknown version, or offsets that point before the
        end of the header. Fields a lower minor version does not have are taken as absent.
        """
        if len(data) < HEADER_SIZE:
            raise StagingError(f"stage header: {len(data)} bytes, {HEADER_SIZE} are needed")
        (
            major, minor, high, low, _, create, access, write, change, alloc, eof, attributes,
            order, object_id, coc_ext, compression, _, _, _, present, reparse_high, reparse_low,
        ) = _HEADER.unpack_from(data)  # fmt: skip
        if major != MAJOR:
            raise StagingError(f"stage header: major version {major} is unknown")
        if not NTFRS_STAGE_MINOR_1 <= minor <= NTFRS_STAGE_MINOR_3:
            raise StagingError(f"stage header: minor version {minor} is unknown")
        if minor < NTFRS_STAGE_MINOR_2:
            compression = ZERO_GUID
        data_offset, reparse_offset = high << 32 | low, reparse_high << 32 | reparse_low
        if minor < NTFRS_STAGE_MINOR_3 or not present:
            present, reparse_offset = 0, HEADER_SIZE
        elif not HEADER_SIZE <= reparse_offset <= data_offset:
            raise StagingError(f"stage header: reparse data at {reparse_offset:#x}, file data at {data_offset:#x}")
        if data_offset < HEADER_SIZE:
            raise StagingError(f"stage header: file data at {data_offset:#x}, inside the header")
        if alloc < 0 or eof < 0:
            raise StagingError("stage header: a negative size")
        info = NetworkOpenInformation(create, access, write, change, alloc, eof, attributes)
        return cls(
            info, object_id, compression, order, coc_ext, data_offset, bool(present), reparse_offset, minor, major
        )
