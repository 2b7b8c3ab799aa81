"""For test_tables: two engines whose packets are kept, and what happens to a file or folder on one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from agent.engine import events as ev
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.packet import Packet, decode_packet, encode_packet
from tests.simulation.world import Member, World, guid_of, mesh

TEXT = b"content"
ZERO = bytes(16)

Alter = Callable[[Packet], None]


class Sent(NamedTuple):
    source: str
    target: str
    packet: Packet


class Journalled(Member):
    """A member whose journal says why a change came about, as the real one does, and compresses or does not."""

    compressed = False

    def event(self, event: ev.Event) -> None:
        if isinstance(event, ev.LocalChange) and event.kind is not ev.ChangeKind.DELETE:
            created = c.REASON_FILE_CREATE if event.kind is ev.ChangeKind.CREATE else 0
            moved = c.REASON_RENAME_NEW_NAME if event.kind is ev.ChangeKind.RENAME else 0
            data = 0 if event.is_dir or moved else c.REASON_DATA_OVERWRITE | c.REASON_DATA_EXTEND
            touched = c.REASON_BASIC_INFO_CHANGE if event.is_dir and event.kind is ev.ChangeKind.UPDATE else 0
            event = replace(event, compressed=self.compressed, reasons=created | moved | data | touched)
        super().event(event)

    def touch(self, guid: bytes) -> None:
        """A folder's attributes are changed."""
        place = self.disk.place(guid)
        assert place is not None
        self.disk.nodes[place].mtime = self.world.now
        self.local(ev.ChangeKind.UPDATE, guid)


class Tap(World):
    """Keeps what is sent. `alter` changes a's packets on their way, as if a were of another vendor."""

    def __init__(self, compressed: bool, alter: Alter | None = None, *, chain: bool = False) -> None:
        edges = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")] if chain else mesh("ab")
        super().__init__("abc" if chain else "ab", edges)
        self.sent: list[Sent] = []
        self.alter = alter
        made = {name: Journalled(self, name) for name in self.names}
        self.a, self.b = made["a"], made["b"]
        self.a.compressed = compressed
        self.members = dict(made)
        self.by_guid = {member.guid: member for member in made.values()}
        self.acted = 0

    def send(self, source: Member, partner: bytes, packet: Packet) -> None:
        packet = decode_packet(encode_packet(packet))
        if self.alter is not None and source is self.a:
            self.alter(packet)
        self.sent.append(Sent(source.name, self.by_guid[partner].name, decode_packet(encode_packet(packet))))
        super().send(source, partner, packet)

    def together(self) -> None:
        for member in self.members.values():
            if not member.up:
                member.start()
        self.run(300)

    def ready(self) -> None:
        """What comes now is what the test looks at."""
        self.run()
        self.sent.clear()
        self.now += 10_000_000
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
    world.a.touch(guid) if is_dir else world.a.write(guid, b"other content")
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
    world.a.start()
    guid = world.a.create(world.a.root, "n", b"" if is_dir else TEXT, is_dir=is_dir)
    world.ready()
    world.together()
    return guid


def seed_gone(world: Tap, is_dir: bool) -> bytes:
    world.a.start()
    guid = world.a.create(world.a.root, "n", b"" if is_dir else TEXT, is_dir=is_dir)
    world.a.delete(guid)
    world.ready()
    world.together()
    return guid


def seed_ahead(world: Tap, is_dir: bool) -> bytes:
    """The folder was made after what is in it now, and goes before it."""
    world.a.start()
    guid = world.a.create(world.a.root, "n", TEXT)
    folder = world.a.create(world.a.root, "later", is_dir=True)
    world.a.rename(guid, folder, "n")
    world.now += 10_000_000
    world.a.touch(folder)
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
    world.now += 10_000_000
    world.b.create(world.b.root, "n", b"of b")
    return guid


def win(world: Tap, is_dir: bool) -> bytes:
    guid = _made(world, is_dir)
    world.b.write(guid, b"of b")
    world.now += 10_000_000
    world.acted = world.now
    world.a.write(guid, b"of a, later")
    return guid


def again(world: Tap, guid: bytes) -> None:
    """The change order comes once more, as after a session that broke off, and is dampened."""
    packet = the(world, c.CMD_REMOTE_CO, "a", "b", guid)
    world.sent[:] = [sent for sent in world.sent if sent.packet is packet]
    World.send(world, world.a, world.b.guid, packet)
    world.run()


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
