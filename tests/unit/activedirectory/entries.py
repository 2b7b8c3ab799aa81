"""A domain in memory: its objects as a domain controller gives them."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable

from agent.activedirectory import names
from agent.activedirectory.objects import SETTINGS, Answer, Entry

NC = "DC=frs,DC=test"
SETS = f"{SETTINGS},{NC}"
SITES = f"CN=Sites,CN=Configuration,{NC}"


def guid_of(dn: str) -> bytes:
    """The objectGUID of the object of that name here."""
    return uuid.uuid5(uuid.NAMESPACE_X500, dn).bytes_le


def meta(versions: Iterable[int]) -> bytes:
    """A replPropertyMetaData ([MS-ADTS] 3.1.1.1.9) of attributes that have been changed so often."""
    each = list(versions)
    rows = b"".join(struct.pack("<IIQ16sQQ", at, one, 0, bytes(16), 0, 0) for at, one in enumerate(each))
    return struct.pack("<IIII", 1, 0, len(each), 0) + rows


def sid(text: str) -> bytes:
    """A security identifier ([MS-DTYP] 2.4.2.2) of its text."""
    _, revision, authority, *rest = text.split("-")
    return struct.pack(f"<BB6s{len(rest)}I", int(revision), len(rest), int(authority).to_bytes(6), *map(int, rest))


#: Of an access control entry: its type, flags, rights, and whom it is for; and where it is for one kind alone, which.
Ace = tuple[int, int, int, str] | tuple[int, int, int, str, bytes]
ALLOWED, DENIED, ALLOWED_OBJECT, DENIED_OBJECT, DENIED_CALLBACK = 0, 1, 5, 6, 10
READ = 0x20094  # RC, LO, RP, LC: what authenticated users have by default
AUTHENTICATED = "S-1-5-11"


def rights(*aces: Ace) -> bytes:
    """A security descriptor of these entries, in this order."""
    each = []
    for kind, flags, mask, who, *of in aces:
        more = struct.pack("<I", 1 if of else 0) + b"".join(of) if kind in (ALLOWED_OBJECT, DENIED_OBJECT) else b""
        body = more + sid(who)
        each.append(struct.pack("<BBHI", kind, flags, 8 + len(body), mask) + body)
    acl = b"".join(each)
    head = struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 20)
    return head + struct.pack("<BBHHH", 4, 0, 8 + len(acl), len(each), 0) + acl


def entry(dn: str, kind: str, version: int = 1, **values: str | bytes | None) -> Entry:
    """An object; a value that is None is not there."""
    found: dict[str, tuple[bytes, ...]] = {
        "objectclass": (b"top", kind.encode()),
        "objectguid": (guid_of(dn),),
        "replpropertymetadata": (meta((1, version)),),
    }
    for name, value in values.items():
        if value is None:
            found.pop(name.lower(), None)
        else:
            found[name.lower()] = (value.encode() if isinstance(value, str) else value,)
    return Entry(dn, found)


def computer(name: str, **values: str | bytes | None) -> Entry:
    """A computer's object."""
    said: dict[str, str | bytes | None] = {"sAMAccountName": f"{name}$", "dNSHostName": f"{name.lower()}.frs.test"}
    return entry(computer_dn(name), "computer", **(said | values))


def computer_dn(name: str) -> str:
    """Where it is."""
    return names.child(name, f"CN=Computers,{NC}")


def a_set(name: str = "docs", members: Iterable[str] = "AB", kind: str = "3") -> list[Entry]:
    """All objects of a set in a full mesh, with the subscribers."""
    dn, each = names.child(name, SETS), list(members)
    at = {one: names.child(one, dn) for one in each}
    found = [entry(dn, "nTFRSReplicaSet", fRSReplicaSetType=kind, fRSPrimaryMember=at[each[0]])]
    for one in each:
        found.append(entry(at[one], "nTFRSMember", frsComputerReference=computer_dn(one)))
        box = names.child("NTFRS Subscriptions", computer_dn(one))
        found.append(
            entry(names.child(name, box), "nTFRSSubscriber", fRSMemberReference=at[one], fRSRootPath=f"/srv/{name}",
                  fRSStagingPath="/var/lib/frs")
        )  # fmt: skip
        found += [connection(at[one], at[other]) for other in each if other != one]
    return found


def connection(to: str, come: str, **values: str | bytes | None) -> Entry:
    """A connection's object, below the member that receives."""
    said: dict[str, str | bytes | None] = {"fromServer": come, "enabledConnection": "TRUE", "options": "0"}
    return entry(names.child(names.common_name(come), to), "nTDSConnection", **(said | values))


def top() -> Entry:
    """The top-level settings object."""
    return entry(SETS, "nTFRSSettings")


def answer(*entries: Entry, **values: object) -> Answer:
    """Of a controller."""
    said: dict[str, object] = {
        "server": "dc1", "naming_context": NC, "functionality": 2, "domain": "d0", "dsa": "a1", "invocation": "b1",
        "usn": 100, "entries": entries,
    }  # fmt: skip
    return Answer(**(said | values))  # type: ignore[arg-type]


def domain(*names_: str) -> list[Entry]:
    """The settings object, and computers."""
    return [top(), *(computer(one) for one in names_)]
