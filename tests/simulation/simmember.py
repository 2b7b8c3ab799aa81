"""A simulated member: the replica set as the agent runs it (agent.replica), on simulated ports: the world's clock, an
event loop and threads (simloop), a store, staging area and tree that outlive a crash (simhost, simdisk), and the
world's network; with crashes wherever one of these is asked for something.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from agent.engine import events as ev
from agent.engine.context import EngineConfig
from agent.engine.engine import Engine
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall
from agent.files.underway import UnderWay
from agent.localchanges.missing import MissingFiles
from agent.replica.enginesetup import connections_of, engine_config
from agent.replica.ports import Ports
from agent.replica.replica import Replica
from agent.tree.identity import Identity
from agent.wire.filetime import SECOND
from agent.wire.packet import Packet, decode_packet
from agent.work.bysize import LargeFileThreads
from agent.work.timeshares import TimeShares
from idtable.errors import StoreFull
from idtable.records import IDRecord
from tests.simulation.simconfig import ROOT, agent_config, local_set
from tests.simulation.simdisk import Disk
from tests.simulation.simhost import Nothing, SimFiles, SimStore, Stumble, Told
from tests.simulation.simkernel import SimSystem, fingerprint
from tests.simulation.simloop import Dead, SimLoop, SimThreads
from tests.simulation.simservice import SimService
from tests.simulation.simtree import Node
from tests.simulation.simwatch import SimWatch

if TYPE_CHECKING:
    from tests.simulation.simworld import World

_EVENTS = (1, 1, 2, 8, 100)  # in a transaction
_CALLS = 8  # of ports after a commit, until a crash comes


class SimReplica(Replica):
    """The replica set of one process of a member, who hears of what is posted, and of engines that are made."""

    def __init__(self, member: Member, *arguments: Any) -> None:
        self.member = member
        super().__init__(*arguments)

    def engine_config(self) -> EngineConfig:
        return self.member.config()

    def post(self, event: ev.Event) -> None:
        super().post(self.member.posted(event))

    def make_engine(self) -> None:
        super().make_engine()
        self.member.made(self.engine)


class Member:
    """`replica` is that of its process, or of its last one."""

    replica: SimReplica
    loop: SimLoop
    service: SimService

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.guid = world.guid_of("member", name)
        self.again: tuple[int, ...] = ()  # how often it was added again
        self.disk = self.make_disk()
        self.up = False
        self.left = False
        self.removed = False  # and may be added again
        self.generation = 0
        self.skew = 0
        self.undo: list[tuple[int, Callable[[], None]]] = []
        self.in_memory: set[bytes] = set()  # staging files that end with the process
        self.crash_in: int | None = None  # commits until a crash
        self.unwritable = 0  # so many commits fail
        self.applied: dict[tuple[bytes, bytes, int], int] = {}
        self.excused = False  # crashed, restored or seeded again: doing things twice is allowed
        self.reports: list[ev.Report] = []
        self.backup: bytes | None = None
        self.has_lock = False  # a thread, so that no other one may come between
        self._calls: int | None = None  # of ports, until a crash
        self._engines = 0  # of this process
        self._know_nothing()

    # -- life --

    def _know_nothing(self) -> None:
        world, name = self.world, self.name
        self.root = world.guid_of("root", name, *self.again)
        self.identity = Identity(world.guid_of("originator", name, *self.again), self.root, (1, 1))
        self.store = SimStore(self)
        with self.store.transaction():
            self.store.put(IDRecord(self.root, bytes(16), "", True, kind="folder"))

    def remove(self) -> None:
        """It leaves the set while it runs, as the agent does (agent/service/applying.py); its tree stays."""
        self.left = self.removed = True
        if self.up:
            self.topology_changed()

    def add(self) -> None:
        """It is in the set again: a new member, which has the tree that it had, and knows nothing."""
        self.crash()
        self.spare()
        self.again = (sum(self.again) + 1,)
        self.guid = self.world.guid_of("member", self.name, *self.again)
        self.world.by_guid[self.guid] = self
        self.disk.forget_stages()
        self.applied.clear()
        self.backup = None
        self.left = self.removed = False
        self._know_nothing()
        self.start()

    @property
    def now(self) -> int:
        return self.world.now + self.skew

    @property
    def engine(self) -> Engine:
        return self.replica.engine

    @property
    def watch(self) -> SimWatch | None:
        return cast("SimWatch | None", self.replica.watching.watch)

    def set_clock(self, skew: int) -> None:
        """Have the clock differ from the world's by so much. The engine is shown it soon (agent/replica/batches.py)."""
        changed, self.skew = self.skew != skew, skew
        if changed and self.up:
            self.post(ev.Tick())

    def config(self) -> EngineConfig:
        """What an engine is to know."""
        local = local_set(self.world, self.name)
        found = engine_config(agent_config(self.world, self.name), local, self.identity, connections_of(local))
        return dataclasses.replace(found, limits=self.world.limits)

    def start(self) -> None:
        if self.up or self.left:
            return
        self.up = True
        self.generation += 1
        self.undo.clear()
        self._calls, self._engines = None, 0
        self.disk.sweep()
        self.loop = SimLoop(self)
        try:
            self.loop.within(self._begin)
        except Dead:
            return
        except StoreFull:  # the agent tries again to open the set
            self.up = False
            self.world.after(3 * SECOND, self.start)
            return
        self.loop.run(self.replica.running.start())

    def _begin(self) -> None:
        world, told = self.world, cast("Any", Told(self))
        self.service = SimService(self, world.counters())
        self.replica = SimReplica(
            self,
            agent_config(self.world, self.name),
            self.service.local,
            self.ports(),
            self.service.counters,
            cast("Any", None),
            told,
            self.send,
            lambda partner: world.network.has_room(self, world.by_guid[partner]),
            TimeShares(),
            told,
        )

    def ports(self) -> Ports:
        nothing, lock, under_way, system = cast("Any", Nothing()), threading.RLock(), UnderWay(), SimSystem(self)
        files = self.make_files(system, under_way)
        return Ports(
            self.store,
            lock,
            nothing,
            self.identity,
            nothing,
            files.area,
            files,
            nothing,
            under_way,
            SimThreads(self.loop),
            LargeFileThreads(1),
            cast("Any", self.is_excluded),
            MissingFiles(self.store, lock, lambda: nothing, root=ROOT, set_name="S", config_path=ROOT, limit=1000),
            watch=self.watch_maker(system),
            now=lambda: self.now,
            new_guid=self.world.new_guid,
            idle_most_s=3600.0,
        )

    def make_disk(self) -> Disk:
        """What outlives its processes."""
        return Disk()

    def make_files(self, system: SimSystem, under_way: UnderWay) -> FileOps:
        """What a process does to that."""
        files = SimFiles(self, system)
        self.disk.on_made = lambda co_guid, node: under_way.made(co_guid, fingerprint(node)[:3])
        self.disk.on_entered = cast("Any", files.root).ours
        return files

    def watch_maker(self, system: SimSystem) -> Callable[..., Any]:
        """What makes a watch of the tree."""
        return partial(SimWatch, self, system)

    def is_excluded(self, path: str, folder: bool | None) -> bool:
        node: Node | None = self.disk.root
        for name in path.split("/"):
            node = node.children.get(name) if node is not None else None
            if node is not None and node.excluded:
                return True
        return False

    def made(self, engine: Engine) -> None:
        """An engine was made: if it is not the first of this process, what the one before did may be done again."""
        self._engines += 1
        self.excused = self.excused or self._engines > 1

    def posted(self, event: ev.Event) -> ev.Event:
        """An event is to be queued; returns which."""
        return event

    def topology_changed(self) -> None:
        """The connections are what the world says now."""
        self.loop.run(self.service.read())

    def crash(self) -> None:
        if not self.up:
            return
        if self.store.in_transaction:
            self.store.rollback()
        self.up = False
        self.excused = True
        self.generation += 1
        self.loop.over = True
        self.world.after(0, self.loop.end)
        rng = self.world.random
        for serial, undo in reversed(self.undo):
            if serial == self.disk.serial and rng.random() < 0.5:
                undo()  # was not durable yet
        self.undo.clear()
        for co_guid in self.in_memory:
            self.disk.stages.pop(co_guid, None)
        self.in_memory.clear()
        self.disk.lose_stage(rng)
        self.disk.ears = None
        self.world.network.gone(self)

    def stumble(self) -> None:
        """The engine fails on the next packet."""
        if not self.up:
            return
        engine = self.engine
        handle = engine.handle

        def failing(event: ev.Event, now: int) -> list[ev.Action]:
            if not isinstance(event, ev.PacketReceived):
                return handle(event, now)
            engine.handle = handle  # type: ignore[method-assign]
            raise Stumble

        engine.handle = failing  # type: ignore[method-assign]

    def spare(self) -> None:
        """What was to go wrong with it does not."""
        self.crash_in, self._calls, self.unwritable = None, None, 0

    def check(self) -> None:
        """What must be true once all is quiet."""
        if self.up and self.replica.error is not None:
            self.world.violation(f"{self.name}: {self.replica.error}")

    def close(self) -> None:
        """The world ends."""
        if self.generation:
            self.loop.end()

    def mishear(self, seconds: float, *, lost: bool) -> None:
        """The tree's events are late for so long, or lost: here nobody listens to them."""

    def while_looking(self, work: Callable[[], None]) -> None:
        """A user does something in the moment in which the agent looks at the tree: here that takes no time."""
        work()

    def at_call(self, number: int, work: Callable[[], None]) -> None:
        """A user does something right before the so many-th system call from now on: here none is made."""

    def meanwhile(self, call: str = "", folder: Node | None = None, name: str = "") -> None:
        """A thread of this member is at work: others may come between. Raises Dead when the process is gone."""

    def stop_for_ever(self) -> None:
        self.crash()
        self.left = True

    def save_backup(self) -> None:
        if not self.store.in_transaction:
            connection: sqlite3.Connection = self.store._conn
            self.backup = connection.serialize()

    def restore_backup(self) -> None:
        """The database of some time ago; the tree is as it is."""
        if self.backup is None:
            return
        self.crash()
        self.store = SimStore(self)
        self.store._conn.deserialize(self.backup)
        for cache in ("_young", "_old"):
            getattr(self.store, cache).clear()
        self.store._counts = self.store._vv = self.store._head = self.store._inlog_count = None
        self.applied.clear()
        self.start()

    # -- its process asks for something --

    def after(self, delay: int, work: Callable[[], None]) -> None:
        """Do it later, if the process still lives then."""
        generation = self.generation

        def fire() -> None:
            if self.generation == generation and self.up:
                work()

        self.world.after(delay, fire)

    def begun(self) -> None:
        """A transaction begins. After some events it has taken too long (Batches asks twice for the time of each)."""
        if self.generation:
            self.loop.stall = 2 * self.world.random.choice(_EVENTS)

    def commit(self, commit: Callable[[], None], records: Sequence[IDRecord]) -> None:
        """A transaction ends; or the process, before or after that; or it fails."""
        if not self.generation:
            commit()
            return
        self.loop.stall = 0
        if self.unwritable:
            self.unwritable -= 1
            self.store.rollback()
            raise StoreFull("the disk is full")
        crash = None
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crash_in = None
                crash = self.world.random.choice(("before", "after", "between"))
        if crash == "before":
            self.die()
        commit()
        if crash == "after":
            self.die()
        if crash == "between":
            self._calls = self.world.random.randrange(_CALLS)
        self.committed(records)

    def committed(self, records: Sequence[IDRecord]) -> None:
        """These records were written."""

    def called(self) -> None:
        """A port is asked for something: the process may end here."""
        if self._calls is not None:
            self._calls -= 1
            if self._calls < 0:
                self.die()

    def die(self) -> None:
        """The process ends right now."""
        self.crash()
        raise Dead

    def send(self, action: ev.Send, _: str) -> None:
        self.called()
        self.world.send(self, action.partner, action.packet, passed_on=action.passed_on)

    def ended_work(self, known: Callable[[], None]) -> None:
        """A thread has done something; it is durable, and the event loop hears of it, a little later."""

        def durable() -> None:
            self.undo.clear()
            known()

        self.after(self.world.random.randrange(1, 20_000), durable)

    # -- events --

    def post(self, event: ev.Event) -> None:
        self.loop.within(lambda: self.replica.post(event))

    def receive(self, data: bytes) -> int:
        """A packet comes; returns what the call is answered with."""
        return self.take(decode_packet(data), 0)[0]

    def take(self, packet: Packet, via: int) -> tuple[int, float]:
        """The same, by the association with that number; returns also how many seconds later."""
        replica, minor = self.replica, self.world.minor
        return self.loop.within(lambda: (replica.receive(packet, minor, via), replica.answers_after(packet, via)))

    def has_room(self, partner: bytes) -> None:
        """The partner has taken what was sent to it, or cannot be reached."""
        self.loop.within(lambda: self.replica.partner_has_room(partner))

    # -- installing --

    def install(self, item: ResolvedInstall) -> ev.Installed:
        """In a worker thread."""
        self.meanwhile()
        disk, action = self.disk, item.action
        disk.now = self.world.now
        before = disk.snapshot()
        kept = len(disk.kept)
        try:
            event = disk.install(item)
        except Exception as error:
            self.world.violation(f"{self.name}: installing has failed: {error!r}")
            raise
        self.installed(action, event)
        if event.outcome is ev.Outcome.DONE and len(disk.kept) == kept:
            self.undo.append((disk.serial, lambda: disk.put_back(before)))
        return event

    def installed(self, action: ev.Install, event: ev.Installed) -> None:
        """An install has ended: it is the only one of its change order."""
        self.excused = self.excused or self.engine.reseed.active
        entry = self.engine.inbound.entry_of(action.co_guid) if event.outcome is ev.Outcome.DONE else None
        if entry is not None and any(s.step is ev.InstallStep.CONTENT for s in action.steps):
            self.applied[entry.key] = self.applied.get(entry.key, 0) + 1
            if self.applied[entry.key] > 1 and not self.excused:
                self.world.violation(f"{self.name}: {entry.co.file_name!r} applied twice")

    # -- local changes --

    def touch(self, delay: int) -> None:
        """Something in the tree may differ from the IDTable."""
        if self.up and self.watch is not None:
            self.watch.noticed(delay)

    # -- telling --

    def tree(self) -> dict[str, tuple[int, bytes]]:
        return {n.path(): (n.mode, n.content) for n in self.disk.walk()}

    def pending(self) -> list[str]:
        if not self.up:
            return ["down"]
        found = self.replica.pending()
        if not self.replica.running.started:
            found.append("starting")
        if self.loop.busy or self.replica.batches._events:
            found.append("work")
        return found
