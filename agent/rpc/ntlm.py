"""The acceptor's side of NTLMv2 ([MS-NLMP] 3.2.5), and the initiator's by way of pyspnego.

The proof of the client is an HMAC over the client's own bytes, so the acceptor never takes the client's blob
apart and packs it again. NTLMv1, LM, anonymous logons and sessions without extended session security, or 128-bit
keys are refused, and without key exchange when messages are to be protected.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from agent.rpc import constants as c
from agent.rpc import ntlm_crypto as n
from agent.rpc.errors import RpcAuthError
from agent.wire.filetime import filetime

SIGNATURE: Final = b"NTLMSSP\0"
_FIELD: Final = struct.Struct("<HHI")
_REQUIRED: Final = n.UNICODE | n.EXTENDED_SESSION_SECURITY | n.KEY_128
_PROTECTED: Final = _REQUIRED | n.SIGN | n.KEY_EXCH
_OFFERED: Final = _PROTECTED | n.SEAL | n.NTLM | n.ALWAYS_SIGN | n.REQUEST_TARGET | n.KEY_56 | n.VERSION
_MAX_TOKEN: Final = 16384
_VERSION: Final = b"\x06\x01\0\0\0\0\0\x0f"  # 6.1, NTLMSSP_REVISION_W2K3: what Samba states as well

# AV_PAIR identifiers, [MS-NLMP] 2.2.2.1.
_AV_EOL: Final = 0
_AV_NB_COMPUTER: Final = 1
_AV_NB_DOMAIN: Final = 2
_AV_DNS_COMPUTER: Final = 3
_AV_FLAGS: Final = 6
_AV_TIMESTAMP: Final = 7
_AV_FLAG_MIC: Final = 2

#: NT hashes of the passwords that are taken, one at least; domain and user as they are to be reported
KnownAccount = tuple[tuple[bytes, ...], str, str]
#: looks up (domain, user) as the client sent them; None if unknown
Lookup = Callable[[str, str], KnownAccount | None]


def _message_type(token: bytes) -> int:
    if len(token) > _MAX_TOKEN:
        raise RpcAuthError("NTLM message is too long")
    if len(token) < 16 or token[:8] != SIGNATURE:
        raise RpcAuthError("not an NTLM message")
    kind: int = struct.unpack_from("<I", token, 8)[0]
    return kind


def required_flags(level: int) -> int:
    """The negotiate flags without which an authentication level is not offered."""
    if level < c.LEVEL_CALL:
        return _REQUIRED
    return _PROTECTED | (n.SEAL if level == c.LEVEL_PRIVACY else 0)


def message_flags(token: bytes) -> int:
    """The negotiate flags of an AUTHENTICATE message."""
    if _message_type(token) != 3 or len(token) < 64:
        raise RpcAuthError("not an NTLM AUTHENTICATE message")
    flags: int = struct.unpack_from("<I", token, 60)[0]
    return flags


@dataclass(frozen=True, slots=True)
class Authenticate:
    """The parts of an AUTHENTICATE message that matter here ([MS-NLMP] 2.2.1.3)."""

    nt_response: bytes
    domain: str
    user: str
    session_key: bytes
    flags: int
    payload_start: int


def decode_authenticate(token: bytes) -> Authenticate:
    """Parse an AUTHENTICATE message strictly. Raises RpcAuthError."""
    flags = message_flags(token)
    starts = [len(token)]

    def field(position: int) -> bytes:
        length, _, offset = _FIELD.unpack_from(token, position)
        if not length:
            return b""
        if offset < 64 or offset + length > len(token):
            raise RpcAuthError("an NTLM field lies outside its message")
        starts.append(offset)
        return token[offset : offset + length]

    def text(position: int) -> str:
        raw = field(position)
        if len(raw) % 2 or len(raw) > 1024:
            raise RpcAuthError("a name in an NTLM message is malformed")
        return raw.decode("utf-16-le", "surrogatepass")

    field(12)
    nt_response = field(20)
    domain, user = text(28), text(36)
    field(44)
    return Authenticate(nt_response, domain, user, field(52), flags, min(starts))


def _shown(auth: Authenticate) -> str:
    """Who the client says it is, as a line of a log can show it."""
    name = f"{auth.domain}\\{auth.user}" if auth.domain else auth.user
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in name)


def _av_flags(blob: bytes) -> int:
    """MsvAvFlags in a client's NTLMv2 blob, 0 when absent. Raises RpcAuthError when it is malformed."""
    pos = 28
    while True:
        if pos + 4 > len(blob):
            raise RpcAuthError("the AV pairs of an NTLM response are not terminated")
        kind, length = struct.unpack_from("<HH", blob, pos)
        pos += 4
        if kind == _AV_EOL:
            return 0
        if pos + length > len(blob):
            raise RpcAuthError("an AV pair of an NTLM response is cut off")
        if kind == _AV_FLAGS:
            if length != 4:
                raise RpcAuthError("MsvAvFlags of a wrong length")
            flags: int = struct.unpack_from("<I", blob, pos)[0]
            return flags
        pos += length


