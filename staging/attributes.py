"""Extended attributes of the host as streams, and streams as extended attributes.

What travels, and how:

* `user.NAME` where NAME is a legal EA name: in the EA stream, sorted by name;
* `user.DosStream.NAME:$DATA`, a value that ends with the zero byte Samba's streams_xattr adds: as the
  alternate stream `:NAME:$DATA` without that byte;
* any other `user.*` (names that no EA can have, empty values, more than 64 KiB together): as the alternate
  stream `:<U+F000>user.NAME:$DATA`;
* POSIX access control lists and owner, group and mode: in the security descriptor (staging.sd);
* `user.DOSATTRIB` not as an attribute: what it says is among the FILE_ATTRIBUTE_* (staging.dosattrib);
* `user.frs.*` never: the agent's own. `security.*`, `trusted.*`, `system.*` never: they are of the host.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from staging import dosattrib, posixacl, sd, sparse
from staging.dosattrib import DOSATTRIB_XATTR, DosAttributes
from staging.fsops import Fingerprint
from staging.sd import Posix
from staging.streams import (
    BACKUP_ALTERNATE_DATA,
    BACKUP_EA_DATA,
    EA_TOTAL_MAX,
    Ea,
    ea_size,
    encode_eas,
    narrow,
    stream,
    widen,
)

OWN_PREFIX: Final = b"user.frs."
# Whoever may write to a file may set its user attributes, so a descriptor kept there is believed only where nobody but
# this agent's own user can write. Root keeps it where only root can, and believes no other: what is root's now may have
# been anybody's when the attribute was set.
DESCRIPTOR_XATTR: Final = "user.frs.security_descriptor"
TRUSTED_DESCRIPTOR_XATTR: Final = "trusted.frs.security_descriptor"
#: The bits of a mode that are changed together: the rights of owner, group and others.
_TOGETHER: Final = (0o700, 0o070, 0o007, stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX)
SET_ID_BITS: Final = stat.S_ISUID | stat.S_ISGID
_USER: Final = b"user."
_DOSATTRIB: Final = os.fsencode(DOSATTRIB_XATTR)
_DOS_STREAM: Final = b"user.DosStream."
_DATA_TYPE: Final = b":$DATA"
_GENERIC: Final = "\uf000user."
_NO_ATTRIBUTES: Final = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

_EA_LEGAL: Final = frozenset(range(0x21, 0x7F)) - frozenset(b'"*+,/:;<=>?[\\]|')
_NOT_IN_STREAM_NAME: Final = frozenset(":/\\" + "".join(map(chr, range(32))))
_STREAM_NAME_MAX: Final = 255
XATTR_NAME_MAX: Final = 255
XATTR_VALUE_MAX: Final = 0x10000
_WIDE_MAX: Final = 2 * (len(_GENERIC) + XATTR_NAME_MAX + 7)  # bytes of the name of a stream that an attribute can hold


@dataclass(slots=True)
class Attributes:
    """The extended attributes of one file that matter here.

    `kept` is the descriptor kept in the attribute only root can set, `kept_by_user` the other one; `dos` is what
    `user.DOSATTRIB` says.
    """

    user: dict[bytes, bytes]
    kept: bytes | None = None
    kept_by_user: bytes | None = None
    access: bytes | None = None
    default: bytes | None = None
    dos: DosAttributes | None = None


_NONE: Final = Attributes({})


def read(fd: int) -> Attributes:
    """Reads the attributes of an open file or folder. Raises OSError."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return _NONE
        raise
    if not names:
        return _NONE
    found = Attributes({})
    for name in names:
        if name.startswith("user.frs."):
            if name == DESCRIPTOR_XATTR:
                found.kept_by_user = os.getxattr(fd, name)
        elif name == TRUSTED_DESCRIPTOR_XATTR:
            found.kept = os.getxattr(fd, name)
        elif name == DOSATTRIB_XATTR:
            found.dos = dosattrib.decode(os.getxattr(fd, name))
        elif name.startswith("user."):
            found.user[os.fsencode(name)] = os.getxattr(fd, name)
        elif name == posixacl.ACCESS_XATTR:
            found.access = os.getxattr(fd, name)
        elif name == posixacl.DEFAULT_XATTR:
            found.default = os.getxattr(fd, name)
    return found


