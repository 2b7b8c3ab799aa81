"""How a simulated member without a journal notices local changes: it compares its whole tree with the IDTable, by the
real examiner, when something happened in it and it has been quiet for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from agent.engine import events as ev
from agent.files.underway import UnderWay
from agent.replica.replica import Replica
from agent.wire import constants as c
from agent.wire.filetime import SECOND
from journal.changes import Change, Kind
from journal.examine import Examiner
from tests.simulation.simdisk import stage_of
from tests.simulation.simkernel import SimSystem

if TYPE_CHECKING:
    from tests.simulation.simmember import Member

_KINDS = {k: ev.ChangeKind[k.name] for k in Kind}


class SimWatch:
    """In place of agent.localchanges.watch.LocalWatch."""

    def __init__(self, member: Member, system: SimSystem, host: Replica, root: str, *_: object, **more: Any) -> None:
        self._member, self._host, self._world = member, host, member.world
        self._examiner = Examiner(
            root,
            host.store,
            more["excluded"],
            root_guid=host.root_guid,
            root_key=host.root_key,
            ours=lambda record: record.originator_guid == host.originator_guid,
            system=system,
        )
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._at = self._by = 0
        self.scanning = False
        self.scanned = asyncio.Event()

    async def start(self, *, first: bool) -> None:
        self.scanning = True
        self.noticed(SECOND // 10)
        self._task = self._host.supervisor.start(self._run(), "looking for local changes")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def rescan(self, why: str) -> None:
        self.noticed(SECOND // 10)

    def touch(self, path: str) -> None:
        self.noticed(self._world.aging)

    def pending(self) -> int:
        return int(self._wake.is_set())

    def noticed(self, delay: int) -> None:
        """Something in the tree may differ from the IDTable: it is compared when it was quiet for so long, but (as in
        journal.aging) after at most ten times that."""
        now = self._world.now
        if not self._wake.is_set():
            self._wake.set()
            self._by = now + 10 * delay
        self._at = min(now + delay, self._by)

    async def _run(self) -> None:
        rng = self._world.random
        while True:
            await self._wake.wait()
            while (wait := self._at - self._world.now) > 0:
                await asyncio.sleep(wait / SECOND)
            self._wake.clear()
            self.scanning = True
            self._member.disk.now = self._world.now
            self._made: dict[str, bytes] = {}
            examiner = self._examiner
            for batch in examiner.scan():
                events = self._events(batch)
                while events:  # staging takes a while, and everything else goes on meanwhile
                    for _ in range(min(len(events), rng.choice((1, 4, 16)))):
                        self._host.post(events.popleft())
                    await asyncio.sleep(rng.randrange(1, 200_000) / SECOND)
                    await self._host.settled()
            if examiner.retry:
                self.noticed(SECOND)
            self.scanning = False
            self.scanned.set()

    def _events(self, changes: list[Change]) -> deque[ev.LocalChange]:
        under_way = self._host.look()
        out: deque[ev.LocalChange] = deque()
        for change in changes:
            parent = change.parent_guid if change.parent_guid is not None else self._made.get(change.parent_path)
            if parent is None or self._is_unsure(change, parent, under_way):
                self.noticed(SECOND)
                continue
            guid = change.file_guid or self._world.new_guid()
            if change.kind is Kind.CREATE:
                self._made[change.path] = guid
            event = self._local_change(change, guid, parent)
            if event is None:
                self.noticed(SECOND)
            else:
                out.append(event)
        return out

    def _is_unsure(self, change: Change, parent: bytes, under_way: UnderWay) -> bool:
        found, store = change.fingerprint, self._host.store
        if under_way.concerns(change.file_guid, None if found is None else found[:3], (parent, change.name)):
            return True
        if change.kind is not Kind.CREATE:
            return False
        if store.by_name(parent, change.name) is not None:
            return True
        return found is not None and any(r.kind == change.file_kind for r in store.by_local_key(*found[:3]))

    def _local_change(self, change: Change, guid: bytes, parent: bytes) -> ev.LocalChange | None:
        """None when it is to be looked at again."""
        disk, rng = self._member.disk, self._world.random
        node = None if change.kind is Kind.DELETE else disk.look(change.path)
        is_dir = change.file_kind == "folder"
        if node is not None and change.kind is Kind.CREATE:
            node.oid = guid
        staged = node is not None and not (change.kind is Kind.RENAME and not change.content_changed)
        on_disk = staged and not disk.full and rng.random() >= self._world.no_room
        stage = self._world.new_guid()
        if on_disk and node is not None:
            disk.stages[stage] = stage_of(node, guid)
        return ev.LocalChange(
            _KINDS[change.kind],
            guid,
            parent,
            change.name,
            is_dir,
            change.file_kind,
            self._member.now - rng.randrange(SECOND),
            change.reasons or (c.REASON_FILE_DELETE if node is None else c.REASON_DATA_EXTEND),
            node.facts() if node is not None else None,
            node.md5(guid) if staged and node is not None else bytes(16),
            0x10 if is_dir else 0x20,
            len(node.content) if node is not None else 0,
            stage,
            staged=on_disk,
            stage_size=0,
            temporary=change.temporary,
        )
