"""Kerberos for DCE/RPC, on the GSS-API of MIT krb5 (RFC 4121, [MS-KILE], [MS-RPCE] 2.2.1.1.7), by the extra `kerberos`.

The exchange has three legs (GSS_C_DCE_STYLE): AP-REQ, AP-REP, and an AP-REP of the client's, which shows that the
client is there now. So what is recorded of one exchange begins no other, and no cache of replays is kept on disk.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

from agent.rpc import constants as c
from agent.rpc.errors import RpcAuthError

#: What the service principal names of FRS begin with, [MS-FRS1] section 1.9; the host's name follows.
FRS_SERVICE: Final = "NtFrs-88f5d2bd-b646-11d2-a6d3-00c04fc9b232"

#: Kerberos as a mechanism in DER, and the identifier of an AP-REQ of it.
_AP_REQ: Final = bytes.fromhex("06092a864886f712010202") + b"\1\0"

#: Tickets that were refused are asked for anew after so many seconds, at the soonest.
_ANEW_S: Final = 3600.0

#: Threads that ask the KDC for tickets: while it is silent, no more wait for it, and nobody else waits for them.
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Keytab:
    """A member's own entry into a realm: the file with the keys of its principal and of its service, and the name of
    that principal."""

    path: str
    principal: str


@dataclass(frozen=True, slots=True)
class KerberosCredential:
    """What a member needs to call a partner: its own keytab, and the realm of the partner. The service there is known
    by the name of the host that is called."""

    by: ClassVar = "Kerberos"
    keytab: Keytab
    realm: str

    def service(self, host: str) -> str:
        """The principal of the FRS service on a host ([MS-FRS1] 1.9)."""
        return f"{FRS_SERVICE}/{host}@{self.realm}"


class _Tickets:
    """The names of the caches of tickets: in memory, one for each keytab, until a partner refuses what is in it. Then
    another is begun, for a service may have other keys by now. The library gives none back: so not more often than
    hourly, in which a few KB are lost."""

    def __init__(self) -> None:
        self._begun: dict[Keytab, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def name(self, keytab: Keytab) -> str:
        """The present cache."""
        with self._lock:
            number, _ = self._begun.get(keytab, (0, 0.0))
        return f"MEMORY:frs {number} {keytab.path} {keytab.principal}"

    def refused(self, keytab: Keytab) -> None:
        """A partner did not take a ticket, or not who came with it."""
        now = time.monotonic()
        with self._lock:
            number, since = self._begun.get(keytab, (0, -math.inf))
            if now - since >= _ANEW_S:
                self._begun[keytab] = number + 1, now


tickets: Final = _Tickets()


@cache
def kdc_threads() -> ThreadPoolExecutor:
    """Where the first step of an initiator is made, which may have to wait for the KDC."""
    return ThreadPoolExecutor(_THREADS, "frs-kerberos")


def _library() -> Any:
    try:
        import gssapi
    except ImportError as error:
        raise RpcAuthError(f"Kerberos needs the extra kerberos of this program: {error}") from None
    return gssapi


def _demanded(gss: Any, level: int) -> tuple[Any, ...]:
    """What each side demands of the other at a level of protection."""
    flag = gss.RequirementFlag
    demanded = [flag.dce_style, flag.mutual_authentication]
    if level > c.LEVEL_CONNECT:
        demanded += [flag.integrity, flag.replay_detection, flag.out_of_sequence_detection]
    if level == c.LEVEL_PRIVACY:
        demanded.append(flag.confidentiality)
    return tuple(demanded)


def _told(error: Any) -> RpcAuthError:
    """What the library says of a failure: its minor status says what has happened, where it says anything."""
    minor = [said for said in error.get_all_statuses(error.min_code, False) if said not in ("Success", "Unknown error")]
    return RpcAuthError(f"Kerberos: {'; '.join(minor or error.get_all_statuses(error.maj_code, True))}")


def _bare(token: bytes) -> bytes:
    """An AP-REQ without the GSS-API header that some put before it (RFC 4121 4.1): the library takes only bare ones in
    DCE's way."""
    at = token.find(_AP_REQ, 0, 32)
    return token[at + len(_AP_REQ) :] if token[:1] == b"\x60" and at > 0 else token


