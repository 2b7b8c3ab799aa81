"""What comes in by the RPC server: packets go to the set that they are for, once it is sure that they are their
caller's to send."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Final

from agent.engine.context import Cxtion
from agent.engine.engine import NOT_FOR_US, UNKNOWN_CONNECTION
from agent.partners import promotion
from agent.partners.promotion import promoted
from agent.replica.replica import Replica
from agent.reporting.causes import Cause
from agent.rpc.interface import CallContext
from agent.wire import constants as c
from agent.wire.comm_packet import CommPacket, StartPromotionParent
from agent.wire.errors import WireError
from agent.wire.packet import Packet, decode_packets, describe
from agent.work.rates import SourceRates

if TYPE_CHECKING:
    from agent.service.service import Service

packets = logging.getLogger("frs.packets")

#: Requests for volatile connections of one partner: as many as Joins (agent.engine.context.Limits).
_PROMOTIONS: Final = 10
_PROMOTIONS_PER_SECOND: Final = 0.2


class Receiving:
    """The service as its partners call it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._promotions = SourceRates(_PROMOTIONS_PER_SECOND, _PROMOTIONS)

    def packet(self, context: CallContext, comm: CommPacket) -> int | Awaitable[int]:
        """FrsRpcSendCommPkt (3.3.4.4). A packet that is refused ends nothing here, but those behind it in that call are
        not looked at; nor is any of a call of which one does not parse. Who sends several has to wait until others had
        their turn."""
        try:
            found = decode_packets(comm.pkt)
        except WireError as error:
            self.malformed(context, error)
            return c.ERROR_INVALID_PARAMETER
        status, wait = c.ERROR_SUCCESS, 0.0
        for packet, size in found:
            status = self._take(context, packet, comm.minor, size)
            replica = self._service.sets.replicas.get(packet.to.guid)
            if replica is not None and status != c.ERROR_ACCESS_DENIED:
                wait = max(wait, replica.answers_after(packet, context.connection_id))
            if status != c.ERROR_SUCCESS:
                break
        return asyncio.sleep(wait, status) if wait or len(found) > 1 else status

    def malformed(self, context: CallContext, error: WireError) -> None:
        """A call whose packet does not parse."""
        text = f"a packet from {context.peer} (user {context.user}) is refused: {error}"
        self._service.incidents.report(Cause.PACKET, context.peer, text)
        for replica, _ in self._with(context.member):
            replica.count("Packets Received in Error")

    async def promote(self, context: CallContext, request: StartPromotionParent) -> tuple[bytes | None, int]:
        """FrsRpcStartPromotionParent (3.3.4.2)."""
        service = self._service
        replicas = service.sets.replicas.values()
        here = [replica.local for replica in replicas]
        volatile = {one.guid: one.partner.guid for replica in replicas for one in replica.cxtions if one.volatile}
        may_speak_as = functools.partial(service.identities.may_speak_as, context)
        try:
            local, cxtion = promoted(request, here, may_speak_as, volatile)
        except promotion.Refused as error:
            who = f"the member {context.member}" if context.member else f"the user {context.user}"
            text = f"a request of {who}, from {context.peer}, for a volatile connection is refused: {error}"
            service.incidents.report(Cause.SENDER, context.member or context.peer, text)
            return request.parent_guid, c.ERROR_INVALID_PARAMETER
        replica = service.sets.replicas[local.member.guid]
        if not self._promotions.take(cxtion.partner.guid.hex()):
            text = f"{cxtion.partner.name} asks too often for volatile connections"
            replica.incidents.report(Cause.FLOOD, cxtion.partner.name, text)
            return request.parent_guid, c.ERROR_RETRY
        service.partners.begin_with(replica, local.set.members[cxtion.partner.name])
        await replica.promote(cxtion)
        replica.log.info("%s asked for a volatile connection, to be seeded", cxtion.partner.name)
        return local.member.guid, c.ERROR_SUCCESS

    def _with(self, member: str) -> Iterator[tuple[Replica, list[Cxtion]]]:
        """The sets in which this member is a partner, with the connections that it has there; where nobody has shown
        who it is, all sets: it may have been meant for any."""
        for replica in self._service.sets.replicas.values():
            cxtions = [cxtion for cxtion in replica.cxtions if cxtion.partner.name == member]
            if cxtions or not member:
                yield replica, cxtions

    def _take(self, context: CallContext, packet: Packet, minor: int, size: int) -> int:
        replica = self._service.sets.replicas.get(packet.to.guid)
        refusal = self._service.identities.refusal(context, packet)
        if refusal is not None:
            self._not_its_own(context, packet, refusal)
            return c.ERROR_ACCESS_DENIED
        if packet.to.guid in self._service.sets.unopened:
            return c.ERROR_SERVICE_NOT_ACTIVE
        if replica is None:
            self._not_ours(context, packet, "is for a member that is not here")
            return c.ERROR_INVALID_PARAMETER
        if packets.isEnabledFor(logging.DEBUG):
            packets.debug("received from %s:%d: %s", context.peer, context.port, describe(packet))
        if packet.command == c.CMD_JOINING and packet.join_time:
            self._service.partners.clock_told(packet.from_.guid, packet.join_time)
            self._service.states.announced(packet.from_.guid, packet.compression_guids)
        status = replica.receive(packet, minor, context.connection_id)
        if status == 0:
            replica.count("Packets Received")
            replica.count("Packets Received in Bytes", size)
        else:
            replica.count("Packets Received in Error")
        if status in (UNKNOWN_CONNECTION, NOT_FOR_US):
            self._not_ours(context, packet, "is of a connection, or from a partner, that this member does not have")
        return status

    def _not_its_own(self, context: CallContext, packet: Packet, why: str) -> None:
        who = f"the member {context.member}" if context.member else f"the user {context.user}"
        text = f"a packet of {who}, from {context.peer}, is refused: {why}: {describe(packet)}"
        self._service.incidents.report(Cause.SENDER, context.member or context.peer, text)
        replica = self._service.sets.replicas.get(packet.to.guid)
        if replica is not None:
            replica.count("Packets Received in Error")

    def _not_ours(self, context: CallContext, packet: Packet, why: str) -> None:
        compare = f"compare {self._service.config.topology_path} with the topology file there"
        text = f"a packet from {context.peer} {why}; {compare}: {describe(packet)}"
        self._service.incidents.report(Cause.IDENTITY, context.peer, text)

    def bound(self, ok: bool) -> None:
        """Somebody has bound to this member, or could not."""
        for replica in self._service.sets.replicas.values():
            replica.count("Bindings" if ok else "Bindings in Error")

    def authenticated(self, ok: bool, user: str) -> None:
        """Somebody has authenticated to this member, or could not."""
        replicas = self._service.sets.replicas.values()
        known = any(cxtion.partner.name == user for replica in replicas for cxtion in replica.cxtions)
        counter = "Authentications" if ok else "Authentications in Error"
        for replica, cxtions in self._with(user if known else ""):
            replica.count(counter)
            for cxtion in cxtions:
                self._service.counters.inc_cxtion(replica.name, cxtion.key, counter)
