"""A running replica set goes on with another topology: other connections, filters, quota, another primary member
([MS-FRS1] 3.1.5.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import Cxtion
from agent.engine.engine import Engine
from agent.tree.excluded import Excluded
from config.model import LocalSet


class Parts(Protocol):
    """What this module needs of the replica set."""

    name: str
    local: LocalSet
    counters: Counters
    engine: Engine
    excluded: Excluded
    member_guids: frozenset[bytes]

    def cxtions(self) -> tuple[Cxtion, ...]: ...
    def describe(self, local: LocalSet) -> None: ...
    def post(self, event: ev.Event) -> None: ...
    async def settled(self) -> None: ...


class Reconfiguring:
    """Takes over what changes. `joins` tells whether partners are joined already, `renew` has an engine made anew from
    the store, `look_again` has the tree compared with the IDTable if it is watched."""

    def __init__(
        self,
        parts: Parts,
        *,
        joins: Callable[[], bool],
        renew: Callable[[], Awaitable[None]],
        look_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._joins = joins
        self._renew = renew
        self._look_again = look_again

    async def go_on_with(self, local: LocalSet) -> None:
        """Go on with `local`, of the same set, member and root. Returns when the partners of connections that are gone
        have been told, as far as they can be reached. A set that has stopped, or waits, begins with it when it goes
        on."""
        parts, was = self._parts, self._parts.local.set
        before = {cxtion.key for cxtion in parts.cxtions()}
        parts.describe(local)
        await self._tell_engine(parts.cxtions())
        if parts.engine.topology.outdated:
            await self._renew()
        for key in before.difference(cxtion.key for cxtion in parts.cxtions()):
            parts.counters.remove_cxtion(parts.name, key)
        filters = local.set.file_filter, local.set.directory_filter
        if filters != (was.file_filter, was.directory_filter):
            parts.excluded.change(*filters)
            await self._look_again()

    async def unjoin_all(self) -> None:
        """This member leaves the set: the partners are told."""
        await self._tell_engine(())

    async def _tell_engine(self, cxtions: tuple[Cxtion, ...]) -> None:
        local = self._parts.local
        primary = local.set.primary == local.member.name
        self._parts.post(ev.TopologyChanged(cxtions, primary, self._parts.member_guids, self._joins()))
        await self._parts.settled()
