"""What all attacks have in common."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agent.wire import constants as c
from agent.wire.guid import new_guid
from tests.hostile.partner import Line, Partner
from tests.hostile.tally import Tally

#: How often a session that was refused or ended is asked for again, in seconds.
AGAIN_S = 0.5


@dataclass(frozen=True)
class Plan:
    """How an attack is carried out: `rate` in packets a second (0: as fast as it can), and against whom. `extra` holds
    what a partner cannot know from the topology but anybody may find out (see attacker)."""

    rate: float = 0.0
    targets: tuple[str, ...] = ("a",)
    extra: dict[str, Any] = field(default_factory=dict)


class Attack:
    """One attack. `told`: whoever is attacked is to report an incident, once that has lasted for `told_after` seconds.
    `fills`: it would fill a disk, and is carried out only where those of the members are limited."""

    name: ClassVar[str]
    text: ClassVar[str]
    told: ClassVar[bool] = True
    told_after: ClassVar[float] = 0.0
    fills: ClassVar[bool] = False

    def __init__(self, partner: Partner, plan: Plan) -> None:
        self.partner = partner
        self.plan = plan
        self.lines = [line for line in partner.lines if line.name in plan.targets]
        self._loop = asyncio.get_running_loop()
        self._next = 0.0

    @property
    def tally(self) -> Tally:
        """Where to count."""
        return self.partner.tally

    async def carry_out(self, until: float) -> None:
        """Attack until the loop's time is `until`."""
        await asyncio.gather(*(self.against(line, until) for line in self.lines))

    async def against(self, line: Line, until: float) -> None:
        """Attack one member."""
        raise NotImplementedError

    async def pace(self) -> None:
        """Keep to the rate, and let others have their turn."""
        if self.plan.rate <= 0:
            await asyncio.sleep(0)
            return
        now = self._loop.time()
        self._next = max(self._next, now - 1.0) + 1.0 / self.plan.rate
        await asyncio.sleep(max(self._next - now, 0.0))


class SessionAttack(Attack):
    """An attack within a session: on the connection on which the partner sends (`up`), or on the other one."""

    up: ClassVar[bool] = True

    async def against(self, line: Line, until: float) -> None:
        """Strike as often as possible while there is a session; ask for one while there is none."""
        state = self.begin(line)
        asked = 0.0
        while (now := self._loop.time()) < until:
            if (line.up_join if self.up else line.down_join) is None:
                if now >= asked:
                    asked = now + AGAIN_S
                    self.ask(line)
                await asyncio.sleep(0.02)
                continue
            self.strike(line, state)
            await line.room()
            await self.pace()

    def ask(self, line: Line) -> None:
        """Ask for a session."""
        if self.up:
            line.ask_up()
        else:
            line.post(line.joining())

    def begin(self, line: Line) -> Any:
        """Before the first strike against a member; what it returns each strike against that member is given."""
        return None

    def strike(self, line: Line, state: Any) -> None:
        """Send one packet, or a few."""
        raise NotImplementedError


class FileAttack(SessionAttack):
    """An attack by what files are made of, not by how many there are: no more under way than a window allows, and the
    same few files again and again, in ever new versions. What the member asks for it is sent."""

    window: ClassVar[int] = 128
    files: ClassVar[int] = 200

    async def against(self, line: Line, until: float) -> None:
        """Offer one file after the other."""
        guids = [new_guid() for _ in range(self.files)]
        state = self.begin(line)
        number = answered = offered = 0
        patience = self._loop.time() + AGAIN_S
        while (now := self._loop.time()) < until:
            done = line.heard[c.CMD_REMOTE_CO_DONE] + line.heard[c.CMD_SEND_STAGE]
            if done != answered or line.up_join is None:
                answered, offered, patience = done, min(offered, self.window - 1), now + AGAIN_S
            if line.up_join is None:
                line.ask_up()
                await asyncio.sleep(AGAIN_S)
                continue
            if offered >= self.window and now < patience:
                await asyncio.sleep(0.01)
                continue
            self.offer(line, state, number, guids[number % self.files])
            number, offered = number + 1, min(offered + 1, self.window)
            patience = now + AGAIN_S
            await line.room()
            await self.pace()

    def offer(self, line: Line, state: Any, number: int, file_guid: bytes) -> None:
        """Offer version `number` // `files` of a file."""
        raise NotImplementedError
