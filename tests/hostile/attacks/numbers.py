"""Numbers, identities and names that nobody has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import DAY
from agent.wire.guid import ZERO_GUID, new_guid
from agent.wire.packet import Gvsn
from agent.work.clock import filetime_now
from tests.hostile import forge
from tests.hostile.attack import SessionAttack
from tests.hostile.partner import Line

TOP63, TOP64 = (1 << 63) - 1, (1 << 64) - 1


def vsns() -> tuple[int, ...]:
    """VSNs and times at the edge, and others that no clock comes to for long."""
    now = filetime_now()
    return (TOP63, TOP63 - 1, TOP64, TOP64 - 1, 1 << 63, 1 << 62, (1 << 62) - 1, now + DAY, now + 3650 * DAY)


class EdgeVsn(SessionAttack):
    """Afterwards all later changes of that originator, or of that file, would be refused or taken for known."""

    name = "edge-vsn"
    text = "change orders with VSNs, version numbers and event times at the edge, of own and foreign originators"

    def begin(self, line: Line) -> Iterator[ChangeOrder]:
        """The kinds of change orders, each with a staging file that is as it should be."""
        for number in itertools.count():
            everybody = [self.partner.originator, line.originator, new_guid()]
            everybody += [gvsn.guid for gvsn in line.vvector]
            files = [co for co in line.offered.values() if not co.is_dir][-20:]
            edges: list[dict[str, Any]] = [
                {"frs_vsn": vsn, "originator_guid": originator} for vsn in vsns() for originator in everybody
            ]
            edges += [{"event_time": time} for time in vsns()]
            edges += [{"file_version_number": n} for n in ((1 << 31) - 1, (1 << 31) - 2, (1 << 32) - 1)]
            edges += [{"file_version_number": (1 << 31) - 1, "event_time": TOP63, "frs_vsn": TOP63}]
            for edge in edges:
                yield forge.created(line, f"edge {number % 50}", **edge)
                yield forge.deleted(line, f"edge {number % 50}", **edge)
                for old in files[number % 4 :: 4]:
                    yield forge.updated(line, old, **edge)

    def strike(self, line: Line, state: Iterator[ChangeOrder]) -> None:
        """One change order. What is asked for is sent."""
        forge.offer_plain(line, next(state), b"edge\n")


class PoisonedVector(SessionAttack):
    """The member believes that others know changes which it has yet to make, or numbers go on above those."""

    name = "poisoned-vector"
    text = "CMD_JOINING with version vectors at the edge, for the member's own originator and for others"
    up = False

    def begin(self, line: Line) -> Iterator[int]:
        """The numbers."""
        return itertools.cycle(vsns())

    def strike(self, line: Line, state: Iterator[int]) -> None:
        """A new session that claims to know what nobody has."""
        vsn = next(state)
        known = {line.originator, self.partner.originator, *(gvsn.guid for gvsn in line.vvector)} - {ZERO_GUID}
        line.post(line.joining(vvector=[Gvsn(vsn, guid) for guid in sorted(known)]))
        line.post(line.joining(vvector=[Gvsn(vsn, line.originator)], last_join_time=vsn))
        line.post(line.joining(join_time=vsn))


class ManyOriginators(SessionAttack):
    """The version vector becomes too long for a packet, and too long to look at."""

    name = "many-originators"
    text = "change orders of a new originator each, and version vectors of 7,000 originators"

    def begin(self, line: Line) -> Iterator[int]:
        """Numbers of change orders."""
        return itertools.count(1)

    def strike(self, line: Line, state: Iterator[int]) -> None:
        """The removal of what was never there: done as soon as it has come."""
        number = next(state)
        line.offer(forge.deleted(line, f"nothing {number % 1000}", originator_guid=new_guid()))
        if number % 3000 == 0:
            now = filetime_now()
            line.post(line.joining(vvector=[Gvsn(now - n, new_guid()) for n in range(7000)]))


class ReservedName(SessionAttack):
    """Names and GUIDs that are the agent's own, or nobody's."""

    name = "reserved-name"
    text = "change orders for .frs-preinstall and the GUIDs of root, members and set, as files, folders and parents"

    def begin(self, line: Line) -> Iterator[ChangeOrder]:
        """The combinations."""
        names = (".frs-preinstall", ".FRS-PREINSTALL", ".frs-preinstall.", ".frs-kept", ".frs", "..", ".", "a/b", "")
        guids = [member.guid for member in self.partner.set.members.values()]
        guids += [self.partner.set.guid, ZERO_GUID, b"\xff" * 16, line.originator, self.partner.originator]
        while True:
            for name, is_dir in itertools.product(names, (False, True)):
                yield forge.created(line, name, is_dir=is_dir)
            folders = [co.file_guid for co in line.offered.values() if co.is_dir][:5]
            for parent in (*folders, *guids):
                yield forge.created(line, ".frs-preinstall", new_parent_guid=parent)
            for guid, is_dir in itertools.product(guids, (False, True)):
                yield forge.created(line, "of another", is_dir=is_dir, file_guid=guid)
                yield forge.deleted(line, "of another", file_guid=guid)
                yield forge.created(line, "itself", is_dir=True, file_guid=guid, new_parent_guid=guid)

    def strike(self, line: Line, state: Iterator[ChangeOrder]) -> None:
        """One change order. What is asked for is sent."""
        forge.offer_plain(line, next(state), b"reserved\n")
