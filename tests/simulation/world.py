"""Members of a replica set on a virtual clock, an in-memory network and in-memory trees, around the real engine
and the real store.

A seeded random generator decides everything, so a failure can be replayed from its seed.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from dataclasses import dataclass, field

from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import Cxtion, EngineConfig, Limits
from agent.engine.engine import Engine
from agent.wire import constants as c
from agent.wire.packet import NamedGuid, Packet, decode_packet, encode_packet
from idtable.records import IDRecord
from idtable.store import Store

START = 133_000_000_000_000_000
SECOND = 10_000_000


def guid_of(*parts: object) -> bytes:
    return hashlib.md5(repr(parts).encode()).digest()


@dataclass
class Node:
    """A file or folder on a member's disk."""

    guid: bytes
    is_dir: bool
    content: bytes
    ino: int
    mtime: int = 0

    @property
    def md5(self) -> bytes:
        return hashlib.md5(self.content + self.guid).digest()

    def facts(self) -> ev.Facts:
        return ev.Facts(1, self.ino, 0, self.mtime, 0, len(self.content), 0o644, 0, 0)


@dataclass
class Disk:
    """A tree: (parent GUID, name) -> node. Only what the file system would keep over a crash."""

    nodes: dict[tuple[bytes, str], Node] = field(default_factory=dict)
    stages: dict[bytes, bytes] = field(default_factory=dict)
    next_ino: int = 1
    full: bool = False

    def place(self, guid: bytes) -> tuple[bytes, str] | None:
        return next((place for place, node in self.nodes.items() if node.guid == guid), None)


