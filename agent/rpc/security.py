"""Who may authenticate, and which security provider does it ([MS-RPCE] 2.2.1.1.7, 3.3.1.5.2).

A security provider is a pair of factories in `Security`: one for acceptors and one for initiators, by
auth_type. SPNEGO (9) and NTLM (10) are there; Kerberos (16) is one more mechanism with the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.rpc import constants as c
from agent.rpc.errors import RpcAuthError
from agent.rpc.negotiate import (
    OID_NTLM,
    AcceptorMechanism,
    InitiatorMechanism,
    Session,
    SpnegoAcceptor,
    SpnegoInitiator,
)
from agent.rpc.ntlm import NtlmAcceptor, NtlmInitiator
from agent.rpc.ntlm_crypto import ntowfv1
from agent.rpc.proof import proof_key

__all__ = [
    "AcceptorMechanism",
    "Credential",
    "CredentialStore",
    "InitiatorMechanism",
    "Session",
    "make_acceptor",
    "make_initiator",
]

#: What the service principal names of FRS begin with, [MS-FRS1] section 1.9.
FRS_SERVICE: Final = "NtFrs-88f5d2bd-b646-11d2-a6d3-00c04fc9b232"


@dataclass(frozen=True, slots=True)
class Credential:
    """A domain (may be empty), a user and the password. The password never shows in a repr."""

    domain: str
    user: str
    password: str = field(repr=False)


class CredentialStore:
    """The accounts an acceptor knows. Names compare without regard to case.

    `replace` swaps all accounts at once while a server runs; associations that are authenticated stay so.
    """

    def __init__(self, credentials: Iterable[Credential] = (), *, domain: str = "") -> None:
        #: the domain this server says it belongs to
        self.domain = domain
        self._accounts: dict[tuple[str, str], tuple[bytes, str, str]] = {}
        #: by which a bind shows that its sender knows one of the secrets (agent.rpc.proof)
        self.proof_keys: tuple[bytes, ...] = ()
        self.replace(credentials)

    def replace(self, credentials: Iterable[Credential]) -> None:
        """Know these accounts and no others."""
        accounts = {}
        for item in credentials:
            entry = (ntowfv1(item.password), item.domain, item.user)
            accounts[item.domain.casefold(), item.user.casefold()] = entry
        self._accounts = accounts
        self.proof_keys = tuple(proof_key(nt_hash) for nt_hash, _, _ in accounts.values())

    def lookup(self, domain: str, user: str) -> tuple[bytes, str, str] | None:
        """NT hash, domain and user of an account.

        A client may leave the domain out, or name the account user@domain; then the account has to be
        the only one of its name, or in that domain.
        """
        domain, user = domain.casefold(), user.casefold()
        found = self._accounts.get((domain, user))
        if found is None and not domain:
            name, at, realm = user.rpartition("@")
            if at:
                return self._accounts.get((realm, name))
            same = [entry for (_, name), entry in self._accounts.items() if name == user]
            return same[0] if len(same) == 1 else None
        return found


def make_acceptor(
    auth_type: int, store: CredentialStore, *, level: int = c.LEVEL_PRIVACY, host: str = ""
) -> AcceptorMechanism:
    """The server's side of a security provider. Raises KeyError for an auth_type that is not supported."""

    def ntlm() -> AcceptorMechanism:
        return NtlmAcceptor(store.lookup, store.domain, host, level=level)

    acceptors: Mapping[int, Callable[[], AcceptorMechanism]] = {
        c.AUTH_SPNEGO: lambda: SpnegoAcceptor({OID_NTLM: ntlm}),
        c.AUTH_NTLM: ntlm,
    }
    return acceptors[auth_type]()


def make_initiator(
    auth_type: int, credential: Credential, *, host: str, service: str = FRS_SERVICE, level: int = c.LEVEL_PRIVACY
) -> InitiatorMechanism:
    """The client's side of a security provider. Raises RpcAuthError when it is not supported."""

    def ntlm() -> InitiatorMechanism:
        return NtlmInitiator(credential.domain, credential.user, credential.password, host, service, level=level)

    initiators: Mapping[int, Callable[[], InitiatorMechanism]] = {
        c.AUTH_SPNEGO: lambda: SpnegoInitiator(OID_NTLM, ntlm()),
        c.AUTH_NTLM: ntlm,
    }
    if auth_type not in initiators:
        raise RpcAuthError(f"authentication type {auth_type} is not supported")
    return initiators[auth_type]()