def encode(user: dict[bytes, bytes]) -> list[bytes]:
    """The EA stream and the alternate streams of user attributes, in the one order they always have."""
    if not user:
        return []
    eas: list[Ea] = []
    alternates: list[tuple[bytes, bytes]] = []
    room, taken = EA_TOTAL_MAX, set()
    for attribute in sorted(user):
        value = user[attribute]
        dos = _dos_stream_name(attribute, value)
        if dos is not None:
            alternates.append((dos, value[:-1]))
            continue
        name = attribute[len(_USER) :]
        size = ea_size(name, value)
        if value and name and size <= room and name.upper() not in taken and _EA_LEGAL.issuperset(name):
            eas.append(Ea(name, value))
            room -= size
            taken.add(name.upper())
        else:
            alternates.append((_wide(_GENERIC + widen(name, _NOT_IN_STREAM_NAME)), value))
    out = [stream(BACKUP_EA_DATA, encode_eas(eas))] if eas else []
    out += [stream(BACKUP_ALTERNATE_DATA, value, 0, name) for name, value in sorted(alternates)]
    return out


def _wide(name: str) -> bytes:
    return f":{name}:$DATA".encode("utf-16-le", "surrogatepass")


def _dos_stream_name(attribute: bytes, value: bytes) -> bytes | None:
    """The stream name of an attribute in the format of Samba's streams_xattr."""
    if not attribute.startswith(_DOS_STREAM) or not attribute.endswith(_DATA_TYPE) or value[-1:] != b"\0":
        return None
    raw = attribute[len(_DOS_STREAM) : -len(_DATA_TYPE)]
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    if not name or name.startswith("\uf000") or not _NOT_IN_STREAM_NAME.isdisjoint(name):
        return None
    wide = _wide(name)
    return wide if len(wide) <= 2 * (_STREAM_NAME_MAX + 7) else None


def attribute_of_stream(name: bytes, data: bytes) -> tuple[bytes, bytes] | None:
    """The attribute that holds an alternate stream; None when none can."""
    if len(name) > _WIDE_MAX:
        return None
    try:
        text = name.decode("utf-16-le", "surrogatepass")
    except UnicodeDecodeError:
        return None
    if not text.startswith(":") or not text.endswith(":$DATA"):
        return None
    text = text[1:-6]
    try:
        if text.startswith(_GENERIC):
            attribute, value = _USER + narrow(text[len(_GENERIC) :]), data
        else:
            attribute, value = _DOS_STREAM + text.encode() + _DATA_TYPE, data + b"\0"
    except ValueError:
        return None
    return (attribute, value) if allowed(attribute, value) else None


def attribute_of_ea(ea: Ea) -> tuple[bytes, bytes] | None:
    """The attribute that holds an EA; None when none can."""
    attribute = _USER + ea.name
    return (attribute, ea.value) if allowed(attribute, ea.value) else None


def allowed(attribute: bytes, value: bytes) -> bool:
    """Whether an attribute from a staging file may be set: never one of the agent's own, or of Samba's own."""
    return (
        len(_USER) < len(attribute) <= XATTR_NAME_MAX
        and len(value) <= XATTR_VALUE_MAX
        and b"\0" not in attribute
        and not attribute.startswith(OWN_PREFIX)
        and attribute != _DOSATTRIB
    )


# A descriptor that came from elsewhere, or that could not be applied, and what owner, group, mode and access
# control lists it is valid for.
_KEPT: Final = struct.Struct("<BIII8s")
_KEPT_VERSION: Final = 1
# One that says set-id bits which the file does not have holds for its content only: who writes to a file that has them
# takes them away, but here there is nothing to take away. Size and digest of the content follow.
_CONTENT: Final = struct.Struct("<Q16s")
_KEPT_FOR_CONTENT: Final = 2
_HEADS: Final = {_KEPT_VERSION: _KEPT.size, _KEPT_FOR_CONTENT: _KEPT.size + _CONTENT.size}


def _digest(access: bytes | None, default: bytes | None) -> bytes:
    if access is None and default is None:
        return bytes(8)
    both = (access or b"") + b"|" + (default or b"")
    return hashlib.blake2b(both, digest_size=8).digest()


def keep(
    descriptor: bytes,
    mode: int,
    uid: int,
    gid: int,
    access: bytes | None,
    default: bytes | None,
    *,
    content: tuple[int, bytes] | None = None,
) -> bytes:
    """The value of user.frs.security_descriptor. `content`: it holds for that content only, see `content_of`."""
    version = _KEPT_VERSION if content is None else _KEPT_FOR_CONTENT
    head = _KEPT.pack(version, mode, uid, gid, _digest(access, default))
    return head + (b"" if content is None else _CONTENT.pack(*content)) + descriptor


def content_of(fd: int) -> tuple[int, bytes]:
    """The size of an open file and a digest of its content. Raises OSError, Torn when it becomes shorter."""
    size = os.fstat(fd).st_size
    digest = hashlib.blake2b(digest_size=16)
    for offset, data in sparse.runs(fd, size):
        digest.update(offset.to_bytes(8, "little"))
        digest.update(data)
    return size, digest.digest()


def only_ours(st: Fingerprint, access: bytes | None) -> bool:
    """Whether nobody but root and the user of this process can write to the file."""
    return st.uid == os.geteuid() and not st.mode & 0o022 and access is None


