"""Members of a replica set in this process: the real journal, examiner, staging, engine, store and installer. Only the
network is not there: packets are handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from agent.conflicts.kept import KeptStore
from agent.conflicts.keptcontrol import deleted_store
from agent.counters.registry import SET_OBJECT, Counters
from agent.engine import events as ev
from agent.replica.ports import open_ports
from agent.replica.replica import Replica
from agent.reporting.incidents import Incidents
from agent.wire.packet import Packet, decode_packet, encode_packet
from agent.work.timeshares import TimeShares
from config.load import load_agent_config
from idtable.records import IDRecord
from journal.changes import kind_of
from journal.examine import Examiner
from staging.fsops import Fingerprint, fingerprint
from tests.unit.config.member_files import AGENT, TOPOLOGY, write

PATIENCE_S = 60.0
#: Nothing comes of what is done for so long: more than the longest wait before another attempt (Limits.max_retry).
_IDLE_S = 120.0
_LONGEST_S = 1200.0
_PROGRESS = ("Change Orders Issued", "Change Orders Received", "Change Orders Retired", "Files Installed")
MINOR = 9
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Known:
    """What the IDTable says: records by path, and GUIDs by the local key of what has one name only."""

    records: dict[str, IDRecord]
    guids: dict[Key, bytes]


class Patience:
    """How long members are waited for: on a busy host all takes long, and that is no fault as long as something comes
    of it. That paths are looked at again and again is nothing."""

    def __init__(self, *replicas: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas = replicas
        self._clock = clock
        self._last = self._end = self._clock() + _LONGEST_S
        self._next = 0.0
        self._seen: list[int] = []

    @property
    def over(self) -> bool:
        """Whether nothing has come of it for too long."""
        now = self._clock()
        if now < self._next:
            return False
        self._next, done = now + 1.0, [self._done(replica) for replica in self._replicas]
        if done != self._seen:
            self._seen, self._end = done, min(now + _IDLE_S, self._last)
        return now >= self._end

    @staticmethod
    def _done(replica: Replica) -> int:
        counted = replica.counters.snapshot()[SET_OBJECT][replica.name]
        return sum(counted[name] for name in _PROGRESS)


class Member:
    """The member; `root` is its tree."""

    def __init__(self, replica: Replica, kept: KeptStore) -> None:
        self.replica = replica
        self.kept = kept
        self.root = str(replica.local.root)

    async def quiet(self) -> None:
        """Wait until nothing of the tree is aging, examined or staged. Raises AssertionError when the set has stopped
        or never becomes quiet."""
        replica, patience = self.replica, Patience(self.replica)
        calm = 0
        while calm < 2:
            assert replica.error is None, replica.error
            assert not patience.over, f"never quiet: {replica.pending()}"
            watch = replica.watching.watch
            if watch is not None and not watch.scanning:
                await replica.barrier()
                await replica.settled()
                calm = calm + 1 if watch.pending() == 0 else 0
            await asyncio.sleep(0.005)

    def known(self) -> Known:
        """The IDTable as it is now."""
        store, root_guid = self.replica.store, self.replica.root_guid
        records: dict[str, IDRecord] = {}
        with self.replica.lock:
            for record in store.all_live():
                if record.file_guid != root_guid:
                    path = store.path_of(record.file_guid)
                    assert path is not None, f"{record.name!r} is in a folder that is not there"
                    records[path] = record
        names: dict[Key, list[bytes]] = {}
        for record in records.values():
            if record.dev is not None and record.ino is not None and record.btime_ns is not None:
                names.setdefault((record.dev, record.ino, record.btime_ns), []).append(record.file_guid)
        return Known(records, {key: guids[0] for key, guids in names.items() if len(guids) == 1})

    def assert_tree_is_known(self) -> Known:
        """The invariant: once a member is quiet, its tree and its IDTable say the same."""
        known, seen = self.known(), entries(self.root)
        missing, surplus = seen.keys() - known.records.keys(), known.records.keys() - seen.keys()
        assert not missing | surplus, f"not in the IDTable: {sorted(missing)}, not there: {sorted(surplus)}"
        for path, found in seen.items():
            record = known.records[path]
            assert record.kind == kind_of(found.mode), f"{path}: {record.kind}"
            assert (record.dev, record.ino, record.btime_ns) == found[:3], f"{path} is another inode"
            assert (record.mode, record.uid, record.gid) == (found.mode, found.uid, found.gid), f"{path}: mode or owner"
            if record.kind != "folder":
                assert (record.fsize, record.mtime_ns) == (found.size, found.mtime_ns), f"{path}: size or time"
        return known

    def assert_scan_finds_nothing(self) -> None:
        """The examiner agrees (folders apart whose own times say nothing)."""
        examiner = Examiner(self.root, self.replica.store, root_guid=self.replica.root_guid)
        with self.replica.lock:
            changes = [change for batch in examiner.scan() for change in batch]
        changes = [change for change in changes if change.content_changed or change.kind.name != "UPDATE"]
        assert not changes, f"a scan finds {changes}"


def entries(root: str) -> dict[str, Fingerprint]:
    """What is in a tree, by path."""
    seen = {}
    for folder, names, files in os.walk(root):
        for name in names + files:
            full = os.path.join(folder, name)
            found = fingerprint(full)
            if kind_of(found.mode) is not None:
                seen[os.path.relpath(full, root)] = found
    return seen


@contextlib.asynccontextmanager
async def member(folder: Path, *, aging_s: float, scan_interval_s: float = 0.0) -> AsyncIterator[Member]:
    """Run one member, the primary of its set, in `folder`; its partner never answers."""
    async with _running(folder, "a", aging_s, {}, scan_interval_s) as one:
        await one.quiet()
        yield one


@contextlib.asynccontextmanager
async def pair(
    folder: Path,
    *,
    aging_s: float,
    scan_interval_s: float = 0.0,
    topology: str = TOPOLOGY,
    folders: tuple[str, str] = ("a", "b"),
) -> AsyncIterator[tuple[Member, Member]]:
    """Run two members that replicate with each other, each in one of the folders in `folder`; packets go from one to
    the other without a network."""
    replicas: dict[bytes, Replica] = {}
    async with (
        _running(folder / folders[0], "a", aging_s, replicas, scan_interval_s, topology) as one,
        _running(folder / folders[1], "b", aging_s, replicas, scan_interval_s, topology) as other,
    ):
        await together(one, other)
        yield one, other


async def together(one: Member, other: Member) -> None:
    """Wait until neither has anything to do. Raises AssertionError like quiet()."""
    patience = Patience(one.replica, other.replica)
    calm = 0
    while calm < 3:
        for each in (one, other):
            if each.replica.engine.ctx.online:
                await each.quiet()
            else:
                await each.replica.settled()
        busy = one.replica.pending() + other.replica.pending()
        joined = all(each.replica.joined_partners() for each in (one, other))
        calm = calm + 1 if joined and not busy else 0
        assert not patience.over, f"never done: {busy}"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def _running(
    folder: Path,
    name: str,
    aging_s: float,
    replicas: dict[bytes, Replica],
    scan_interval_s: float = 0.0,
    topology: str = TOPOLOGY,
) -> AsyncIterator[Member]:
    folder.mkdir(exist_ok=True)
    agent = AGENT.replace('member = "a"', f'member = "{name}"')
    config = load_agent_config(write(folder, agent=agent, topology=topology))
    config = replace(config, aging_s=aging_s, fsync=False, scan_interval_s=scan_interval_s)
    local = config.sets[0]
    os.makedirs(local.state_dir, mode=0o700, exist_ok=True)
    loop = asyncio.get_running_loop()

    def send(action: ev.Send, _: str) -> None:
        loop.call_soon(deliver, action.partner, action.packet)

    def deliver(partner: bytes, packet: Packet) -> None:
        there = replicas.get(partner)
        if there is None or there.receive(decode_packet(encode_packet(packet)), MINOR) != 0:
            replica.post(ev.PartnerUnreachable(partner, "it does not answer"))

    with (
        KeptStore(str(local.state_dir / "kept"), config.kept_quota_bytes) as kept,
        ThreadPoolExecutor(2, "frs-worker") as workers,
    ):
        incidents = Incidents(logging.getLogger("frs"))
        deleted = deleted_store(config, local)
        counters = Counters()
        ports = open_ports(config, local, counters, kept, deleted, workers, incidents)
        replica = Replica(config, local, ports, counters, kept, incidents, send, lambda _: True, TimeShares())
        replicas[local.member.guid] = replica
        try:
            await replica.start()
            yield Member(replica, kept)
        finally:
            del replicas[local.member.guid]
            await replica.close()
