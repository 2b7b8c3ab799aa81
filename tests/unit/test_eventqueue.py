"""The events that wait for an engine: order, turns, and what a partner's packets may take of memory."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engine import events as ev
from agent.replica import batches, eventqueue
from agent.replica.batches import Batches
from agent.replica.eventqueue import MOST, EventQueue, size_of
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.packet import Gvsn, NamedGuid, Packet, decode_packets, encode_packet
from agent.work.supervise import Supervisor
from agent.work.timeshares import TimeShares
from idtable.store import Store


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


ONE, OTHER = b"1" * 16, b"2" * 16
BLOCK = bytes(c.MAX_BLOCK)


def packet(
    partner: bytes,
    number: int = 0,
    block: bytes | None = None,
    command: int = c.CMD_REMOTE_CO,
    aside: bool = False,
) -> ev.PacketReceived:
    name = NamedGuid(partner, "x")
    made = Packet(command=command, to=name, from_=name, replica=name, cxtion=name, last_join_time=number)
    made.block = block
    return ev.PacketReceived(made, 9, aside=aside)


def test_a_partner_with_little_does_not_wait_for_one_with_much() -> None:
    queue = EventQueue()
    for number in range(10_000):
        queue.append(packet(ONE, number))
    queue.append(packet(OTHER))
    queue.append(ev.Tick())
    first = [queue.popleft() for _ in range(3)]
    assert [type(event) for event in first].count(ev.Tick) == 1
    assert OTHER in [event.packet.from_.guid for event in first if isinstance(event, ev.PacketReceived)]


def test_what_a_partner_sends_takes_so_much_memory() -> None:
    queue = EventQueue()
    taken = 0
    while queue.has_room(ONE):
        queue.append(event := packet(ONE, block=BLOCK))
        taken += size_of(event.packet)
    assert MOST <= taken < MOST + 2 * len(BLOCK)
    assert queue.has_room(OTHER)
    queue.popleft()
    assert queue.has_room(ONE)
    queue.clear()
    assert queue.has_room(ONE)
    assert not queue._bytes


def test_small_packets_and_long_version_vectors_count() -> None:
    one = packet(ONE).packet
    assert size_of(one) >= 2048
    one.vvector = [Gvsn(1, ONE)] * 1000
    assert size_of(one) > 1000 * 100


@pytest.mark.parametrize("long", ["names", "a name with a character beyond 16 bits", "vector", "compressions", "block"])
def test_a_packet_counts_for_what_it_takes(long: str) -> None:
    """Whatever a partner makes long in it, of that which nobody here knows."""
    event = packet(ONE, command=c.CMD_RECEIVING_STAGE if long == "block" else c.CMD_JOINING)
    made = event.packet
    match long:
        case "names":
            made.to = made.from_ = made.cxtion = NamedGuid(ONE, "\u5b57" * 40_000)
        case "a name with a character beyond 16 bits":
            made.cxtion = NamedGuid(ONE, "\U0001d11e" + "x" * 120_000)
        case "vector":
            made.vvector = [Gvsn(1 << 62, number.to_bytes(16)) for number in range(7000)]
        case "compressions":
            made.compression_guids = [number.to_bytes(16) for number in range(11_000)]
        case "block":
            made.block, made.block_size, made.file_size, made.file_offset = BLOCK, len(BLOCK), len(BLOCK), 0
            made.co_guid, made.co_sequence_number = ONE, 0
    if long != "block":
        made.join_time, made.replica_version_guid = 1, ONE
    data = encode_packet(made)
    tracemalloc.start()
    try:
        ((found, _),) = decode_packets(memoryview(data))
        assert tracemalloc.get_traced_memory()[0] <= size_of(found)
    finally:
        tracemalloc.stop()


def test_an_engine_begins_with_started() -> None:
    queue = EventQueue()
    queue.append(packet(ONE))
    queue.append(ev.Tick())
    queue.append(ev.Started())
    assert isinstance(queue.popleft(), ev.Started)


def lane(event: ev.Event) -> tuple[bytes, int]:
    if not isinstance(event, ev.PacketReceived):
        return (event.partner if isinstance(event, ev.PartnerUnreachable) else b""), 1
    if event.packet.command != c.CMD_REMOTE_CO:
        return event.packet.from_.guid, 0
    return event.packet.from_.guid, 2 if event.aside else 1


events = st.one_of(
    st.builds(packet, st.sampled_from([ONE, OTHER, b"3" * 16]), st.integers(0, 1000), aside=st.booleans()),
    st.builds(packet, st.sampled_from([ONE, OTHER]), command=st.sampled_from([c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE])),
    st.builds(ev.PartnerUnreachable, st.sampled_from([ONE, OTHER]), st.text(max_size=3)),
    st.builds(ev.FetchStored, st.binary(min_size=16, max_size=16), st.booleans(), st.integers(0, 10)),
)


@given(st.lists(st.one_of(events, st.none(), st.just("back")), max_size=60))
def test_each_partner_keeps_its_order(steps: list[Any]) -> None:
    """Put in, take out (None), and put back what was taken out last, as after a failed transaction."""
    queue, model = EventQueue(), dict[tuple[bytes, int], deque[ev.Event]]()
    taken: list[ev.Event] = []
    for step in steps:
        if step == "back":
            queue.extendleft(reversed(taken))
            for event in reversed(taken):
                model.setdefault(lane(event), deque()).appendleft(event)
            taken = []
        elif step is not None:
            queue.append(step)
            model.setdefault(lane(step), deque()).append(step)
        elif len(queue):
            event = queue.popleft()
            assert event is model[lane(event)].popleft()
            taken.append(event)
        assert len(queue) == sum(map(len, model.values())) == len(list(queue))
    while len(queue):
        event = queue.popleft()
        assert event is model[lane(event)].popleft()
    with pytest.raises(IndexError):
        queue.popleft()
    assert not queue._bytes
    assert not list(queue.senders())


@given(st.lists(st.one_of(st.none(), st.tuples(st.sampled_from([b"a" * 16, b"b" * 16]), st.booleans())), max_size=60))
def test_an_originator_keeps_its_order_whatever_its_change_orders_come_by(steps: list[Any]) -> None:
    """Put in (the originator, and whether by another association), and take out (None)."""
    queue, model = EventQueue(), dict[bytes, deque[ev.Event]]()
    for step in (*steps, *[None] * len(steps)):
        if step is not None:
            event = packet(ONE, aside=step[1])
            event.packet.remote_co = ChangeOrder(originator_guid=step[0])
            queue.append(event)
            model.setdefault(step[0], deque()).append(event)
        elif len(queue):
            taken = queue.popleft()
            assert isinstance(taken, ev.PacketReceived)
            assert taken.packet.remote_co is not None
            assert taken is model[taken.packet.remote_co.originator_guid].popleft()
    assert not queue._originators


def test_what_is_passed_on_does_not_pass_what_begins_a_session() -> None:
    queue = EventQueue()
    for event in (packet(ONE, aside=True), packet(ONE, command=c.CMD_JOINED), packet(ONE, aside=True), packet(OTHER)):
        queue.append(event)
    took = [queue.popleft() for _ in range(4)]
    commands = [event.packet.command for event in took if isinstance(event, ev.PacketReceived)]
    assert commands.index(c.CMD_JOINED) < 2


def test_turns_are_taken_one_by_one() -> None:
    queue = EventQueue()
    for number in range(6):
        queue.append(packet(ONE, number))
    for number in range(3):
        queue.append(packet(OTHER, number))
    order = [event.packet.from_.guid for event in (queue.popleft() for _ in range(9))]  # type: ignore[union-attr]
    assert order == [ONE, OTHER] * 3 + [ONE] * 3


def test_a_transaction_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event takes its time: what comes meanwhile does not wait for a thousand of them."""
    now = [0.0]
    monkeypatch.setattr(batches, "_clock", lambda: now[0])
    handled: list[float] = []
    commits: list[int] = []

    class Slow:
        def handle(self, event: ev.Event, at: int) -> list[ev.Action]:
            now[0] += batches.LONGEST_S / 10
            handled.append(now[0])
            return []

        is_online = True

        def awaits(self, packet: Packet) -> bool:
            return False

        def next_deadline(self) -> int | None:
            commits.append(len(handled))
            return None

    async def all_of_it() -> None:
        store = Store(":memory:")
        made = Batches(
            store,
            threading.RLock(),
            lambda: Slow(),  # type: ignore[arg-type, return-value]
            act=lambda action: None,
            unacted=lambda action, error: pytest.fail(str(error)),
            failed=lambda error: pytest.fail(str(error)),
            broken=lambda event, error: pytest.fail(str(error)),
            runs=lambda: True,
            supervisor=Supervisor(failed),
            shares=TimeShares(),
        )
        for number in range(1000):
            made.post(packet(ONE, number))
        await made.settled()
        made.close()
        store.close()

    asyncio.run(all_of_it())
    assert len(handled) == 1000
    assert max(b - a for a, b in zip([0, *commits], commits, strict=False)) <= 12


def test_the_bound_leaves_room_for_what_our_own_agents_send() -> None:
    """What was asked for of staging files, and full windows of change orders and of requests."""
    asked = 2 * 128 * size_of(packet(ONE, block=BLOCK).packet)
    assert asked + (3 * 256 + 1024) * size_of(packet(ONE).packet) < eventqueue.MOST
