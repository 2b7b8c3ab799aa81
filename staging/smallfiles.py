"""Small files, many at a time, in C (`native/`): what is in no way out of the ordinary.

That is a regular file of at most 256 KiB with owner, group and mode, without set-id bits, access control lists and user
attributes, which nobody has open for writing. What is made of it, byte by byte, and what is said of it is what
`generate` and `restore` make and say; whatever is out of the ordinary, or fails, is left to them. Where there was no C
compiler they do all of it.

A batch is work on names in one open folder, as everywhere (see staging.beneath): no call in C takes a path or follows a
link, and what is changed is what is open.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from staging import sd
from staging.beneath import same_entry
from staging.compression import compressor, expand
from staging.errors import StagingError
from staging.fsops import Fingerprint
from staging.generate import Staged
from staging.header import FILE_ATTRIBUTE_ARCHIVE, HEADER_SIZE, NetworkOpenInformation, StageHeader
from staging.sd import Posix
from staging.stamps import settle
from staging.streams import (
    BACKUP_DATA,
    BACKUP_OBJECT_ID,
    BACKUP_SECURITY_DATA,
    OBJECT_ID_SIZE,
    STREAM_CONTAINS_SECURITY,
    STREAM_HEADER,
    stream,
    stream_header,
)
from staging.unstored import Unstored

#: Bytes of a file; of what is beside its content in the streams of one; of the whole staging file.
MOST: Final = 1 << 18
_BESIDE: Final = 1 << 10
MOST_STAGED: Final = HEADER_SIZE + MOST + (MOST >> 3) + _BESIDE
_UNUSUAL: Final = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_TIME_MAX: Final = 1 << 62

_log = logging.getLogger(__name__)

native: Any  # the module in C; None where it could not be built
try:
    native = importlib.import_module("staging._smallfiles")
except ImportError:
    native = None
    _log.warning("20117 the extension in C for small files is not there: each is worked on by itself, in Python")


# -- staging --


@dataclass(frozen=True, slots=True)
class Source:
    """A file to stage: its name in the open folder, its Object ID, which is set first if it has to be (`mark`), and the
    file that was seen there: another is left alone."""

    name: bytes
    object_id: bytes
    mark: bool
    seen: Fingerprint


@dataclass(frozen=True, slots=True)
class Generated:
    """The staging file of a small file: its header, its compressed streams, and what `generate` says."""

    head: bytes
    body: bytes
    staged: Staged


def generate_all(folder_fd: int, sources: Sequence[Source], compression: bytes) -> list[Generated | None]:
    """The staging files of files in an open folder; None for one that is left to `generate`. Raises StagingError for an
    unknown compression."""
    done: list[Generated | None] = [None] * len(sources)
    with _opened(native.open(folder_fd, [source.name for source in sources], MOST)) as opened:
        files = {n: one for n, one in opened.items() if same_entry(Fingerprint(*one[1]), sources[n].seen)}
        marked = [(number, one) for number, one in files.items() if sources[number].mark]
        for (number, one), found in zip(marked, native.mark([(one[0], sources[n].object_id) for n, one in marked])):
            if not isinstance(found, int):
                files[number] = one[0], found, one[2]
        seen = {number: (fd, Fingerprint(*found), size) for number, (fd, found, size) in files.items()}
        for device in {st.dev for _, st, _ in seen.values()}:
            settle(max(max(st.mtime_ns, st.ctime_ns) for _, st, _ in seen.values() if st.dev == device), device)
        asked = [
            (fd, _before_data(_descriptor(st), st.size), st.size, _after_data(sources[number].object_id))
            for number, (fd, st, _) in seen.items()
        ]
        for (number, (_, st, size)), found in zip(seen.items(), native.streams(asked)):
            if not isinstance(found, int) and Fingerprint(*found[2]) == st:
                done[number] = _generated(sources[number].object_id, st, size, found[0], found[1], compression)
    return done


@contextlib.contextmanager
def _opened(found: list[Any]) -> Iterator[dict[int, Any]]:
    """Of what was asked for that which is open, by its number; closed afterwards."""
    opened = {number: one for number, one in enumerate(found) if not isinstance(one, int)}
    fds = [one[0] for one in opened.values()]
    try:
        yield opened
    finally:
        native.close(fds)


def _generated(
    object_id: bytes, st: Fingerprint, allocated: int, md5: bytes, streams: bytes, compression: bytes
) -> Generated:
    info = NetworkOpenInformation.exact(
        birth_ns=st.btime_ns, mtime_ns=st.mtime_ns, ctime_ns=st.ctime_ns, allocation_size=allocated,
        end_of_file=st.size, attributes=FILE_ATTRIBUTE_ARCHIVE,
    )  # fmt: skip
    packer = compressor(compression)
    body = bytes(packer.block(streams)) + packer.finish()
    head = StageHeader(info=info, object_id=object_id, compression=compression).encode()
    return Generated(head, body, Staged(md5, len(head) + len(body), st.size, info, st, "file", Unstored()))


def _descriptor(st: Fingerprint) -> bytes:
    return sd.build(Posix(st.mode, st.uid, st.gid))


def _before_data(descriptor: bytes, size: int) -> bytes:
    return stream(BACKUP_SECURITY_DATA, descriptor, STREAM_CONTAINS_SECURITY) + stream_header(BACKUP_DATA, size)


def _after_data(object_id: bytes) -> bytes:
    return stream(BACKUP_OBJECT_ID, object_id.ljust(OBJECT_ID_SIZE, b"\0"))


def write_all(folder_fd: int, files: Sequence[tuple[bytes, bytes, bytes]]) -> list[bool]:
    """Makes files of a head and a body each, by new names in an open folder; whether each is there."""
    return [error == 0 for error in native.write(folder_fd, files)]


# -- installing --


@dataclass(frozen=True, slots=True)
class Plain:
    """What a staging file of such a file says; its content is `size` bytes of the streams."""

    streams: bytes
    start: int
    size: int
    info: NetworkOpenInformation
    object_id: bytes
    posix: Posix
    md5: bytes


def read_files(folder_fd: int, names: Sequence[bytes]) -> list[bytes | None]:
    """What is in staging files that are in an open folder of the agent's own; None for what cannot be read, or is not
    of a small file."""
    return [None if isinstance(one, int) else one for one in native.read(folder_fd, names, MOST_STAGED)]


def plain_all(stages: Sequence[bytes | None]) -> list[Plain | None]:
    """What staging files say; None for one that is left to `restore`."""
    found = [None if one is None else _plain(one) for one in stages]
    sums = iter(native.md5([one[0] for one in found if one is not None]))
    return [None if one is None else Plain(*one, next(sums)) for one in found]


def _plain(stage: bytes) -> tuple[bytes, int, int, NetworkOpenInformation, bytes, Posix] | None:
    try:
        header = StageHeader.decode(stage)
        info = header.info
        if (
            header.reparse_present
            or header.data_offset != HEADER_SIZE
            or info.file_attributes != FILE_ATTRIBUTE_ARCHIVE
            or info.end_of_file > MOST
            or not 0 <= info.last_access_time - info.last_write_time < 100  # else it says more than a time
            or info.last_write_time <= 0
            or not 0 <= info.mtime_ns < _TIME_MAX
        ):
            return None
        streams = expand(header.compression, memoryview(stage)[HEADER_SIZE:], info.end_of_file + _BESIDE)
    except StagingError:
        return None
    if len(streams) < STREAM_HEADER.size:
        return None
    size = STREAM_HEADER.unpack_from(streams)[2]
    descriptor = streams[STREAM_HEADER.size : STREAM_HEADER.size + size]
    posix = _usual(descriptor)
    before, after = _before_data(descriptor, info.end_of_file), _after_data(header.object_id)
    if (
        posix is None
        or len(streams) != len(before) + info.end_of_file + len(after)
        or not streams.startswith(before)
        or not streams.endswith(after)
    ):
        return None
    return streams, len(before), info.end_of_file, info, header.object_id, posix


def _usual(descriptor: bytes) -> Posix | None:
    """What a descriptor of ours says that has nothing but owner, group and an ordinary mode."""
    posix = sd.parse(descriptor, stat.S_IFREG) if len(descriptor) <= _BESIDE else None
    if posix is None or posix.access is not None or posix.default is not None or posix.mode & _UNUSUAL:
        return None
    return posix


@dataclass(frozen=True, slots=True)
class Built:
    """A file that is open, and complete under a name of the agent's own."""

    fd: int
    name: bytes
    fingerprint: Fingerprint


