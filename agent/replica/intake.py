"""Packets from partners: which a replica set takes, and which it has the partner send again later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.replica.eventqueue import is_control
from agent.replica.faults import Faults
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import Packet
from agent.work.timeshares import Sender

#: Tells the partner to come again later, with a new session.
_COME_LATER: Final = c.ERROR_RETRY


class Queue(Protocol):
    """Events that wait for the engine."""

    def has_room(self, partner: bytes) -> bool: ...
    def post(self, event: ev.Event) -> None: ...


class Intake:
    """`runs` says whether anything is taken at all; `faults`, which partners are kept away. Only for the event loop's
    thread."""

    def __init__(
        self,
        queue: Queue,
        faults: Faults,
        incidents: Incidents,
        *,
        engine: Callable[[], Engine],
        runs: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._faults = faults
        self._incidents = incidents
        self._engine = engine
        self._runs = runs
        self._refused: dict[bytes, bytes] = {}  # connection -> the session of which a packet was refused
        self._main: dict[bytes, int] = {}  # partner -> the association by which it spoke of its session last

    def sender(self, packet: Packet, via: int) -> Sender:
        """Whose packet it is that comes by the association with that number."""
        partner = packet.from_.guid
        return partner, packet.command == c.CMD_REMOTE_CO and self._main.get(partner, via) != via

    def receive(self, packet: Packet, minor: int, via: int = 0) -> int:
        """A packet from a partner, by the association with the number `via`; returns what FrsRpcSendCommPkt is to
        return."""
        if not self._runs():
            return c.ERROR_SERVICE_NOT_ACTIVE
        engine = self._engine()
        status = engine.check(packet)
        if status != 0:
            return status
        cxtion, sender = packet.cxtion.guid, packet.from_
        if self._refused.get(cxtion) == packet.join_guid != ZERO_GUID:
            return _COME_LATER
        barred = self._faults.barred(sender.guid)
        if barred or not self._queue.has_room(sender.guid):
            # This session is over: a later change taken for the next one would have the version vector pass over the
            # refused one. (Packets of any other session than the present one are passed over anyway.)
            if engine.is_present(packet):
                self._refused[cxtion] = packet.join_guid
            if not barred:
                text = f"{sender.name} sends faster than it can be handled; its session ends"
                self._incidents.report(Cause.FLOOD, sender.name, text)
            return _COME_LATER
        if is_control(packet):
            self._main[sender.guid] = via
        self._queue.post(ev.PacketReceived(packet, minor, self.sender(packet, via)[1]))
        return 0
