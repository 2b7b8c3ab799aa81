"""The replica sets of this member: opened, tried again where they cannot be, begun and ended while the agent runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.conflicts.keptcontrol import KEPT_NAME, deleted_store
from agent.replica.ports import Ports, open_ports
from agent.replica.replica import Replica
from agent.replica.unopened import RETRY_S, UnopenedSet, disk_is_full
from agent.reporting.events import led
from agent.tree.identity import ReplicaError, RootOfAnotherSet
from agent.work.clock import filetime_now, iso_time
from agent.work.supervise import Supervisor
from agent.work.timeshares import TimeShares
from config.model import LocalSet
from idtable.errors import StoreDamaged, StoreError
from staging.errors import StagingError

if TYPE_CHECKING:
    from agent.service.service import Service

log = logging.getLogger("frs")

_CANNOT_OPEN = (ReplicaError, StoreError, StagingError, OSError)


class Sets:
    """By our member GUID in each: `replicas` are those that are open, `unopened` those that cannot be; `kept` and
    `deleted` are what lost conflicts there, and what others deleted. Only for the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self.replicas: dict[bytes, Replica] = {}
        self.unopened: dict[bytes, UnopenedSet] = {}
        self.kept: dict[bytes, KeptStore] = {}
        self.deleted: dict[bytes, DeletedStore] = {}
        self._service = service
        self._shares = TimeShares()
        self._workers = ThreadPoolExecutor(service.config.workers + 1, "frs-worker")  # see agent.replica.actions
        self._opening: dict[bytes, Supervisor] = {}  # what opens sets that wait
        self.frozen = False
        self._frozen_by: dict[str, str] | None = None

    async def open(self) -> None:
        """Open all, but for those whose disk is full, whose database is damaged, or whose root is that of a set that
        was not left: they wait. Raises ReplicaError, StoreError, StagingError, OSError."""
        for local in self._service.config.sets:
            try:
                await self._open(local)
            except RootOfAnotherSet as error:
                self._leave_unopened(local, error)
            except (StoreError, StagingError, OSError) as error:
                if not isinstance(error, StoreDamaged) and not disk_is_full(error, local.state_dir, local.root):
                    raise
                self._leave_unopened(local, error)

    async def start(self) -> None:
        """Begin replication in all that are open."""
        for replica in self.replicas.values():
            try:
                replica.root.mark(replica.store)
            except StoreDamaged as error:
                replica.stop_for(str(error))
        await asyncio.gather(*(replica.start() for replica in self.replicas.values()))

    def open_later(self) -> None:
        """Try those that wait again and again."""
        for unopened in self.unopened.values():
            self._open_soon(unopened)

    async def begin(self, local: LocalSet) -> None:
        """A replica set comes. Where it cannot be opened now, it waits, and says why."""
        self.unopened[local.member.guid] = UnopenedSet.stopped(local, "13566 the set is being opened")
        try:
            replica = await self._open(local)
            del self.unopened[local.member.guid]
            replica.root.mark(replica.store)
        except _CANNOT_OPEN as error:
            await self.end(local.member.guid)
            self._open_soon(self._leave_unopened(local, error))
            return
        await replica.start()

    async def end(self, member: bytes) -> None:
        """The replica set in which this computer has that member GUID runs no more."""
        self.unopened.pop(member, None)
        opening = self._opening.pop(member, None)
        if opening is not None:
            await _ended(opening)
        replica = self.replicas.pop(member, None)
        if replica is not None:
            await replica.close()
            await asyncio.gather(*(link.close() for link in self._service.partners.take(replica.name)))
        kept, deleted = self.kept.pop(member, None), self.deleted.pop(member, None)
        if kept is not None:
            await asyncio.to_thread(kept.close)
        if deleted is not None:
            await asyncio.to_thread(deleted.close)

    def freeze(self, frozen: bool, who: str) -> None:
        """Have installs wait, or go on (3.2.4.5), also in sets that come later; `who` wants it."""
        if frozen != self.frozen:
            self._frozen_by = {"since": iso_time(filetime_now()), "by": who} if frozen else None
        self.frozen = frozen
        for replica in self.replicas.values():
            replica.freeze(frozen)

    async def stop_opening(self) -> None:
        """Those that wait are not tried any more."""
        for supervisor in self._opening.values():
            await _ended(supervisor)

    def close(self) -> None:
        """Close what is kept of all, after the replicas and the links have been."""
        self._workers.shutdown(wait=True, cancel_futures=True)
        for kept in self.kept.values():
            kept.close()
        for deleted in self.deleted.values():
            deleted.close()

    def part_failed(self, what: str, error: BaseException) -> None:
        """Something that all sets need has ended."""
        for replica in self.replicas.values():
            replica.part_failed(what, error)

    def status(self) -> list[dict[str, Any]]:
        """Each set's part of `frs status`, in the order of the configuration."""
        guids = [local.member.guid for local in self._service.config.sets]
        both: dict[bytes, Replica | UnopenedSet] = {**self.replicas, **self.unopened}
        return [both[guid].status() | {"frozen": self._frozen_by} for guid in guids if guid in both]

    async def _open(self, local: LocalSet, now: Callable[[], LocalSet] | None = None) -> Replica:
        """Open what is kept of a set, its store and its tree; in a thread, for this can take seconds. `now` says what
        the configuration has of the set by then. Raises ReplicaError, StoreError, StagingError, OSError; may be called
        again then."""
        service, guid = self._service, local.member.guid
        config = service.config
        os.makedirs(local.state_dir, mode=0o700, exist_ok=True)
        if guid not in self.kept:
            place = os.path.join(local.state_dir, KEPT_NAME)
            self.kept[guid] = KeptStore(place, config.kept_quota_bytes, durable=config.fsync)
        if guid not in self.deleted:
            self.deleted[guid] = deleted_store(config, local)
        kept, deleted, incidents = self.kept[guid], self.deleted[guid], service.incidents
        while True:
            told = incidents.of(local.name)
            ports = await _in_thread(
                functools.partial(open_ports, config, local, service.counters, kept, deleted, self._workers, told)
            )
            if now is None or local is now():
                break
            await asyncio.to_thread(ports.close)
            local = now()
        replica = Replica(
            config,
            local,
            ports,
            service.counters,
            kept,
            incidents,
            service.partners.send,
            service.partners.has_room,
            self._shares,
        )
        if self.frozen:
            replica.freeze(True)
        self.replicas[guid] = replica
        service.partners.begin(replica, local)
        return replica

    def _leave_unopened(self, local: LocalSet, error: Exception) -> UnopenedSet:
        self.unopened[local.member.guid] = unopened = UnopenedSet(local, error)
        log.error("%s", led(f"replication of the set {local.name} has not begun: ", unopened.error))
        return unopened

    def _open_soon(self, unopened: UnopenedSet) -> None:
        if unopened.again:
            supervisor = Supervisor(functools.partial(self._opening_failed, unopened))
            self._opening[unopened.local.member.guid] = supervisor
            supervisor.start(self._open_later(unopened), "opening the set")

    def _opening_failed(self, unopened: UnopenedSet, what: str, error: BaseException) -> None:
        guid = unopened.local.member.guid
        (unopened if guid in self.unopened else self.replicas[guid]).part_failed(what, error)

    async def _open_later(self, unopened: UnopenedSet) -> None:
        while unopened.again:
            await asyncio.sleep(RETRY_S)
            try:
                replica = await self._open(unopened.local, lambda: unopened.local)
            except _CANNOT_OPEN as error:
                unopened.failed(error)
                if not unopened.again:
                    log.error("%s", led(f"replication of the set {unopened.name} cannot begin: ", unopened.error))
                continue
            del self.unopened[unopened.local.member.guid]
            replica.log.info("the set can be opened now: replication begins")
            try:
                replica.root.mark(replica.store)
            except (ReplicaError, StoreError) as error:
                replica.stop_for(str(error))
                return
            await replica.start()
            return


async def _in_thread(opening: Callable[[], Ports]) -> Ports:
    """Opened in a thread. Whoever gives up waiting leaves nothing open."""
    task = asyncio.ensure_future(asyncio.to_thread(opening))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(*_CANNOT_OPEN):
            await asyncio.to_thread((await task).close)
        raise


async def _ended(supervisor: Supervisor) -> None:
    supervisor.cancel()
    await supervisor.ended()
