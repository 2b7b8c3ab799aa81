"""A partner that says of one GUID now that it is a file, now a folder, under this name and that, with things in it; to
one of two members, of which the other hears of it. When it has left, the two are alike and wait for nobody but it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent.engine import events as ev
from agent.wire import constants as c
from agent.wire.packet import Packet
from tests.simulation.forging import Forger
from tests.simulation.schedule import mesh
from tests.simulation.simdisk import stage_of
from tests.simulation.simmember import Member
from tests.simulation.simtree import FILE_MODE, FOLDER_MODE, Node
from tests.simulation.simworld import World
from tests.simulation.users import make, names

SECOND = 10_000_000


class Shifting:
    """The partner c of a and b, which speaks to a only."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World("abc", mesh("abc"), seed)
        for member in self.world.members.values():
            member.start()
        self.world.run(60)
        self.a, self.b, self.c = self.world.members.values()
        self.forger = Forger(self.world, "c", "a")
        self._stages: dict[bytes, bytes] = {}
        self._send, self._silent = self.world.send, False
        self._answers, self._delay = self.random.choice((1, 1, 0.95, 0.7)), self.random.choice((0.01, 0.3, 3))
        self._guids = [self.world.guid_of("file", f"g{n}") for n in range(self.random.choice((2, 4, 8)))]
        self._vsn = self.c.engine.ctx.vv.get(self.world.guid_of("originator", "c"), 0)
        self.world.send = self._between  # type: ignore[method-assign]

    def _between(self, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        """What c is told is lost, but that it gives staging files, with a delay, if at all."""
        if self._silent or not (source is self.c or partner == self.c.guid):
            self._send(source, partner, packet, **way)
            return
        data = self._stages.get(packet.co_guid or b"")
        asked = source is self.a and packet.command == c.CMD_SEND_STAGE
        if not asked or data is None or self.random.random() >= self._answers:
            return
        answer = self.forger.packet(c.CMD_RECEIVING_STAGE)
        answer.co_guid, answer.co_sequence_number = packet.co_guid, 0
        answer.block, answer.block_size = data, len(data)
        answer.file_size, answer.file_offset = len(data), 0
        self.a.after(int(self.random.random() * self._delay * SECOND), lambda: self._come(answer))

    def _come(self, packet: Packet) -> None:
        if not self._silent:
            self.a.post(ev.PacketReceived(packet, 9))

    def _offer(self, name: str, guid: bytes, version: int, *, folder: bool = False, parent: bytes = b"") -> None:
        self._vsn += 1
        node = Node(0, folder, b"" if folder else b"%d" % self._vsn, FOLDER_MODE if folder else FILE_MODE)
        fields: dict[str, Any] = {"file_guid": guid, "file_version_number": version, "frs_vsn": self._vsn}
        if folder:
            fields |= {"location_cmd": 1, "file_attributes": c.FILE_ATTRIBUTE_DIRECTORY}
        if parent:
            fields |= {"new_parent_guid": parent, "old_parent_guid": parent}
        co = self.forger.change_order(name, **fields).replace(change_order_guid=self.world.new_guid())
        self._stages[co.change_order_guid] = stage_of(node, guid)
        self.forger.send_change_orders(co)

    def offer(self, number: int) -> None:
        """One of its files, as something else than it was."""
        place = self.random.randrange(len(self._guids))
        guid, version, inside = self._guids[place], number // len(self._guids), self.world.new_guid()
        here, there = f"here {place}", f"there {place}"
        match self.random.randrange(5):
            case 0:
                self._offer(here, guid, version)
            case 1:
                self._offer(here, guid, version)
                self._offer("in a file", inside, 0, parent=guid)
            case 2:
                self._offer(there, guid, version, folder=True)
                self._offer(there, guid, version + 1)
                self._offer("in what was a folder", inside, 0, parent=guid)
            case 3:
                self._offer(here, guid, version, folder=True)
            case 4:
                self._offer(there, guid, version, folder=True)
                self._offer("in a folder", inside, 0, parent=guid)

    def leave(self) -> None:
        """Its process ends, and the others see that."""
        self._silent = True
        self.c.crash()
        for member in (self.a, self.b):
            member.post(ev.PartnerUnreachable(self.c.guid, "it is gone"))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_partner_says_of_a_guid_leaves_the_others_alike(seed: int) -> None:
    shifting = Shifting(seed)
    world, a, b = shifting.world, shifting.a, shifting.b
    number = 0
    for _ in range(shifting.random.choice((30, 100))):
        for _ in range(shifting.random.choice((1, 3, 10))):
            shifting.offer(number)
            number += 1
        world.run(shifting.random.choice((0.01, 0.1, 0.5, 2, 15)))
    world.run(shifting.random.choice((0, 0.2, 5)))
    shifting.leave()
    world.run(400)
    make(a, "of a", b"1")
    make(b, "of b", b"2")
    world.run(30)
    assert a.tree() == b.tree()
    assert {"of a", "of b"} <= set(names(a))
    of_c = world.guid_of("cxtion", "c", "a")
    for member in (a, b):
        others = [e.co.file_name for e in member.engine.inbound.entries.values() if e.cxtion != of_c]
        assert others == [], member.name
    assert world.violations == []


def test_a_folder_with_something_in_it_stays_where_it_is_when_a_file_is_to_be_made_of_it() -> None:
    shifting = Shifting(0)
    world, a, b = shifting.world, shifting.a, shifting.b
    shifting._answers, shifting._delay = 1, 0.01
    folder = shifting._guids[0]
    shifting._offer("here", folder, 0, folder=True)
    shifting._offer("in it", world.new_guid(), 0, parent=folder)
    world.run(30)
    shifting._offer("there", folder, 1)
    world.run(30)
    shifting.leave()
    world.run(60)
    for member in (a, b):
        assert {"here", "here/in it"} <= set(names(member)), member.name
        assert "there" not in names(member), member.name
        assert not member.engine.inbound.entries, member.name


def test_an_empty_folder_and_a_file_take_each_others_place() -> None:
    shifting = Shifting(0)
    world, a, b = shifting.world, shifting.a, shifting.b
    shifting._answers, shifting._delay = 1, 0.01
    for version, is_folder in enumerate((True, False, True)):
        shifting._offer(f"as {version}", shifting._guids[0], version, folder=is_folder)
        world.run(30)
        for member in (a, b):
            node = member.disk.look(f"as {version}")
            assert node is not None
            assert node.is_dir is is_folder, member.name
    shifting.leave()
    world.run(60)
    assert a.tree() == b.tree()
    assert not [name for name in names(a) if name in ("as 0", "as 1")]
