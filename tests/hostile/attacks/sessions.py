"""More change orders than a window allows, and sessions that come and go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID, new_guid
from agent.wire.packet import NamedGuid, Packet
from tests.hostile import forge
from tests.hostile.attack import SessionAttack
from tests.hostile.partner import Line


class Flood(SessionAttack):
    """Each is kept on disk until its staging file has come, which never does."""

    name = "flood"
    text = "change orders for ever new files, without a window and without their staging files"

    def begin(self, line: Line) -> Iterator[int]:
        """Numbers of files. Requests for staging files are left unanswered."""
        self.partner.hooks[c.CMD_SEND_STAGE] = lambda *_: True
        return itertools.count()

    def strike(self, line: Line, state: Iterator[int]) -> None:
        """One more."""
        line.offer(forge.created(line, f"flood {next(state)}"))


class FloodOneFile(SessionAttack):
    """Each waits for the one before it, and each is compared with all of them."""

    name = "flood-one-file"
    text = "change orders for one file, a new version each, without a window and without their staging files"

    def begin(self, line: Line) -> tuple[bytes, Iterator[int]]:
        """The file, and its versions."""
        self.partner.hooks[c.CMD_SEND_STAGE] = lambda *_: True
        return new_guid(), itertools.count()

    def strike(self, line: Line, state: tuple[bytes, Iterator[int]]) -> None:
        """One more."""
        file_guid, versions = state
        line.offer(forge.created(line, "one file", file_guid=file_guid, file_version_number=next(versions) & 0xFFFF))


class JoinStorm(SessionAttack):
    """Each Join makes the member look at all it has."""

    name = "join-storm"
    text = "CMD_JOINING, CMD_NEED_JOIN, CMD_START_JOIN and CMD_UNJOIN_REMOTE in turn, on both connections"
    up = False

    def begin(self, line: Line) -> Iterator[int]:
        """Which comes next."""
        return itertools.cycle(range(6))

    def strike(self, line: Line, state: Iterator[int]) -> None:
        """One packet of the storm."""
        line.down_join = line.down_join or ZERO_GUID  # whatever the member thinks of it
        kind = next(state)
        if kind < 2:
            line.post(line.joining(vvector=[]))
        elif kind == 2:
            line.ask_down()
        elif kind == 3:
            line.ask_up()
        else:
            line.post(line.packet(c.CMD_UNJOIN_REMOTE, up=kind == 5))


class OthersNames(SessionAttack):
    """Taken for the member that they name, these would end its sessions and begin others, all the time."""

    name = "others-names"
    text = "CMD_UNJOIN_REMOTE, CMD_NEED_JOIN, CMD_START_JOIN in the name of the other honest member, on its connections"

    def begin(self, line: Line) -> Iterator[Packet]:
        """Packets as that member would send them, but for what it alone knows: the GUIDs of its sessions."""
        (other,) = (one for one in self.partner.lines if one is not line)
        ends = {cxtion.key: cxtion.guid for cxtion in self.partner.set.connections}
        packets = []
        for command in (c.CMD_UNJOIN_REMOTE, c.CMD_NEED_JOIN, c.CMD_START_JOIN):
            for key in (f"{other.name}->{line.name}", f"{line.name}->{other.name}"):
                packet = line.packet(command, up=True, join=ZERO_GUID)
                packet.from_ = NamedGuid(other.guid, other.name)
                packet.cxtion = NamedGuid(ends[key], key)
                packets.append(packet)
        return itertools.cycle(packets)

    def strike(self, line: Line, state: Iterator[Packet]) -> None:
        """One of them."""
        line.post(next(state))
