"""SPNEGO tokens in DER, and the negotiation around another mechanism (RFC 4178, [MS-SPNG]).

`SpnegoAcceptor` and `SpnegoInitiator` wrap a mechanism that signs the mechanism list (a `Mechanism`). Which
mechanisms there are is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from agent.rpc.errors import RpcAuthError

OID_SPNEGO: Final = bytes.fromhex("2b0601050502")
OID_NTLM: Final = bytes.fromhex("2b06010401823702020a")
OID_KERBEROS: Final = bytes.fromhex("2a864886f712010202")
OID_MS_KERBEROS: Final = bytes.fromhex("2a864882f712010202")
#: Members by their keys (agent.rpc.memberkey): 2.25 and a random UUID, which needs no registration (X.667).
OID_MEMBER_KEY: Final = bytes.fromhex("6983dbd5b196f089a2aecfa3fe91b59aefb89e3e")

#: Servers of Windows answer to the one by the name of the other.
_ALIASES: Final = {OID_MS_KERBEROS: OID_KERBEROS}

_NAMES: Final = {
    OID_NTLM: "NTLM (the secret)",
    OID_KERBEROS: "Kerberos",
    OID_MS_KERBEROS: "Kerberos",
    OID_MEMBER_KEY: "a member's key",
}

ACCEPT_COMPLETED: Final = 0
ACCEPT_INCOMPLETE: Final = 1
REJECT: Final = 2
REQUEST_MIC: Final = 3

_MAX_MECHANISMS: Final = 16


class NotForUs(RpcAuthError):
    """A mechanism's first token that cannot be answered here; another mechanism may do."""


class Session(Protocol):
    """Protects messages after a finished exchange. `signature_size` bytes go behind each of them."""

    @property
    def signature_size(self) -> int:
        """Bytes of the signature behind each message."""

    @property
    def signature_varies(self) -> bool:
        """Whether that of a message that has come may have another size; it ends with the message."""

    @property
    def lifetime(self) -> float | None:
        """For how many seconds from its beginning the peer is known; None: without an end."""

    def protect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """Sign a PDU that ends with room for the signature; encrypt pdu[start:end] in place when `seal`."""

    def unprotect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """The reverse; raises RpcAuthError when the signature does not match."""

    def mic(self, data: bytes) -> bytes:
        """Sign SPNEGO's mechanism list."""

    def verify_mic(self, data: bytes, mic: bytes) -> None:
        """Check the peer's signature of it; raises RpcAuthError."""


class Mechanism(Protocol):
    """One side of an authentication exchange. `step` raises RpcAuthError when it fails."""

    @property
    def complete(self) -> bool:
        """Whether the exchange has succeeded as far as this side can tell."""

    @property
    def session(self) -> Session:
        """Message protection, once `complete`."""


class AcceptorMechanism(Mechanism, Protocol):
    """The server's side. Once `complete`, `member` is the one that the client has shown to be, empty where it has only
    shown to have the account `user` of `domain`."""

    user: str
    domain: str
    member: str

    def step(self, token: bytes) -> bytes | None:
        """Feed the client's token, get the answer."""


class InitiatorMechanism(Mechanism, Protocol):
    """The client's side. The first step gets None."""

    def step(self, token: bytes | None) -> bytes | None:
        """Feed the server's token, get the answer."""


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _read(data: bytes, pos: int) -> tuple[int, bytes, int]:
    """One DER element: tag, content, and the offset after it."""
    if pos + 2 > len(data):
        raise RpcAuthError("a SPNEGO token is cut off")
    tag, size = data[pos], data[pos + 1]
    pos += 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4 or pos + count > len(data):
            raise RpcAuthError("a SPNEGO token has a malformed length")
        size = int.from_bytes(data[pos : pos + count], "big")
        pos += count
    if pos + size > len(data):
        raise RpcAuthError("a SPNEGO token is cut off")
    return tag, data[pos : pos + size], pos + size


def _expect(data: bytes, tag: int) -> bytes:
    found, content, _ = _read(data, 0)
    if found != tag:
        raise RpcAuthError(f"SPNEGO: tag 0x{found:02x} instead of 0x{tag:02x}")
    return content


def _fields(sequence: bytes) -> dict[int, bytes]:
    """The context-specific fields of a SEQUENCE, by number."""
    fields: dict[int, bytes] = {}
    pos = 0
    while pos < len(sequence):
        tag, content, pos = _read(sequence, pos)
        if tag & 0xE0 != 0xA0 or (tag & 0x1F) in fields:
            raise RpcAuthError(f"SPNEGO: unexpected tag 0x{tag:02x}")
        fields[tag & 0x1F] = content
    return fields