class Lacking(NamedTuple):
    """What a file does not have of what its descriptor says: `rights` are a mode or lists that are other ones, or
    anything of a descriptor from elsewhere."""

    owner: bool
    set_id: bool
    rights: bool


def kept_of(descriptor: bytes, st: Fingerprint, found: Attributes, fd: int | None) -> tuple[bytes, Lacking]:
    """The value that remembers a descriptor which the file does not have, see `keep`, and what it lacks. Set-id bits
    that a file lacks hold for its content only, unless nobody but this process's own user can write to it; then for
    this very file only (see `descriptor`). `fd`: the file open for reading. Raises OSError."""
    file_type = stat.S_IFMT(st.mode)
    posix = sd.parse(descriptor, file_type)
    bits = 0 if posix is None else posix.mode & ~st.mode & SET_ID_BITS
    for_content = bool(bits) and stat.S_ISREG(file_type) and fd is not None and not only_ours(st, found.access)
    content = content_of(fd) if for_content and fd is not None else None
    value = keep(descriptor, st.mode, st.uid, st.gid, found.access, found.default, content=content)
    if posix is None:
        return value, Lacking(owner=False, set_id=False, rights=True)
    rights = (posix.mode & ~SET_ID_BITS, posix.access, posix.default) != (
        st.mode & ~SET_ID_BITS, found.access, found.default,
    )  # fmt: skip
    return value, Lacking((posix.uid, posix.gid) != (st.uid, st.gid), bool(bits), rights)


def of_disk(st: Fingerprint, found: Attributes) -> bytes:
    """The descriptor of what the file has here. Raises StagingError when none can be built."""
    if stat.S_ISLNK(st.mode):
        return sd.build(Posix(sd.SYMLINK_MODE, st.uid, st.gid))
    return sd.build(Posix(st.mode, st.uid, st.gid, found.access, found.default))


def descriptor(
    st: Fingerprint,
    found: Attributes,
    fd: int | None = None,
    kept: bytes | None = None,
    *,
    another: bool = False,
) -> bytes:
    """The security descriptor to send for a file, which may be open as `fd` for reading. `kept` is what is remembered
    of the one that came (see `keep`), else what an attribute of the file says counts. Raises StagingError when none
    can be built, OSError. `another`: what is kept was kept of another file that had this name: whoever may rename
    files could give set-id bits to one of his choice, so they hold for the same content only.

    What came is sent on as long as nobody changed owner, group, mode or lists, nor the content where it holds for that
    only. After a change, what was not changed of a descriptor of ours still counts: an agent without the right to give
    files away, or set-id bits, must not take them from others elsewhere.
    """
    if kept is None and not stat.S_ISLNK(st.mode):
        kept = found.kept
        if kept is None and os.geteuid() and only_ours(st, found.access):
            kept = found.kept_by_user
    head = _HEADS.get(kept[0], 0) if kept else 0
    if kept is None or not head or len(kept) <= head:
        return of_disk(st, found)
    return _merged(kept, kept[head:], st, found, fd, another)


def _merged(kept: bytes, came: bytes, st: Fingerprint, found: Attributes, fd: int | None, another: bool) -> bytes:
    _, mode, uid, gid, digest = _KEPT.unpack_from(kept)
    same_lists = digest == _digest(found.access, found.default)
    posix = sd.parse(came, stat.S_IFMT(st.mode))
    lost = 0  # set-id bits that hold no longer
    if posix is not None and stat.S_ISREG(st.mode):
        lost = posix.mode & ~mode & SET_ID_BITS
        for_content = kept[0] == _KEPT_FOR_CONTENT
        if lost and (_same_content(kept, fd) if for_content else not another and only_ours(st, found.access)):
            lost = 0
    if (uid, gid, mode) == (st.uid, st.gid, st.mode) and same_lists and not lost:
        return came
    if posix is None:
        return of_disk(st, found)
    changed = 0
    for bits in _TOGETHER:
        changed |= bits if (mode ^ st.mode) & bits else 0
    new = (posix.mode & ~changed | st.mode & changed) & ~lost
    access, default = (posix.access, posix.default) if same_lists else (found.access, found.default)
    if same_lists and access is not None and changed & 0o777:
        access = posixacl.with_mode(access, new)
    owner = posix.uid if uid == st.uid else st.uid
    group = posix.gid if gid == st.gid else st.gid
    return sd.build(Posix(new, owner, group, access, default))


def _same_content(kept: bytes, fd: int | None) -> bool:
    """Whether the content is the one that a kept descriptor holds for."""
    size, digest = _CONTENT.unpack_from(kept, _KEPT.size)
    return fd is not None and os.fstat(fd).st_size == size and content_of(fd) == (size, digest)
