"""What hosts read of a directory server: a page at a time, of what concerns them; and who waits for the next one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

from agent.directory.access.snapshot import PAGE_BYTES, Page, ReadRequest, encode_entry
from agent.directory.access.topology import TOPOLOGY_TYPES
from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import Type
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store.store import DirectoryStore

MAX_WAIT_MS: Final = 60_000


class Server(Protocol):
    """What is read."""

    store: DirectoryStore

    @property
    def generation(self) -> int:
        """The number of the last change of the enterprise partition."""

    @property
    def complete(self) -> bool:
        """Whether this server has all of the enterprise partition, and nobody disputes it."""

    @property
    def enterprise(self) -> bytes:
        """The identifier of the enterprise."""

    def topology(self) -> list[DsObject]:
        """The objects of the FRS topology."""


class Readers:
    """All of them. `waiting`: members that wait for the next generation, with the number of their requests."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._changed = asyncio.Event()
        self._snapshots: dict[str, tuple[int, list[DsObject | DeletedObject]]] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self.waiting = Counter[str]()

    def changed(self) -> None:
        """There is another generation."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, who: str, request: ReadRequest) -> Page:
        """A page, the first one when there is another generation than is known, or after the time that is asked for."""
        if not any(request.after) and request.known == self._server.generation:
            changed = self._changed
            self.waiting[who] += 1
            try:
                async with asyncio.timeout(min(request.wait_ms, MAX_WAIT_MS) / 1000):
                    await changed.wait()
            except TimeoutError:
                return Page(self._server.enterprise, self._server.generation, self._server.complete, bytes(16))
            finally:
                self.waiting[who] -= 1
                self.waiting += Counter()  # without those that are 0
        async with self._turns.setdefault(who, asyncio.Lock()):
            await asyncio.sleep(0)  # others have their turn, however many associations this one reads by
            return self._page(who, request.after)

    def _page(self, who: str, after: bytes) -> Page:
        entries: list[DsObject | DeletedObject] = []
        room, last = PAGE_BYTES, bytes(16)
        for one in self._visible(who):
            if one.guid <= after:
                continue
            room -= len(encode_entry(one))
            if entries and room < 0:
                last = entries[-1].guid
                break
            entries.append(one)
        return Page(self._server.enterprise, self._server.generation, self._server.complete, last, tuple(entries))

    def _visible(self, who: str) -> list[DsObject | DeletedObject]:
        """What a caller is to know, by identifier: the sets that it is a member of, and all tombstones of such."""
        generation, found = self._snapshots.get(who, (-1, []))
        if generation == self._server.generation:
            return found
        objects = self._server.topology()
        mine = {one.data(2102) for one in objects if one.type == Type.FRS_MEMBER and one.text(2103) == who}
        of_set = {Type.FRS_SET: 2001, Type.FRS_MEMBER: 2102, Type.FRS_CONNECTION: 2202}
        visible: list[DsObject | DeletedObject] = [
            one for one in objects if (one.guid if one.type == Type.FRS_SET else one.data(of_set[one.type])) in mine
        ]
        for type_ in TOPOLOGY_TYPES:
            visible += self._server.store.tombstones(type_, ENTERPRISE_PARTITION)
        visible.sort(key=lambda one: one.guid)
        self._snapshots = {name: kept for name, kept in self._snapshots.items() if kept[0] == self._server.generation}
        if len(self._snapshots) < 64:
            self._snapshots[who] = self._server.generation, visible
        return visible
