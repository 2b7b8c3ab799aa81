"""The mechanism by which members with keys authenticate to each other, inside SPNEGO under an OID of our own.

    initiator                               responder
    version, first message of Noise IK  ->
                                        <-  second message of Noise IK
    an encrypted empty message          ->  now it is sure that the initiator is there, and not a recording of it

Whoever calls, calls a member whose public key it has, and nobody else can answer. The responder looks the initiator's
key up among the members it knows. Requests and responses are sealed with AES-256-GCM afterwards, a key and a count of
its own for each direction. No name travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from agent.rpc.errors import RpcAuthError
from agent.rpc.negotiate import NotForUs
from agent.rpc.noise import TAG_SIZE, Cipher, Handshake, KeyPair
from config.keys import key_text

_VERSION: Final = b"\x01"
_PROLOGUE: Final = b"FRS members by their keys" + _VERSION


@dataclass(frozen=True, slots=True)
class KeyCredential:
    """What a member needs to call a partner: its own key pair, and the partner's public key."""

    by: ClassVar = "key"
    own: KeyPair
    partner: bytes


class KeySession:
    """Message protection with the two ciphers of a finished handshake."""

    signature_size: int = TAG_SIZE
    signature_varies: bool = False
    lifetime: float | None = None
    __slots__ = ("_in", "_out")

    def __init__(self, out: Cipher, incoming: Cipher) -> None:
        self._out = out
        self._in = incoming

    def protect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """Encrypt pdu[start:end] in place when `seal`, and put a tag over all of the PDU into its last 16 bytes."""
        if not seal:
            pdu[-TAG_SIZE:] = self._out.encrypt(b"", pdu[:-TAG_SIZE])
            return
        sealed = memoryview(self._out.encrypt(pdu[start:end], _beside(pdu, start, end)))
        pdu[start:end] = sealed[:-TAG_SIZE]
        pdu[-TAG_SIZE:] = sealed[-TAG_SIZE:]

    def unprotect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """The reverse. Raises RpcAuthError; the session cannot be used after that."""
        tag = pdu[-TAG_SIZE:]
        if not seal:
            self._in.decrypt(tag, pdu[:-TAG_SIZE])
            return
        pdu[start:end] = self._in.decrypt(b"".join((pdu[start:end], tag)), _beside(pdu, start, end))

    def mic(self, data: bytes) -> bytes:
        """Sign SPNEGO's mechanism list."""
        return self._out.encrypt(b"", data)

    def verify_mic(self, data: bytes, mic: bytes) -> None:
        """Check the peer's signature of it. Raises RpcAuthError."""
        if len(mic) != TAG_SIZE:
            raise RpcAuthError("a mechListMIC of a wrong length")
        self._in.decrypt(mic, data)


def _beside(pdu: memoryview, start: int, end: int) -> bytes:
    """What of a PDU is covered and not encrypted: the header, and the trailer without the tag."""
    return b"".join((pdu[:start], pdu[end:-TAG_SIZE]))


class KeyInitiator:
    """The client's side: calls the one member that has the key `credential.partner`."""

    def __init__(self, credential: KeyCredential) -> None:
        self._handshake = Handshake(credential.own, credential.partner, _PROLOGUE)
        self._session: KeySession | None = None

    @property
    def complete(self) -> bool:
        """Whether the last message has been made."""
        return self._session is not None

    @property
    def session(self) -> KeySession:
        """Message protection, once `complete`."""
        if self._session is None:
            raise RpcAuthError("the handshake is not finished")
        return self._session

    def step(self, token: bytes | None) -> bytes | None:
        """The first message for None, then the last one for the second. Raises RpcAuthError."""
        if token is None:
            return _VERSION + self._handshake.write_first()
        if self._session is not None:
            raise RpcAuthError("the handshake is over")
        try:
            self._handshake.read_second(token)
        except RpcAuthError:
            raise RpcAuthError("the server has not the key of the member that was called") from None
        out, incoming = self._handshake.split()
        self._session = KeySession(out, incoming)
        return out.encrypt(b"", b"")


class KeyAcceptor:
    """The server's side. `members` are the names of those that may call, by their public keys."""

    domain = ""

    def __init__(self, own: KeyPair, members: Mapping[bytes, str]) -> None:
        self._handshake = Handshake(own, None, _PROLOGUE)
        self._members = members
        self._ciphers: tuple[Cipher, Cipher] | None = None
        self._session: KeySession | None = None
        self.member = self.user = ""

    @property
    def complete(self) -> bool:
        """Whether the client has shown that it has the key, and is there now."""
        return self._session is not None

    @property
    def session(self) -> KeySession:
        """Message protection, once `complete`."""
        if self._session is None:
            raise RpcAuthError("the handshake is not finished")
        return self._session

    def step(self, token: bytes) -> bytes | None:
        """Feed the first or the last message. Raises RpcAuthError, NotForUs where another mechanism may do."""
        if self._ciphers is None:
            return self._first(token)
        if self._session is not None:
            raise RpcAuthError("the handshake is over")
        incoming, out = self._ciphers
        incoming.decrypt(token, b"")
        self._session = KeySession(out, incoming)
        return None

    def _first(self, token: bytes) -> bytes:
        if token[:1] != _VERSION:
            raise NotForUs("it authenticates by a member's key in a way that is not known here")
        try:
            self._handshake.read_first(token[1:])
        except RpcAuthError:
            raise NotForUs("it calls a member with another key than this one's") from None
        public = self._handshake.remote
        name = self._members.get(public)
        if name is None:
            raise NotForUs(f"its key {key_text(public)} is of no member in the topology")
        self.member = self.user = name
        answer = self._handshake.write_second()
        self._ciphers = self._handshake.split()
        return answer
