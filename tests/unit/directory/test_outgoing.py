"""Messages that wait for other servers: how many, and what becomes of them when this server ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from agent.directory.access import outgoing
from agent.directory.access.outgoing import MOST_BYTES, Outgoing, ServerAddress
from agent.directory.replication.messages import MAX_MESSAGE
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.noise import KeyPair
from config.keys import new_key, public_key
from tests.ports import free_ports


@pytest.fixture
async def sending() -> AsyncIterator[Outgoing]:
    """To servers of which none can be reached."""
    address = ServerAddress("127.0.0.1", free_ports()[0], public_key(new_key()))
    made = Outgoing(KeyPair.new(), lambda name: address, Incidents(logging.getLogger("frs")))
    yield made
    await made.close()


def waiting(sending: Outgoing, name: str) -> list[bytes]:
    return [message for message, _ in sending._peers[name].waiting]


async def test_what_waits_for_all_servers_together_is_bounded(sending: Outgoing) -> None:
    """Whoever can make servers up, and asks for them, has this server keep no more; what waits for others stays."""
    sending.send("a true one", b"how far one is")
    for number in range(600):
        sending.send(f"made up {number % 6}", number.to_bytes(2) + bytes(192 * 1024))
    kept = {name: sum(map(len, waiting(sending, name))) for name in sending._peers}
    assert 0.9 * MOST_BYTES < sum(kept.values()) <= MOST_BYTES
    assert waiting(sending, "a true one") == [b"how far one is"]
    assert [one[:2] for one in waiting(sending, "made up 5")][-1] == (599).to_bytes(2), "the oldest go"
    assert max(kept.values()) - min(size for name, size in kept.items() if name != "a true one") < 400 * 1024


async def test_small_messages_cost_something_too(sending: Outgoing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MOST_BYTES", 100_000)
    for number in range(2000):
        sending.send(f"server {number % 100}", b"")
    assert sum(len(waiting(sending, name)) for name in sending._peers) < 400


async def test_the_newest_messages_wait_for_each(sending: Outgoing) -> None:
    for number in range(300):
        sending.send("server", number.to_bytes(2))
    assert waiting(sending, "server") == [number.to_bytes(2) for number in range(300 - 256, 300)]


async def test_a_message_that_no_server_takes_is_not_kept(sending: Outgoing) -> None:
    sending.send("server", bytes(MAX_MESSAGE + 1))
    assert sending._peers == {}
    assert sending._incidents.counts() == {Cause.DIRECTORY.value: 1}


async def test_nothing_is_sent_any_more_when_all_ends(sending: Outgoing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others still call meanwhile, and are answered by messages."""
    real = Outgoing._leave

    async def leave(self: Outgoing, peer: object) -> None:
        self.send(f"another {len(self._peers)}", b"message")
        await real(self, peer)  # type: ignore[arg-type]

    monkeypatch.setattr(Outgoing, "_leave", leave)
    sending.send("server", b"message")
    await asyncio.sleep(0)
    there = len(sending._peers)
    await sending.close()
    sending.send("late", b"message")
    assert len(sending._peers) <= there
    assert all(one.task is not None and one.task.done() for one in sending._peers.values())
