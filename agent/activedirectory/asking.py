"""Asks a domain controller, in a process of its own: python -m agent.activedirectory.asking, with a request as JSON on
its standard input and a reply on its standard output. The LDAP library holds the interpreter's lock while it connects
and binds, so that a controller or KDC that hangs would hold up all that goes on in the same process.

Servers are asked in turn until one gives a whole answer. The session is sealed by Kerberos, or goes over TLS.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from agent.activedirectory import names
from agent.activedirectory.listing import identities, is_listed
from agent.activedirectory.objects import ATTRIBUTES, SETTINGS, Answer, Entry, of_kind
from agent.activedirectory.request import Request

#: Who may do what with an object: it is read with all others, and goes no further than here.
_RIGHTS: Final = "nTSecurityDescriptor"
_ASKED: Final = (*ATTRIBUTES, _RIGHTS)
_RAW: Final = (*_ASKED, "invocationId", "distinguishedName", "tokenGroups")
_CONNECT_S: Final = 15.0
_SEARCH_S: Final = 30.0
_PAGE: Final = 500
#: The most entries of a reading, and references that are looked for one by one.
_MOST: Final = 300_000
_MOST_LOOKED_FOR: Final = 200
#: So many computers are asked for in one search.
_TOGETHER: Final = 50
#: Of a security descriptor, the part that says who may do what.
_DACL: Final = 4
#: Classes below whose objects there are others of a topology, where an account has to see all.
_FOLDERS: Final = ("nTFRSSettings", "nTFRSReplicaSet", "nTFRSMember", "nTFRSSubscriptions")
#: Of the objects of the sites, those of which a topology is made, and the folders that they are in.
_OF_SITES: Final = "".join(
    f"(objectClass={kind})"
    for kind in ("nTDSDSA", "nTDSDSARO", "nTDSConnection", "server", "serversContainer", "site", "sitesContainer")
)
#: Of SASL's security layers, one that encrypts.
_SEALED: Final = 56
_BASE, _SUBTREE = 0, 2
_ANY: Final = "(objectClass=*)"
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
        self._add(self._search(settings, _BASE, _ANY, _ASKED))
        account = self._escape(f"{self._request.computer}$")
        computers = self._search(context, _SUBTREE, f"(&(objectClass=computer)(sAMAccountName={account}))", _ASKED)
        self._add(computers)
        for computer in computers[:1]:
            self._read_sets(computer, context)
        sites = f"CN=Sites,{root.text('configurationNamingContext') or f'CN=Configuration,{context}'}"
        if any(one.number("fRSReplicaSetType") in (1, 2) for one in of_kind(self._found.values(), "nTFRSReplicaSet")):
            self._add(self._search(sites, _SUBTREE, f"(|{_OF_SITES})", _ASKED))
        self._read_computers(context)
        absent, denied = self._look_for_the_rest()
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
        while wanted:
            dn = wanted.pop()
            at = names.normal(dn)
            within = names.is_below(dn, settings) or names.is_below(dn, sites)
            if at not in self._found and within:
                self._add(self._search(dn, _BASE, _ANY, _ASKED))
            if at not in folders and (at in self._found or within):
                wanted.append(names.parent(dn))
            if at in self._found:
                folders[at] = dn
        return folders

    def _one(self, dn: str, attributes: Iterable[str]) -> Entry:
        found = self._search(dn, _BASE, _ANY, attributes)
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
        self._add(self._search(computer.dn, _SUBTREE, kinds, _ASKED))
        mine = f"(&(objectClass=nTFRSMember)(frsComputerReference={self._escape(computer.dn)}))"
        members = [one.dn for one in self._search(f"{SETTINGS},{context}", _SUBTREE, mine, ATTRIBUTES)]
        for one in of_kind(self._found.values(), "nTFRSSubscriber"):
            members += [one.text("fRSMemberReference") or ""]
        sets = {names.normal(names.parent(dn)): names.parent(dn) for dn in members}
        for dn in sets.values():
            if names.is_below(names.parent(dn), f"{SETTINGS},{context}"):
                self._add(self._search(dn, _SUBTREE, _ANY, _ASKED))

    def _read_computers(self, context: str) -> None:
        wanted = dict.fromkeys(
            reference for one in of_kind(self._found.values(), "nTFRSMember")
            if (reference := one.text("frsComputerReference")) and names.normal(reference) not in self._found
        )  # fmt: skip
        each = list(wanted)
        for at in range(0, len(each), _TOGETHER):
            some = "".join(f"(distinguishedName={self._escape(dn)})" for dn in each[at : at + _TOGETHER])
            self._add(self._search(context, _SUBTREE, f"(&(objectClass=computer)(|{some}))", ATTRIBUTES))

    def _look_for_the_rest(self) -> tuple[set[str], set[str]]:
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
            there = self._search(reference, _BASE, _ANY, _ASKED)
            if not there:
                absent.add(dn)
            elif all("objectclass" not in one.attributes for one in there):
                denied.add(dn)
            else:
                self._add(there)
        have = {one.guid.hex() for one in self._found.values() if one.guid is not None}
        for guid in [one for one in self._request.known if one not in have]:
            there = self._search(f"<GUID={uuid.UUID(bytes_le=bytes.fromhex(guid))}>", _BASE, _ANY, _ASKED)
            if any("objectclass" not in one.attributes for one in there):
                denied.add(guid)
            self._add(one for one in there if one.kind in _FOLDERS)  # below which there may be more
        return absent, denied


class _Session:
    """A bound connection to one server."""

    def __init__(self, server: str, request: Request, reply: dict[str, Any]) -> None:
        import bonsai

        self._bonsai, self._reply = bonsai, reply
        kerberos = request.mechanism == "kerberos"
        client = bonsai.LDAPClient(f"{'ldap' if kerberos else 'ldaps'}://{_bracketed(server)}")
        client.set_raw_attributes(list(_RAW))
        client.set_auto_page_acquire(True)
        client.set_sd_flags(_DACL)
        if kerberos:
            client.set_credentials("GSSAPI", request.user, None, request.realm, None, request.keytab)
            client.set_sasl_security_properties(no_anonymous=True, min_ssf=_SEALED)
        else:
            client.set_credentials("SIMPLE", request.user, request.password)
            client.set_cert_policy("demand")
            if request.ca is not None:
                client.set_ca_cert(request.ca)
        reply["bindings"] += 1
        try:
            self._connection = client.connect(timeout=_CONNECT_S)
        except bonsai.LDAPError as error:
            reply["bindings_failed"] += 1
            raise Unusable(f"cannot bind: {error}") from None

    def search(self, base: str, scope: int, query: str, attributes: Iterable[str]) -> list[Entry]:
        """All entries, in pages, with all values of each attribute. Raises Unusable."""
        self._reply["searches"] += 1
        asked = list(attributes)
        try:
            if scope == _BASE:
                found = self._connection.search(base, scope, query, asked, timeout=_SEARCH_S)
            else:
                found = self._connection.paged_search(base, scope, query, asked, timeout=_SEARCH_S, page_size=_PAGE)
            return [self._whole(one) for one in found]
        except self._bonsai.errors.NoSuchObjectError:
            return []
        except (self._bonsai.LDAPError, UnicodeError) as error:
            self._reply["searches_failed"] += 1
            raise Unusable(f"{base or 'its root'} cannot be searched: {error}") from None

    def _whole(self, found: Any) -> Entry:
        dn = str(found.dn)
        values = {name.casefold(): tuple(map(_octets, many)) for name, many in found.items() if name != "dn"}
        return with_ranges(Entry(dn, MappingProxyType(values)), self._range)

    def _range(self, dn: str, name: str) -> Entry | None:
        self._reply["searches"] += 1
        there = self._connection.search(dn, _BASE, _ANY, [name], timeout=_SEARCH_S)
        for one in there:
            return Entry(dn, {key.casefold(): tuple(map(_octets, many)) for key, many in one.items() if key != "dn"})
        return None

    def carry_out(self, kind: str, dn: str, values: Mapping[str, str | None]) -> None:
        """One writing.Operation. Raises Unusable."""
        try:
            if kind == "leave":
                domain = ",".join(part for part in names.parts(dn) if part.casefold().startswith("dc="))
                query = f"(&(objectClass=nTFRSSubscriber)(fRSMemberReference={self._bonsai.escape_filter_exp(dn)}))"
                for one in self.search(domain, _SUBTREE, query, ("objectClass",)):
                    self._connection.delete(one.dn, timeout=_SEARCH_S)
            elif kind == "delete":
                self._connection.delete(dn, timeout=_SEARCH_S)
            else:
                self._written(kind, self._bonsai.LDAPEntry(dn, self._connection), values)
        except (self._bonsai.LDAPError, UnicodeError) as error:
            if kind != "ensure" or not isinstance(error, self._bonsai.errors.AlreadyExists):
                raise Unusable(f"{kind} {dn}: {error}") from None

    def _written(self, kind: str, entry: Any, values: Mapping[str, str | None]) -> None:
        octets = {name: [base64.b64decode(one)] if one is not None else [] for name, one in values.items()}
        if kind == "modify":
            for name, many in octets.items():
                entry.change_attribute(name, self._bonsai.LDAPModOp.REPLACE, *many)
            entry.modify(timeout=_SEARCH_S)
        else:
            entry.update(octets)
            self._connection.add(entry, timeout=_SEARCH_S)

    def close(self) -> None:
        """End it."""
        with suppress(self._bonsai.LDAPError):
            self._connection.close()


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


def _octets(value: object) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, bool):
        return b"TRUE" if value else b"FALSE"
    return str(value).encode("utf-8", "surrogateescape")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def servers_of(request: Request, errors: list[str]) -> Iterator[str]:
    """The servers to ask, in this order: the one that was believed last, those that are named, else those of the
    domain's SRV records. What is wrong is added to `errors`."""
    first, without = request.first.casefold(), {one.casefold() for one in request.without}
    found = request.servers or _of_domain(request, errors)
    for host in sorted(found, key=lambda host: host.casefold() != first):
        if host.casefold() not in without:
            yield host


