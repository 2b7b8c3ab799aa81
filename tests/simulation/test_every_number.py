"""Any value in any number of any packet: the engine takes it or refuses it, and nobody is worse off when its sender is
gone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engine import plausible
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2, CoExtWin2k
from agent.wire.filetime import HOUR, MINUTE
from agent.wire.packet import Gvsn, Packet, decode_packet, encode_packet
from agent.work.clock import iso_time
from tests.simulation.forging import Forger
from tests.simulation.simworld import START, World
from tests.simulation.test_implausible import everything_goes_on, sound
from tests.simulation.users import make, started

SKEW = 30 * MINUTE
EDGES = [
    0, 1, 2, 0xFFFF, 0x10000, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 53), (1 << 62), (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1, START, START + SKEW, START + HOUR, START + 2 * 24 * HOUR, START + plausible.VSN_AHEAD,
    START + plausible.VSN_AHEAD - 24 * HOUR, START + plausible.VSN_AHEAD + 24 * HOUR, plausible.versions(START),
]  # fmt: skip
U64 = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1))
U32 = st.one_of(st.sampled_from([e for e in EDGES if e < 1 << 32]), st.integers(0, (1 << 32) - 1))
#: Fields of a change order, with their width where it is not 64 bits.
WIDTHS = dict.fromkeys(
    (
        "sequence_number", "flags", "iflags", "state", "content_cmd", "location_cmd", "file_attributes",
        "file_version_number", "partner_ack_seq_number", "original_replica_num", "new_replica_num", "ack_version",
    ),
    U32,
)  # fmt: skip
NUMBERS = [f.name for f in dataclasses.fields(ChangeOrder) if f.type == "int"]
COMMANDS = sorted(set(c.COMMAND_NAMES) - {c.CMD_JOINING})


@st.composite
def change_orders(draw: st.DrawFn) -> dict[str, Any]:
    """What is odd about a change order, whose originator and file are some that there are."""
    chosen = draw(st.lists(st.sampled_from(NUMBERS), max_size=4, unique=True))
    fields = {name: draw(WIDTHS.get(name, U64)) for name in chosen}
    return fields | {"originator": draw(st.sampled_from("abcz")), "known": draw(st.booleans())}


@st.composite
def packets(draw: st.DrawFn) -> dict[str, Any]:
    """What is odd about a packet."""
    command = draw(st.sampled_from([c.CMD_REMOTE_CO, *COMMANDS, c.CMD_JOINING]))
    return {
        "command": command,
        "last_join_time": draw(U64),
        "join_time": draw(st.one_of(st.just(START), U64)),
        "vvector": draw(st.lists(st.tuples(U64, st.sampled_from("abcz")), max_size=4)),
        "sizes": draw(st.tuples(U64, U64, U64)),
        "gvsn": draw(U64),
        "co_sequence_number": draw(U32),
        "block": draw(st.binary(max_size=8)),
        "change_order": draw(change_orders()),
        "extension": draw(st.one_of(st.none(), st.tuples(U32, U64))),
        "wrong_session": draw(st.integers(0, 9)) == 0,
    }


def built(world: World, forger: Forger, odd: dict[str, Any]) -> Packet:
    """The packet, as it arrives."""
    command = odd["command"]
    upstream = command in (c.CMD_NEED_JOIN, c.CMD_JOINING, c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE)
    session = forger.by.engine.in_sessions.sessions[world.guid_of("cxtion", "b", "a")] if upstream else forger.session
    packet = session.packet(forger.by.engine.ctx, command)
    if odd["wrong_session"]:
        packet.join_guid = bytes(16)
    packet.last_join_time = odd["last_join_time"]
    if command == c.CMD_JOINING:
        packet.join_time, packet.replica_version_guid = odd["join_time"], world.guid_of("originator", "a")
        packet.join_guid = world.new_guid()
        packet.vvector = [Gvsn(vsn, world.guid_of("originator", name)) for vsn, name in odd["vvector"]]
    fields = dict(odd["change_order"])
    originator, known = world.guid_of("originator", fields.pop("originator")), fields.pop("known")
    record = forger.to.store.by_name(forger.to.root, "n")
    file_guid = record.file_guid if known and record is not None else world.guid_of("file", "forged")
    name = "n" if known else "forged"
    co = forger.change_order(name, **({"originator_guid": originator, "file_guid": file_guid} | fields))
    with_change_order = command in (c.CMD_REMOTE_CO, c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE)
    if with_change_order:
        packet.remote_co = co
        if odd["extension"] is None:
            packet.co_ext_win2k = CoExtWin2k(bytes(16))
        else:
            packet.co_extension_2 = CoExtension2(bytes(16), *odd["extension"])
    stage = (c.CMD_SEND_STAGE, c.CMD_RECEIVING_STAGE, c.CMD_RETRY_FETCH, c.CMD_ABORT_FETCH, c.CMD_REMOTE_CO_DONE)
    if command in stage:
        packet.block_size, packet.file_size, packet.file_offset = odd["sizes"]
        packet.co_sequence_number = odd["co_sequence_number"]
        under_way = [*forger.to.engine.inbound.by_co, co.change_order_guid]
        packet.co_guid = under_way[0]
    if command == c.CMD_RECEIVING_STAGE:
        packet.block, packet.block_size = odd["block"], len(odd["block"])
    if command == c.CMD_REMOTE_CO_DONE:
        packet.gvsn = Gvsn(odd["gvsn"], originator)
    return decode_packet(encode_packet(packet))


@settings(max_examples=40)
@given(st.lists(packets(), min_size=1, max_size=12))
def test_no_number_in_a_packet_stops_anybody(odd: list[dict[str, Any]]) -> None:
    world = started("abc")
    make(world.members["c"], "n", b"1")
    world.run(60)
    forger = Forger(world, "a", "b")
    for one in odd:
        forger.send(built(world, forger, one))
        world.run(2)
        for told in world.members["b"].engine.connections():
            iso_time(told["last_join_time"] or 0)
    sound(world)
    everything_goes_on(world, but="a")
