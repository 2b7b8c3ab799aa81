"""Tells hosts that the topology has changed, each by a notification of [MS-MQCN] into its queue: those that are not
just waiting here for the change. One that cannot be told finds out when it asks next."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from agent.directory.access.known import Host, Known
from agent.directory.access.snapshot import SET_OF, set_of
from agent.directory.notification.interface import notify
from agent.directory.notification.messages import MACHINE_CHANGED, Body
from agent.directory.objects.model import DeletedObject, DsObject
from agent.rpc.errors import RpcError
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError

#: So many hosts are told at a time, and so long may one take.
AT_ONCE: Final = 8
NOTIFY_S: Final = 10.0
#: The most hosts that wait to be told.
MOST_HOSTS: Final = 20_000


class Notifier:
    """Tells them, some at a time; a host that waits to be told already is told once."""

    def __init__(self, key: KeyPair, known: Known) -> None:
        self._key = key
        self._known = known
        self._sets: set[bytes] | None = set()  # that have changed, and whose hosts are not looked up yet; None: all
        self._waiting: dict[bytes, tuple[Host, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self.told = 0
        self.unreachable = 0

    def changed(self, objects: Iterable[DsObject | DeletedObject] | None, waiting: Collection[str]) -> None:
        """These objects have changed (None: many); the hosts of their sets are told but for those that wait here. A
        tombstone does not say of which set it was: then all are."""
        for one in objects if objects is not None else ():
            if one.type not in SET_OF:
                continue
            if isinstance(one, DeletedObject):
                objects = None
                break
            if self._sets is not None:
                self._sets.add(set_of(one))
        if objects is None:
            self._sets = None
        if (self._sets is None or self._sets) and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look_up(waiting))

    async def _look_up(self, waiting: Collection[str]) -> None:
        while self._sets is None or self._sets:
            sets, self._sets = self._sets, set()
            server, hosts = self._known.own_place(), await self._known.hosts_of(sets)
            if server:
                self.tell((host for name, host in hosts.items() if name not in waiting), server)
            waiting = ()  # of what has come meanwhile nobody knows who waited for it

    def tell(self, hosts: Iterable[Host], server: str) -> None:
        """These have to read again, from the server at that address."""
        for one in hosts:
            if len(self._waiting) < MOST_HOSTS:
                self._waiting[one.guid] = one, server
        while len(self._tasks) < min(AT_ONCE, len(self._waiting)):
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._waiting:
            guid = next(iter(self._waiting))
            one, server = self._waiting.pop(guid)
            try:
                message = Body(MACHINE_CHANGED, guid, server).encode()
                await notify(one.host, one.port, KeyCredential(self._key, one.key), message, NOTIFY_S)
                self.told += 1
            except (RpcError, WireError):
                self.unreachable += 1

    async def close(self) -> None:
        """Tell no more."""
        self._waiting.clear()
        tasks = [*self._tasks, *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
