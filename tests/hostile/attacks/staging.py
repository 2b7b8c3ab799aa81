"""The way of staging files, in both directions."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

from agent.engine import flags as fl
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.guid import new_guid
from agent.wire.packet import Packet
from tests.hostile import forge
from tests.hostile.attack import Attack, FileAttack, SessionAttack
from tests.hostile.partner import Line

#: What the honest members are given, see fleet.Sizes; a hostile partner would find out by trying.
QUOTA = 256 << 20
#: The size of the staging files of which odd blocks are sent.
CLAIMED = 64 << 20


class QuotaClaim(FileAttack):
    """The room is reserved, and nobody else's staging file finds any."""

    name = "quota-claim"
    text = "new files whose staging files claim the whole quota, one block of each, then silence"
    window = 64
    told_after = 180.0  # an honest partner may be silent for two minutes, too

    def begin(self, line: Line) -> None:
        """The first block of whatever is asked for, and nothing more."""
        self.partner.hooks[c.CMD_SEND_STAGE] = self._first_block
        self._sizes = itertools.cycle((QUOTA, QUOTA - c.MAX_BLOCK, QUOTA // 2, QUOTA // 4))

    def _first_block(self, line: Line, packet: Packet) -> bool:
        if packet.file_offset == 0 and packet.remote_co is not None:
            head = forge.header(packet.remote_co.file_guid, size=QUOTA) + forge.security()
            data = head.ljust(c.MAX_BLOCK, b"\0")
            line.post(line.block(packet.co_guid or b"", 0, data, next(self._sizes)))
        return True

    def offer(self, line: Line, state: Any, number: int, file_guid: bytes) -> None:
        """One more file, never the same twice."""
        line.offer(forge.created(line, f"claim {number}"))


class SendStage(SessionAttack):
    """The answers pile up with the member."""

    name = "send-stage"
    text = "CMD_SEND_STAGE for every block of files that are there, without taking a single answer"
    up = False

    def begin(self, line: Line) -> Iterator[tuple[ChangeOrder, int]]:
        """The blocks, the largest files first. Nothing of what the member calls is answered any more."""
        self.partner.mute = True
        files = sorted((co for co in line.offered.values() if not co.is_dir), key=lambda co: -co.file_size)
        return ((co, at) for co in itertools.cycle(files[:4] or files) for at in range(0, 24 << 20, c.MAX_BLOCK))

    def strike(self, line: Line, state: Iterator[tuple[ChangeOrder, int]]) -> None:
        """Ask for one block."""
        co, offset = next(state)
        line.post(send_stage(line, co, offset))


def send_stage(line: Line, co: ChangeOrder, offset: int) -> Packet:
    """CMD_SEND_STAGE for the block at `offset` of a change that the member has sent."""
    packet = line.packet(c.CMD_SEND_STAGE, up=False)
    packet.block_size = 0
    packet.file_size = 0
    packet.file_offset = offset
    packet.co_guid = co.change_order_guid
    packet.co_sequence_number = 0
    packet.remote_co = co.replace(state=fl.STATE_REQUEST_NORMAL, cxtion_guid=line.down)
    packet.co_extension_2 = CoExtension2(bytes(16))
    return packet


class OddOffsets(Attack):
    """Blocks before their turn are kept in memory; offsets no file has are not foreseen."""

    name = "odd-offsets"
    text = "blocks of 64 KiB at odd, overlapping and huge offsets (from 2^63 on), asked for or not"

    async def carry_out(self, until: float) -> None:
        """What is asked for goes to whoever attacks that member."""
        self._wanted = {line.name: asyncio.Queue[Packet]() for line in self.lines}
        self.partner.hooks[c.CMD_SEND_STAGE] = self._asked
        await super().carry_out(until)

    def _asked(self, line: Line, packet: Packet) -> bool:
        if line.name not in self._wanted:
            return False
        self._wanted[line.name].put_nowait(packet)
        return True

    async def against(self, line: Line, until: float) -> None:
        """New files, the blocks that follow from them, and requests at the same offsets."""
        rng = random.Random(3)
        block = rng.randbytes(c.MAX_BLOCK)
        names = itertools.count()
        while self._loop.time() < until:
            if line.up_join is None:
                line.ask_up()
                await asyncio.sleep(0.2)
                continue
            line.offer(forge.created(line, f"odd {next(names) % 200}"))
            try:
                packet = await asyncio.wait_for(self._wanted[line.name].get(), 1.0)
            except TimeoutError:
                continue
            guid = packet.co_guid or b""
            head = (forge.header(new_guid(), size=CLAIMED) + forge.security()).ljust(c.MAX_BLOCK, b"\0")
            line.post(line.block(guid, 0, head, CLAIMED))
            for number in range(20_000):
                line.post(line.block(guid, self._offset(rng, number), block, CLAIMED))
                if number % 10 == 0 and line.down_join is not None and line.offered:
                    line.post(send_stage(line, next(iter(line.offered.values())), self._offset(rng, number)))
                await line.room()
                await self.pace()
                if self._loop.time() >= until or line.up_join is None:
                    break

    @staticmethod
    def _offset(rng: random.Random, number: int) -> int:
        kind = number % 16
        if kind == 0:
            return rng.choice(((1 << 63) - 1, 1 << 63, (1 << 63) + 65536, (1 << 64) - 1, (1 << 64) - 65536, 1 << 62))
        return c.MAX_BLOCK + 1 + number  # each another one, within what is asked for ahead
