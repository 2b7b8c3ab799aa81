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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from agent.activedirectory import names
from agent.activedirectory.objects import Entry
from agent.activedirectory.reader import ANY, BASE, RAW, SUBTREE, Reader, Unusable, with_ranges
from agent.activedirectory.request import Request

_CONNECT_S: Final = 15.0
_SEARCH_S: Final = 30.0
_PAGE: Final = 500
#: Of a security descriptor, the part that says who may do what.
_DACL: Final = 4
#: Of SASL's security layers, one that encrypts.
_SEALED: Final = 56


class _Session:
    """A bound connection to one server."""

    def __init__(self, server: str, request: Request, reply: dict[str, Any]) -> None:
        import bonsai

        self._bonsai, self._reply = bonsai, reply
        kerberos = request.mechanism == "kerberos"
        client = bonsai.LDAPClient(f"{'ldap' if kerberos else 'ldaps'}://{_bracketed(server)}")
        client.set_raw_attributes(list(RAW))
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
            if scope == BASE:
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
        there = self._connection.search(dn, BASE, ANY, [name], timeout=_SEARCH_S)
        for one in there:
            return Entry(dn, {key.casefold(): tuple(map(_octets, many)) for key, many in one.items() if key != "dn"})
        return None

    def carry_out(self, kind: str, dn: str, values: Mapping[str, str | None]) -> None:
        """One writing.Operation. Raises Unusable."""
        try:
            if kind == "leave":
                domain = ",".join(part for part in names.parts(dn) if part.casefold().startswith("dc="))
                query = f"(&(objectClass=nTFRSSubscriber)(fRSMemberReference={self._bonsai.escape_filter_exp(dn)}))"
                for one in self.search(domain, SUBTREE, query, ("objectClass",)):
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
