"""What a simulated member has of a service, so that it takes over another topology by the same code as the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn, cast

from agent.replica.replica import Replica
from agent.service.applying import Applying
from config.model import AgentConfig, LocalSet
from config.view import Authentication, DirectoryView, view_of_sets
from tests.simulation.simconfig import agent_config, local_set

if TYPE_CHECKING:
    from tests.simulation.simmember import Member

_AUTHENTICATION = Authentication(None, None)


class SimService:
    """That of one process, with one set. Its partners are reached by the world's network, which asks for no links."""

    def __init__(self, member: Member, counters: Any) -> None:
        """Before the process begins: with the topology that its world has by then."""
        self._member = member
        self.config = agent_config(member.world, member.name)
        self.view = self._view()
        self.counters = counters
        self.sets, self.partners = _Sets(member), _Partners()
        self._applying = Applying(cast("Any", self))
        self._one_at_a_time = asyncio.Lock()

    @property
    def local(self) -> LocalSet:
        """The set, as its present view has it."""
        (found,) = self.view.local_sets()
        return found

    def _view(self) -> DirectoryView:
        member = self._member
        local = [] if member.removed else [local_set(member.world, member.name)]
        return view_of_sets(local, _AUTHENTICATION)

    async def read(self) -> None:
        """Go on with the topology that the world has now (agent.service.directory)."""
        async with self._one_at_a_time:
            view = self._view()
            await self._applying.apply(self.view, view, self.config)
            self.view = view

    def use(self, config: AgentConfig) -> None:
        """That configuration is in force."""
        self.config = config

    async def samples_written(self) -> None:
        """There are none."""


class _Sets:
    """The replica of the process; it comes and goes with that."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.unopened: dict[bytes, Any] = {}

    @property
    def replicas(self) -> dict[bytes, Replica]:
        return {self._member.guid: self._member.replica}

    async def begin(self, local: LocalSet) -> NoReturn:
        raise AssertionError(local)

    async def end(self, guid: bytes) -> None:
        self._member.die()


class _Partners:
    """Links to partners: none."""

    links: dict[bytes, Any] = {}  # noqa: RUF012 - of nobody

    def begin(self, replica: Replica, local: LocalSet) -> None: ...

    def take(self, set_name: str, staying: Collection[bytes]) -> list[Any]:
        return []