class Member:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.guid = guid_of("member", name)
        self.root = guid_of("root", name)
        self.store = Store(":memory:")
        self.disk = Disk()
        self.kept: list[bytes] = []
        self.counters = Counters()
        self.up = False
        self.dirty: set[bytes] = set()
        self.installs: dict[bytes, int] = {}
        with self.store.transaction():
            self.store.put(IDRecord(self.root, bytes(16), "", True, kind="folder"))

    def start(self) -> None:
        world = self.world
        if "S" not in self.counters.snapshot()["FileReplicaSet"]:
            self.counters.add_set("S")
        cxtions = []
        for up, down in world.edges:
            if self.name in (up, down):
                other = down if self.name == up else up
                cxtions.append(
                    Cxtion(
                        guid_of("cxtion", up, down),
                        f"{up}->{down}",
                        f"{up}->{down}",
                        NamedGuid(guid_of("member", other), other),
                        inbound=self.name == down,
                    )
                )
                self.counters.add_cxtion("S", f"{up}->{down}")
        config = EngineConfig(
            "S",
            NamedGuid(self.guid, self.name),
            guid_of("originator", self.name),
            self.root,
            tuple(cxtions),
            primary=self.name == world.names[0],
            compressions=(c.COMPRESSION_NONE, c.COMPRESSION_LZNT1, c.COMPRESSION_ZSTD),
            limits=world.limits,
        )
        with self.store.transaction():
            self.engine = Engine(config, self.store, self.counters, world.new_guid)
        self.up = True
        self.event(ev.Started(frozenset(self.disk.stages)))

    def crash(self) -> None:
        """The process is gone, and with it all that was not committed."""
        self.up = False
        self.world.queue = deque(item for item in self.world.queue if item[0] is not self)
        self.world.reads[:] = [item for item in self.world.reads if item[0] is not self]
        for wire, waiting in self.world.wires.items():
            if self.name in wire:
                waiting.clear()
        for other in self.world.members.values():
            if other.up:
                self.world.queue.append((other, ev.PartnerUnreachable(self.guid, "connection closed")))

    def event(self, event: ev.Event) -> None:
        if not self.up:
            return
        self.store.begin()
        actions = self.engine.handle(event, self.world.now)
        self.store.commit()
        for action in actions:
            self.act(action)

    def act(self, action: ev.Action) -> None:
        world = self.world
        match action:
            case ev.Send(partner, packet):
                world.send(self, partner, packet)
            case ev.StoreBlock():
                if self.disk.full:
                    self.later(ev.FetchFailed(action.co_guid, ev.Outcome.NO_SPACE, "full"))
                    return
                data = self.disk.stages.get(b"part" + action.co_guid, b"") if action.offset else b""
                data += bytes(action.data)
                self.disk.stages.pop(b"part" + action.co_guid, None)
                if action.last:
                    self.disk.stages[action.co_guid] = data
                else:
                    self.disk.stages[b"part" + action.co_guid] = data
                self.later(ev.FetchStored(action.co_guid, action.last, len(data)))
            case ev.ReadStage():
                self.read_stage(action)
            case ev.Install():
                self.later_install(action)
            case ev.DropStage(co_guid):
                self.disk.stages.pop(co_guid, None)
            case ev.Examine() | ev.Report() | ev.WentOnline():
                world.log.append((self.name, action))

    def later(self, event: ev.Event) -> None:
        self.world.queue.append((self, event))

    def read_stage(self, action: ev.ReadStage) -> None:
        data = self.disk.stages.get(action.change_order.change_order_guid)
        generated = 0
        if data is None and action.regenerate:
            place = self.disk.place(action.file_guid)
            if place is not None and self.disk.nodes[place].md5 == action.md5:
                data = encode_stage(self.disk.nodes[place])
                self.disk.stages[action.change_order.change_order_guid] = data
                generated = len(data)
            else:
                self.later(ev.StageRefused(action, True, "changed"))
                return
        if data is None:
            self.later(ev.StageRefused(action, False, "gone"))
            return
        block = data[action.offset : action.offset + c.MAX_BLOCK]
        self.world.reads.append((self, ev.StageBlock(action, block, len(data), generated)))

    def later_install(self, action: ev.Install) -> None:
        outcome, node = self.install(action)
        facts = node.facts() if node is not None else None
        md5 = node.md5 if node is not None else None
        kind = None if node is None else ("folder" if node.is_dir else "file")
        self.later(ev.Installed(action.co_guid, outcome, facts, md5, 0, kind))

    def install(self, action: ev.Install) -> tuple[ev.Outcome, Node | None]:
        disk = self.disk
        node: Node | None = None
        for step in action.steps:
            place = (step.parent_guid, step.name)
            here = disk.nodes.get(place)
            match step.step:
                case ev.InstallStep.DELETE:
                    if here is None:
                        continue
                    if step.expected is None or here.ino != step.expected.ino or here.mtime != step.expected.mtime_ns:
                        return ev.Outcome.TARGET_CHANGED, None
                    if here.is_dir and any(p == here.guid for p, _ in disk.nodes):
                        return ev.Outcome.NOT_EMPTY, None
                    if step.keep is not None and step.keep.reason is not ev.KeepReason.ELSEWHERE:
                        self.kept.append(here.content)
                    del disk.nodes[place]
                case ev.InstallStep.RENAME | ev.InstallStep.VACATE:
                    source = (step.old_parent_guid, step.old_name)
                    if step.step is ev.InstallStep.VACATE:
                        source, place = place, source
                        here = disk.nodes.get(place)
                    moving = disk.nodes.get(source)
                    if moving is None:
                        if here is not None and here.guid == step.file_guid:
                            node = here
                            continue
                        return ev.Outcome.TARGET_CHANGED, None
                    if step.expected is not None and moving.ino != step.expected.ino:
                        return ev.Outcome.TARGET_CHANGED, None
                    if here is not None:
                        return ev.Outcome.NAME_TAKEN, None
                    disk.nodes[place] = disk.nodes.pop(source)
                    if step.step is ev.InstallStep.RENAME:
                        node = disk.nodes[place]
                case ev.InstallStep.CONTENT:
                    data = disk.stages.get(action.co_guid)
                    if data is None:
                        return ev.Outcome.STAGE_MISSING, None
                    fresh = decode_stage(data)
                    if here is not None and here.guid == fresh.guid and here.content == fresh.content:
                        node = here
                        continue
                    if here is not None and step.expected is None:
                        return ev.Outcome.NAME_TAKEN, None
                    if here is not None and (here.ino != step.expected.ino or here.mtime != step.expected.mtime_ns):
                        return ev.Outcome.TARGET_CHANGED, None
                    if here is not None and here.is_dir:
                        node = here
                        continue
                    fresh.ino, disk.next_ino = disk.next_ino, disk.next_ino + 1
                    disk.nodes[place] = node = fresh
                    self.installs[fresh.guid] = self.installs.get(fresh.guid, 0) + 1
        return ev.Outcome.DONE, node

    # -- what a user does --

    def create(self, parent: bytes, name: str, content: bytes = b"", *, is_dir: bool = False) -> bytes:
        guid = self.world.new_guid()
        node = Node(guid, is_dir, content, self.disk.next_ino, self.world.now)
        self.disk.next_ino += 1
        self.disk.nodes[parent, name] = node
        self.local(ev.ChangeKind.CREATE, guid)
        return guid

    def write(self, guid: bytes, content: bytes) -> None:
        node = self.disk.nodes[self.disk.place(guid)]  # type: ignore[index]
        node.content = content
        node.mtime = self.world.now
        self.local(ev.ChangeKind.UPDATE, guid)

    def rename(self, guid: bytes, parent: bytes, name: str) -> None:
        self.disk.nodes[parent, name] = self.disk.nodes.pop(self.disk.place(guid))  # type: ignore[arg-type]
        self.local(ev.ChangeKind.RENAME, guid)

    def delete(self, guid: bytes) -> None:
        place = self.disk.place(guid)
        assert place is not None
        node = self.disk.nodes.pop(place)
        if not self.up:
            return
        self.event(
            ev.LocalChange(
                ev.ChangeKind.DELETE,
                guid,
                place[0],
                place[1],
                node.is_dir,
                "file",
                self.world.now,
                c.REASON_FILE_DELETE,
            )
        )

    def local(self, kind: ev.ChangeKind, guid: bytes) -> None:
        """The journal notices at once."""
        if not self.up:
            return
        place = self.disk.place(guid)
        assert place is not None
        node = self.disk.nodes[place]
        stage = self.world.new_guid()
        staged = kind is not ev.ChangeKind.RENAME
        if staged:
            self.disk.stages[stage] = encode_stage(node)
        self.event(
            ev.LocalChange(
                kind,
                guid,
                place[0],
                place[1],
                node.is_dir,
                "folder" if node.is_dir else "file",
                self.world.now,
                c.REASON_DATA_EXTEND,
                node.facts(),
                node.md5,
                c.FILE_ATTRIBUTE_DIRECTORY if node.is_dir else 0x20,
                len(node.content),
                stage,
                staged,
            )
        )

    def tree(self) -> dict[str, bytes | None]:
        """Path -> content (None for a folder)."""
        found: dict[str, bytes | None] = {}

        def walk(parent: bytes, prefix: str) -> None:
            for (p, name), node in self.disk.nodes.items():
                if p == parent:
                    found[prefix + name] = None if node.is_dir else node.content
                    if node.is_dir:
                        walk(node.guid, prefix + name + "/")

        walk(self.root, "")
        return found


