"""The verification trailer of a request ([MS-RPCE] 2.2.2.13): what its sender meant, where headers are not signed.

It stands behind the arguments, under the seal, and repeats what a stranger on the way could change in the bind and in
the header. Clients of Windows and Samba put it into the first request of a security context.
"""

from __future__ import annotations

import struct
from typing import Final

from agent.rpc import constants as c
from agent.rpc.interface import Interface
from agent.rpc.pdu import DREP, NDR

_MAGIC: Final = bytes.fromhex("8ae3137102f43671")
_COMMAND: Final = struct.Struct("<HH")
_END, _MUST_PROCESS, _NUMBER = 0x4000, 0x8000, 0x3FFF
_SIGNS_HEADERS: Final = 0x01


def contradiction(
    stub: bytes, end: int, interface: Interface, call_id: int, context_id: int, opnum: int, *, headers: bool
) -> str | None:
    """What the trailer of a request says that is not so; None where all is, or there is none. The arguments end at
    `end`; `headers` says whether header signing was agreed to."""
    pos = end + (-end % 4)
    if stub[pos : pos + len(_MAGIC)] != _MAGIC:
        return None
    pos += len(_MAGIC)
    context = b"".join(one.uuid + struct.pack("<I", one.version) for one in (interface.id, NDR))
    header = struct.pack("<BBH4sIHH", c.REQUEST, 0, 0, DREP, call_id, context_id, opnum)
    while pos + _COMMAND.size <= len(stub):
        command, size = _COMMAND.unpack_from(stub, pos)
        pos += _COMMAND.size
        said = stub[pos : pos + size]
        pos += size
        if len(said) != size:
            break
        match command & _NUMBER:  # SEC_VT_COMMAND_BITMASK_1, _PCONTEXT, _HEADER2
            case 1 if size == 4:
                if said[0] & _SIGNS_HEADERS and not headers:
                    return "its sender signs headers, and that was not agreed to"
            case 2 if size == len(context):
                if said != context:
                    return "it was meant for another interface"
            case 3 if size == len(header):
                if said != header:
                    return "its header is not as it was sent"
            case _ if command & _MUST_PROCESS:
                return f"its sender asks for what is not known here ({command & _NUMBER})"
        if command & _END:
            return None
    return "its verification trailer is cut off"