@dataclass(frozen=True, slots=True)
class NegTokenInit:
    """The initiator's first token. `mech_list` is the DER of MechTypeList as it was sent: it gets signed."""

    mechanisms: tuple[bytes, ...]
    mech_list: bytes
    token: bytes | None

    def encode(self) -> bytes:
        """The token inside the GSS-API header that a first token has."""
        inner = _der(0xA0, self.mech_list)
        if self.token is not None:
            inner += _der(0xA2, _der(0x04, self.token))
        return _der(0x60, _der(0x06, OID_SPNEGO) + _der(0xA0, _der(0x30, inner)))


@dataclass(frozen=True, slots=True)
class NegTokenResp:
    """Every other token."""

    state: int | None = None
    mechanism: bytes | None = None
    token: bytes | None = None
    mic: bytes | None = None

    def encode(self) -> bytes:
        """The token; only a first token of an initiator gets a GSS-API header."""
        inner = b""
        if self.state is not None:
            inner += _der(0xA0, _der(0x0A, bytes((self.state,))))
        if self.mechanism is not None:
            inner += _der(0xA1, _der(0x06, self.mechanism))
        if self.token is not None:
            inner += _der(0xA2, _der(0x04, self.token))
        if self.mic is not None:
            inner += _der(0xA3, _der(0x04, self.mic))
        return _der(0xA1, _der(0x30, inner))


def encode_mech_list(mechanisms: tuple[bytes, ...]) -> bytes:
    """DER of MechTypeList."""
    return _der(0x30, b"".join(_der(0x06, oid) for oid in mechanisms))


def decode_init(data: bytes) -> NegTokenInit:
    """Parse a NegTokenInit, with or without its GSS-API header. Raises RpcAuthError."""
    tag, content, _ = _read(data, 0)
    if tag == 0x60:
        oid_tag, oid, pos = _read(content, 0)
        if oid_tag != 0x06 or oid != OID_SPNEGO:
            raise RpcAuthError("not a SPNEGO token")
        tag, content, _ = _read(content, pos)
    if tag != 0xA0:
        raise RpcAuthError("not a SPNEGO NegTokenInit")
    fields = _fields(_expect(content, 0x30))
    mech_list = fields.get(0, b"")
    entries = _expect(mech_list, 0x30)
    mechanisms: list[bytes] = []
    pos = 0
    while pos < len(entries):
        oid_tag, oid, pos = _read(entries, pos)
        if oid_tag != 0x06 or len(mechanisms) >= _MAX_MECHANISMS:
            raise RpcAuthError("SPNEGO: malformed list of mechanisms")
        mechanisms.append(oid)
    if not mechanisms:
        raise RpcAuthError("SPNEGO: no mechanism is offered")
    token = _expect(fields[2], 0x04) if 2 in fields else None
    return NegTokenInit(tuple(mechanisms), mech_list, token)


def decode_resp(data: bytes) -> NegTokenResp:
    """Parse a NegTokenResp. Raises RpcAuthError."""
    fields = _fields(_expect(_expect(data, 0xA1), 0x30))
    state = None
    if 0 in fields:
        raw = _expect(fields[0], 0x0A)
        if len(raw) != 1 or raw[0] > REQUEST_MIC:
            raise RpcAuthError("SPNEGO: unknown negState")
        state = raw[0]
    return NegTokenResp(
        state,
        _expect(fields[1], 0x06) if 1 in fields else None,
        _expect(fields[2], 0x04) if 2 in fields else None,
        _expect(fields[3], 0x04) if 3 in fields else None,
    )