class NtlmAcceptor:
    """One NTLM exchange from the server's side. `step` takes a token and gives the answer, None at the end."""

    def __init__(self, lookup: Lookup, domain: str = "", host: str = "", *, level: int = c.LEVEL_PRIVACY) -> None:
        self._lookup = lookup
        self._required = required_flags(level)
        self._host = host or socket.gethostname()
        self._domain = domain or self._host.split(".")[0]
        self._negotiate = b""
        self._challenge = b""
        self._nonce = b""
        self._flags = 0
        self._failed = False
        self.complete = False
        self.user = ""
        self.domain = ""
        self.member = ""  # whoever has the password: an account is of no member
        self._session: n.NtlmSession | None = None

    @property
    def session(self) -> n.NtlmSession:
        """Message protection, once `complete`."""
        if self._session is None:
            raise RpcAuthError("the NTLM exchange is not finished")
        return self._session

    def step(self, token: bytes) -> bytes | None:
        """Feed the NEGOTIATE or AUTHENTICATE message. Raises RpcAuthError; the exchange is dead after that."""
        if self._failed or self.complete:
            raise RpcAuthError("the NTLM exchange is over")
        self._failed = True
        if not self._negotiate:
            answer: bytes | None = self._accept_negotiate(token)
        else:
            self._accept_authenticate(token)
            answer = None
        self._failed = False
        return answer

    def _accept_negotiate(self, token: bytes) -> bytes:
        if _message_type(token) != 1:
            raise RpcAuthError("an NTLM exchange begins with NEGOTIATE")
        wanted: int = struct.unpack_from("<I", token, 12)[0]
        if wanted & self._required != self._required:
            raise RpcAuthError(f"the client's NTLM flags 0x{wanted:08x} are too weak")
        self._negotiate = bytes(token)
        self._flags = wanted & _OFFERED | n.NTLM | n.ALWAYS_SIGN | n.TARGET_INFO | n.TARGET_TYPE_SERVER
        self._nonce = os.urandom(8)
        short = self._host.split(".")[0].upper()[:15]
        now = filetime(time.time_ns())
        info = b""
        for kind, value in (
            (_AV_NB_DOMAIN, self._domain.upper().encode("utf-16-le", "surrogatepass")),
            (_AV_NB_COMPUTER, short.encode("utf-16-le")),
            (_AV_DNS_COMPUTER, self._host.encode("utf-16-le", "surrogatepass")),
            (_AV_TIMESTAMP, struct.pack("<Q", now)),
            (_AV_EOL, b""),
        ):
            info += struct.pack("<HH", kind, len(value)) + value
        name = short.encode("utf-16-le")
        self._challenge = (
            SIGNATURE
            + struct.pack("<I", 2)
            + _FIELD.pack(len(name), len(name), 56)
            + struct.pack("<I", self._flags)
            + self._nonce
            + bytes(8)
            + _FIELD.pack(len(info), len(info), 56 + len(name))
            + (_VERSION if self._flags & n.VERSION else bytes(8))
            + name
            + info
        )
        return self._challenge

    def _accept_authenticate(self, token: bytes) -> None:
        auth = decode_authenticate(token)
        flags = auth.flags & self._flags
        if flags & self._required != self._required:
            raise RpcAuthError(f"the client's NTLM flags 0x{auth.flags:08x} are too weak")
        if not auth.user or auth.flags & n.ANONYMOUS:
            raise RpcAuthError("anonymous logons are refused")
        if len(auth.nt_response) < 16 + 28 + 4:
            raise RpcAuthError(f"only NTLMv2 is accepted, and {_shown(auth)} came with something else")
        proof, blob = auth.nt_response[:16], auth.nt_response[16:]
        found = self._lookup(auth.domain, auth.user)
        # An unknown user costs the same work as a wrong password, and gives the same answer.
        hashes = found[0] if found is not None else (os.urandom(16),)
        keys = [n.ntowfv2(nt_hash, auth.user, auth.domain) for nt_hash in hashes]
        key = next((one for one in keys if hmac.compare_digest(n.hmac_md5(one, self._nonce + blob), proof)), None)
        if key is None or found is None:
            raise RpcAuthError(f"unknown user or wrong password: {_shown(auth)}")
        session_key = n.hmac_md5(key, proof)
        if flags & n.KEY_EXCH and flags & (n.SIGN | n.SEAL):
            if len(auth.session_key) != 16:
                raise RpcAuthError("the NTLM session key has a wrong length")
            session_key = n.rc4(session_key, auth.session_key)
        if _av_flags(blob) & _AV_FLAG_MIC:
            self._check_mic(token, auth, session_key)
        self._session = n.NtlmSession(session_key, flags, client=False)
        self.domain, self.user = found[1], found[2]
        self.complete = True

    def _check_mic(self, token: bytes, auth: Authenticate, session_key: bytes) -> None:
        """The MIC over all three messages ([MS-NLMP] 3.1.5.1.2): it lies before the payload."""
        if auth.payload_start >= 88:
            at = 72
        elif auth.payload_start >= 80:  # no Version field
            at = 64
        else:
            raise RpcAuthError("the client promised a MIC and sent none")
        zeroed = token[:at] + bytes(16) + token[at + 16 :]
        expected = n.hmac_md5(session_key, self._negotiate + self._challenge + zeroed)
        if not hmac.compare_digest(expected, token[at : at + 16]):
            raise RpcAuthError(f"the MIC of the NTLM exchange does not match: {_shown(auth)}")


