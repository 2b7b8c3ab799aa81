"""A simulated member: the real engine and the real store, driven as agent/replica/replica.py and
agent/localchanges/watch.py drive them, on a simulated disk, with crashes wherever one can happen.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.engine import events as ev
from agent.engine.context import Cxtion, EngineConfig
from agent.engine.cutoff import Cutoff
from agent.engine.engine import Engine
from agent.engine.entry import Stage
from agent.engine.records import place_of
from agent.replica.faults import survives
from agent.wire import constants as c
from agent.wire.packet import NamedGuid, Packet, decode_packet
from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import Change, Kind
from tests.simulation.simdisk import Disk, Place, stage_of
from tests.simulation.simscan import Scan

if TYPE_CHECKING:
    from tests.simulation.simworld import World

SECOND = 10_000_000
_KINDS = {k: ev.ChangeKind[k.name] for k in Kind}


class NoCounters:
    """Counting is tested elsewhere; here it would only cost time."""

    def inc_set(self, set_name: str, counter: str, n: int = 1) -> None: ...
    def inc_cxtion(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None: ...
    def inc_both(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None: ...


class Crash(Exception):
    """The process is gone."""


class Member:
    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.guid = world.guid_of("member", name)
        self.root = world.guid_of("root", name)
        self.store = Store(":memory:")
        self.disk = Disk()
        self.up = False
        self.left = False
        self.generation = 0
        self.skew = 0
        self.events: deque[ev.Event] = deque()
        self.storing: dict[bytes, deque[ev.StoreBlock | ev.DropStage]] = {}
        self.making: set[bytes] = set()  # staging files that are to be made, and were not dropped since
        self.running = False
        self.tick_at = 0
        self.engine: Engine
        self.dirty = False
        self.scan_at = self.scan_by = 0
        self.scanning = False
        self.watching = False
        self.started = False  # the tree is known, and packets are taken
        self.places: set[tuple[bytes, str]] = set()
        self.undo: list[tuple[int, Callable[[], None]]] = []
        self.crash_in: int | None = None  # batches until a crash
        self.applied: dict[tuple[bytes, bytes, int], int] = {}
        self.excused = False  # crashed, restored or seeded again: doing things twice is allowed
        self.reports: list[ev.Report] = []
        self.backup: bytes | None = None
        with self.store.transaction():
            self.store.put(IDRecord(self.root, bytes(16), "", True, kind="folder"))

    # -- life --

    @property
    def now(self) -> int:
        return self.world.now + self.skew

    def set_clock(self, skew: int) -> None:
        """Have the clock differ from the world's by so much. The engine is shown it soon (agent/replica/batches.py)."""
        changed, self.skew = self.skew != skew, skew
        if changed and self.up:
            self.post(ev.Tick())

    def config(self) -> EngineConfig:
        world = self.world
        cxtions = []
        for up, down in world.edges:
            if self.name in (up, down):
                other = down if self.name == up else up
                if world.members[other].left:
                    continue
                cxtions.append(
                    Cxtion(
                        world.guid_of("cxtion", up, down),
                        f"{up}->{down}",
                        f"{up}->{down}",
                        NamedGuid(world.guid_of("member", other), other),
                        inbound=self.name == down,
                        priority=world.priorities.get((up, down), 7),
                        **(world.cxtion_options | ({"schedule": bytes(84)} if {up, down} in world.shut else {})),
                    )
                )
        return EngineConfig(
            "S",
            NamedGuid(self.guid, self.name),
            world.guid_of("originator", self.name),
            self.root,
            tuple(cxtions),
            primary=self.name == world.names[0],
            compressions=(c.COMPRESSION_NONE, c.COMPRESSION_LZNT1, c.COMPRESSION_ZSTD),
            limits=world.limits,
        )

    def start(self) -> None:
        if self.up or self.left:
            return
        self.up = True
        self.generation += 1
        self.events.clear()
        self.running = self.scanning = self.watching = False
        self.cutoff = Cutoff()
        self.tick_at = 0
        self.places.clear()
        self.disk.made.clear()
        self.storing.clear()
        self.undo.clear()
        for key in [k for k in self.disk.stages if k.startswith(b"part")]:
            del self.disk.stages[key]
        with self.store.transaction():
            self.engine = Engine(self.config(), self.store, NoCounters(), self.world.new_guid)
        if self.engine.ctx.online:  # as Replica._go()
            self.post(ev.Resumed(frozenset(self.disk.stages)))
            self.started = False
            self.after(5_000_000, self.watch)
        else:
            self.begin()

    def begin(self) -> None:
        """The tree is known."""
        self.started = True
        self.post(ev.Started(frozenset(self.disk.stages)))

    def topology_changed(self) -> None:
        """As Replica.reconfigure(): the connections are what the world says now."""
        config = self.config()
        self.post(ev.TopologyChanged(config.cxtions, config.primary, config.others, self.started))

    def renew(self) -> None:
        """As Replica._renew_engine(): an engine made anew from the store, for which only what means the same to it is
        kept of what waits."""
        kept = [event for event in self.events if survives(event)]
        self.excused = True
        self.generation += 1
        self.running = self.scanning = self.watching = False
        self.tick_at = 0
        self.events.clear()
        self.storing.clear()
        self.cutoff = Cutoff()
        for key in [k for k in self.disk.stages if k.startswith(b"part")]:
            del self.disk.stages[key]
        with self.store.transaction():
            self.engine = Engine(self.config(), self.store, NoCounters(), self.world.new_guid)
        self.post((ev.Started if self.started else ev.Resumed)(frozenset(self.disk.stages)))
        for event in kept:
            self.post(event)
        self.after(SECOND // 2, self.watch)

    def watch(self) -> None:
        """Look for local changes once the installs that a crash cut short are settled."""
        if any(e.stage is Stage.INSTALLING for e in self.engine.inbound.entries.values()) or self.events:
            self.after(SECOND, self.watch)
            return
        self.watching = True
        self.touch(SECOND // 10)

    def crash(self) -> None:
        if not self.up:
            return
        if self.store.in_transaction:
            self.store.rollback()
        self.up = False
        self.excused = True
        self.generation += 1
        self.events.clear()
        rng = self.world.random
        for serial, undo in reversed(self.undo):
            if serial == self.disk.serial and rng.random() < 0.5:
                undo()  # was not durable yet
        self.undo.clear()
        if self.disk.stages and rng.random() < 0.2:
            self.disk.stages.pop(rng.choice(sorted(self.disk.stages)))
        self.world.gone(self)

    def check(self) -> None:
        """What must be true once all is quiet."""

    def close(self) -> None:
        """The world ends."""

    def mishear(self, seconds: float, *, lost: bool) -> None:
        """The tree's events are late for so long, or lost: here nobody listens to them."""

    def while_looking(self, work: Callable[[], None]) -> None:
        """A user does something in the moment in which the agent looks at the tree: here that takes no time."""
        work()

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
        self.store.close()
        self.store = Store(":memory:")
        self.store._conn.deserialize(self.backup)
        for cache in ("_young", "_old"):
            getattr(self.store, cache).clear()
        self.store._counts = self.store._vv = self.store._head = self.store._inlog_count = None
        self.applied.clear()
        self.start()

    # -- events --

    def after(self, delay: int, work: Callable[[], None]) -> None:
        """Do it later, if the process still lives then."""
        generation = self.generation

        def fire() -> None:
            if self.generation == generation and self.up:
                work()

        self.world.after(delay, fire)

    def post(self, event: ev.Event) -> None:
        self.events.append(event)
        if not self.running:
            self.running = True
            self.after(self.world.random.randrange(1, 20_000), self.run_batch)

    def run_batch(self) -> None:
        world = self.world
        self.running = False
        self.disk.now = world.now
        actions: list[ev.Action] = []
        count = min(len(self.events), world.random.choice((1, 1, 2, 8)))
        crash_at = None
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crash_in = None
                crash_at = world.random.choice(("before", "after", "between"))
        self.store.begin()
        for _ in range(count):
            event = self.events.popleft()
            self.cutoff.handled(event, actions)
            actions += self.engine.handle(event, self.now)
        if crash_at == "before":
            self.crash()
            return
        self.store.commit()
        if crash_at == "between":
            actions = actions[: world.random.randrange(len(actions) + 1)]
        if crash_at != "after":
            for action in actions:
                self.act(action)
        if crash_at is not None:
            self.crash()
            return
        if self.engine.topology.outdated:
            self.renew()
        if self.events and not self.running:
            self.running = True
            self.after(world.random.randrange(1, 10_000), self.run_batch)
        self.set_timer()

    def set_timer(self) -> None:
        deadline = self.engine.next_deadline()
        if deadline is None:
            return
        delay = min(max(deadline - self.now, 100_000), 3600 * SECOND)
        at = self.world.now + delay
        if self.tick_at > self.world.now and self.tick_at <= at:
            return
        self.tick_at = at

        def tick() -> None:
            if self.tick_at == at:
                self.tick_at = 0
                self.post(ev.Tick())

        self.after(delay, tick)

    def receive(self, data: bytes) -> None:
        if self.started:
            packet = decode_packet(data)
            if self.engine.check(packet) == 0:
                self.post(ev.PacketReceived(packet, self.world.minor))

    # -- actions --

    def act(self, action: ev.Action) -> None:
        world, rng = self.world, self.world.random
        match action:
            case ev.Send(partner, packet):
                if not self.cutoff.stops(partner):
                    self.put_in(packet, action.brings)
                    world.send(self, partner, packet)
            case ev.StoreBlock():
                self.storing.setdefault(action.co_guid, deque()).append(action)
                self.after(rng.randrange(1, 50_000), lambda: self.store_some(action.co_guid))
            case ev.ReadStage():
                path = self.store.path_of(action.file_guid) if action.regenerate else None
                self.after(rng.randrange(1, 100_000), lambda: self.read_stage(action, path))
            case ev.MakeStage():
                if world.brings and (path := self.store.path_of(action.file_guid)) is not None:
                    self.making.add(action.co_guid)
                    self.after(rng.randrange(1, 100_000), lambda: self.make_stage(action, path))
            case ev.Install():
                self.queue_install(action)
            case ev.DropStage(co_guid):
                if self.storing.get(co_guid):
                    self.storing[co_guid].append(action)  # after what is still to be stored of it
                else:
                    self.drop_stage(co_guid)
            case ev.Examine():
                self.touch(world.aging)
            case ev.Report():
                self.reports.append(action)
            case ev.WentOnline():
                self.after(SECOND, self.watch)

    def put_in(self, packet: Packet, brings: frozenset[bytes] | None) -> None:
        """As Actions._put_in()."""
        goes_with_it = self.world.brings and brings is not None and packet.remote_co is not None
        stage = self.disk.stages.get(packet.remote_co.change_order_guid) if goes_with_it else None
        if stage is not None and len(stage) <= c.MAX_BLOCK:
            packet.block, packet.block_size = stage, len(stage)

    def store_some(self, co_guid: bytes) -> None:
        blocks = self.storing[co_guid]
        action = blocks.popleft()
        while isinstance(action, ev.DropStage):
            self.drop_stage(co_guid)
            action = blocks.popleft()
        self.store_block(action)
        while blocks and isinstance(blocks[0], ev.DropStage):
            blocks.popleft()
            self.drop_stage(co_guid)

    def drop_stage(self, co_guid: bytes) -> None:
        self.making.discard(co_guid)
        self.disk.stages.pop(co_guid, None)
        self.disk.stages.pop(b"part" + co_guid, None)

    def store_block(self, action: ev.StoreBlock) -> None:
        part = b"part" + action.co_guid
        if self.disk.full:
            self.disk.stages.pop(part, None)
            self.post(ev.FetchFailed(action.co_guid, ev.Outcome.NO_SPACE, "full"))
            return
        data = self.disk.stages.pop(part, b"") if action.offset else b""
        if len(data) != action.offset:
            return
        data += bytes(action.data)
        self.disk.stages[action.co_guid if action.last else part] = data
        self.post(ev.FetchStored(action.co_guid, action.last, len(data)))

    def read_stage(self, action: ev.ReadStage, path: str | None) -> None:
        guid = action.change_order.change_order_guid
        data = self.disk.stages.get(guid)
        generated = 0
        if data is None and action.regenerate and path is not None:
            node = self.disk.look(path)
            if node is None or (action.md5 != bytes(16) and node.md5(action.file_guid) != action.md5):
                self.post(ev.StageRefused(action, True, "changed"))
                return
            data = stage_of(node, action.file_guid)
            if not self.disk.full:
                self.disk.stages[guid] = data
            generated = len(data)
        if data is None:
            self.post(ev.StageRefused(action, action.regenerate, "gone"))
            return
        self.post(ev.StageBlock(action, data[action.offset : action.offset + c.MAX_BLOCK], len(data), generated))

    def make_stage(self, action: ev.MakeStage, path: str) -> None:
        node = self.disk.look(path)
        wanted = action.co_guid in self.making and not self.disk.full
        if wanted and node is not None and node.md5(action.file_guid) == action.md5:
            self.disk.stages.setdefault(action.co_guid, stage_of(node, action.file_guid))

    def queue_install(self, action: ev.Install) -> None:
        places: list[Place] | None = []
        for step in action.steps:
            place = self.resolve(step.parent_guid, step.name)
            old = self.resolve(step.old_parent_guid, step.old_name) if step.old_parent_guid else ("", None)
            if place is None or old is None:
                places = None
                break
            assert places is not None
            places.append(Place(step, place[0], place[1], old[0], old[1]))
            self.places.add((step.parent_guid, step.name))
        delay = self.world.random.choice((10_000, 100_000, 100_000, SECOND))
        self.after(self.world.random.randrange(1, delay), lambda: self.install(action, places))

    def resolve(self, parent_guid: bytes, name: str) -> tuple[str, int | None] | None:
        return place_of(self.store, parent_guid, name)

    def install(self, action: ev.Install, places: list[Place] | None) -> None:
        disk = self.disk
        disk.now = self.world.now
        before = snapshot(disk)
        kept = len(disk.kept)
        event = disk.install(action, places)
        content = any(s.step is ev.InstallStep.CONTENT for s in action.steps)
        self.excused = self.excused or self.engine.reseed.active
        if event.outcome is ev.Outcome.DONE:
            entry = self.engine.inbound.entry_of(action.co_guid)
            if content and entry is not None:
                self.applied[entry.key] = self.applied.get(entry.key, 0) + 1
                if self.applied[entry.key] > 1 and not self.excused:
                    self.world.violation(f"{self.name}: {entry.co.file_name!r} applied twice")
            if len(disk.kept) == kept:
                self.undo.append((disk.serial, lambda: put_back(disk, before)))
        self.after(self.world.random.randrange(1, 20_000), lambda: self.durable(event))

    def durable(self, event: ev.Installed) -> None:
        """The install has reached the disk; until now a crash may have undone it."""
        self.undo.clear()
        self.post(event)

    # -- local changes --

    def touch(self, delay: int) -> None:
        """Something in the tree may differ from the IDTable."""
        self.dirty = True
        if not self.up or not self.watching:
            return
        self.scan_at = self.world.now + delay
        if self.scanning:
            self.scan_at = min(self.scan_at, self.scan_by)  # as journal/aging.py: at most ten times
        else:
            self.scanning = True
            self.scan_by = self.world.now + 10 * delay
            self.after(delay, self.scan)

    def scan(self) -> None:
        if self.world.now < self.scan_at:
            self.after(self.scan_at - self.world.now, self.scan)
            return
        self.dirty = False
        self.disk.now = self.world.now
        events = self.local_changes(Scan(self.disk, self.store, self.root).changes())
        self.deliver(events)

    def deliver(self, events: deque[ev.LocalChange]) -> None:
        """Staging takes a while, and everything else goes on meanwhile."""
        for _ in range(min(len(events), self.world.random.choice((1, 4, 16)))):
            self.post(events.popleft())
        if events or self.events:
            self.after(self.world.random.randrange(1, 200_000), lambda: self.deliver(events))
            return
        self.scanning = False
        if not self.started:
            self.begin()
        if self.dirty:
            self.touch(max(self.scan_at - self.world.now, SECOND // 10))

    def local_changes(self, changes: list[Change]) -> deque[ev.LocalChange]:
        guids = self.engine.installing()
        if not guids:
            self.places.clear()
            self.disk.made.clear()
        made: dict[str, bytes] = {}
        out: deque[ev.LocalChange] = deque()
        for change in changes:
            parent = change.parent_guid if change.parent_guid is not None else made.get(change.parent_path)
            ours = (
                change.file_guid in guids
                or (parent, change.name) in self.places
                or (change.fingerprint is not None and change.fingerprint.ino in self.disk.made)
            )
            if parent is None or ours or (change.kind is Kind.CREATE and self.is_known(change, parent)):
                self.dirty = True
                self.scan_at = self.world.now + SECOND
                continue
            guid = change.file_guid or self.world.new_guid()
            if change.kind is Kind.CREATE:
                made[change.path] = guid
            out.append(self.local_change(change, guid, parent))
        return out

    def is_known(self, change: Change, parent: bytes) -> bool:
        if self.store.by_name(parent, change.name) is not None:
            return True
        if change.fingerprint is None:
            return False
        return any(record.kind == change.file_kind for record in self.store.by_local_key(*change.fingerprint[:3]))

    def local_change(self, change: Change, guid: bytes, parent: bytes) -> ev.LocalChange:
        node = None if change.kind is Kind.DELETE else self.disk.look(change.path)
        is_dir = change.file_kind == "folder"
        if node is not None and change.kind is Kind.CREATE:
            node.oid = guid
        staged = node is not None and not (change.kind is Kind.RENAME and not change.content_changed)
        on_disk = staged and not self.disk.full and self.world.random.random() < 0.7
        stage = self.world.new_guid()
        if on_disk and node is not None:
            self.disk.stages[stage] = stage_of(node, guid)
        return ev.LocalChange(
            _KINDS[change.kind],
            guid,
            parent,
            change.name,
            is_dir,
            change.file_kind,
            self.now - self.world.random.randrange(SECOND),
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

    # -- telling --

    def tree(self) -> dict[str, tuple[int, bytes]]:
        return {n.path(): (n.mode, n.content) for n in self.disk.walk()}

    def pending(self) -> list[str]:
        if not self.up:
            return ["down"]
        found = self.engine.pending_text()
        if self.dirty or self.scanning:
            found.append("local changes")
        if self.events:
            found.append(f"{len(self.events)} events")
        return found


def snapshot(disk: Disk) -> object:
    """Enough of the tree to put it back."""
    nodes = list(disk.walk())
    return [(n, n.parent, n.name, n.content, n.mode, n.mtime, n.oid) for n in nodes]


def put_back(disk: Disk, before: object) -> None:
    disk.serial += 1
    for node in [disk.root, *list(disk.walk())]:
        node.children.clear()
    for node, parent, name, content, mode, mtime, oid in before:  # type: ignore[attr-defined]
        node.children.clear()
        node.content, node.mode, node.mtime, node.oid = content, mode, mtime, oid
        node.parent, node.name = parent, name
        parent.children[name] = node
