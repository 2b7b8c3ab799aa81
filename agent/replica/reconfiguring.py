"""A running replica set goes on with another topology: other connections, filters, quota, another primary member
([MS-FRS1] 3.1.5.1)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import Cxtion
from agent.engine.engine import Engine
from agent.replica.batches import Batches
from agent.replica.enginesetup import connections_of
from agent.replica.recovery import Recovery
from agent.replica.running import Running
from agent.replica.watching import Watching
from agent.tree.excluded import Excluded
from config.model import LocalSet
from staging.area import StagingArea


class Parts(Protocol):
    """What this module needs of the replica set, and changes in it: `local`, `member_guids`, `cxtions`, `keys`."""

    local: LocalSet
    name: str
    counters: Counters
    engine: Engine
    area: StagingArea
    excluded: Excluded
    member_guids: frozenset[bytes]
    batches: Batches
    watching: Watching
    cxtions: tuple[Cxtion, ...]
    keys: dict[bytes, str]


class Reconfiguring:
    """Takes over what changes. Only for the event loop's thread."""

    def __init__(self, parts: Parts, running: Running, recovery: Recovery) -> None:
        self._parts = parts
        self._running = running
        self._recovery = recovery
        self._changing = asyncio.Lock()  # the engine is told of one change before the next is made

    async def reconfigure(self, local: LocalSet) -> None:
        """Go on with `local`, of the same set, member and root. Returns when the partners of connections that are gone
        have been told, as far as they can be reached. A set that has stopped, or waits, begins with it when it goes
        on."""
        parts = self._parts
        filters = local.set.file_filter, local.set.directory_filter
        async with self._changing:
            filtered = filters != (parts.local.set.file_filter, parts.local.set.directory_filter)
            before = {cxtion.key for cxtion in parts.cxtions}
            parts.local = local
            parts.member_guids = frozenset(member.guid for member in local.set.members.values())
            parts.cxtions = connections_of(local) + self._volatile()
            parts.keys |= {cxtion.guid: cxtion.key for cxtion in parts.cxtions}  # what is under way may be of any
            parts.area.divide(local.staging_quota_bytes, {cxtion.partner.guid for cxtion in parts.cxtions})
            for cxtion in parts.cxtions:
                parts.counters.add_cxtion(parts.name, cxtion.key)
            await self._tell_engine(parts.cxtions)
        for key in before.difference(cxtion.key for cxtion in parts.cxtions):
            parts.counters.remove_cxtion(parts.name, key)
        if filtered:
            parts.excluded.change(*filters)
            if parts.watching.watch is not None:
                await parts.watching.stop()
                await self._running.look_at_tree()

    def _volatile(self) -> tuple[Cxtion, ...]:
        sessions = self._parts.engine.out_sessions.sessions
        return tuple(cxtion for cxtion in self._parts.cxtions if cxtion.volatile and cxtion.guid in sessions)

    async def promote(self, cxtion: Cxtion) -> None:
        """Go on with one volatile connection more (3.3.4.2), in the place of one that its partner has asked for
        before."""
        parts = self._parts
        async with self._changing:
            others = tuple(one for one in self._volatile() if one.partner.guid != cxtion.partner.guid)
            parts.cxtions = (*connections_of(parts.local), *others, cxtion)
            parts.keys |= {cxtion.guid: cxtion.key}
            parts.area.divide(parts.local.staging_quota_bytes, {one.partner.guid for one in parts.cxtions})
            parts.counters.add_cxtion(parts.name, cxtion.key)
            await self._tell_engine(parts.cxtions)
            for guid in [guid for guid, key in parts.keys.items() if key == cxtion.key and guid != cxtion.guid]:
                del parts.keys[guid]  # of those before

    async def unjoin_all(self) -> None:
        """This member leaves the set: the partners are told."""
        await self._tell_engine(())

    async def _tell_engine(self, cxtions: tuple[Cxtion, ...]) -> None:
        parts = self._parts
        primary = parts.local.set.primary == parts.local.member.name
        parts.batches.post(ev.TopologyChanged(cxtions, primary, parts.member_guids, self._running.started))
        await parts.batches.settled()
        if parts.engine.topology.outdated and cxtions == parts.cxtions:
            parts.batches.hold()
            await self._recovery.renew_engine()