def _of_domain(request: Request, errors: list[str]) -> list[str]:
    """The servers of the domain's SRV records; where these cannot be had, the one that was believed last."""
    import dns.exception
    import dns.resolver

    name = f"_ldap._tcp.dc._msdcs.{request.domain}"
    try:
        records = list(dns.resolver.resolve(name, "SRV", lifetime=_CONNECT_S))
    except dns.exception.DNSException as error:
        errors.append(f"the SRV records {name} cannot be had: {str(error).partition(';')[0]}")
        return [request.first] if request.first else []
    return [one.target.to_text(omit_final_dot=True) for one in sorted(records, key=lambda r: (r.priority, -r.weight))]


def ask(request: Request) -> dict[str, Any]:
    """The reply to a request: an answer, or errors alone."""
    reply: dict[str, Any] = {"answer": None, "errors": []}
    reply |= dict.fromkeys(("bindings", "bindings_failed", "searches", "searches_failed", "done"), 0)
    try:
        import bonsai

        for server in servers_of(request, reply["errors"]):
            session = None
            try:
                session = _Session(server, request, reply)
                for kind, dn, values in request.operations:
                    session.carry_out(kind, dn, values)
                    reply["done"] += 1
                if request.operations:
                    break
                answer = Reader(session.search, bonsai.escape_filter_exp, request).read(server)
                reply["answer"] = answer.as_json() | {"passed_over": reply["errors"], "searches": reply["searches"]}
                break
            except Unusable as error:
                reply["errors"].append(f"{server}: {error}")
            finally:
                if session is not None:
                    session.close()
    except ImportError as error:
        reply["errors"].append(f"needs the extra ldap of this program, pip install 'frs-agent[ldap]': {error}")
    return reply


def main() -> None:
    """Read one request, and answer it."""
    os.environ["LDAPSASL_NOCANON"] = "on"  # the name that is asked for is the one that has to answer
    os.environ["LDAPTLS_REQCERT"] = "demand"
    request = Request(**json.load(sys.stdin))
    began = time.monotonic()
    reply = ask(request) | {"seconds": round(time.monotonic() - began, 3)}
    json.dump(reply, sys.stdout)


if __name__ == "__main__":
    main()
