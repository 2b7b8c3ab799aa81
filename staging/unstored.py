"""What a member was sent of a file and its file system did not keep, or this process may not set.

Owners and set-id bits that an agent without the right cannot give, access control lists and user attributes that a
file system does not have, times and file attributes that it rounds or lacks: all that is remembered beside the record
of the file, together with what the file system made of it. Whatever is still as it was made then is what was sent;
only what differs from that was changed here. So an edit here takes nothing from the other members, and the streams
of an unchanged file, and their MD5, are the ones that came.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from staging import attributes
from staging.attributes import Attributes
from staging.errors import StagingError
from staging.fsops import Fingerprint

_DIGEST: Final = 16
_NONE: Final = 0xFFFFFFFF
_HEAD: Final = struct.Struct("<BI")
_LENGTH: Final = struct.Struct("<I")
_FLAGS: Final = struct.Struct("<II")
_TIME: Final = 16  # bytes of a time in nanoseconds

_KEPT, _USER, _TIMES, _ATTRIBUTES, _MADE = range(1, 6)


class What(enum.IntFlag):
    """What is not kept, for people."""

    OWNER = 1
    SET_ID = 2
    RIGHTS = 4  # mode, access control lists, a descriptor from elsewhere
    USER_ATTRIBUTES = 8
    TIME = 16
    FILE_ATTRIBUTES = 32
    STREAMS = 64  # what nothing here can hold


_NAMES: Final = {
    What.OWNER: "owner or group",
    What.SET_ID: "set-id bits",
    What.RIGHTS: "mode or access control list",
    What.USER_ATTRIBUTES: "user attributes",
    What.TIME: "modification time",
    What.FILE_ATTRIBUTES: "file attributes",
    What.STREAMS: "streams",
}


def by_name(counts: Mapping[int, int]) -> dict[str, int]:
    """Of how many files what is not kept, for people, from the counts by first bytes (see `Unstored.encode`)."""
    found = {name: sum(n for bits, n in counts.items() if bits & what) for what, name in _NAMES.items()}
    return {name: n for name, n in found.items() if n}


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is said of a file beside its data: descriptor, user attributes, modification time in Unix nanoseconds, and
    FILE_ATTRIBUTE_* bits."""

    descriptor: bytes
    user: Mapping[bytes, bytes]
    mtime_ns: int
    file_attributes: int


