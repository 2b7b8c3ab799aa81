"""The events that wait for an engine: those of each partner in their order, the partners by turns. What a partner may
have been asked for (blocks of staging files, acknowledgements) does not wait for what it sends by itself, nor that for
the change orders of others that it passes on; those come by an association of their own (see links). Nothing passes
what begins or ends a session; and the change orders of one originator keep their order whatever associations they come
by, for a version vector passes over what comes too late: other programs use associations as they like.

What the packets of one partner may take of memory is bounded, and where it has sent too many, the others do not wait
for them to be handled: their next packet, and whatever ends in this member, comes after one of that partner.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Final

from agent.engine import events as ev
from agent.wire import constants as c
from agent.wire.packet import Packet
from agent.work.timeshares import Sender

#: Bytes of packets of one partner that may wait. Of what our own agents have in flight, blocks of staging files that
#: were asked for take at most 16 MiB, all else a few.
MOST: Final = 32 << 20
#: What a packet takes beside what its sender may make long; and what of that an entry of a version vector takes, the
#: GUID of a compression, a character of a name.
_EACH: Final = 4096
_GVSN: Final = 192
_GUID: Final = 64
_CHARACTER: Final = 4
_OURS: Final = b""  # whatever is from no partner
_STAGING: Final = frozenset((c.CMD_SEND_STAGE, c.CMD_RECEIVING_STAGE, c.CMD_RETRY_FETCH, c.CMD_ABORT_FETCH))
_ANSWERS: Final = _STAGING | {c.CMD_REMOTE_CO_DONE}


def size_of(packet: Packet) -> int:
    """About how many bytes of memory a packet takes, and no fewer."""
    names = sum(len(one.name) for one in (packet.to, packet.from_, packet.replica, packet.cxtion))
    guids = _GVSN * len(packet.vvector) + _GUID * len(packet.compression_guids)
    return _EACH + len(packet.block or b"") + guids + _CHARACTER * names


class Kind(Enum):
    """Of packets."""

    ANSWER = auto()  # may have been asked for
    OWN = auto()  # of the partner itself
    PASSED_ON = auto()  # a change order of another originator


#: A member GUID, and what is queued of it in the order it came.
_Lane = tuple[bytes, Kind]


class EventQueue:
    """A queue with turns. Only for the event loop's thread."""

    def __init__(self) -> None:
        self._front: deque[ev.Event] = deque()  # before all others
        self._lanes: dict[_Lane, deque[ev.Event]] = {}  # those with events; whose turn is next first
        self._bytes: dict[bytes, int] = {}
        self._packets = Counter[Sender]()
        self._controls = Counter[bytes]()  # by member GUID, packets that are of the session, and not of a file
        # By member and originator, in which lane change orders wait, and how many.
        self._originators: dict[tuple[bytes, bytes], tuple[Kind, int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[ev.Event]:
        """In no other order than that of each partner."""
        yield from self._front
        for lane in self._lanes.values():
            yield from lane

    def has_room(self, partner: bytes) -> bool:
        """Whether a packet of this partner may be queued."""
        return self._bytes.get(partner, 0) < MOST

    def append(self, event: ev.Event) -> None:
        """Queue an event behind those of its partner; what an engine begins with before all others."""
        self._length += 1
        if isinstance(event, ev.Resumed | ev.Started):
            self._front.append(event)
            return
        lane = self._lane(event)
        self._count(event, 1)
        self._lanes.setdefault(lane, deque()).append(event)

    def waiting(self, sender: Sender) -> int:
        """How many packets of the sender are queued."""
        return self._packets[sender]

    def senders(self) -> Iterator[Sender]:
        """Those of whom packets are queued."""
        yield from self._packets

    def popleft(self, early: Callable[[ev.Event], bool] = lambda event: False) -> ev.Event:
        """The next event, and none that is too early. Raises IndexError when there is none."""
        if self._front:
            event = self._front.popleft()
        else:
            name = next((name for name, lane in self._lanes.items() if self._next(name) and not early(lane[0])), None)
            if name is None:
                raise IndexError("no event is queued, or all of them are too early")
            lane = self._lanes.pop(name)
            event = lane.popleft()
            if lane:
                self._lanes[name] = lane
        self._length -= 1
        self._count(event, -1)
        return event

    def extendleft(self, events: Iterable[ev.Event]) -> None:
        """Put events back, each before all others."""
        for event in events:
            self._length += 1
            self._count(event, 1)
            self._front.appendleft(event)

    def clear(self) -> None:
        """Forget all of them."""
        self._front.clear()
        self._lanes.clear()
        self._bytes.clear()
        self._packets.clear()
        self._controls.clear()
        self._originators.clear()
        self._length = 0

    def _next(self, lane: _Lane) -> bool:
        return lane[1] is not Kind.PASSED_ON or not self._controls[lane[0]]

    def _count(self, event: ev.Event, sign: int) -> None:
        if isinstance(event, ev.PacketReceived):
            partner = event.packet.from_.guid
            self._bytes[partner] = self._bytes.get(partner, 0) + sign * size_of(event.packet)
            if self._bytes[partner] <= 0:
                del self._bytes[partner]
            sender = partner, event.aside
            self._packets[sender] += sign
            if self._packets[sender] <= 0:
                del self._packets[sender]
            if is_control(event.packet):
                self._controls[partner] += sign
            if (key := _originator(event.packet)) is not None:
                kind, count = self._originators.get(key, (_kind(event), 0))
                self._originators[key] = kind, count + sign
                if count + sign <= 0:
                    del self._originators[key]

    def _lane(self, event: ev.Event) -> _Lane:
        if not isinstance(event, ev.PacketReceived):
            return (event.partner if isinstance(event, ev.PartnerUnreachable) else _OURS), Kind.OWN
        key = _originator(event.packet)
        waits = self._originators.get(key) if key is not None else None
        return event.packet.from_.guid, waits[0] if waits is not None else _kind(event)


def sender_of(event: ev.Event) -> Sender | None:
    """Whose packet it is; None for all else."""
    return (event.packet.from_.guid, event.aside) if isinstance(event, ev.PacketReceived) else None


def is_control(packet: Packet) -> bool:
    """Whether the packet is of the session, and not of a file."""
    return packet.command != c.CMD_REMOTE_CO and packet.command not in _ANSWERS


def _originator(packet: Packet) -> tuple[bytes, bytes] | None:
    """Of a change order, who sends it and whose it is."""
    co = packet.remote_co if packet.command == c.CMD_REMOTE_CO else None
    return None if co is None else (packet.from_.guid, co.originator_guid)


def _kind(event: ev.PacketReceived) -> Kind:
    if event.aside:
        return Kind.PASSED_ON
    return Kind.ANSWER if event.packet.command in _ANSWERS else Kind.OWN


def is_asked_for(event: ev.Event, awaits: Callable[[Packet], bool]) -> bool:
    """A packet for a staging file, or the acknowledgement of a change order that is on its way (`awaits` says so): of
    these no more come than this member has asked for."""
    return isinstance(event, ev.PacketReceived) and (event.packet.command in _STAGING or awaits(event.packet))