class KerberosSession:
    """Message protection with the keys of a finished exchange. With `headers` what is not encrypted of a PDU is signed
    ([MS-RPCE] 2.2.2.3, header signing); else its stub alone is, as older clients have it. How much padding there is in
    an encrypted message is its sender's choice (EC of RFC 4121 4.2.3)."""

    signature_varies: bool = True

    def __init__(self, gss: Any, context: Any, *, headers: bool, seal: bool) -> None:
        self._raw = raw = gss.raw
        self._context = context
        self._headers = headers
        kind = raw.IOVBufferType
        if seal:
            message = raw.IOV((kind.data, False, bytes(16)), kind.header, std_layout=False)
            raw.wrap_iov_length(context, message, confidential=True)
        else:
            message = raw.IOV((kind.data, False, bytes(16)), kind.mic_token, std_layout=False)
            raw.get_mic_iov_length(context, message)
        self.signature_size = len(message[1].value)
        self.lifetime: float | None = context.lifetime

    def protect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """Sign a PDU, and encrypt pdu[start:end] in place when `seal`; the signature goes into its last bytes."""
        if not seal:
            pdu[-self.signature_size :] = self._context.get_signature(self._signed(pdu, start, end))
            return
        message = self._message(pdu, start, end, None)
        self._raw.wrap_iov(self._context, message, confidential=True)
        pdu[start:end] = message[1].value
        pdu[-self.signature_size :] = message[-1].value

    def unprotect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """The reverse. Raises RpcAuthError."""
        signature = bytes(pdu[end + c.TRAILER_SIZE :])
        try:
            if not seal:
                self._context.verify_signature(self._signed(pdu, start, end), signature)
                return
            message = self._message(pdu, start, end, signature)
            result = self._raw.unwrap_iov(self._context, message)
        except self._raw.GSSError as error:
            raise _told(error) from None
        if not result.encrypted:
            raise RpcAuthError("Kerberos: a message that is not encrypted")
        pdu[start:end] = message[1].value

    def mic(self, data: bytes) -> bytes:
        """Sign SPNEGO's mechanism list."""
        signature: bytes = self._context.get_signature(data)
        return signature

    def verify_mic(self, data: bytes, mic: bytes) -> None:
        """Check the peer's signature of it. Raises RpcAuthError."""
        try:
            self._context.verify_signature(data, mic)
        except self._raw.GSSError as error:
            raise _told(error) from None

    def _signed(self, pdu: memoryview, start: int, end: int) -> bytes:
        return bytes(pdu[: end + c.TRAILER_SIZE] if self._headers else pdu[start:end])

    def _message(self, pdu: memoryview, start: int, end: int, signature: bytes | None) -> Any:
        """What is encrypted between what is not, and the signature, which is yet to be made where it is None."""
        kind = self._raw.IOVBufferType
        beside = kind.sign_only if self._headers else kind.empty
        return self._raw.IOV(
            (beside, False, bytes(pdu[:start])),
            (kind.data, False, bytes(pdu[start:end])),
            (beside, False, bytes(pdu[end : end + c.TRAILER_SIZE])),
            kind.header if signature is None else (kind.header, False, signature),
            std_layout=False,
        )


class _Exchange:
    """What both sides have in common."""

    def __init__(self, *, level: int, headers: bool) -> None:
        self._gss = _library()
        self._demanded = _demanded(self._gss, level)
        self._seal = level == c.LEVEL_PRIVACY
        self._headers = headers
        self._session: KerberosSession | None = None

    @property
    def complete(self) -> bool:
        """Whether the last message has been made, or has come."""
        return self._session is not None

    @property
    def session(self) -> KerberosSession:
        """Message protection, once `complete`."""
        if self._session is None:
            raise RpcAuthError("the Kerberos exchange is not finished")
        return self._session

    def _step(self, context: Any, token: bytes | None) -> bytes | None:
        """One leg. Raises RpcAuthError."""
        if self._session is not None:
            raise RpcAuthError("the Kerberos exchange is over")
        try:
            answer: bytes | None = context.step(token)
            if context.complete:
                lacking = [flag.name for flag in self._demanded if flag not in context.actual_flags]
                if lacking:
                    raise RpcAuthError(f"Kerberos: the other side does without {', '.join(lacking)}")
                self._session = KerberosSession(self._gss, context, headers=self._headers, seal=self._seal)
        except self._gss.raw.GSSError as error:
            raise _told(error) from None
        return answer


class KerberosInitiator(_Exchange):
    """The client's side: calls the FRS service on `host`. The first step asks the KDC for what tickets are not there
    yet, which takes as long as that takes: it is for a thread (`kdc_threads`). Headers are always signed."""

    def __init__(self, credential: KerberosCredential, host: str, *, level: int = c.LEVEL_PRIVACY) -> None:
        super().__init__(level=level, headers=True)
        self._credential = credential
        self._service = credential.service(host)
        self._context: Any = None

    def step(self, token: bytes | None) -> bytes | None:
        """The first message for None, then the last one for the second. Raises RpcAuthError."""
        if self._context is None:
            self._context = self._begin()
        return self._step(self._context, token)

    def _begin(self) -> Any:
        gss, keytab = self._gss, self._credential.keytab
        named, kerberos = gss.NameType.kerberos_principal, gss.MechType.kerberos
        store = {"client_keytab": keytab.path, "ccache": tickets.name(keytab)}  # the library renews what is in it
        try:
            own = gss.Credentials(
                name=gss.Name(keytab.principal, named), usage="initiate", store=store, mechs=[kerberos]
            )
            return gss.SecurityContext(
                name=gss.Name(self._service, named), creds=own, flags=self._demanded, mech=kerberos, usage="initiate"
            )
        except gss.raw.GSSError as error:
            raise _told(error) from None


class KerberosAcceptor(_Exchange):
    """The server's side. `members` are the names of those that may call, by their principals."""

    def __init__(
        self, keytab: Keytab, members: Mapping[str, str], *, level: int = c.LEVEL_PRIVACY, headers: bool = True
    ) -> None:
        super().__init__(level=level, headers=headers)
        self._keytab = keytab
        self._members = members
        self._context: Any = None
        self.user = self.domain = self.member = ""

    def step(self, token: bytes) -> bytes | None:
        """Feed the first or the last message. Raises RpcAuthError."""
        if self._context is None:
            self._context, token = self._begin(), _bare(token)
        answer = self._step(self._context, token)
        if self.complete:
            principal = str(self._context.initiator_name)
            self.user, _, self.domain = principal.rpartition("@")
            member = self._members.get(principal)
            if member is None:
                raise RpcAuthError(f"{principal} is the principal of no member in the topology")
            self.member = member
        return answer

    def _begin(self) -> Any:
        gss = self._gss
        try:
            # The keytab is read each time: keys that are added count at once.
            store = {"keytab": self._keytab.path, "rcache": "none:"}
            own = gss.Credentials(usage="accept", store=store, mechs=[gss.MechType.kerberos])
            return gss.SecurityContext(creds=own, usage="accept")
        except gss.raw.GSSError as error:
            raise _told(error) from None
