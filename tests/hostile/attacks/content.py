"""Staging files that cost more than they weigh, and files that are to reach further than the tree."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from agent.wire import constants as c
from agent.wire.guid import new_guid
from staging.compression import COMPRESSION_LZNT1, COMPRESSION_NONE, COMPRESSION_ZSTD
from staging.header import (
    FILE_ATTRIBUTE_ARCHIVE,
    FILE_ATTRIBUTE_DIRECTORY,
    FILE_ATTRIBUTE_SPARSE_FILE,
)
from staging.streams import (
    BACKUP_ALTERNATE_DATA,
    BACKUP_DATA,
    BACKUP_EA_DATA,
    BACKUP_LINK,
    BACKUP_REPARSE_DATA,
    BACKUP_SPARSE_BLOCK,
    STREAM_SPARSE_ATTRIBUTE,
    Ea,
    encode_eas,
    encode_symlink,
    stream,
    stream_header,
)
from tests.hostile import forge
from tests.hostile.attack import FileAttack
from tests.hostile.partner import Line

TIB = 1 << 40
MIB = 1 << 20
#: So much is sent for one file; 47 KiB were enough to keep a processor busy for two minutes.
SMALL = 47 << 10

#: A staging file made for a file GUID.
Make = Callable[[bytes], bytes]


def offered(line: Line, name: str, number: int, files: int, file_guid: bytes, data: bytes, **changes: Any) -> None:
    """Announce the next version of a file, with this staging file."""
    stages = line.partner.stages
    co = forge.created(line, name, file_guid=file_guid, file_version_number=number // files, **changes)
    stages[co.change_order_guid] = data
    if len(stages) > 1000:
        del stages[next(iter(stages))]
    line.offer(co)


class Streams(FileAttack):
    """Each stream is looked at, and each attribute set, one by one."""

    name = "streams"
    text = "staging files of 47 KiB with thousands of tiny streams, long names, thousands of extended attributes"

    def begin(self, line: Line) -> Iterator[Make]:
        """The kinds of staging files."""
        return itertools.cycle((self._tiny, self._links, self._named, self._long_names, self._attributes, self._one))

    def offer(self, line: Line, state: Iterator[Make], number: int, file_guid: bytes) -> None:
        """One file of one kind."""
        data = next(state)(file_guid)
        offered(line, f"streams {number % self.files}", number, self.files, file_guid, data)

    @staticmethod
    def _with(file_guid: bytes, streams: bytes, compression: bytes = COMPRESSION_NONE) -> bytes:
        whole = forge.security() + stream(BACKUP_DATA, b"small") + streams + forge.identity(file_guid)
        return forge.header(file_guid, size=5, compression=compression) + forge.packed(whole, compression)

    def _tiny(self, file_guid: bytes) -> bytes:
        one = [stream(BACKUP_ALTERNATE_DATA, b"", 0, f":{n:x}:$DATA".encode("utf-16-le")) for n in range(SMALL // 40)]
        return self._with(file_guid, b"".join(one))

    def _links(self, file_guid: bytes) -> bytes:
        # Compressed, so that the few KiB hold hundreds of thousands of them.
        return self._with(file_guid, stream(BACKUP_LINK, b"") * (8 * MIB // 20), COMPRESSION_ZSTD)

    def _named(self, file_guid: bytes) -> bytes:
        names = [f":{n:06x}:$DATA".encode("utf-16-le") for n in range(40_000)]
        one = b"".join(stream(BACKUP_ALTERNATE_DATA, b"x", 0, name) for name in names)
        return self._with(file_guid, one, COMPRESSION_LZNT1)

    def _long_names(self, file_guid: bytes) -> bytes:
        names = [f":{n:0250d}:$DATA".encode("utf-16-le") for n in range(SMALL // 600)]
        return self._with(file_guid, b"".join(stream(BACKUP_ALTERNATE_DATA, bytes(40), 0, name) for name in names))

    def _attributes(self, file_guid: bytes) -> bytes:
        eas = encode_eas([Ea(b"%x" % n, b"v") for n in range(3500)])
        return self._with(file_guid, stream(BACKUP_EA_DATA, eas[: SMALL - 2048]))

    def _one(self, file_guid: bytes) -> bytes:
        name = ":again:$DATA".encode("utf-16-le")
        return self._with(file_guid, stream(BACKUP_ALTERNATE_DATA, bytes(16), 0, name) * 60_000, COMPRESSION_ZSTD)


class Bombs(FileAttack):
    """Holes, sparse blocks and compressed zeros make much out of little."""

    name = "bombs"
    text = "staging files of 1.3 KiB (some of 2 MiB) for files of TiB: holes, sparse blocks, zeros in LZNT1 and zstd"
    fills = True
    window = 16
    files = 20

    def begin(self, line: Line) -> Iterator[Make]:
        """The kinds of staging files; those that take time to make are made once."""
        self._zeros = forge.zeros(1 << 30)
        self._more_zeros = self._zeros * 60
        return itertools.cycle(
            (
                lambda guid: self._hole(guid, TIB),
                lambda guid: self._hole(guid, 1 << 60),
                lambda guid: self._hole(guid, (1 << 63) - 1),
                lambda guid: self._allocated(guid, TIB),
                lambda guid: self._allocated(guid, 1 << 60),
                lambda guid: self._allocated(guid, 1200 * MIB),
                lambda guid: self._last_byte(guid, TIB),
                lambda guid: self._zstd(guid, self._zeros, 1 << 30),
                lambda guid: self._zstd(guid, self._more_zeros, 60 << 30),
                lambda guid: self._zstd(guid, self._zeros, TIB),
                lambda guid: self._lznt1(guid, TIB),
                lambda guid: self._many_blocks(guid),
            )
        )

    def offer(self, line: Line, state: Iterator[Make], number: int, file_guid: bytes) -> None:
        """One file of one kind."""
        data = next(state)(file_guid)
        offered(line, f"bomb {number % self.files}", number, self.files, file_guid, data)

    @staticmethod
    def _hole(file_guid: bytes, size: int) -> bytes:
        end = stream(BACKUP_SPARSE_BLOCK, size.to_bytes(8, "little"), STREAM_SPARSE_ATTRIBUTE)
        streams = forge.security() + stream(BACKUP_DATA, b"", STREAM_SPARSE_ATTRIBUTE) + end
        attributes = FILE_ATTRIBUTE_ARCHIVE | FILE_ATTRIBUTE_SPARSE_FILE
        return forge.header(file_guid, size=size, attributes=attributes) + streams + forge.identity(file_guid)

    @staticmethod
    def _allocated(file_guid: bytes, size: int) -> bytes:
        end = stream(BACKUP_SPARSE_BLOCK, size.to_bytes(8, "little"), STREAM_SPARSE_ATTRIBUTE)
        streams = forge.security() + stream(BACKUP_DATA, b"", STREAM_SPARSE_ATTRIBUTE) + end
        return forge.header(file_guid, size=size) + streams + forge.identity(file_guid)

    @staticmethod
    def _last_byte(file_guid: bytes, size: int) -> bytes:
        block = (size - 1).to_bytes(8, "little") + b"x"
        streams = forge.security() + stream(BACKUP_DATA, b"", STREAM_SPARSE_ATTRIBUTE)
        streams += stream(BACKUP_SPARSE_BLOCK, block, STREAM_SPARSE_ATTRIBUTE)
        return forge.header(file_guid, size=size) + streams + forge.identity(file_guid)

    @staticmethod
    def _zstd(file_guid: bytes, frames: bytes, size: int) -> bytes:
        first = forge.packed(forge.security() + stream_header(BACKUP_DATA, size), COMPRESSION_ZSTD)
        return forge.header(file_guid, size=size, compression=COMPRESSION_ZSTD) + first + frames

    @staticmethod
    def _lznt1(file_guid: bytes, size: int) -> bytes:
        streams = (forge.security() + stream_header(BACKUP_DATA, size)).ljust(16 * MIB, b"\0")
        return forge.header(file_guid, size=size, compression=COMPRESSION_LZNT1) + forge.packed(
            streams, COMPRESSION_LZNT1
        )

    @staticmethod
    def _many_blocks(file_guid: bytes) -> bytes:
        """A byte here and there: each takes a block of the disk."""
        streams = forge.security() + stream(BACKUP_DATA, b"", STREAM_SPARSE_ATTRIBUTE)
        streams += b"".join(
            stream(BACKUP_SPARSE_BLOCK, (n * 65536).to_bytes(8, "little") + b"x", STREAM_SPARSE_ATTRIBUTE)
            for n in range(100_000)
        )
        attributes = FILE_ATTRIBUTE_ARCHIVE | FILE_ATTRIBUTE_SPARSE_FILE
        head = forge.header(file_guid, size=TIB, attributes=attributes, compression=COMPRESSION_ZSTD)
        return head + forge.packed(streams, COMPRESSION_ZSTD)


class SetIds(FileAttack):
    """Nothing outside of the root, nothing that runs with the rights of others, nothing that is a device."""

    name = "set-ids"
    text = "set-id bits for files of root, links that lead outside and changes inside them, names with .., devices"

    def begin(self, line: Line) -> Iterator[Callable[[Line, int, bytes], None]]:
        """The kinds of files. The folder that nobody may touch is where links lead."""
        self._outside = os.fsencode(str(self.plan.extra["outside"]))
        kinds: list[Callable[[Line, int, bytes], None]] = [self._set_id, self._link, self._name, self._device]
        return itertools.cycle((*kinds, self._folder_becomes_link, self._root_owned_folder))

    def offer(self, line: Line, state: Iterator[Callable[[Line, int, bytes], None]], number: int, guid: bytes) -> None:
        """One file of one kind."""
        next(state)(line, number, guid)

    def _send(self, line: Line, number: int, guid: bytes, data: bytes, name: str = "", **changes: Any) -> None:
        offered(line, name or f"reach {number % self.files}", number, self.files, guid, data, **changes)

    def _set_id(self, line: Line, number: int, guid: bytes) -> None:
        mode = stat.S_IFREG | (0o4755, 0o2755, 0o6777, 0o6755)[number // 6 % 4]
        streams = forge.security(mode, 0, 0) + stream(BACKUP_DATA, b"#!/bin/sh\n") + forge.identity(guid)
        self._send(line, number, guid, forge.header(guid, size=10) + streams)

    def _link_data(self, guid: bytes, target: bytes) -> bytes:
        reparse = encode_symlink(target)
        streams = forge.security(stat.S_IFLNK | 0o777) + stream(BACKUP_REPARSE_DATA, reparse) + forge.identity(guid)
        return forge.header(guid, attributes=c.FILE_ATTRIBUTE_REPARSE_POINT, reparse=reparse) + streams

    def _link(self, line: Line, number: int, guid: bytes) -> None:
        target = (self._outside, self._outside + b"/precious", b"../../../outside", b"/etc/passwd")[number // 6 % 4]
        self._send(line, number, guid, self._link_data(guid, target), file_attributes=c.FILE_ATTRIBUTE_REPARSE_POINT)
        # And something that is to lie in it, as if it were a folder.
        inside = new_guid()
        data, _ = forge.plain_file(inside, b"was here\n")
        self._send(line, 0, inside, data, "inside", new_parent_guid=guid, old_parent_guid=guid)

    def _folder_becomes_link(self, line: Line, number: int, guid: bytes) -> None:
        data, _ = forge.plain_folder(guid)
        name = f"folder or link {number % self.files}"
        changes: dict[str, Any] = {"location_cmd": 1, "file_attributes": c.FILE_ATTRIBUTE_DIRECTORY}
        self._send(line, number, guid, data, name, **changes)
        self._send(line, number + self.files, guid, self._link_data(guid, self._outside), name)
        inside = new_guid()
        data, _ = forge.plain_file(inside, b"was here\n")
        self._send(line, 0, inside, data, "precious", new_parent_guid=guid, old_parent_guid=guid)

    def _name(self, line: Line, number: int, guid: bytes) -> None:
        names = ("..", ".", "../outside/new", "a/b", "/etc/new", "nul\0here", "\ud800", "x" * 256, "..\\outside")
        data, _ = forge.plain_file(guid, b"was here\n")
        self._send(line, number, guid, data, names[number // 6 % len(names)])

    def _device(self, line: Line, number: int, guid: bytes) -> None:
        kind = (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)[number // 6 % 4]
        streams = forge.security(kind | 0o666, 0, 0) + stream(BACKUP_DATA, b"") + forge.identity(guid)
        head = forge.header(guid, attributes=0x40 | FILE_ATTRIBUTE_ARCHIVE)
        self._send(line, number, guid, head + streams, file_attributes=0x40)

    def _root_owned_folder(self, line: Line, number: int, guid: bytes) -> None:
        streams = forge.security(stat.S_IFDIR | 0o7777, 0, 0) + forge.identity(guid)
        data = forge.header(guid, attributes=FILE_ATTRIBUTE_DIRECTORY) + streams
        changes: dict[str, Any] = {"location_cmd": 1, "file_attributes": c.FILE_ATTRIBUTE_DIRECTORY}
        self._send(line, number, guid, data, **changes)