class SpnegoAcceptor:
    """The server's side of SPNEGO. `factories` maps mechanism OIDs to makers of acceptors, best first."""

    def __init__(self, factories: Mapping[bytes, Callable[[], AcceptorMechanism]]) -> None:
        self._factories = factories
        self._mechanism: AcceptorMechanism | None = None
        self._raw = False
        self._mech_list = b""
        self._need_mic = False
        self.complete = False
        self.user = ""
        self.domain = ""
        self.member = ""

    @property
    def session(self) -> Session:
        """Message protection, once `complete`."""
        if self._mechanism is None or not self.complete:
            raise RpcAuthError("the SPNEGO exchange is not finished")
        return self._mechanism.session

    def step(self, token: bytes) -> bytes | None:
        """Feed the client's token, get the answer. Raises RpcAuthError."""
        if self.complete:
            raise RpcAuthError("the SPNEGO exchange is over")
        if self._mechanism is None:
            if token.startswith(b"NTLMSSP\0") and OID_NTLM in self._factories:
                self._raw = True  # Windows clients may leave SPNEGO out ([MS-SPNG] 3.1.5.2)
                self._mechanism = self._factories[OID_NTLM]()
                return self._mechanism.step(token)
            return self._first(token)
        if self._raw:
            answer = self._mechanism.step(token)
            self._take_identity()
            return answer
        return self._next(decode_resp(token))

    def _first(self, token: bytes) -> bytes:
        init = decode_init(token)
        self._mech_list = init.mech_list
        refused: RpcAuthError | None = None
        for oid in dict.fromkeys(init.mechanisms):  # each is tried once, however often it is offered
            if oid not in self._factories:
                continue
            self._mechanism = self._factories[oid]()
            if oid != init.mechanisms[0] or init.token is None:
                # The optimistic token belongs to another mechanism: ask for the right one (RFC 4178 section 5).
                self._need_mic = oid != init.mechanisms[0]
                return NegTokenResp(REQUEST_MIC if self._need_mic else ACCEPT_INCOMPLETE, oid).encode()
            try:
                answer = self._mechanism.step(init.token)
            except NotForUs as error:
                refused = error
                continue
            state = ACCEPT_INCOMPLETE
            if self._mechanism.complete:
                self._take_identity()
                state = ACCEPT_COMPLETED
            return NegTokenResp(state, oid, answer).encode()
        offered = ", ".join(_NAMES.get(oid, oid.hex()) for oid in init.mechanisms)
        raise refused or RpcAuthError(f"SPNEGO: no common mechanism, it offers {offered}, which is not taken here")

    def _next(self, resp: NegTokenResp) -> bytes:
        assert self._mechanism is not None
        if resp.state == REJECT:
            raise RpcAuthError("the client gave up the negotiation")
        answer = None
        if not self._mechanism.complete:
            if resp.token is None:
                raise RpcAuthError("SPNEGO: the mechanism's token is missing")
            answer = self._mechanism.step(resp.token)
        if not self._mechanism.complete:
            return NegTokenResp(ACCEPT_INCOMPLETE, None, answer).encode()
        mic = None
        if resp.mic is not None:
            self._mechanism.session.verify_mic(self._mech_list, resp.mic)
            mic = self._mechanism.session.mic(self._mech_list)
        elif self._need_mic:
            raise RpcAuthError("SPNEGO: the mechListMIC is missing")
        self._take_identity()
        return NegTokenResp(ACCEPT_COMPLETED, None, answer, mic).encode()

    def _take_identity(self) -> None:
        assert self._mechanism is not None
        if self._mechanism.complete:
            self.user, self.domain = self._mechanism.user, self._mechanism.domain
            self.member = self._mechanism.member
            self.complete = True


class SpnegoInitiator:
    """The client's side of SPNEGO around one mechanism or several, the best first. It always signs the list of them."""

    def __init__(self, oid: bytes, mechanism: InitiatorMechanism, *others: tuple[bytes, InitiatorMechanism]) -> None:
        self._offered = dict(((oid, mechanism), *others))
        #: the mechanism that is used, as far as it has been agreed
        self.oid = oid
        self._mechanism = mechanism
        self._mech_list = encode_mech_list(tuple(self._offered))
        self._sent_mic = False
        self._begun = False
        self._agreed = False
        self.complete = False

    @property
    def session(self) -> Session:
        """Message protection, once `complete`."""
        if not self.complete:
            raise RpcAuthError("the SPNEGO exchange is not finished")
        return self._mechanism.session

    def step(self, token: bytes | None) -> bytes | None:
        """None first, then the server's tokens. Gives None when nothing is left to send."""
        if not self._begun:
            self._begun = True
            return NegTokenInit(tuple(self._offered), self._mech_list, self._mechanism.step(None)).encode()
        resp = decode_resp(token or b"")
        if resp.state == REJECT:
            raise RpcAuthError("the server rejected the authentication")
        answer = None
        chosen = _ALIASES.get(resp.mechanism, resp.mechanism) if resp.mechanism is not None else self.oid
        if chosen != self.oid:
            answer = self._change(resp)
        elif not self._mechanism.complete:
            if resp.state == ACCEPT_COMPLETED and resp.token is None:
                raise RpcAuthError("the server ended the authentication too early")
            answer = self._mechanism.step(resp.token or b"")
        self._agreed = True
        if resp.mic is not None:
            self._mechanism.session.verify_mic(self._mech_list, resp.mic)
        if resp.state == ACCEPT_COMPLETED:
            if not self._mechanism.complete or (self._sent_mic and resp.mic is None):
                raise RpcAuthError("the server's end of the negotiation is not signed")
            self.complete = True
            if answer is None:
                return None
        mic = None
        if self._mechanism.complete and not self._sent_mic:
            mic = self._mechanism.session.mic(self._mech_list)
            self._sent_mic = True
        return NegTokenResp(None if self.complete else ACCEPT_INCOMPLETE, None, answer, mic).encode()

    def _change(self, resp: NegTokenResp) -> bytes | None:
        """The server cannot use the first mechanism, and wants another: its first token. What the server chose is
        signed by both at the end."""
        chosen = self._offered.get(resp.mechanism or b"")
        if chosen is None or self._agreed:
            raise RpcAuthError("the server chose a mechanism that was not offered")
        if resp.state == ACCEPT_COMPLETED or resp.token is not None:
            raise RpcAuthError("the server answered a mechanism that has not begun")
        self.oid, self._mechanism = resp.mechanism or b"", chosen
        return chosen.step(None)
