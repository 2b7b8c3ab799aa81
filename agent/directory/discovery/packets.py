"""The two packets of [MS-MQSD] 2.2: bytes <-> objects. Over IP alone: nothing of IPX is sent or believed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from agent.wire.errors import WireError
from agent.wire.guid import ZERO_GUID

PORT: Final = 1801
REQUEST: Final = 1
REPLY: Final = 2
#: A datagram of either kind is not longer: it passes every link in one piece.
MAX_PACKET: Final = 1232
MOST_NETWORKS: Final = 32

_REQUEST: Final = struct.Struct("<BBH16s16s16s")
_REPLY: Final = struct.Struct("<BBH16sIII")
#: An entry of the array: reached over IP, and not over IPX.
_IP: Final = "10"


@dataclass(frozen=True, slots=True)
class TopologyClientRequest:
    """Who asks for directory servers (2.2.2). An `enterprise` of zeros is ours: a host that has none yet."""

    enterprise: bytes
    request: bytes
    site: bytes

    def encode(self) -> bytes:
        """The 52 bytes of the packet."""
        return _REQUEST.pack(0, REQUEST, 0, self.enterprise, self.request, self.site)

    @classmethod
    def decode(cls, data: bytes) -> TopologyClientRequest:
        """Version and Reserved are not looked at, nor is what follows, which is of IPX (3.2.5.1). Raises WireError."""
        if len(data) < _REQUEST.size:
            raise WireError("TopologyClientRequest", len(data), f"{_REQUEST.size} bytes are needed")
        _, kind, _, enterprise, request, site = _REQUEST.unpack_from(data)
        if kind != REQUEST:
            raise WireError("TopologyPacketHeader.Type", 1, f"{kind} is no request")
        return cls(enterprise, request, site)


@dataclass(frozen=True, slots=True)
class TopologyServerReply:
    """The answer (2.2.3). Without `servers` it is from the client's own site, and its sender is the server."""

    correlation: bytes
    networks: tuple[bytes, ...] = (ZERO_GUID,)
    site: bytes | None = None
    servers: tuple[str, ...] = ()

    @property
    def own_site(self) -> bool:
        """Whether it comes from a server of the client's site (DirectoryServiceServerSize 0)."""
        return self.site is None

    def encode(self) -> bytes:
        """The packet. Raises WireError for what cannot be in one."""
        if not 1 <= len(self.networks) <= MOST_NETWORKS:
            raise WireError("ConnectedNetworkCount", -1, f"{len(self.networks)} is not 1 to {MOST_NETWORKS}")
        if (self.site is None) != (not self.servers):
            raise WireError("RespondingSiteID", -1, "a site goes with servers, and without them there is none")
        names = b""
        if self.servers:
            for name in self.servers:
                if not name or "," in name or "\0" in name:
                    raise WireError("DirectoryServiceServerArray", -1, f"{name!r} is no name of a server")
            names = (",".join(f"{_IP}{name}" for name in self.servers) + "\0").encode("utf-16-le")
        head = _REPLY.pack(0, REPLY, 0, self.correlation, len(self.networks), 0, len(names))
        return b"".join((head, *self.networks, self.site or b"", names))

    @classmethod
    def decode(cls, data: bytes) -> TopologyServerReply:
        """Servers that are not reached over IP are left out. Raises WireError."""
        if len(data) < _REPLY.size:
            raise WireError("TopologyServerReply", len(data), f"at least {_REPLY.size} bytes are needed")
        _, kind, _, correlation, count, _, size = _REPLY.unpack_from(data)
        if kind != REPLY:
            raise WireError("TopologyPacketHeader.Type", 1, f"{kind} is no reply")
        if not 1 <= count <= MOST_NETWORKS:
            raise WireError("ConnectedNetworkCount", 20, f"{count} is not 1 to {MOST_NETWORKS}")
        at = _REPLY.size + 16 * count
        if len(data) != at + (16 + size if size else 0):
            raise WireError("TopologyServerReply", at, f"{len(data)} bytes do not fit its counts")
        networks = tuple(data[place : place + 16] for place in range(_REPLY.size, at, 16))
        if not size:
            return cls(correlation, networks)
        return cls(correlation, networks, data[at : at + 16], _servers(data[at + 16 :], at + 16))


def _servers(data: bytes, at: int) -> tuple[str, ...]:
    try:
        text = data.decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise WireError("DirectoryServiceServerArray", at + error.start, "is not UTF-16") from None
    if not text.endswith("\0") or "\0" in text[:-1]:
        raise WireError("DirectoryServiceServerArray", at, "does not end with its only zero")
    entries = text[:-1].split(",")
    if any(len(entry) < 3 or entry[0] not in "01" or entry[1] not in "01" for entry in entries):
        raise WireError("DirectoryServiceServerArray", at, "an entry is two flags and a name")
    return tuple(entry[2:] for entry in entries if entry[0] == _IP[0])
