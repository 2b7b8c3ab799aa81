"""What is asked of a domain controller in one reading ([MS-FRS1] 3.1.5.1): all that a member needs, and no more; what
is not shown is looked for, to tell what is gone from what may not be read. No I/O: who searches is given.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final

from agent.activedirectory import names
from agent.activedirectory.listing import identities, is_listed
from agent.activedirectory.objects import ATTRIBUTES, SETTINGS, Answer, Entry, of_kind
from agent.activedirectory.request import Request

#: Who may do what with an object: it is read with all others, and goes no further than here.
_RIGHTS: Final = "nTSecurityDescriptor"
_ASKED: Final = (*ATTRIBUTES, _RIGHTS)
#: Attributes whose octets are wanted as they are.
RAW: Final = (*_ASKED, "invocationId", "distinguishedName", "tokenGroups")
#: The most entries of a reading, and references that are looked for one by one.
_MOST: Final = 300_000
_MOST_LOOKED_FOR: Final = 200
#: So many computers are asked for in one search.
_TOGETHER: Final = 50
#: Classes below whose objects there are others of a topology, where an account has to see all.
_FOLDERS: Final = ("nTFRSSettings", "nTFRSReplicaSet", "nTFRSMember", "nTFRSSubscriptions")
#: Of the objects of the sites, those of which a topology is made, and the folders that they are in.
_OF_SITES: Final = "".join(
    f"(objectClass={kind})"
    for kind in ("nTDSDSA", "nTDSDSARO", "nTDSConnection", "server", "serversContainer", "site", "sitesContainer")
)
#: Scopes of a search, and a filter for all objects.
BASE, SUBTREE = 0, 2
ANY: Final = "(objectClass=*)"
#: Attributes that refer to other objects, and the classes that have them.
_REFERENCES: Final = (
    ("nTFRSSubscriber", "fRSMemberReference"),
    ("nTFRSMember", "frsComputerReference"),
    ("nTFRSMember", "serverReference"),
    ("nTDSConnection", "fromServer"),
    ("nTFRSReplicaSet", "fRSPrimaryMember"),
)


class Unusable(Exception):
    """A server that gives no whole answer; the text says why."""


Search = Callable[[str, int, str, Iterable[str]], list[Entry]]


class Reader:
    """One reading from one server. `search` gives all entries below a base, with these attributes."""

    def __init__(self, search: Search, escape: Callable[[str], str], request: Request) -> None:
        self._search, self._escape, self._request = search, escape, request
        self._found: dict[str, Entry] = {}
        #: By the same normal DNs as above: the security descriptors of what was found.
        self._rights: dict[str, bytes | None] = {}

    def read(self, server: str) -> Answer:
        """All that the member needs ([MS-FRS1] 3.1.5.1). Raises Unusable."""
        root = self._one("", ("defaultNamingContext", "configurationNamingContext", "highestCommittedUSN",
                              "dsServiceName", "domainFunctionality", "isSynchronized", "tokenGroups"))  # fmt: skip
        context, service = root.text("defaultNamingContext"), root.text("dsServiceName")
        usn = root.text("highestCommittedUSN") or ""
        if context is None or service is None or not usn.isdigit():
            raise Unusable("it is no domain controller")
        if names.dns_domain(context) != self._request.domain.casefold():
            raise Unusable(f"it is a controller of {names.dns_domain(context)}")
        if root.text("isSynchronized") == "FALSE":
            raise Unusable("it has not all of the directory yet")
        domain = self._one(context, ("objectGUID",))
        dsa = self._one(service, ("objectGUID", "invocationId"))
        settings = f"{SETTINGS},{context}"
        self._add(self._search(settings, BASE, ANY, _ASKED))
        account = self._escape(f"{self._request.computer}$")
        computers = self._search(context, SUBTREE, f"(&(objectClass=computer)(sAMAccountName={account}))", _ASKED)
        self._add(computers)
        for computer in computers[:1]:
            self._read_sets(computer, context)
        sites = f"CN=Sites,{root.text('configurationNamingContext') or f'CN=Configuration,{context}'}"
        if any(one.number("fRSReplicaSetType") in (1, 2) for one in of_kind(self._found.values(), "nTFRSReplicaSet")):
            self._add(self._search(sites, SUBTREE, f"(|{_OF_SITES})", _ASKED))
        self._read_computers(context)
        absent, denied = self._look_for_the_rest(context)
        folders = self._folders(computers, settings, sites)
        token = identities(root.attributes.get("tokengroups", ()))
        return Answer(
            server=server,
            naming_context=context,
            functionality=root.number("domainFunctionality") or 0,
            domain=(domain.guid or b"").hex(),
            dsa=(dsa.guid or b"").hex(),
            invocation=(dsa.octets("invocationId") or b"").hex(),
            usn=int(usn),
            entries=tuple(self._found.values()),
            absent=frozenset(absent),
            denied=frozenset(denied),
            unlisted=frozenset(dn for at, dn in folders.items() if not is_listed(self._rights[at], token)),
        )

    def _folders(self, computers: Sequence[Entry], settings: str, sites: str) -> dict[str, str]:
        """All that is shown of which something may be below that the topology is made of, and the folders that it is in
        up to the top of the sets, this computer, or the sites; also where what is in them is not shown itself."""
        wanted = [settings, *(one.dn for one in (*computers, *of_kind(self._found.values(), *_FOLDERS)))]
        references = (one.text("serverReference") for one in of_kind(self._found.values(), "nTFRSMember"))
        wanted += [reference for reference in references if reference is not None]
        folders: dict[str, str] = {}
        seen: set[str] = set()
        while wanted:
            dn = wanted.pop()
            at = names.normal(dn)
            if at in seen:
                continue
            seen.add(at)
            within = names.is_below(dn, settings) or names.is_below(dn, sites)
            if at not in self._found and within:
                self._add(self._search(dn, BASE, ANY, _ASKED))
            if at in self._found or within:
                wanted.append(names.parent(dn))
            if at in self._found:
                folders[at] = dn
        return folders

    def _one(self, dn: str, attributes: Iterable[str]) -> Entry:
        found = self._search(dn, BASE, ANY, attributes)
        if len(found) != 1:
            raise Unusable(f"{dn or 'its root'} cannot be read")
        return found[0]

    def _add(self, entries: Iterable[Entry]) -> None:
        for one in entries:
            at, values = names.normal(one.dn), dict(one.attributes)
            self._rights[at] = next(iter(values.pop(_RIGHTS.lower(), ())), None)
            self._found[at] = Entry(one.dn, MappingProxyType(values))
        if len(self._found) > _MOST:
            raise Unusable(f"there are more than {_MOST} objects")

    def _read_sets(self, computer: Entry, context: str) -> None:
        """The subscriptions, and all of the sets that they or a member object of this computer lead to."""
        kinds = "(|(objectClass=nTFRSSubscriptions)(objectClass=nTFRSSubscriber))"
        self._add(self._search(computer.dn, SUBTREE, kinds, _ASKED))
        mine = f"(&(objectClass=nTFRSMember)(frsComputerReference={self._escape(computer.dn)}))"
        members = [one.dn for one in self._search(f"{SETTINGS},{context}", SUBTREE, mine, ATTRIBUTES)]
        for one in of_kind(self._found.values(), "nTFRSSubscriber"):
            members += [one.text("fRSMemberReference") or ""]
        sets = {names.normal(names.parent(dn)): names.parent(dn) for dn in members}
        for dn in sets.values():
            if names.is_below(names.parent(dn), f"{SETTINGS},{context}"):
                self._add(self._search(dn, SUBTREE, ANY, _ASKED))

    def _read_computers(self, context: str) -> None:
        wanted = dict.fromkeys(
            reference for one in of_kind(self._found.values(), "nTFRSMember")
            if (reference := one.text("frsComputerReference")) and names.normal(reference) not in self._found
        )  # fmt: skip
        each = list(wanted)
        for at in range(0, len(each), _TOGETHER):
            some = "".join(f"(distinguishedName={self._escape(dn)})" for dn in each[at : at + _TOGETHER])
            self._add(self._search(context, SUBTREE, f"(&(objectClass=computer)(|{some}))", ATTRIBUTES))

    def _look_for_the_rest(self, context: str) -> tuple[set[str], set[str]]:
        """What entries refer to, and what was there before, and is not among what was found: the DNs that are not
        there, and the DNs and GUIDs of what is there and may not be read."""
        absent: set[str] = set()
        denied = {names.normal(one.dn) for one in self._found.values() if "objectclass" not in one.attributes}
        missing: dict[str, str] = {}
        for kind, attribute in _REFERENCES:
            for one in of_kind(self._found.values(), kind):
                reference = one.text(attribute)
                if reference is not None and names.normal(reference) not in self._found:
                    missing[names.normal(reference)] = reference
        for dn, reference in list(missing.items())[:_MOST_LOOKED_FOR]:
            there = self._search(reference, BASE, ANY, _ASKED)
            if not there:
                absent.add(dn)
            elif all("objectclass" not in one.attributes for one in there):
                denied.add(dn)
            else:
                self._add(there)
        have = {one.guid.hex() for one in self._found.values() if one.guid is not None}
        have |= self._shown([guid for guid in self._request.known if guid not in have], context)
        for guid in [one for one in self._request.known if one not in have]:
            there = self._search(f"<GUID={uuid.UUID(bytes_le=bytes.fromhex(guid))}>", BASE, ANY, _ASKED)
            if any("objectclass" not in one.attributes for one in there):
                denied.add(guid)
            self._add(one for one in there if one.kind in _FOLDERS)  # below which there may be more
        return absent, denied

    def _shown(self, guids: Sequence[str], context: str) -> set[str]:
        """Of objects that were there before, those that are shown in the domain: all of a set that was left, as a rule.
        What is not there, or may not be read, has to be asked for by itself to be told apart."""
        shown: set[str] = set()
        for at in range(0, len(guids), _TOGETHER):
            some = "".join(f"(objectGUID={_escaped_octets(guid)})" for guid in guids[at : at + _TOGETHER])
            there = self._search(context, SUBTREE, f"(|{some})", _ASKED)
            shown |= {one.guid.hex() for one in there if one.guid is not None and "objectclass" in one.attributes}
            self._add(one for one in there if one.kind in _FOLDERS)  # below which there may be more
        return shown


def with_ranges(entry: Entry, more: Callable[[str, str], Entry | None]) -> Entry:
    """The entry with all values of the attributes of which the server gave the first ones only, as `name;range=0-1499`.
    `more` asks for an attribute of a DN. Raises Unusable."""
    values = dict(entry.attributes)
    for key in [name for name in values if ";range=" in name]:
        name, _, said = key.partition(";range=")
        whole, last = list(values.pop(key)), said.partition("-")[2]
        while last != "*":
            if not last.isdigit() or len(whole) > _MOST:
                raise Unusable(f"{entry.dn} has {name} in parts that do not end")
            part = more(entry.dn, f"{name};range={int(last) + 1}-*")
            found = [one for one in part.attributes if one.startswith(f"{name};range=")] if part is not None else []
            if part is None or not found or not part.attributes[found[0]]:
                raise Unusable(f"{entry.dn} has {name} in parts, of which one is missing")
            whole += part.attributes[found[0]]
            last = found[0].rpartition("-")[2]
        values[name] = tuple(whole)
    return Entry(entry.dn, MappingProxyType(values))


def _escaped_octets(guid: str) -> str:
    """A GUID for a search filter (RFC 4515)."""
    return "".join(f"\\{octet:02x}" for octet in bytes.fromhex(guid))