def encode_stage(node: Node) -> bytes:
    head = bytes([node.is_dir]) + node.guid + node.mtime.to_bytes(8, "big")
    return head.ljust(0x400, b"\0") + node.content


def decode_stage(data: bytes) -> Node:
    return Node(data[1:17], bool(data[0]), data[0x400:], 0, int.from_bytes(data[17:25], "big"))


class World:
    def __init__(self, names: str, edges: list[tuple[str, str]], seed: int = 0, limits: Limits | None = None) -> None:
        self.random = random.Random(seed)
        self.limits = limits or Limits()
        self.names = list(names)
        self.edges = edges
        self.now = START
        self.queue: deque[tuple[Member, ev.Event]] = deque()
        self.reads: list[tuple[Member, ev.Event]] = []  # done by several threads: they end in any order
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        self.log: list[tuple[str, ev.Action]] = []
        self.cut: set[frozenset[str]] = set()
        self.packets = 0
        self.members = {name: Member(self, name) for name in names}
        self.by_guid = {m.guid: m for m in self.members.values()}

    def new_guid(self) -> bytes:
        return self.random.randbytes(16)

    def send(self, source: Member, partner: bytes, packet: Packet) -> None:
        target = self.by_guid[partner]
        if not target.up or frozenset((source.name, target.name)) in self.cut:
            self.queue.append((source, ev.PartnerUnreachable(partner, "unreachable")))
            return
        self.packets += 1
        self.wires.setdefault((source.name, target.name), deque()).append(encode_packet(packet))

    def step(self) -> bool:
        """Deliver one thing, chosen at random; False when nothing is under way."""
        choices: list[object] = [w for w, q in self.wires.items() if q]
        if self.queue:
            choices.append(None)
        if self.reads:
            choices.append(self.reads)
        if not choices:
            return False
        choice = self.random.choice(choices)
        if choice is None:
            member, event = self.queue.popleft()
            member.event(event)
            return True
        if choice is self.reads:
            member, event = self.reads.pop(self.random.randrange(len(self.reads)))
            member.event(event)
            return True
        _source, target = choice  # type: ignore[misc]
        data = self.wires[choice].popleft()  # type: ignore[index]
        member = self.members[target]
        if member.up:
            packet = decode_packet(data)
            if member.engine.check(packet) == 0:
                member.event(ev.PacketReceived(packet, 9))
        return True

    def run(self, seconds: float = 120.0, steps: int = 200_000) -> None:
        """Let everything happen that will within the virtual time."""
        end = self.now + int(seconds * SECOND)
        for _ in range(steps):
            if self.step():
                self.now += 10_000
                continue
            deadlines = [m.engine.next_deadline() for m in self.members.values() if m.up]
            soonest = min((d for d in deadlines if d is not None), default=None)
            if soonest is None or soonest > end:
                return
            self.now = max(self.now + 1, soonest)
            for member in self.members.values():
                member.event(ev.Tick())
        raise AssertionError("no end: a message storm")

    def start_all(self) -> None:
        for member in self.members.values():
            member.start()


def mesh(names: str) -> list[tuple[str, str]]:
    return [(a, b) for a in names for b in names if a != b]


def ring(names: str) -> list[tuple[str, str]]:
    pairs = [(names[i], names[(i + 1) % len(names)]) for i in range(len(names))]
    return list(dict.fromkeys(pairs + [(b, a) for a, b in pairs]))
