"""The link with one partner: what it does not take is bounded, and ends its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from agent.partners import links as partners
from agent.partners.links import MOST, ROOM, PartnerLink
from agent.rpc.frsrpc import frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import RpcServer
from agent.wire.comm_packet import CommPacket
from agent.wire.constants import MAX_PACKETS
from agent.work.supervise import Supervisor


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


ALICE = Credential("FRS", "alice", "a secret")
BLOCK = bytes(64 << 10)


class Partner:
    """A member that answers a call when it is told to, or at once."""

    def __init__(self) -> None:
        self.taken = 0
        self.calls: list[bytes] = []
        self.silent = True
        self.asked: list[asyncio.Future[int]] = []
        self.unreachable: list[str] = []
        self.floods: list[str] = []
        self.room = asyncio.Event()

    def on_packet(self, context: CallContext, packet: CommPacket) -> int | Awaitable[int]:
        self.taken += len(packet.pkt)
        self.calls.append(bytes(packet.pkt))
        if not self.silent:
            return 0
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    async def link(self) -> PartnerLink:
        self.server = RpcServer([frsrpc_interface(self.on_packet)], CredentialStore([ALICE]))
        port = await self.server.start("127.0.0.1", 0)
        return PartnerLink(
            "b",
            "127.0.0.1",
            port,
            ALICE,
            on_unreachable=self.unreachable.append,
            on_sent=lambda cxtion, size, ok: None,
            on_refused=lambda cxtion, result: f"{cxtion} {result}",
            on_bind=lambda ok: None,
            on_authentication=lambda ok, account: None,
            on_timeout=lambda: None,
            supervisor=Supervisor(failed),
            on_room=self.room.set,
            on_flood=self.floods.append,
        )

    def answer(self) -> None:
        self.silent = False
        for call in self.asked:
            call.set_result(0)


@pytest.fixture
async def linked() -> AsyncIterator[tuple[Partner, PartnerLink]]:
    partner = Partner()
    link = await partner.link()
    yield partner, link
    await link.close()
    await partner.server.close()


async def test_there_is_room_when_enough_was_taken(linked: tuple[Partner, PartnerLink]) -> None:
    partner, link = linked
    for _ in range(ROOM // len(BLOCK)):
        assert link.has_room
        link.send(BLOCK, "a->b")
    assert not link.has_room
    while not partner.asked:
        await asyncio.sleep(0)
    assert not partner.room.is_set()
    partner.answer()
    await asyncio.wait_for(partner.room.wait(), 30)
    assert link.has_room
    while link.queued:
        await asyncio.sleep(0)
    assert partner.taken == ROOM
    assert not partner.unreachable


async def test_who_does_not_take_what_it_asks_for_is_given_up(linked: tuple[Partner, PartnerLink]) -> None:
    partner, link = linked
    for _ in range(MOST // len(BLOCK)):
        link.send(BLOCK, "a->b")
    assert not partner.unreachable
    link.send(BLOCK, "a->b")
    assert len(partner.unreachable) == len(partner.floods) == 1
    assert "does not take what it asks for" in partner.unreachable[0]
    assert link.queued <= partners.IN_FLIGHT
    assert link.has_room
    partner.answer()
    link.send(b"after", "a->b")
    while link.queued:
        await asyncio.sleep(0)
    assert len(partner.unreachable) == 1


async def test_with_its_association_a_session_is_over(linked: tuple[Partner, PartnerLink]) -> None:
    """What is sent by a new one could come before what was sent by the one that was lost."""
    partner, link = linked
    partner.silent = False
    for told in (0, 1, 1):
        link.send(b"packet", "a->b")
        while link.queued:
            await asyncio.sleep(0)
        assert len(partner.unreachable) == told
        if not told:
            await link._own.partner.close()
    assert partner.taken == 2 * len(b"packet")


async def test_what_is_passed_on_waits_for_what_begins_its_session(linked: tuple[Partner, PartnerLink]) -> None:
    partner, link = linked
    link.send(b"joined", "a->b", control=True)
    link.send(b"passed on", "a->b", passed_on=True)
    while not partner.asked:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert (len(partner.asked), link.queued) == (1, 2)
    partner.answer()
    while link.queued:
        await asyncio.sleep(0)
    assert partner.taken == len(b"joined") + len(b"passed on")


async def test_packets_that_wait_together_share_a_call_where_the_partner_takes_that(
    linked: tuple[Partner, PartnerLink],
) -> None:
    """In their order, of one connection, up to a size and a number; what begins a session goes by itself."""
    partner, link = linked
    partner.silent = False
    sent: list[tuple[str, int, bool]] = []
    link._on_sent = lambda *what: sent.append(what)
    link.send(b"one", "a->b")
    link.send(b"joined", "a->b", control=True, shared=True)
    for packet in (b"two", b"three", b"4" * partners.SHARED, b"five"):
        link.send(packet, "a->b", shared=True)
    link.send(b"another", "b->a", shared=True)
    for _ in range(MAX_PACKETS + 1):
        link.send(b"y", "b->a", shared=True)
    link.send(b"old", "b->a")
    while link.queued:
        await asyncio.sleep(0)
    calls = [b"one", b"joined", b"twothree", b"4" * partners.SHARED, b"five", b"another" + b"y" * 63, b"yy", b"old"]
    assert partner.calls == calls
    assert len(sent) == 9 + MAX_PACKETS
    assert all(ok for _, _, ok in sent)
    assert link._bytes == 0


async def test_a_call_that_is_refused_is_the_end_of_all_packets_in_it(linked: tuple[Partner, PartnerLink]) -> None:
    partner, link = linked
    sent: list[bool] = []
    link._on_sent = lambda cxtion, size, ok: sent.append(ok)
    for _ in range(3):
        link.send(b"packet", "a->b", shared=True)
    while not partner.asked:
        await asyncio.sleep(0)
    partner.asked[0].set_result(0x57)
    while link.queued:
        await asyncio.sleep(0)
    assert sent == [False] * 3
    assert partner.unreachable == ["a->b 87"]
    assert link._bytes == 0


async def test_a_partner_is_never_called_without_authentication() -> None:
    """Whoever listens at its address would be told all that it is sent."""
    unreachable: list[str] = []
    calls = []

    def link(missing: str | None) -> PartnerLink:
        return PartnerLink(
            "b",
            "127.0.0.1",
            port,
            None,
            missing=missing,
            on_unreachable=unreachable.append,
            on_sent=lambda cxtion, size, ok: None,
            on_refused=lambda cxtion, result: "",
            on_bind=lambda ok: None,
            on_authentication=lambda ok, account: None,
            on_timeout=lambda: None,
            supervisor=Supervisor(failed),
        )

    listener = await asyncio.start_server(lambda *streams: calls.append(streams), "127.0.0.1")
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(ValueError, match="without authentication"):
        link(None)
    one = link("b has no key")
    for _ in range(2):
        one.send(b"a packet", "a->b")
        while one.queued:
            await asyncio.sleep(0)
    assert unreachable == ["b has no key"] * 2
    assert calls == []
    await one.close()
    listener.close()


@pytest.mark.parametrize("what", ["connect", "send_stub"])
async def test_a_fault_in_sending_ends_the_session_and_not_the_link(
    linked: tuple[Partner, PartnerLink], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It may have been the partner's answer that did it."""
    partner, link = linked
    partner.silent = False

    async def fail(*_: object) -> int:
        raise ValueError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(link._own.partner, what, fail)
        link.send(b"a packet", "a->b")
        async with asyncio.timeout(30):
            while not partner.unreachable:
                await asyncio.sleep(0.01)
        assert "ValueError: injected" in partner.unreachable[0]
    link.send(b"another", "a->b")
    async with asyncio.timeout(30):
        while not partner.taken:
            await asyncio.sleep(0.01)
    assert link.has_room
