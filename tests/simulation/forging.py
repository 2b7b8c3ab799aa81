"""Packets that a partner which knows the secret could send, made up for single tests."""

from __future__ import annotations

from typing import Any

from agent.engine import events as ev
from agent.engine.session import Session
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.packet import Packet
from tests.simulation.simmember import Member
from tests.simulation.simworld import World


class Forger:
    """Speaks to the member `to` in the name of its partner `by`, in the session that the two have."""

    def __init__(self, world: World, by: str, to: str) -> None:
        self.world = world
        self.by, self.to = world.members[by], world.members[to]
        self._cxtion = world.guid_of("cxtion", by, to)
        self.acknowledged: list[bytes] = []  # GUIDs of the change orders that `to` has answered
        send = world.send

        def heard(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
            if source is self.to and partner == self.by.guid and packet.command == c.CMD_REMOTE_CO_DONE:
                self.acknowledged.append(packet.co_guid or b"")
            send(source, partner, packet, **way)

        world.send = heard  # type: ignore[method-assign]

    @property
    def session(self) -> Session:
        """The session in which `by` sends change orders."""
        return self.by.engine.out_sessions.sessions[self._cxtion]

    def packet(self, command: int) -> Packet:
        return self.session.packet(self.by.engine.ctx, command)

    def change_order(self, name: str = "forged", **fields: Any) -> ChangeOrder:
        """A new empty file in the root, of the originator `by`."""
        world = self.world
        co = ChangeOrder(
            flags=c.CO_FLAG_CONTENT_CMD | c.CO_FLAG_LOCATION_CMD,
            content_cmd=c.REASON_FILE_CREATE,
            file_attributes=0x20,
            frs_vsn=self.by.engine.ctx.vv.get(world.guid_of("originator", self.by.name), 0) + 1,
            change_order_guid=world.new_guid(),
            originator_guid=world.guid_of("originator", self.by.name),
            file_guid=world.guid_of("file", name),
            old_parent_guid=self.to.guid,
            new_parent_guid=self.to.guid,
            event_time=self.to.now,
            file_name=name,
        )
        return co.replace(**fields)

    def offer(self, co: ChangeOrder) -> Packet:
        packet = self.packet(c.CMD_REMOTE_CO)
        packet.remote_co = co
        packet.co_extension_2 = CoExtension2(checksum=bytes(16), first_try_time=self.by.now)
        return packet

    def send(self, *packets: Packet) -> None:
        for packet in packets:
            self.to.post(ev.PacketReceived(packet, 9))

    def at_once(self, *packets: Packet) -> None:
        """Have them handled in one transaction; what `to` would do then is left out."""
        with self.to.store.transaction():
            for packet in packets:
                self.to.engine.handle(ev.PacketReceived(packet, 9), self.to.now)

    def send_change_orders(self, *change_orders: ChangeOrder) -> None:
        self.send(*(self.offer(co) for co in change_orders))


def unanswered(world: World, command: int) -> None:
    """From now on packets of that command are lost without a word."""
    send = world.send

    def lossy(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if packet.command != command:
            send(source, partner, packet, **way)

    world.send = lossy  # type: ignore[method-assign]
