"""Two members, or three, whose changes are told at once, as a journal would tell of them, and whose packets are kept:
for what is said of single changes (test_tables), and by members that are of another vendor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from agent.engine import events as ev
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import SECOND
from agent.wire.packet import Packet, decode_packet, encode_packet
from tests.simulation.schedule import chain, mesh
from tests.simulation.simdisk import stage_of
from tests.simulation.simkernel import SimSystem
from tests.simulation.simmember import Member
from tests.simulation.simtree import Node
from tests.simulation.simwatch import SimWatch
from tests.simulation.simworld import World

TEXT = b"content"
ZERO = bytes(16)
guid_of = World.guid_of

Alter = Callable[[Packet], None]


class Sent(NamedTuple):
    source: str
    target: str
    packet: Packet


class NoWatch(SimWatch):
    """Nobody looks at the tree."""

    async def start(self, *, first: bool) -> None:
        self.scanned.set()

    def noticed(self, delay: int) -> None: ...


class Telling(Member):
    """A member that is told of each change by who makes it, and of why it came about. Files and folders are known by
    their GUIDs. Its staging files are said to be compressed, or are not; `lacks` is what its tree does not hold of what
    comes into it."""

    compressed = False
    lacks = b""

    def watch_maker(self, system: SimSystem) -> Callable[..., Any]:
        return partial(NoWatch, self, system)

    def posted(self, event: ev.Event) -> ev.Event:
        if isinstance(event, ev.Installed | ev.LocalChange) and event.md5 not in (None, ZERO):
            event = replace(event, unstored=self.lacks)
        return super().posted(event)

    def node(self, guid: bytes) -> Node:
        return self.disk.root if guid == self.root else next(n for n in self.disk.walk() if n.oid == guid)

    def create(self, parent: bytes, name: str, content: bytes = b"", *, is_dir: bool = False) -> bytes:
        guid = self.world.new_guid()
        self.disk.now = self.world.now
        node = self.disk.add(self.node(parent), name, is_dir=is_dir, content=content, oid=guid)
        self._tell(ev.ChangeKind.CREATE, node, c.REASON_FILE_CREATE | self._data(node))
        return guid

    def write(self, guid: bytes, content: bytes) -> None:
        node = self.node(guid)
        self.disk.now = self.world.now
        self.disk.write(node, content)
        self._tell(ev.ChangeKind.UPDATE, node, self._data(node))

    def change_attributes(self, guid: bytes) -> None:
        """Of a folder."""
        node = self.node(guid)
        self.disk.now = self.world.now
        node.mtime = self.disk.tick()
        self._tell(ev.ChangeKind.UPDATE, node, c.REASON_BASIC_INFO_CHANGE)

    def rename(self, guid: bytes, parent: bytes, name: str) -> None:
        node = self.node(guid)
        self.disk.move(node, self.node(parent), name)
        self._tell(ev.ChangeKind.RENAME, node, c.REASON_RENAME_NEW_NAME)

    def delete(self, guid: bytes) -> None:
        node = self.node(guid)
        place, name = self._folder(node), node.name
        self.disk.remove(node)
        kind = ev.ChangeKind.DELETE
        self.post(ev.LocalChange(kind, guid, place, name, node.is_dir, node.kind, self.now, c.REASON_FILE_DELETE))

    @staticmethod
    def _data(node: Node) -> int:
        return 0 if node.is_dir else c.REASON_DATA_OVERWRITE | c.REASON_DATA_EXTEND

    def _folder(self, node: Node) -> bytes:
        assert node.parent is not None
        return node.parent.oid or self.root

    def _tell(self, kind: ev.ChangeKind, node: Node, reasons: int) -> None:
        assert node.oid is not None
        stage, staged = self.world.new_guid(), kind is not ev.ChangeKind.RENAME
        if staged:
            self.disk.stages[stage] = stage_of(node, node.oid)
        self.post(
            ev.LocalChange(
                kind,
                node.oid,
                self._folder(node),
                node.name,
                node.is_dir,
                node.kind,
                self.now,
                reasons,
                node.facts(),
                node.md5(node.oid),
                c.FILE_ATTRIBUTE_DIRECTORY if node.is_dir else 0x20,
                len(node.content),
                stage,
                staged,
                compressed=self.compressed,
            )
        )


class Tap(World):
    """Keeps what is sent. `alter` changes a's packets on their way, as if a were of another vendor."""

    def __init__(self, compressed: bool = False, alter: Alter | None = None, *, chained: bool = False) -> None:
        names = "abc" if chained else "ab"
        super().__init__(names, (chain if chained else mesh)(names), 1, member=Telling)
        self.sent: list[Sent] = []
        self.alter = alter
        self.a, self.b = (self.telling(name) for name in "ab")
        self.a.compressed = compressed
        self.acted = 0

    def telling(self, name: str) -> Telling:
        member = self.members[name]
        assert isinstance(member, Telling)
        return member

    def send(self, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        packet = decode_packet(encode_packet(packet))
        if self.alter is not None and source is self.a:
            self.alter(packet)
        self.sent.append(Sent(source.name, self.by_guid[partner].name, decode_packet(encode_packet(packet))))
        super().send(source, partner, packet, **way)

    def settle(self) -> None:
        """Until nothing is left to do."""
        assert self.run_until_quiet(), self.pending()
        assert not self.violations

    def alone(self) -> None:
        """Only a is there so far."""
        self.a.start()
        self.run(60)

    def together(self) -> None:
        for member in self.members.values():
            member.start()
        self.settle()

    def ready(self) -> None:
        """What comes now is what the test looks at."""
        self.run(60)
        self.sent.clear()
        self.acted = self.now

    def of(self, command: int, source: str, target: str) -> list[Packet]:
        return [p for s, t, p in self.sent if (s, t, p.command) == (source, target, command)]


# ---- what happens; each returns the GUID of the file or folder it is about ---------------------------------


def _made(world: Tap, is_dir: bool, content: bytes = TEXT) -> bytes:
    world.together()
    guid = world.a.create(world.a.root, "n", b"" if is_dir else content, is_dir=is_dir)
    world.ready()
    return guid


def new(world: Tap, is_dir: bool, content: bytes = TEXT) -> bytes:
    world.together()
    world.ready()
    return world.a.create(world.a.root, "n", b"" if is_dir else content, is_dir=is_dir)


def new_empty(world: Tap, is_dir: bool) -> bytes:
    return new(world, is_dir, b"")


def new_below(world: Tap, is_dir: bool) -> bytes:
    folder = _made(world, True)
    return world.a.create(folder, "below", b"" if is_dir else TEXT, is_dir=is_dir)


def update(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    world.a.change_attributes(guid) if is_dir else world.a.write(guid, b"other content")
    return guid


def rename(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    world.a.rename(guid, world.a.root, "renamed")
    return guid


def move(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    folder = world.a.create(world.a.root, "into", is_dir=True)
    world.ready()
    world.a.rename(guid, folder, "n")
    return guid


def delete(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    world.a.delete(guid)
    return guid


def seed(world: Tap, is_dir: bool) -> bytes:
    """Initial sync (VVJoin)."""
    world.alone()
    guid = world.a.create(world.a.root, "n", b"" if is_dir else TEXT, is_dir=is_dir)
    world.ready()
    world.together()
    return guid


def seed_gone(world: Tap, is_dir: bool) -> bytes:
    world.alone()
    guid = world.a.create(world.a.root, "n", b"" if is_dir else TEXT, is_dir=is_dir)
    world.a.delete(guid)
    world.ready()
    world.together()
    return guid


def seed_ahead(world: Tap, is_dir: bool) -> bytes:
    """The folder was made after what is in it now, and goes before it."""
    world.alone()
    guid = world.a.create(world.a.root, "n", TEXT)
    folder = world.a.create(world.a.root, "later", is_dir=True)
    world.a.rename(guid, folder, "n")
    world.now += SECOND
    world.a.change_attributes(folder)
    world.ready()
    world.together()
    return folder


def lose(world: Tap, is_dir: bool) -> bytes:
    """b changed it twice meanwhile: the highest version wins (3.3.4.4.6)."""
    guid = _made(world, is_dir)
    if is_dir:
        world.a.rename(guid, world.a.root, "renamed")
        for name in ("once", "twice"):
            world.b.rename(guid, world.b.root, name)
    else:
        world.a.write(guid, b"other content")
        for text in (b"once", b"twice"):
            world.b.write(guid, text)
    return guid


def lose_delete(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    world.a.delete(guid)
    for name in ("once", "twice"):
        world.b.rename(guid, world.b.root, name)
    return guid


def lose_name(world: Tap, is_dir: bool) -> bytes:
    """b makes another file of that name, later."""
    guid = new(world, is_dir)
    world.now += SECOND
    world.b.create(world.b.root, "n", b"of b")
    return guid


def win(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    world.b.write(guid, b"of b")
    world.now += SECOND
    world.acted = world.now
    world.a.write(guid, b"of a, later")
    return guid


def again(world: Tap, guid: bytes) -> None:
    """The change order comes once more, as after a session that broke off, and is dampened."""
    packet = the(world, c.CMD_REMOTE_CO, "a", "b", guid)
    world.sent[:] = [sent for sent in world.sent if sent.packet is packet]
    World.send(world, world.a, world.b.guid, packet)
    world.settle()


# ---- what was sent ------------------------------------------------------------------------------------------


def the(world: Tap, command: int, source: str, target: str, guid: bytes) -> Packet:
    """The first packet of that kind about the file."""
    for packet in world.of(command, source, target):
        if packet.remote_co is not None and packet.remote_co.file_guid == guid:
            return packet
    raise AssertionError(f"no {command:#x} from {source} to {target}")


def differences(found: object, expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field -> what is expected and what was found, where they differ."""
    values = {name: getattr(found, name) for name in expected}
    return {name: (value, values[name]) for name, value in expected.items() if values[name] != value}


def order(packet: Packet) -> ChangeOrder:
    assert packet.remote_co is not None
    assert packet.remote_co.raw_rest is None  # 3.3.4.1: Spare fields MUST be 0
    return packet.remote_co


def check_head(world: Tap, packet: Packet, source: str, target: str) -> None:
    """3.3.4.1; the answers repeat session GUID and Join time (3.3.4.4.6.1, 3.3.4.4.6.2)."""
    answer = packet.command in (c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE)
    upstream, downstream = (target, source) if answer else (source, target)
    cxtion = guid_of("cxtion", upstream, downstream)
    session = world.members[upstream].engine.out_sessions.sessions[cxtion]
    assert packet.from_.guid == world.members[source].guid
    assert packet.to.guid == packet.replica.guid == world.members[target].guid  # R2
    assert packet.replica.name == "S"  # R2, in capitals
    assert packet.cxtion.guid == cxtion
    assert packet.join_guid == session.join_guid != ZERO
    assert packet.last_join_time == session.joined_time > 1
