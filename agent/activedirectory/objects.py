"""What a domain controller answered: entries, and what it said of others that were asked for. No I/O."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

#: Attributes that are read (2.3.1, 2.3.2), of all classes. replPropertyMetaData has the versions of the others.
ATTRIBUTES: Final = (
    "objectClass", "objectGUID", "uSNChanged", "replPropertyMetaData", "fRSReplicaSetType", "fRSFileFilter",
    "fRSDirectoryFilter", "fRSFlags", "fRSLevelLimit", "fRSPrimaryMember", "schedule", "frsComputerReference",
    "serverReference", "fromServer", "options", "enabledConnection", "sAMAccountName", "dNSHostName",
    "serverReferenceBL", "fRSMemberReference", "fRSRootPath", "fRSStagingPath",
)  # fmt: skip
CLASSES: Final = (
    "nTFRSSettings", "nTFRSReplicaSet", "nTFRSMember", "nTDSConnection", "nTFRSSubscriptions", "nTFRSSubscriber",
    "computer", "nTDSDSA", "nTDSDSARO", "server",
)  # fmt: skip
#: The top-level settings object (2.3.1.1), below the head of the domain.
SETTINGS: Final = "CN=File Replication Service,CN=System"

#: The fields of an answer that are sets.
_SETS: Final = ("absent", "denied", "unlisted")
_META_HEAD: Final = struct.Struct("<IIII")
_META: Final = struct.Struct("<IIQ16sQQ")
#: The number of nTSecurityDescriptor there ([MS-ADTS] 3.1.1.2.6): who may read an object is no part of what it says.
_RIGHTS: Final = 0x00020119
#: Those whose values are links: they go when what they refer to goes, and change no version.
_LINKS: Final = frozenset(
    ("frsprimarymember", "frscomputerreference", "serverreference", "serverreferencebl", "frsmemberreference")
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An object: its DN as the directory wrote it, and the octets of its attributes, by their names in lower case."""

    dn: str
    attributes: Mapping[str, tuple[bytes, ...]]

    @property
    def kind(self) -> str:
        """Its class, of those that are read here; "" where it has none of them, or that cannot be read."""
        classes = {value.decode("ascii", "replace").casefold() for value in self.attributes.get("objectclass", ())}
        return next((name for name in CLASSES if name.casefold() in classes), "")

    @property
    def guid(self) -> bytes | None:
        """objectGUID, which no object lacks; None where it cannot be read, or is none."""
        values = self.attributes.get("objectguid", ())
        return values[0] if len(values) == 1 and len(values[0]) == 16 and any(values[0]) else None

    @property
    def generation(self) -> int:
        """Grows with every change, on whatever controller it is made: the sum of the versions of all attributes but of
        who may read it. 0 where that cannot be read."""
        return generation_of(self.octets("replPropertyMetaData") or b"")

    @property
    def shown(self) -> int:
        """Which attributes it has that are no links, a bit for each of ATTRIBUTES: none of them goes without a change
        of the object."""
        there = self.attributes.keys() - _LINKS
        return sum(1 << bit for bit, name in enumerate(ATTRIBUTES) if name.lower() in there)

    def octets(self, name: str) -> bytes | None:
        """The first value of an attribute."""
        values = self.attributes.get(name.lower(), ())
        return values[0] if values else None

    def text(self, name: str) -> str | None:
        """The first value of an attribute as text; None where it has none, or it is empty. What is no UTF-8 becomes
        U+FFFD."""
        value = self.octets(name)
        return value.decode("utf-8", "replace") or None if value is not None else None

    def number(self, name: str) -> int | None:
        """The first value of an attribute as a whole number of 32 bits, without sign; None where it is none."""
        text = (self.text(name) or "").strip()
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 11):
            return None
        return int(text) & 0xFFFFFFFF

    def as_json(self) -> list[Any]:
        """For a pipe."""
        values = {name: [base64.b64encode(one).decode() for one in many] for name, many in self.attributes.items()}
        return [self.dn, values]


def entry_of(found: list[Any]) -> Entry:
    """The reverse of Entry.as_json."""
    dn, attributes = found
    values = {name: tuple(base64.b64decode(one) for one in many) for name, many in attributes.items()}
    return Entry(dn, MappingProxyType(values))


def generation_of(meta: bytes) -> int:
    """The sum of the versions in a replPropertyMetaData, but that of the security descriptor; 0 for what is none."""
    if len(meta) < _META_HEAD.size:
        return 0
    version, _, count, _ = _META_HEAD.unpack_from(meta)
    if version != 1 or len(meta) < _META_HEAD.size + count * _META.size:
        return 0
    rows = (_META.unpack_from(meta, _META_HEAD.size + index * _META.size) for index in range(count))
    return sum(version for attribute, version, *_ in rows if attribute != _RIGHTS)


@dataclass(frozen=True, slots=True)
class Answer:
    """One reading. `domain`, `dsa` and `invocation` are GUIDs as text: of the domain, of the controller, and of
    its database as it is since it was last taken out of a backup; `usn` is highestCommittedUSN there. `absent` are DNs
    that some entry refers to and that the controller says are not there, `denied` those, and GUIDs as text of what was
    there before, that it neither shows nor calls absent; `unlisted` are the DNs of those below which there may be more
    than this account is shown."""

    server: str
    naming_context: str
    functionality: int
    domain: str
    dsa: str
    invocation: str
    usn: int
    entries: tuple[Entry, ...]
    absent: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    searches: int = 0
    #: What could not be used before this answer came: servers, and why.
    passed_over: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """For a pipe."""
        found = {name: getattr(self, name) for name in self.__slots__}
        sets = {name: sorted(getattr(self, name)) for name in _SETS}
        return found | sets | {"entries": [one.as_json() for one in self.entries]}


def answer_of(found: Mapping[str, Any]) -> Answer:
    """The reverse of Answer.as_json."""
    return Answer(
        **{
            **found,
            "entries": tuple(entry_of(one) for one in found["entries"]),
            **{name: frozenset(found[name]) for name in _SETS},
            "passed_over": tuple(found["passed_over"]),
        }
    )


def of_kind(entries: Iterable[Entry], *kinds: str) -> list[Entry]:
    """Those of these classes."""
    return [one for one in entries if one.kind in kinds]
