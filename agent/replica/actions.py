"""Carrying out the actions of an engine: packets are sent, files are stored, read and installed in worker threads."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from logging import Logger, LoggerAdapter
from typing import Final

from agent.engine import events as ev
from agent.engine.records import UNSTORED, place_of
from agent.files.fileops import Event as FileEvent
from agent.files.installing import ResolvedInstall, ResolvedStep
from agent.files.underway import UnderWay
from agent.replica.ports import Files
from agent.reporting.incidents import Incidents
from agent.wire.packet import Packet
from agent.work.bysize import LargeFileThreads, WorkBySize, size_class
from agent.work.supervise import Supervisor
from agent.work.workqueue import Job, WorkQueue
from idtable.store import Store
from staging.rootdir import FolderKey
from staging.unstored import decode

INSTALLS_AT_ONCE: Final = 32
STAGES_AT_ONCE: Final = 32
BYTES_AT_ONCE: Final = 1 << 20  # of staging files


class Actions:
    """The actions of one replica set. `send` is given a partner's member GUID, a packet and the key of its connection
    (`keys`: by GUID); `has_room` says whether a partner has taken what was sent to it before, as far as
    that it may be given more staging files; `post` takes the events in which work ends. Only for the event loop's
    thread."""

    def __init__(
        self,
        store: Store,
        lock: threading.RLock,
        files: Files,
        workers: tuple[Executor, int],
        large: LargeFileThreads,
        *,
        keys: Mapping[bytes, str],
        send: Callable[[ev.Send, str], None],
        has_room: Callable[[bytes], bool],
        post: Callable[[ev.Event], None],
        under_way: UnderWay,
        supervisor: Supervisor,
        incidents: Incidents,
        log: LoggerAdapter[Logger],
    ) -> None:
        self._store = store
        self._lock = lock
        self._files = files
        self._workers, self._threads = workers
        self._large = large
        self._keys = keys
        self._send = send
        self._has_room = has_room
        self._post = post
        self._under_way = under_way
        self._supervisor = supervisor
        self._incidents = incidents
        self._log = log
        self._generation = 0
        self._fetching: dict[bytes, deque[ev.StoreBlock | ev.DropStage]] = {}
        self._installs: dict[tuple[bytes, int], deque[ResolvedInstall]] = {}  # by partner and size class
        self._wanted: dict[bytes, deque[tuple[ev.MakeStage, str]]] = {}  # by partner
        self._to_make: dict[bytes, ev.MakeStage] = {}  # by change order
        self._held: dict[bytes, deque[ev.ReadStage]] = {}  # by partner: until it has taken what was read before
        self.renew()

    def renew(self) -> None:
        """For a new engine: what was begun for the one before comes to nothing."""
        self._generation += 1
        self._files.give_up()
        for blocks in self._fetching.values():
            blocks.clear()
        for installs in self._installs.values():
            installs.clear()
        self._fetching = {}
        self._installs.clear()
        for wanted in self._wanted.values():
            wanted.clear()
        self._wanted.clear()
        self._to_make.clear()
        self._held.clear()
        deliver = functools.partial(self._done, self._generation)
        # One thread more than the work for one partner may take.
        ordinary = WorkQueue[FileEvent](
            self._workers,
            self._threads + 1,
            deliver,
            supervisor=self._supervisor,
            lane_workers=self._threads,
            ending=self._large.ending,
        )
        self._work = WorkBySize[FileEvent](self._large, deliver, supervisor=self._supervisor, ordinary=ordinary)

    async def idle(self) -> None:
        """Wait until no worker has anything to do."""
        await self._work.idle()

    def act(self, action: ev.Action) -> None:
        """Carry out or begin an action; those of the replica set itself are left alone."""
        if isinstance(action, ev.Send):
            if action.brings is not None:
                self._put_in(action.packet, action.partner, action.brings)
            self._send(action, self._keys[action.packet.cxtion.guid])
        elif isinstance(action, ev.StoreBlock):
            self._store_block(action)
        elif isinstance(action, ev.ReadStage):
            self._read_stage(action)
        elif isinstance(action, ev.MakeStage):
            self._queue_stage(action)
        elif isinstance(action, ev.Install):
            self._queue_install(action)
        elif isinstance(action, ev.DropStage):
            self._to_make.pop(action.co_guid, None)
            if action.co_guid in self._fetching:
                self._fetching[action.co_guid].append(action)  # after what is still to be stored of it
            else:
                self._files.drop(action.co_guid)
        elif isinstance(action, ev.Report):
            if action.cause is not None:
                self._incidents.report(action.cause, action.source, action.text, level=action.level)
            else:
                getattr(self._log, action.level)("%s", action.text)

    def _done(self, generation: int, events: list[FileEvent]) -> None:
        if generation == self._generation:
            for event in events:
                self._post(event)

    # -- staging files --

    def _put_in(self, packet: Packet, partner: bytes, compressions: Collection[bytes]) -> None:
        """The staging file into the packet of its change order, if it is at hand, and the partner takes such."""
        if packet.remote_co is not None and self._has_room(partner):
            packet.block = self._files.to_go_with(packet.remote_co, compressions)
            packet.block_size = None if packet.block is None else len(packet.block)

    def _store_block(self, action: ev.StoreBlock) -> None:
        waiting = self._fetching.get(action.co_guid)
        if waiting is not None:
            waiting.append(action)  # the worker that is at this file takes it, or the next one
            return
        self._fetching[action.co_guid] = deque([action])
        self._fetch_some(action.co_guid, action.partner)

    def _fetch_some(self, co_guid: bytes, partner: bytes) -> None:
        fetching = self._fetching
        blocks = fetching[co_guid]

        def then() -> None:
            if fetching is not self._fetching:
                return  # of an engine that is no more
            if blocks:
                self._fetch_some(co_guid, partner)
            else:
                del fetching[co_guid]

        self._work.put(
            Job(
                lambda: self._files.store_blocks(blocks),
                lambda error: [ev.FetchFailed(co_guid, ev.Outcome.FAILED, repr(error))],
                then,
                partner,
            )
        )

    def _read_stage(self, action: ev.ReadStage) -> None:
        if not self._has_room(action.partner):
            self._held.setdefault(action.partner, deque()).append(action)
            return
        with self._lock:
            path = self._store.path_of(action.file_guid) if action.regenerate else None
            record = self._store.get(action.file_guid) if path is not None else None
            remembered = record is not None and record.flags & UNSTORED
            unstored = decode(self._store.unstored(action.file_guid)) if remembered else None
        size = record.fsize if record is not None and record.kind == "file" else None
        there = action.at_hand and self._files.area.size_of(action.change_order.change_order_guid) is not None
        if there and (found := self._files.read_cached(action)) is not None:
            self._post(found)  # a trip to a thread costs more
            return
        self._work.put(
            Job(
                lambda: [self._files.read_stage(action, path, unstored, size)],
                lambda error: [ev.StageRefused(action, True, repr(error))],
                lane=action.partner,
            ),
            0 if there else size or 0,  # the file is read as a whole if there is no staging file yet
        )

    def _queue_stage(self, action: ev.MakeStage) -> None:
        with self._lock:
            path = self._store.path_of(action.file_guid)
        if path is None:
            return
        self._to_make[action.co_guid] = action
        wanted = self._wanted.setdefault(action.partner, deque())
        wanted.append((action, path))
        made: list[tuple[ev.MakeStage, bytes | None]] = []
        self._work.put(
            Job(
                functools.partial(self._make_some, wanted, made),
                lambda _: [],
                functools.partial(self._made, made),
                action.partner,
            )
        )

    def _make_some(
        self, wanted: deque[tuple[ev.MakeStage, str]], made: list[tuple[ev.MakeStage, bytes | None]]
    ) -> list[FileEvent]:
        """In a worker: make what is wanted by now, together."""
        batch: list[tuple[ev.MakeStage, str]] = []
        while len(batch) < STAGES_AT_ONCE:
            try:
                batch.append(wanted.popleft())
            except IndexError:
                break
        if batch:
            made += self._files.make_stages([one for one in batch if one[0].co_guid in self._to_make])
        return []

    def _made(self, made: list[tuple[ev.MakeStage, bytes | None]]) -> None:
        for action, data in made:
            wanted = self._to_make.pop(action.co_guid, None) is action  # else it was dropped meanwhile
            if wanted and data is not None:
                self._files.area.hold(action.co_guid, data, action.partner)

    def go_on(self, partner: bytes) -> None:
        """The partner has taken what was sent to it, or cannot be reached: read what was held back for it."""
        held = self._held.pop(partner, None)
        while held:
            self._read_stage(held.popleft())
            if partner in self._held:  # enough again
                held.extendleft(reversed(self._held[partner]))
                self._held[partner] = held
                return

    # -- installs --

    def _queue_install(self, action: ev.Install) -> None:
        steps: list[ResolvedStep] | None = []
        with self._lock:
            for step in action.steps:
                place = self._place(step.parent_guid, step.name)
                old = self._place(step.old_parent_guid, step.old_name) if step.old_parent_guid else ("", None)
                if place is None or old is None:
                    steps = None
                    break
                assert steps is not None
                steps.append(ResolvedStep(step, place[0], place[1], old[0], old[1]))
        files = (action.file_guid, *(step.file_guid for step in action.steps))
        self._under_way.begin(action.co_guid, files, ((step.parent_guid, step.name) for step in action.steps))
        size = self._files.area.size_of(action.co_guid) or 0
        installs = self._installs.setdefault((action.partner, size_class(size)), deque())
        installs.append(ResolvedInstall(action, None if steps is None else tuple(steps), size))
        most = 1 if size_class(size) else INSTALLS_AT_ONCE
        run = functools.partial(self._install_some, installs, most)
        self._work.put(Job(run, lambda _: [], lane=action.partner), size)

    def _install_some(self, installs: deque[ResolvedInstall], most: int) -> list[FileEvent]:
        """In a worker: take installs that wait, so that they and their folders are made durable together. Those of
        large files are left to other threads."""
        batch: list[ResolvedInstall] = []
        size = 0
        while len(batch) < most and size < BYTES_AT_ONCE:
            try:
                batch.append(installs.popleft())
            except IndexError:
                break
            size += batch[-1].size
        try:
            return self._files.install_all(batch)
        except Exception as error:
            self._log.exception("13506 installing has failed")
            return [ev.Installed(i.action.co_guid, ev.Outcome.FAILED, detail=repr(error)) for i in batch]

    def _place(self, parent_guid: bytes, name: str) -> tuple[str, FolderKey | None] | None:
        """The path of an entry, and which folder its folder is."""
        place, record = self.resolve(parent_guid, name), self._store.get(parent_guid)
        if place is None or record is None:
            return None
        return place[0], None if record.ino is None else (record.ino, record.btime_ns or 0)

    def resolve(self, parent_guid: bytes, name: str) -> tuple[str, int | None] | None:
        """As place_of(); to be called under the lock."""
        return place_of(self._store, parent_guid, name)