def build_all(folder_fd: int, files: Sequence[tuple[bytes, Plain]], *, durable: bool) -> list[Built | None]:
    """Makes files by names in the open folder of unfinished installs, with `durable` on disk on return; None for one
    that is left to `restore`, of which nothing is there. To be closed by the caller, see `close_all`."""
    made = native.build(
        folder_fd,
        [
            (name, one.streams, one.start, one.size, one.object_id, one.info.mtime_ns, stat.S_IMODE(one.posix.mode),
             one.posix.uid, one.posix.gid)
            for name, one in files
        ],
        durable,
    )  # fmt: skip
    done: list[Built | None] = []
    for (name, one), found in zip(files, made):
        built = None if isinstance(found, int) else Built(found[0], name, Fingerprint(*found[1]))
        if built is not None and not _is_as_sent(built.fingerprint, one):
            os.close(built.fd)
            os.unlink(name, dir_fd=folder_fd)
            built = None
        done.append(built)
    return done


def _is_as_sent(st: Fingerprint, sent: Plain) -> bool:
    """Whether nothing is to be remembered of what was sent, see staging.unstored."""
    return (Posix(st.mode, st.uid, st.gid), st.size, st.mtime_ns) == (sent.posix, sent.size, sent.info.mtime_ns)


def place_all(folder_fd: int, to_fd: int, files: Sequence[tuple[Built, bytes]]) -> list[Fingerprint | None]:
    """Renames what was built to names that must be free in another open folder; None for one that stays where it is."""
    placed = native.place(folder_fd, to_fd, [(built.fd, built.name, name) for built, name in files])
    return [None if isinstance(found, int) else Fingerprint(*found) for found in placed]


def close_all(built: Sequence[Built]) -> None:
    """Closes what was built."""
    native.close([one.fd for one in built])
