"""A running replica set goes on with another topology: other connections, filters, quota, another primary member
([MS-FRS1] 3.1.5.1)."""

from __future__ import annotations

from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import Cxtion
from agent.engine.engine import Engine
from agent.localchanges.watch import LocalWatch
from agent.replica.batches import Batches
from agent.replica.enginesetup import connections_of
from agent.tree.excluded import Excluded
from config.model import LocalSet
from staging.area import StagingArea


class Reconfiguring:
    """The part of a replica set that takes over what changes. What it changes is set by the rest of it."""

    local: LocalSet
    name: str
    error: str | None
    counters: Counters
    engine: Engine
    area: StagingArea
    excluded: Excluded
    member_guids: frozenset[bytes]
    _batches: Batches
    _started: bool
    _watch: LocalWatch | None
    _cxtions: tuple[Cxtion, ...]
    _keys: dict[bytes, str]

    def post(self, event: ev.Event) -> None: ...
    async def settled(self) -> None: ...
    async def _renew_engine(self) -> None: ...
    async def _stop_watch(self) -> None: ...
    async def _look_at_tree(self) -> None: ...

    async def reconfigure(self, local: LocalSet) -> None:
        """Go on with `local`, of the same set, member and root. Returns when the partners of connections that are gone
        have been told, as far as they can be reached. A set that has stopped, or waits, begins with it when it goes
        on."""
        filters = local.set.file_filter, local.set.directory_filter
        filtered = filters != (self.local.set.file_filter, self.local.set.directory_filter)
        before = {cxtion.key for cxtion in self._cxtions}
        self.local = local
        self.member_guids = frozenset(member.guid for member in local.set.members.values())
        self._cxtions = connections_of(local)
        self._keys |= {cxtion.guid: cxtion.key for cxtion in self._cxtions}  # what is under way may be of any
        self.area.divide(local.staging_quota_bytes, {cxtion.partner.guid for cxtion in self._cxtions})
        for cxtion in self._cxtions:
            self.counters.add_cxtion(self.name, cxtion.key)
        await self._tell_engine(self._cxtions)
        for key in before.difference(cxtion.key for cxtion in self._cxtions):
            self.counters.remove_cxtion(self.name, key)
        if filtered:
            self.excluded.change(*filters)
            if self._watch is not None:
                await self._stop_watch()
                await self._look_at_tree()

    async def unjoin_all(self) -> None:
        """This member leaves the set: the partners are told."""
        await self._tell_engine(())

    async def _tell_engine(self, cxtions: tuple[Cxtion, ...]) -> None:
        primary = self.local.set.primary == self.local.member.name
        self.post(ev.TopologyChanged(cxtions, primary, self.member_guids, self._started))
        await self.settled()
        if self.engine.topology.outdated and cxtions == self._cxtions:
            self._batches.hold()
            await self._renew_engine()
