"""The links to the partners of all sets: made when a partner comes, closed when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from agent.engine import events as ev
from agent.partners.links import PartnerLink
from agent.partners.reaching import Reaching
from agent.replica.eventqueue import is_control
from agent.replica.replica import Replica
from agent.reporting.causes import Cause
from agent.wire.filetime import SECOND
from agent.wire.packet import encode_packet
from agent.work.clock import filetime_now
from config.model import LocalSet, Member

if TYPE_CHECKING:
    from agent.service.service import Service

CHECK_S: Final = 1.0


class PartnerLinks:
    """`links` are those that there are, by the partner's member GUID. Only for the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self.links: dict[bytes, PartnerLink] = {}
        self._service = service
        self._reaching: dict[bytes, tuple[str, Reaching]] = {}  # as links, with the set's name

    def begin(self, replica: Replica, local: LocalSet) -> None:
        """Links to all partners of the set."""
        for member in local.partners:
            self.begin_with(replica, member)

    def begin_with(self, replica: Replica, member: Member) -> None:
        """The link to one partner, unless there is one."""
        if member.guid not in self.links:
            self.links[member.guid] = self._link(replica, member)

    def take(self, set_name: str, stay: Collection[bytes] = ()) -> list[PartnerLink]:
        """The links of the set to other members than these, which are to be closed: nothing goes over them any more."""
        gone = [guid for guid, (name, _) in self._reaching.items() if name == set_name and guid not in stay]
        for guid in gone:
            del self._reaching[guid]
        return [self.links.pop(guid) for guid in gone]

    def refusals(self) -> list[tuple[str, str]]:
        """Of which set a partner refuses something until somebody mends it, and why."""
        return [(name, reaching.refusal) for name, reaching in self._reaching.values() if reaching.refusal is not None]

    def clock_told(self, partner: bytes, when: int) -> None:
        """It was `when` (FILETIME) by the partner's clock a moment ago."""
        if partner in self._reaching:
            self._reaching[partner][1].clock_offset_s = round((when - filetime_now()) / SECOND, 1)

    def told(self) -> list[dict[str, Any]]:
        """By what each partner was called last, and how its clock is, as `frs status` shows it."""
        return [
            {
                "set": set_name,
                "name": reaching.name,
                "called_by": reaching.called_by,
                "clock_offset_s": reaching.clock_offset_s,
            }
            for set_name, reaching in self._reaching.values()
        ]

    async def close(self) -> None:
        """Close all."""
        await asyncio.gather(*(link.close() for link in self.links.values()), return_exceptions=True)

    def _link(self, replica: Replica, member: Member) -> PartnerLink:
        guid, name = member.guid, member.name
        counters, set_name = self._service.counters, replica.name

        def each(counter: str) -> None:
            counters.inc_set(set_name, counter)
            for cxtion in replica.cxtions_of(guid):
                counters.inc_cxtion(set_name, cxtion.key, counter)

        def timed_out() -> None:
            counters.inc_set(set_name, "Communication Time Outs")
            for cxtion in replica.cxtions_of(guid):
                counters.inc_cxtion(set_name, cxtion.key, "Communication Timeouts")

        def sent(cxtion: str, size: int, ok: bool) -> None:
            if ok:
                counters.inc_both(set_name, cxtion, "Packets Sent")
                counters.inc_both(set_name, cxtion, "Packets Sent in Bytes", size)
                reaching.taken(cxtion)
            else:
                counters.inc_both(set_name, cxtion, "Packets Sent in Error")

        identities = self._service.identities
        (credential, key), missing = identities.credentials(member), identities.missing(member)
        reaching = Reaching(
            name,
            identities.compare(member),
            self._service.config.topology_path,
            replica.log,
            each,
            missing=missing,
            keyed=key is not None,
        )
        self._reaching[guid] = set_name, reaching

        def unreachable(why: str) -> None:
            why = reaching.failed(why, joined=guid in replica.joined_partners())
            replica.post(ev.PartnerUnreachable(guid, why))

        return PartnerLink(
            name,
            member.host,
            member.port,
            credential,
            key=key,
            missing=missing,
            on_unreachable=unreachable,
            on_sent=sent,
            on_refused=reaching.refused,
            on_bind=reaching.bound,
            on_authentication=reaching.authenticated,
            on_timeout=timed_out,
            supervisor=replica.supervisor,
            on_room=lambda: replica.partner_has_room(guid),
            on_flood=lambda why: replica.incidents.report(Cause.FLOOD, name, f"{why}; its sessions end"),
            endpoint_mapper=member.endpoint_mapper,
        )

    def send(self, action: ev.Send, cxtion: str) -> None:
        """Send the packet of the connection `cxtion` to the partner, if it is one."""
        link = self.links.get(action.partner)
        if link is not None:  # else it is no partner any more
            control = is_control(action.packet)
            packet = encode_packet(action.packet)
            link.send(packet, cxtion, passed_on=action.passed_on, control=control, shared=action.shared)

    def has_room(self, partner: bytes) -> bool:
        """Whether the partner takes what it is sent."""
        link = self.links.get(partner)
        return link is None or link.has_room

    async def look_after(self) -> None:
        """Notice, again and again, what has ended while nothing was sent."""
        while True:
            await asyncio.sleep(CHECK_S)
            for link in list(self.links.values()):
                link.check()
