"""NTLM keys and message protection ([MS-NLMP] 3.3.2, 3.4).

`NtlmSession` protects PDUs with the keys of a finished NTLM exchange. It is the hot path of a sealed
association: it works in place in the buffer of the PDU, and each message costs two MD5 passes and one RC4
pass. Only sessions with extended session security and 128-bit keys are supported.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import warnings
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher

from agent.rpc.errors import RpcAuthError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        from cryptography.hazmat.decrepit.ciphers.algorithms import ARC4
    except ImportError:  # older releases keep it among the others
        from cryptography.hazmat.primitives.ciphers.algorithms import ARC4

# Negotiate flags, [MS-NLMP] 2.2.2.5.
UNICODE: Final = 0x00000001
OEM: Final = 0x00000002
REQUEST_TARGET: Final = 0x00000004
SIGN: Final = 0x00000010
SEAL: Final = 0x00000020
DATAGRAM: Final = 0x00000040
NTLM: Final = 0x00000200
ANONYMOUS: Final = 0x00000800
ALWAYS_SIGN: Final = 0x00008000
TARGET_TYPE_SERVER: Final = 0x00020000
EXTENDED_SESSION_SECURITY: Final = 0x00080000
TARGET_INFO: Final = 0x00800000
VERSION: Final = 0x02000000
KEY_128: Final = 0x20000000
KEY_EXCH: Final = 0x40000000
KEY_56: Final = 0x80000000

SIGNATURE_SIZE: Final = 16
_MASK: Final = 0xFFFFFFFF
_SEQUENCE: Final = struct.Struct("<I")


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def md4(data: bytes) -> bytes:
    """MD4 (RFC 1320). hashlib has it only where OpenSSL loads its legacy provider."""
    message = data + b"\x80" + bytes((55 - len(data)) % 64) + struct.pack("<Q", len(data) * 8)
    state = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476]
    orders = (
        (range(16), (3, 7, 11, 19), 0),
        ((0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), (3, 5, 9, 13), 0x5A827999),
        ((0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15), (3, 9, 11, 15), 0x6ED9EBA1),
    )
    for start in range(0, len(message), 64):
        words = struct.unpack_from("<16I", message, start)
        a, b, c, d = state
        for number, (order, shifts, constant) in enumerate(orders):
            for step, index in enumerate(order):
                if number == 0:
                    mixed = (b & c) | (~b & d)
                elif number == 1:
                    mixed = (b & c) | (b & d) | (c & d)
                else:
                    mixed = b ^ c ^ d
                total = (a + (mixed & _MASK) + words[index] + constant) & _MASK
                a, b, c, d = d, _rotate(total, shifts[step % 4]), b, c
        state = [(x + y) & _MASK for x, y in zip(state, (a, b, c, d))]
    return struct.pack("<4I", *state)


def hmac_md5(key: bytes, data: bytes) -> bytes:
    """HMAC-MD5 in one go."""
    return hmac.digest(key, data, "md5")


def rc4(key: bytes, data: bytes) -> bytes:
    """RC4 of `data` with a fresh key stream."""
    return bytes(Cipher(ARC4(key), mode=None).encryptor().update(data))  # noqa: S304 - what NTLM specifies


def ntowfv1(password: str) -> bytes:
    """NTOWFv1: the MD4 of the password in UTF-16 ([MS-NLMP] 3.3.1)."""
    return md4(password.encode("utf-16-le", "surrogatepass"))


def ntowfv2(nt_hash: bytes, user: str, domain: str) -> bytes:
    """NTOWFv2 from NTOWFv1; `user` and `domain` as the client sent them ([MS-NLMP] 3.3.2)."""
    return hmac_md5(nt_hash, (user.upper() + domain).encode("utf-16-le", "surrogatepass"))


def signing_key(session_key: bytes, client: bool) -> bytes:
    """SIGNKEY with extended session security ([MS-NLMP] 3.4.5.2)."""
    way = b"client-to-server" if client else b"server-to-client"
    return hashlib.md5(session_key + b"session key to " + way + b" signing key magic constant\0").digest()


def sealing_key(session_key: bytes, client: bool) -> bytes:
    """SEALKEY with extended session security and 128 bits ([MS-NLMP] 3.4.5.3)."""
    way = b"client-to-server" if client else b"server-to-client"
    return hashlib.md5(session_key + b"session key to " + way + b" sealing key magic constant\0").digest()


class _Direction:
    """Keys and state of one direction: an HMAC prepared with its key, an RC4 stream, a sequence number."""

    __slots__ = ("_exchange", "_inner", "_outer", "cipher", "seal_key", "sequence")

    def __init__(self, session_key: bytes, flags: int, client: bool) -> None:
        key = signing_key(session_key, client).ljust(64, b"\0")
        self._inner = hashlib.md5(bytes(x ^ 0x36 for x in key))
        self._outer = hashlib.md5(bytes(x ^ 0x5C for x in key))
        self._exchange = bool(flags & KEY_EXCH)
        self.seal_key = sealing_key(session_key, client)
        self.reset_cipher()
        self.sequence = 0

    def reset_cipher(self) -> None:
        """Start the key stream again, as SPNEGO wants it around the mechListMIC ([MS-SPNG] 3.3.5.1)."""
        self.cipher = Cipher(ARC4(self.seal_key), mode=None).encryptor()  # noqa: S304 - what NTLM specifies

    def checksum(self, message: memoryview | bytes) -> bytes:
        """The plain checksum of the next message: half an HMAC over sequence number and message."""
        inner = self._inner.copy()
        inner.update(_SEQUENCE.pack(self.sequence))
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()[:8]

    def signature(self, checksum: bytes) -> bytes:
        """NTLMSSP_MESSAGE_SIGNATURE ([MS-NLMP] 2.2.2.9.2) for this message; moves to the next number."""
        if self._exchange:
            checksum = self.cipher.update(checksum)
        result = b"\x01\0\0\0" + checksum + _SEQUENCE.pack(self.sequence)
        self.sequence = self.sequence + 1 & _MASK
        return result


class NtlmSession:
    """Message protection after NTLM, for the client or the server side of it."""

    signature_size: int = SIGNATURE_SIZE
    signature_varies: bool = False
    lifetime: float | None = None
    __slots__ = ("_in", "_out", "flags")

    def __init__(self, session_key: bytes, flags: int, *, client: bool) -> None:
        if not flags & EXTENDED_SESSION_SECURITY or not flags & KEY_128:
            raise RpcAuthError("NTLM without extended session security or 128-bit keys")
        self.flags = flags
        self._out = _Direction(session_key, flags, client)
        self._in = _Direction(session_key, flags, not client)

    def protect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """Sign a PDU whose last 16 bytes are room for the signature, and encrypt pdu[start:end] in place."""
        out = self._out
        checksum = out.checksum(pdu[:-SIGNATURE_SIZE])
        if seal:
            body = pdu[start:end]
            out.cipher.update_into(body, body)
        pdu[-SIGNATURE_SIZE:] = out.signature(checksum)

    def unprotect(self, pdu: memoryview, start: int, end: int, *, seal: bool) -> None:
        """Decrypt pdu[start:end] in place and check the signature in the last 16 bytes.

        Raises RpcAuthError when it does not match. The session cannot be used after that.
        """
        incoming = self._in
        if seal:
            body = pdu[start:end]
            incoming.cipher.update_into(body, body)
        expected = incoming.signature(incoming.checksum(pdu[:-SIGNATURE_SIZE]))
        if not hmac.compare_digest(expected, pdu[-SIGNATURE_SIZE:]):
            raise RpcAuthError("a message signature does not match")

    def mic(self, data: bytes) -> bytes:
        """Sign SPNEGO's mechanism list; the key stream starts anew after it."""
        result = self._out.signature(self._out.checksum(data))
        self._out.reset_cipher()
        return result

    def verify_mic(self, data: bytes, mic: bytes) -> None:
        """Check the peer's signature of the mechanism list. Raises RpcAuthError."""
        expected = self._in.signature(self._in.checksum(data))
        self._in.reset_cipher()
        if not hmac.compare_digest(expected, mic):
            raise RpcAuthError("the mechListMIC does not match")
