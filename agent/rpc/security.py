"""Who may authenticate, and which security provider does it ([MS-RPCE] 2.2.1.1.7, 3.3.1.5.2).

A security provider is a pair of factories: one for acceptors and one for initiators, by auth_type. SPNEGO (9) is there,
around members' keys, Kerberos and NTLM, and for servers the last two alone (16, 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.rpc import constants as c
from agent.rpc.errors import RpcAuthError
from agent.rpc.kerberos import FRS_SERVICE, KerberosAcceptor, KerberosCredential, KerberosInitiator, Keytab
from agent.rpc.memberkey import KeyAcceptor, KeyCredential, KeyInitiator
from agent.rpc.negotiate import (
    OID_KERBEROS,
    OID_MEMBER_KEY,
    OID_MS_KERBEROS,
    OID_NTLM,
    AcceptorMechanism,
    InitiatorMechanism,
    Session,
    SpnegoAcceptor,
    SpnegoInitiator,
)
from agent.rpc.noise import KeyPair
from agent.rpc.ntlm import KnownAccount, NtlmAcceptor, NtlmInitiator
from agent.rpc.ntlm_crypto import ntowfv1
from agent.rpc.proof import proof_key

__all__ = [
    "AcceptorMechanism",
    "Account",
    "Credential",
    "CredentialStore",
    "InitiatorMechanism",
    "KerberosCredential",
    "KeyCredential",
    "KeyPair",
    "Keytab",
    "Session",
    "make_acceptor",
    "make_initiator",
]


@dataclass(frozen=True, slots=True)
class Credential:
    """A domain (may be empty), a user and the password, and the former one, which is tried where that is refused, and
    taken as well. Passwords never show in a repr."""

    domain: str
    user: str
    password: str = field(repr=False)
    former: str | None = field(default=None, repr=False)
    by: str = "secret"

    def before(self) -> Credential | None:
        """The same with the former password; None where there is none."""
        if self.former is None:
            return None
        return Credential(self.domain, self.user, self.former, by="former secret")


#: By what a server may be called that does not take keys.
Account = Credential | KerberosCredential


class CredentialStore:
    """Who an acceptor knows: accounts, whose names compare without regard to case; with a key of its own the members
    that may call it, by their public keys; and with a keytab the members that may, by their principals.

    `replace` swaps all of it at once while a server runs; associations that are authenticated stay so, unless
    `RpcServer.admit` is told of another store.
    """

    def __init__(
        self,
        credentials: Iterable[Credential] = (),
        *,
        domain: str = "",
        key: KeyPair | None = None,
        members: Mapping[bytes, str] | None = None,
        raw_ntlm: bool = True,
        keytab: Keytab | None = None,
        principals: Mapping[str, str] | None = None,
        shared: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`shared`: KeyPair.shared() of the key, where somebody remembers what that gave."""
        #: the domain this server says it belongs to
        self.domain = domain
        self.key = key
        #: whether NTLM may come without SPNEGO around it (auth_type 10), where nothing signs what was negotiated
        self.raw_ntlm = raw_ntlm
        self.members: Mapping[bytes, str] = {}
        self.keytab = keytab
        self.principals: Mapping[str, str] = dict(principals or {})
        self._accounts: dict[tuple[str, str], KnownAccount] = {}
        #: by which a bind shows that its sender knows one of the secrets (agent.rpc.proof), and which member has that;
        #: empty for an account
        self.proof_keys: Mapping[bytes, str] = {}
        self._shared = shared if shared is not None or key is None else key.shared
        self.replace(credentials, members or {})

    def replace(self, credentials: Iterable[Credential], members: Mapping[bytes, str] | None = None) -> None:
        """Know these accounts and members and no others. Raises RpcAuthError for a public key that cannot be one."""
        accounts = {}
        for item in credentials:
            hashes = tuple(ntowfv1(password) for password in (item.password, item.former) if password is not None)
            accounts[item.domain.casefold(), item.user.casefold()] = (hashes, item.domain, item.user)
        of = self._shared
        shared = {of(public): name for public, name in (members or {}).items()} if of is not None else {}
        self._accounts, self.members = accounts, dict(members or {})
        secrets = shared | {nt_hash: "" for hashes, _, _ in accounts.values() for nt_hash in hashes}
        self.proof_keys = {proof_key(secret): name for secret, name in secrets.items()}

    @property
    def has_accounts(self) -> bool:
        """Whether anybody could authenticate with a password."""
        return bool(self._accounts)

    def known_by(self, member: str, domain: str, user: str) -> object | None:
        """By what this member, or without a member this account, is known; None where it is not."""
        if not member:
            return self.lookup(domain, user)
        if domain:  # a principal has a realm, a key has none
            principal = f"{user}@{domain}"
            return principal if self.keytab is not None and self.principals.get(principal) == member else None
        return next((key for key, name in self.members.items() if name == member), None)

    def lookup(self, domain: str, user: str) -> KnownAccount | None:
        """NT hashes of the passwords, domain and user of an account.

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
    auth_type: int, store: CredentialStore, *, level: int = c.LEVEL_PRIVACY, host: str = "", headers: bool = True
) -> AcceptorMechanism:
    """The server's side of a security provider. `headers`: the client signs headers of PDUs where its mechanism leaves
    that open. Raises KeyError for an auth_type that is not supported."""

    def ntlm() -> AcceptorMechanism:
        return NtlmAcceptor(store.lookup, store.domain, host, level=level)

    own, keytab = store.key, store.keytab
    mechanisms: dict[bytes, Callable[[], AcceptorMechanism]] = {}
    acceptors: dict[int, Callable[[], AcceptorMechanism]] = {c.AUTH_SPNEGO: lambda: SpnegoAcceptor(mechanisms)}
    if own is not None:
        mechanisms[OID_MEMBER_KEY] = lambda: KeyAcceptor(own, store.members)
    if keytab is not None:
        acceptors[c.AUTH_KERBEROS] = lambda: KerberosAcceptor(keytab, store.principals, level=level, headers=headers)
        mechanisms[OID_KERBEROS] = mechanisms[OID_MS_KERBEROS] = acceptors[c.AUTH_KERBEROS]
    if store.has_accounts:
        mechanisms[OID_NTLM] = ntlm
        if store.raw_ntlm:
            acceptors[c.AUTH_NTLM] = ntlm
    return acceptors[auth_type]()


def make_initiator(
    auth_type: int,
    credential: Account | None,
    *,
    host: str,
    service: str = FRS_SERVICE,
    level: int = c.LEVEL_PRIVACY,
    key: KeyCredential | None = None,
) -> InitiatorMechanism:
    """The client's side of a security provider. With a key as well as an account, the key goes first, and it is for the
    server to take the other. Raises RpcAuthError for what is not supported."""

    def ntlm(account: Credential) -> InitiatorMechanism:
        return NtlmInitiator(account.domain, account.user, account.password, host, service, level=level)

    if auth_type == c.AUTH_NTLM and isinstance(credential, Credential):
        return ntlm(credential)
    mechanisms: list[tuple[bytes, InitiatorMechanism]] = []
    if key is not None:
        mechanisms.append((OID_MEMBER_KEY, KeyInitiator(key)))
    if isinstance(credential, KerberosCredential):
        mechanisms.append((OID_KERBEROS, KerberosInitiator(credential, host, level=level)))
    elif credential is not None:
        mechanisms.append((OID_NTLM, ntlm(credential)))
    if auth_type != c.AUTH_SPNEGO or not mechanisms:
        raise RpcAuthError(f"authentication type {auth_type} is not supported")
    (oid, best), *others = mechanisms
    return SpnegoInitiator(oid, best, *others)
