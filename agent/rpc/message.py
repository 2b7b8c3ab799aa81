"""Requests and responses on the wire: fragments, padding, verifiers ([C706] 12.6.4.9, [MS-RPCE] 2.2.2.11, 3.3.1.5.2).

This is the hot path. A message becomes one buffer that holds all its fragments, protected in place.
"""

from __future__ import annotations

from typing import Final

from agent.rpc import constants as c
from agent.rpc.errors import RpcAuthError, RpcProtocolError
from agent.rpc.negotiate import Session
from agent.rpc.pdu import DREP, LITTLE, REQUEST, TRAILER, TRAILER_BIG, Buffer

_HEAD: Final = c.REQUEST_HEADER_SIZE


class Protection:
    """What an authenticated association does to its requests and responses.

    Levels below LEVEL_CALL protect nothing; LEVEL_PRIVACY also encrypts the stub with its padding. The header
    is covered by the signature always: NTLM signs whole PDUs whether PFC_SUPPORT_HEADER_SIGN was agreed or not.
    """

    __slots__ = ("auth_type", "context_id", "level", "overhead", "seal", "session", "sign", "trailers")

    def __init__(self, session: Session, auth_type: int, level: int, context_id: int) -> None:
        self.session = session
        self.auth_type = auth_type
        self.level = level
        self.context_id = context_id
        self.sign = level >= c.LEVEL_CALL
        self.seal = level == c.LEVEL_PRIVACY
        self.overhead = c.TRAILER_SIZE + session.signature_size if self.sign else 0
        self.trailers = [TRAILER.pack(auth_type, level, pad, 0, context_id) for pad in range(c.AUTH_ALIGN)]


def encode_call(
    ptype: int,
    call_id: int,
    context_id: int,
    opnum: int,
    stub: Buffer,
    max_fragment: int,
    protection: Protection | None,
    flags: int = 0,
) -> bytearray:
    """All fragments of a request or of a response (opnum 0), back to back.

    `max_fragment` is the largest PDU in bytes that the peer takes, `flags` go into every fragment. Fragments have
    to reach the wire in the order in which they were made: the signatures are numbered.
    """
    size = len(stub)
    signed = protection is not None and protection.sign
    if protection is not None and protection.sign:
        room = max_fragment - _HEAD - protection.overhead & -c.AUTH_ALIGN
        auth_length = protection.session.signature_size
        overhead = protection.overhead
    else:
        room = max_fragment - _HEAD & -8
        auth_length = overhead = 0
    count = -(-size // room) or 1
    last = size - (count - 1) * room
    pad = -last % c.AUTH_ALIGN if signed else 0
    out = bytearray(size + pad + count * (_HEAD + overhead))
    view = memoryview(out)
    pos = done = 0
    for index in range(count):
        final = index == count - 1
        chunk = last if final else room
        body = chunk + pad if final else chunk
        fragment = _HEAD + body + overhead
        pfc = flags | (c.PFC_FIRST_FRAG if index == 0 else 0) | (c.PFC_LAST_FRAG if final else 0)
        REQUEST.pack_into(
            out, pos, 5, 0, ptype, pfc, DREP, fragment, auth_length, call_id, size - done, context_id, opnum
        )
        view[pos + _HEAD : pos + _HEAD + chunk] = stub if count == 1 else stub[done : done + chunk]
        if protection is not None and signed:
            end = pos + _HEAD + body
            view[end : end + c.TRAILER_SIZE] = protection.trailers[body - chunk]
            protection.session.protect(view[pos : pos + fragment], _HEAD, _HEAD + body, seal=protection.seal)
        pos += fragment
        done += chunk
    return out


def open_call(pdu: memoryview, start: int, auth_length: int, protection: Protection | None) -> int:
    """Check and decrypt a request or response in place; gives the offset at which its stub ends.

    `pdu` is exactly one PDU, `start` the offset of its stub. Raises RpcAuthError when the protection that was
    agreed is missing or does not hold, RpcProtocolError when the lengths contradict each other.
    """
    if not auth_length:
        if protection is not None and protection.sign:
            raise RpcAuthError("a message without its verifier")
        return len(pdu)
    trailer = len(pdu) - auth_length - c.TRAILER_SIZE
    if trailer < start:
        raise RpcProtocolError("the verifier overlaps the header")
    if protection is None:
        raise RpcAuthError("a verifier on an association that is not authenticated")
    pad: int
    layout = TRAILER if pdu[4] == LITTLE else TRAILER_BIG
    auth_type, level, pad, _, context_id = layout.unpack_from(pdu, trailer)
    if level != protection.level or auth_type != protection.auth_type or context_id != protection.context_id:
        raise RpcAuthError("a message belongs to another security context")
    end = trailer - pad
    if end < start:
        raise RpcProtocolError(f"{pad} bytes of authentication padding do not fit")
    if protection.sign:
        session = protection.session
        if auth_length != session.signature_size and not session.signature_varies:
            raise RpcAuthError(f"a signature of {auth_length} bytes")
        session.unprotect(pdu, start, trailer, seal=protection.seal)
    return end
