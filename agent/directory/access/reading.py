"""A replica host whose topology comes from a directory: it reads, and writes what it read into its topology file, from
where it is applied as any change of that file is, and where it still is when no server answers.

What a snapshot does not have is no reason to leave anything: what goes, goes by a tombstone in a complete snapshot of a
higher generation. A server that is of another enterprise, has not all, or is older than what is known changes nothing,
and that is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from agent.directory.access import interface
from agent.directory.access.hints import Hints
from agent.directory.access.snapshot import ReadRequest, Snapshot
from agent.directory.access.topology import taken_over
from agent.directory.replication.numbers import MOST_EPOCHS_AHEAD, epoch_of, reign_of, seq_text
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcError
from agent.rpc.interface import CallContext
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError
from config.errors import ConfigError
from config.model import AgentConfig, DirectorySource, Topology
from config.topologyfile import parse_file, read_topology
from config.write import topology_text, write_file

log = logging.getLogger("frs")

#: How long a server may keep a request for the next generation, and how long one waits after a failure.
WAIT_S: Final = 30.0
CALL_S: Final = 20.0
RETRY_S: Final = 5.0
#: No generation is believed that is further ahead of the clock (its reign is): no later one would be news any more.
AHEAD_S: Final = 86_400.0
_ZERO: Final = bytes(16)


class DirectoryReader:
    """Reads for as long as the agent runs. `config` tells the configuration in force, `changed` is called when the
    topology file has been written."""

    def __init__(self, config: Callable[[], AgentConfig], changed: Callable[[], None], incidents: Incidents) -> None:
        self._config = config
        self._changed = changed
        self._incidents = incidents
        self._server = 0
        self._generation = 0
        self._there: Snapshot | None = None  # what the server that is read from said last
        self._kept: list[str] = []
        self.problem = ""
        self.hints = Hints(lambda: {local.member.guid for local in config().sets})

    async def run(self) -> None:
        """Read from one server after the other, and stay with one that answers."""
        while True:
            source = self._config().directory
            if source is None:
                return
            host, port, key = source.servers[self._server % len(source.servers)]
            client: RpcClient | None = None
            try:
                own = self._config().key
                if own is None:
                    raise ConfigError(self._config().path, None, "key", "is missing: a directory is read with a key")
                client = await interface.connect(host, port, KeyCredential(KeyPair(own), key))
                self._generation, self._there = 0, None
                while True:
                    me = self._config().member_name
                    since = self._generation if self._there is not None else 0
                    snapshot = await self._unless_notified(whole(client, self._generation, WAIT_S, me, since))
                    if snapshot is not None:
                        if self._there is not None and snapshot.base:
                            snapshot = self._there.with_changes(snapshot)
                        self._generation, self._there = snapshot.generation, snapshot
                        if await asyncio.to_thread(self.take, source, snapshot):
                            self._changed()
                        self._tell("")
                    if self.hints.arrived.is_set():
                        self._turn_to(source, self.hints.take())
                        break
            except (RpcError, WireError, ConfigError, OSError) as error:
                self._tell(
                    f"the directory server {host}:{port} cannot be used, so the topology stays as it is: {error}"
                )
                self._server += 1
                await asyncio.sleep(RETRY_S)
            finally:
                if client is not None:
                    await client.close()

    async def _unless_notified(self, reading: Coroutine[Any, Any, Snapshot | None]) -> Snapshot | None:
        """What is read, unless a notification comes before. Raises RpcError, WireError."""
        page, notified = asyncio.ensure_future(reading), asyncio.ensure_future(self.hints.arrived.wait())
        try:
            await asyncio.wait((page, notified), return_when=asyncio.FIRST_COMPLETED)
            return page.result() if page.done() else None
        finally:
            page.cancel()
            notified.cancel()
            await asyncio.gather(page, notified, return_exceptions=True)

    def _turn_to(self, source: DirectorySource, named: list[str]) -> None:
        """Read from the first of these that is a server of this host; from the same as before where none is."""
        places = [f"{host}:{port}" for host, port, _ in source.servers]
        there = [places.index(one) for one in named if one in places]
        if there:
            self._server = there[0]

    def take(self, source: DirectorySource, snapshot: Snapshot) -> bool:
        """Take over what a server says, where that may be; whether anything is new. Raises ConfigError."""
        path = self._config().topology_path
        if snapshot.enterprise != source.enterprise:
            raise ConfigError(path, None, "", "it is of another enterprise")
        if reign_of(snapshot.generation) > time.time() + AHEAD_S:
            raise ConfigError(path, None, "", f"its generation {seq_text(snapshot.generation)} is ahead of the clock")
        if not snapshot.complete:
            raise ConfigError(path, None, "", "it has not all of the directory, or its owner is disputed")
        current = read_topology(path) if path.exists() else Topology((), 0)
        if snapshot.generation < current.serial:
            raise ConfigError(
                path, None, "", f"it is older than what is known here: {seq_text(snapshot.generation)}, and "
                f"{seq_text(current.serial)} was read before"
            )  # fmt: skip
        if current.serial and epoch_of(snapshot.generation) > epoch_of(current.serial) + MOST_EPOCHS_AHEAD:
            raise ConfigError(
                path, None, "", f"its generation {seq_text(snapshot.generation)} is more than {MOST_EPOCHS_AHEAD} "
                f"owners after {seq_text(current.serial)}, which was read before; with serial = 0 there it is believed"
            )  # fmt: skip
        sets, self._kept = taken_over(current.sets, snapshot)
        if not sets:
            raise ConfigError(path, None, "", f"it has no set that {snapshot.reader} is a member of")
        text = f"serial = {snapshot.generation}\n" + topology_text(sets, COMMENT)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return False
        parse_file(path, text)  # raises ConfigError for what cannot be a topology
        write_file(path, text)
        log.info("the topology of generation %s is read from the directory", seq_text(snapshot.generation))
        for what in self._kept:
            log.warning(
                "20119 the directory does not have %s, and does not say that it was deleted: it is kept. Delete it in "
                "the directory, or with this agent stopped in %s",
                what,
                path,
            )
        return True

    def malformed(self, context: CallContext, error: WireError) -> None:
        """Somebody has sent what is no notification."""
        self._incidents.report(Cause.DIRECTORY, context.peer, f"a notification of {context.member} is refused: {error}")

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._incidents.report(Cause.DIRECTORY, problem, problem)
        elif self.problem and not problem:
            log.info("the directory can be read again")
        self.problem = problem

    def status(self) -> dict[str, Any]:
        """What `frs status` says of it."""
        source = self._config().directory
        assert source is not None
        host, port, _ = source.servers[self._server % len(source.servers)]
        return {
            "server": f"{host}:{port}",
            "generation": seq_text(self._generation),
            "problem": self.problem,
            "kept": self._kept,
            "notified": self.hints.received,
        }


async def whole(client: RpcClient, known: int, wait_s: float, me: str, since: int = 0) -> Snapshot | None:
    """All of the generation after `known`, if there is one within `wait_s`, and it does not change meanwhile; or what
    has changed in it since the generation `since`, if the server can tell. Raises RpcError, WireError."""
    request = ReadRequest(known, _ZERO, int(wait_s * 1000), since)
    page = await interface.read(client, request, wait_s + CALL_S)
    if page.generation == known and known:
        return None
    if page.base not in (0, since):
        raise WireError("Page", -1, "it has what has changed since another generation than that which is known here")
    snapshot = Snapshot(page.enterprise, page.generation, page.complete, me, base=page.base)
    snapshot.add(page)
    while any(after := page.next):
        page = await interface.read(client, ReadRequest(0, after, 0), CALL_S)
        if page.generation != snapshot.generation:
            return None
        if any(page.next) and page.next <= after:
            raise WireError("Page", -1, "the pages go round in a circle")
        snapshot.add(page)
    return snapshot


COMMENT: Final = (
    "From the directory, and written anew when that changes: change it there (frs directory import).\n"
    "It is here so that this member goes on when no directory server answers."
)
