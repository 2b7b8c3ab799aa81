"""Partners of minor version 3 and below get the extension of a change order in the WIN2K form, in every packet with a
change order and in the stage header ([MS-FRS1] 2.2.3.3, 2.2.3.5, 3.3.4.4.7); the others never do.

The forms are told apart here by the bytes alone.
"""

from __future__ import annotations

import struct

import pytest

from agent.engine import events as ev
from agent.replica.actions import Actions
from agent.wire.packet import Packet, encode_packet
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, make, started

REMOTE_CO, SEND_STAGE, REMOTE_CO_DONE = 0x218, 0x228, 0x250
WITH_CHANGE_ORDER = {REMOTE_CO, SEND_STAGE, REMOTE_CO_DONE}


def elements(pkt: bytes) -> list[tuple[int, bytes]]:
    """CommType and data of each element."""
    found, at = [], 0
    while at < len(pkt):
        kind, length = struct.unpack_from("<HI", pkt, at)
        found.append((kind, pkt[at + 6 : at + 6 + length]))
        at += 6 + length
    return found


def win2k(checksum: bytes) -> bytes:
    """CO_RECORD_EXTENSION_WIN2K around DATA_EXTENSION_CHECKSUM (2.2.3.3, 2.2.3.7)."""
    return struct.pack("<IHHII", 0x28, 0, 1, 0x10, 0) + struct.pack("<II", 0x18, 1) + checksum


@pytest.mark.parametrize("minor", range(10))
def test_the_form_of_the_extension_is_the_partners(minor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, list[tuple[int, bytes]]]] = []
    headers: list[tuple[bytes, bytes]] = []
    send, act = World.send, Actions.act

    def spy(world: World, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        sent.append((packet.command, elements(encode_packet(packet))))
        send(world, source, partner, packet, **way)

    def reads(actions: Actions, action: ev.Action) -> None:
        if isinstance(action, ev.ReadStage):
            headers.append((action.md5, action.coc_ext))
        act(actions, action)

    monkeypatch.setattr(World, "send", spy)
    monkeypatch.setattr(Actions, "act", reads)
    world = started("ab", minor=minor)
    make(world.members["a"], "d", None)
    make(world.members["a"], "d/n", b"1" * 100_000)  # two blocks
    all_agree(world)
    old = minor <= 3
    seen = set()
    for command, parts in sent:
        kinds = [kind for kind, _ in parts]
        assert (0x16 in kinds, 0x17 in kinds) == ((old, not old) if command in WITH_CHANGE_ORDER else (False, False))
        seen.add(command)
        if command == REMOTE_CO and old:
            (extension,) = (data for kind, data in parts if kind == 0x16)
            assert len(extension) == 0x2C
            assert extension == struct.pack("<I", 0x28) + win2k(extension[-16:])
            assert extension[-16:] != bytes(16)
    assert seen >= WITH_CHANGE_ORDER
    assert headers
    for md5, coc_ext in headers:
        assert coc_ext == (win2k(md5) if old else bytes(0x28))
        assert md5 != bytes(16)