class NtlmInitiator:
    """One NTLM exchange from the client's side, done by pyspnego."""

    def __init__(
        self, domain: str, user: str, password: str, host: str, service: str, *, level: int = c.LEVEL_PRIVACY
    ) -> None:
        import spnego

        name = f"{domain}\\{user}" if domain else user
        self._context: Any = spnego.client(name, password, hostname=host, service=service, protocol="ntlm")
        self._required = required_flags(level)
        self._session: n.NtlmSession | None = None

    @property
    def complete(self) -> bool:
        """Whether the last message has been made."""
        return bool(self._context.complete)

    def step(self, token: bytes | None) -> bytes | None:
        """The NEGOTIATE message for None, then AUTHENTICATE for the CHALLENGE. Raises RpcAuthError."""
        try:
            answer: bytes | None = self._context.step(token)
        except Exception as exc:  # pyspnego's parsers raise many things on malformed challenges
            raise RpcAuthError(f"NTLM: {exc}") from exc
        if self.complete:
            if answer is None:
                raise RpcAuthError("NTLM ended without an AUTHENTICATE message")
            flags = message_flags(answer)
            if flags & self._required != self._required:
                raise RpcAuthError(f"the server's NTLM flags 0x{flags:08x} are too weak")
            self._session = n.NtlmSession(self._context.session_key, flags, client=True)
        return answer

    @property
    def session(self) -> n.NtlmSession:
        """Message protection, once `complete`."""
        if self._session is None:
            raise RpcAuthError("the NTLM exchange is not finished")
        return self._session
