"""Who has a key, or the secret, may show it in the bind, before the authentication.

A server that is flooded cannot tell a partner's bind from a stranger's: both have an NTLM NEGOTIATE, which proves
nothing, and to go on with each of them costs more than the flood costs its sender. So our client chooses the
auth_context_id of its bind, a number that means something to it alone ([MS-RPCE] 2.2.2.11), as a MAC over the two ends
of the TCP connection, with a key made from the secret, or from what the keys of two members have in common. A server
that finds it right takes that bind before others.
Whoever does not send it, or is behind an address translation, is served like everybody else. It proves nothing later:
the authentication follows as always. A number that was seen by others is right for that one connection only.
"""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Iterable
from typing import Any, Final

_LABEL: Final = b"auth_context_id of an FRS bind"
_MAPPED: Final = bytes(10) + b"\xff\xff"  # an IPv4 address as IPv6 has it, on a socket for both


def proof_key(secret: bytes) -> bytes:
    """The key of an account, from its NT hash; or of two members, from what their keys have in common."""
    return hmac.digest(secret, _LABEL, "sha256")


def bind_proof(key: bytes, client: Any, server: Any) -> int:
    """The auth_context_id for a connection from the socket address `client` to `server`; 0 (which means no proof) when
    these are no IP addresses."""
    ends = _ends(client, server)
    return 0 if ends is None else _number(key, ends)


def proved_by(keys: Iterable[bytes], number: int, client: Any, server: Any) -> bytes | None:
    """Of these keys the one with which that auth_context_id was made; None where it was with none."""
    ends = _ends(client, server)
    return None if ends is None else next((key for key in keys if _number(key, ends) == number), None)


def _number(key: bytes, ends: bytes) -> int:
    return int.from_bytes(hmac.digest(key, ends, "sha256")[:4], "little") or 1


def _ends(client: Any, server: Any) -> bytes | None:
    try:
        return b"".join(_packed(end) for end in (client, server))
    except (OSError, TypeError, IndexError, struct.error):
        return None


def _packed(end: Any) -> bytes:
    address = end[0]
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
        packed = packed.removeprefix(_MAPPED)
    else:
        packed = socket.inet_pton(socket.AF_INET, address)
    return packed + struct.pack("<H", end[1])
