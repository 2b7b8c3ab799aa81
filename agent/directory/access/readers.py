"""What hosts read of a directory server: a page at a time, of what concerns them, or what has changed since they read
last; and who waits for the next one."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Protocol

from agent.directory.access.moments import Asking, moment
from agent.directory.access.snapshot import PAGE_BYTES, SET_OF, Page, ReadRequest, encode_entry, set_of
from agent.directory.access.topology import TOPOLOGY_TYPES
from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import Type
from agent.directory.replication.numbers import epoch_of, reign_of
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store.store import FORMER_PREFIX, DirectoryStore

MAX_WAIT_MS: Final = 60_000
#: Who would be told of more changes is given all.
MOST_CHANGES: Final = 1000
#: What so many different groups of sets have is kept for whoever reads next.
_MOST_KEPT: Final = 64


class Server(Protocol):
    """What is read."""

    store: DirectoryStore

    @property
    def generation(self) -> int:
        """The number of the last change of the enterprise partition."""

    @property
    def purged(self) -> int:
        """Up to which number tombstones of it are gone."""

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
        self._members: dict[bytes, tuple[str, bytes]] | None = None  # names and sets by identifier, once asked for
        self._kept: dict[frozenset[bytes], list[DsObject | DeletedObject]] = {}
        self._kept_of = -1  # the generation
        self._turns: dict[str, asyncio.Lock] = {}
        self.waiting = Counter[str]()
        self._asking = Asking()
        self._changed_at: float | None = None

    def changed(self, objects: Sequence[DsObject | DeletedObject] | None) -> None:
        """There is another generation, in which these are not as they were (None: too many to be named)."""
        if objects is None:
            self._members = None
        elif self._members is not None:
            for one in objects:
                self._members.pop(one.guid, None)
                if isinstance(one, DsObject) and one.type == Type.FRS_MEMBER:
                    self._members[one.guid] = one.text(2103), set_of(one)
        self._changed_at = time.time()
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, who: str, request: ReadRequest) -> Page:
        """A page, the first one when there is another generation than is known, or after the time that is asked for."""
        if not who.startswith(FORMER_PREFIX):
            self._asking.asks(who, None if any(request.after) else request.known)
        if not any(request.after) and request.known == self._server.generation:
            changed = self._changed
            self.waiting[who] += 1
            try:
                async with asyncio.timeout(min(request.wait_ms, MAX_WAIT_MS) / 1000):
                    await changed.wait()
            except TimeoutError:
                return self._page(bytes(16), ())
            finally:
                self.waiting[who] -= 1
                self.waiting += Counter()  # without those that are 0
        async with self._turns.setdefault(who, asyncio.Lock()):
            await asyncio.sleep(0)  # others have their turn, however many associations this one reads by
            if request.since and not any(request.after) and not who.startswith(FORMER_PREFIX):
                entries = self._since(who, request.since)
                if entries is not None:
                    return self._page(bytes(16), entries, request.since)
            return self._part(who, request.after)

    def status(self) -> dict[str, Any]:
        """Who asks here, and how far each is that has asked since the start."""
        names = {name for name, _ in self._known_members().values()}
        told = self._asking.status(self._server.generation, names)
        return {"generation_since": moment(self._changed_at), **told}

    def _page(self, following: bytes, entries: Sequence[DsObject | DeletedObject], base: int = 0) -> Page:
        server = self._server
        return Page(server.enterprise, server.generation, server.complete, following, tuple(entries), base)

    def _part(self, who: str, after: bytes) -> Page:
        entries: list[DsObject | DeletedObject] = []
        room, there = PAGE_BYTES, self._visible(who)
        for one in there[bisect.bisect_right(there, after, key=lambda one: one.guid) :]:
            room -= len(encode_entry(one))
            if entries and room < 0:
                return self._page(entries[-1].guid, entries)
            entries.append(one)
        return self._page(bytes(16), entries)

    def _since(self, who: str, since: int) -> list[DsObject | DeletedObject] | None:
        """What is not as it was in that generation, as far as a caller is to know it. None where that cannot be said:
        of another opening of the owner's database, between which numbers may have been lost; where tombstones are
        purged; where the caller has become a member; and where it is too much."""
        now = self._server.generation
        if (epoch_of(since), reign_of(since)) != (
            epoch_of(now),
            reign_of(now),
        ) or not self._server.purged <= since <= now:
            return None
        found = self._server.store.changed(ENTERPRISE_PARTITION, since, now, MOST_CHANGES + 1)
        mine = self._sets_of(who)
        entries = [
            one
            for one in found
            if one.type in SET_OF and (isinstance(one, DeletedObject) or set_of(one) in mine)
        ]  # fmt: skip
        comes = any(
            isinstance(one, DsObject) and one.type == Type.FRS_MEMBER and one.text(2103) == who for one in found
        )
        if comes or len(found) > MOST_CHANGES or sum(len(encode_entry(one)) for one in entries) > PAGE_BYTES:
            return None
        return entries

    def _known_members(self) -> dict[bytes, tuple[str, bytes]]:
        if self._members is None:
            there = self._server.store.of_type(Type.FRS_MEMBER, ENTERPRISE_PARTITION)
            self._members = {one.guid: (one.text(2103), set_of(one)) for one in there}
        return self._members

    def _sets_of(self, who: str) -> frozenset[bytes]:
        return frozenset(of for name, of in self._known_members().values() if name == who)

    def _visible(self, who: str) -> list[DsObject | DeletedObject]:
        """What a caller is to know, by identifier: the sets that it is a member of, and all tombstones of such; of a
        former member the tombstone alone."""
        if who.startswith(FORMER_PREFIX):
            gone = {guid for guid, name, _ in self._server.store.former() if name == who.removeprefix(FORMER_PREFIX)}
            there = self._server.store.tombstones(Type.FRS_MEMBER, ENTERPRISE_PARTITION)
            return [one for one in there if one.guid in gone]
        if self._kept_of != self._server.generation:
            self._kept, self._kept_of = {}, self._server.generation
        mine = self._sets_of(who)
        visible = self._kept.get(mine)
        if visible is None:
            visible = [one for one in self._server.topology() if set_of(one) in mine]
            for type_ in TOPOLOGY_TYPES:
                visible += self._server.store.tombstones(type_, ENTERPRISE_PARTITION)
            visible.sort(key=lambda one: one.guid)
            if len(self._kept) < _MOST_KEPT:
                self._kept[mine] = visible
        return visible