@dataclass(frozen=True, slots=True)
class Unstored:
    """`kept`: the descriptor and what became of it (see attributes.keep). `user`: for each user attribute that is
    another one here, the value (None: there is to be none) and a digest of what is here (None: nothing). `mtime_ns` and
    `file_attributes`: what was sent and what is here, None where that is the same. `made`: the MD5 of the streams
    generated here where it cannot be the one that was announced. `what`: the bits of What. `another`, which is not
    remembered: this was remembered of another file that had the name before."""

    kept: bytes | None = None
    user: Mapping[bytes, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    mtime_ns: tuple[int, int] | None = None
    file_attributes: tuple[int, int] | None = None
    made: bytes | None = None
    what: int = 0
    another: bool = False

    def encode(self) -> bytes:
        """As the IDTable keeps it: the first byte tells `what`. Empty when there is nothing to remember."""
        parts: list[tuple[int, bytes]] = []
        if self.kept is not None:
            parts.append((_KEPT, self.kept))
        for name, (value, here) in self.user.items():
            parts.append((_USER, _optional(name) + _optional(value) + _optional(here)))
        if self.mtime_ns is not None:
            parts.append((_TIMES, b"".join(one.to_bytes(_TIME, "little", signed=True) for one in self.mtime_ns)))
        if self.file_attributes is not None:
            parts.append((_ATTRIBUTES, _FLAGS.pack(*self.file_attributes)))
        if self.made is not None:
            parts.append((_MADE, self.made))
        if not parts:
            return b""
        return bytes((self.what,)) + b"".join(_HEAD.pack(tag, len(data)) + data for tag, data in parts)


def decode(value: bytes) -> Unstored | None:
    """The inverse of `Unstored.encode`. Raises StagingError for what it is not."""
    if not value:
        return None
    user: dict[bytes, tuple[bytes | None, bytes | None]] = {}
    found: dict[int, bytes] = {}
    try:
        at = 1
        while at < len(value):
            tag, size = _HEAD.unpack_from(value, at)
            at += _HEAD.size
            data = value[at : at + size]
            at += size
            if tag == _USER:
                name, value_sent, here = _three(data)
                user[name or b""] = (value_sent, here)
            else:
                found[tag] = data
        times, flags = found.get(_TIMES), found.get(_ATTRIBUTES)
        return Unstored(
            found.get(_KEPT),
            user,
            None if times is None else (_time(times[:_TIME]), _time(times[_TIME:])),
            None if flags is None else _FLAGS.unpack(flags),
            found.get(_MADE),
            value[0],
        )
    except struct.error as error:
        raise StagingError(f"what is remembered of a file cannot be read: {error}") from error


def _time(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _optional(data: bytes | None) -> bytes:
    return _LENGTH.pack(_NONE) if data is None else _LENGTH.pack(len(data)) + data


def _three(data: bytes) -> list[bytes | None]:
    out: list[bytes | None] = []
    at = 0
    for _ in range(3):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        out.append(None if size == _NONE else data[at : at + size])
        at += 0 if size == _NONE else size
    return out


def _digest(value: bytes | None) -> bytes | None:
    return None if value is None else hashlib.blake2b(value, digest_size=_DIGEST).digest()


def as_it_was_sent(
    unstored: Unstored | None, st: Fingerprint, found: Attributes, fd: int | None, file_attributes: int
) -> Metadata:
    """What is to be said of a file: what is on disk (`st`, `found`, `file_attributes`; the file is open as `fd`, for
    reading), but what is as it was made of what was sent, as that was sent. Raises StagingError, OSError."""
    if unstored is None:
        return Metadata(attributes.descriptor(st, found, fd), found.user, st.mtime_ns, file_attributes)
    user = dict(found.user)
    for name, (value, here) in unstored.user.items():
        if _digest(user.get(name)) == here:
            if value is None:
                user.pop(name, None)
            else:
                user[name] = value
    return Metadata(
        attributes.descriptor(st, found, fd, unstored.kept, another=unstored.another),
        user,
        _sent(unstored.mtime_ns, st.mtime_ns),
        _sent(unstored.file_attributes, file_attributes),
    )


def _sent(both: tuple[int, int] | None, now: int) -> int:
    return both[0] if both is not None and both[1] == now else now


def difference(
    sent: Metadata, st: Fingerprint, found: Attributes, fd: int | None, file_attributes: int, made: bytes | None = None
) -> Unstored:
    """What is to be remembered of a file of which `sent` is said and that is on disk like the other arguments, see
    `as_it_was_sent`. Raises OSError."""
    what = What(0)
    kept = None
    if attributes.of_disk(st, found) != sent.descriptor:
        kept, lacking = attributes.kept_of(sent.descriptor, st, found, fd)
        what |= (What.OWNER if lacking.owner else 0) | (What.SET_ID if lacking.set_id else 0)
        what |= What.RIGHTS if lacking.rights else 0
    user = {
        name: (sent.user.get(name), _digest(found.user.get(name)))
        for name in sorted(sent.user.keys() | found.user.keys())
        if sent.user.get(name) != found.user.get(name)
    }
    if user:
        what |= What.USER_ATTRIBUTES
    times = None if sent.mtime_ns == st.mtime_ns else (sent.mtime_ns, st.mtime_ns)
    flags = None if sent.file_attributes == file_attributes else (sent.file_attributes, file_attributes)
    what |= (What.TIME if times else 0) | (What.FILE_ATTRIBUTES if flags else 0) | (What.STREAMS if made else 0)
    return Unstored(kept, user, times, flags, made, what)
