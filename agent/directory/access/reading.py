"""A replica host whose topology comes from a directory: it reads, and writes what it read into its topology file, from
where it is applied as any change of that file is, and where it still is when no server answers.

What a snapshot does not have is no reason to leave anything: what goes, goes by a tombstone in a complete snapshot of a
higher generation. A server that is of another enterprise, has not all, or is older than what is known changes nothing,
and that is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agent.directory.access import interface
from agent.directory.access.choosing import RETRY_S, Choice, ServerPlace, ordered
from agent.directory.access.contradictions import refuse_contradictions
from agent.directory.access.hints import Hints
from agent.directory.access.moments import Places, moment
from agent.directory.access.snapshot import ReadRequest, Snapshot
from agent.directory.access.topology import sets_without_a_word, taken_over
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
from config.lastread import last_read, last_text, put_in_place, remember, told
from config.model import AgentConfig, DirectorySource, Topology
from config.topologyfile import read_topology
from config.write import topology_text, write_file

log = logging.getLogger("frs")

#: How long a server may keep a request for the next generation, and how long a call may take besides.
WAIT_S: Final = 30.0
CALL_S: Final = 20.0
#: How long one waits after each answer: a server may give them at once, again and again.
PAUSE_S: Final = 0.2
#: How long the server that is read from may take to have what another one notifies this host of.
GRACE_S: Final = 5.0
#: No generation is believed that is further ahead of the clock (its reign is): no later one would be news any more.
AHEAD_S: Final = 86_400.0
_ZERO: Final = bytes(16)


class WrongHere(Exception):
    """Something on this host keeps it from taking over what a server says; the text says what."""


class DirectoryReader:
    """Reads for as long as the agent runs. `config` tells the configuration in force, `changed` is called when the
    topology file has been written."""

    def __init__(self, config: Callable[[], AgentConfig], changed: Callable[[], None], incidents: Incidents) -> None:
        self._config = config
        self._changed = changed
        self._incidents = incidents
        self._choice = Choice()
        self._server: ServerPlace | None = None
        self._told = set[str]()  # problems, until there is none
        self._generation = 0
        self._there: Snapshot | None = None  # what the server that is read from said last
        self._kept: list[str] = []
        self._looked: tuple[int, ...] | None = None  # the topology file, as it was after it was read
        self._places = Places()
        self.problem = ""
        self.hints = Hints(self._members, self._servers_too)

    async def run(self) -> None:
        """Read from one server after the other, and stay with one that answers; come back to the first by and by."""
        while True:
            source = self._config().directory
            if source is None:
                return
            self._server = self._choice.server(source, self._members())
            self._places.tried(self._server)
            host, port, _ = self._server
            client: RpcClient | None = None
            wait_s: float | None = None
            try:
                client = await self._connect(self._server)
                self._generation, self._there = 0, None
                while await self._read(client, source):  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S)
            except WrongHere as error:
                wait_s = RETRY_S
                self._tell(f"{error}")
            except (RpcError, WireError, ConfigError, OSError) as error:
                self._places.failed(self._server, str(error))
                wait_s = self._choice.failed(source, error, time.monotonic(), member=bool(self._members()))
                if wait_s is not None:
                    self._tell(
                        f"the directory server {host}:{port} cannot be used, so the topology stays as it is: {error}"
                    )
            finally:
                if client is not None:
                    await client.close()
            if wait_s is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self.hints.arrived.wait()
                self.hints.take()

    def _members(self) -> set[bytes]:
        return {local.member.guid for local in self._config().sets}

    def _servers_too(self) -> set[str]:
        """The members on hosts of directory servers that have one key for both."""
        config = self._config()
        keys = {key for _, _, key in config.directory.servers} if config.directory is not None else set()
        return {one.name for local in config.sets for one in local.set.members.values() if one.key in keys}

    async def _connect(self, server: ServerPlace) -> RpcClient:
        host, port, key = server
        own = self._config().key
        if own is None:
            raise ConfigError(self._config().path, None, "key", "is missing: a directory is read with a key")
        return await interface.connect(host, port, KeyCredential(KeyPair(own), key))

    async def _read(self, client: RpcClient, source: DirectorySource) -> bool:
        """Read what is next, and take it over; whether one goes on so, or reads from elsewhere. Raises RpcError,
        WireError, ConfigError, OSError."""
        since = self._generation if self._there is not None else 0
        reading = asyncio.ensure_future(whole(client, self._generation, WAIT_S, self._config().member_name, since))
        try:
            if not await self._comes(reading, source):
                return False
            snapshot = reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if snapshot is not None:
            if self._there is not None and snapshot.base:
                snapshot = self._there.with_changes(snapshot)
            self._generation, self._there = snapshot.generation, snapshot
            if await asyncio.to_thread(self.take, source, snapshot):
                self._places.took()
                self._changed()
            self._tell("")
        elif self._there is not None and await asyncio.to_thread(self._again, source, self._there):
            self._changed()
        self._choice.succeeded()
        if self._server is not None:
            self._places.answered(self._server)
        return not self._choice.come_back(time.monotonic())

    def _again(self, source: DirectorySource, there: Snapshot) -> bool:
        """Take it over once more, where somebody has edited the topology file, or it is damaged; whether that was so.
        Raises ConfigError, WrongHere."""
        return _signature(self._config().topology_path) != self._looked and self.take(source, there)

    async def _comes(self, reading: asyncio.Future[Snapshot | None], source: DirectorySource) -> bool:
        """Wait until it is read. A notification says that there is something new: where it does not come from this
        server soon, and one that is named has it, that is read from; where none is named that this host knows, or this
        one is, it is asked anew."""
        while not reading.done():
            notified = asyncio.ensure_future(self.hints.arrived.wait())
            try:
                await asyncio.wait((reading, notified), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    named = self.hints.take()
                    await asyncio.wait((reading,), timeout=GRACE_S)
                    if not reading.done() and await self._turns_to(source, named):
                        return False
            finally:
                notified.cancel()
                await asyncio.gather(notified, return_exceptions=True)
        return True

    async def _turns_to(self, source: DirectorySource, named: list[str]) -> bool:
        found = [one for one in source.servers if f"{one[0]}:{one[1]}" in named]
        for one in found:
            if one != self._server and await self._has_more(one):
                self._choice.turn_to(source, self._members(), one, time.monotonic())
                return True
        return not found or self._server in found

    async def _has_more(self, server: ServerPlace) -> bool:
        """Whether that server can be read from, and has more than what is here."""
        try:
            client = await self._connect(server)
            try:
                page = await interface.read(client, ReadRequest(self._generation, _ZERO, 0), CALL_S)
            finally:
                await client.close()
        except (RpcError, WireError, ConfigError, OSError):
            return False
        return page.generation > self._generation

    def take(self, source: DirectorySource, snapshot: Snapshot) -> bool:
        """Take over what a server says, where that may be; whether anything is new. Raises ConfigError,
        and WrongHere where it cannot be written."""
        path = self._config().topology_path
        if snapshot.enterprise != source.enterprise:
            raise ConfigError(path, None, "", "it is of another enterprise")
        if reign_of(snapshot.generation) > time.time() + AHEAD_S:
            raise ConfigError(path, None, "", f"its generation {seq_text(snapshot.generation)} is ahead of the clock")
        if not snapshot.complete:
            raise ConfigError(path, None, "", "it has not all of the directory, or its owner is disputed")
        config, damaged = self._config(), None
        read = last_read(config.state_dir, source.enterprise)
        try:
            current = read_topology(path)
        except ConfigError as error:  # nothing that a server has done: what was read is in force still
            damaged, current = error, read or Topology(tuple(local.set for local in config.sets), 0)
        known = read.serial if read is not None else current.serial
        if read is None and reign_of(known) > time.time() + AHEAD_S:
            known = 0  # no server has ever said that
        if snapshot.generation < known:
            raise ConfigError(
                path, None, "", f"it is older than what is known here: {seq_text(snapshot.generation)}, and "
                f"{seq_text(known)} was read before"
            )  # fmt: skip
        if known and current.serial and epoch_of(snapshot.generation) > epoch_of(known) + MOST_EPOCHS_AHEAD:
            raise ConfigError(
                path, None, "", f"its generation {seq_text(snapshot.generation)} is more than {MOST_EPOCHS_AHEAD} "
                f"owners after {seq_text(known)}, which was read before; with serial = 0 there it is believed"
            )  # fmt: skip
        if untold := sets_without_a_word(current.sets, snapshot):
            raise ConfigError(
                path, None, "", f"it lets this host in, but tells of no set that {snapshot.reader} is a member of, and "
                f"not that this member was removed from {', '.join(untold)}; has it a member {snapshot.reader} with "
                "the key of this host? `frs key` prints that, and `frs directory export` there what it has"
            )  # fmt: skip
        sets, self._kept = taken_over(current.sets, snapshot)
        if not sets:
            raise ConfigError(path, None, "", f"it has no set that {snapshot.reader} is a member of")
        text = f"serial = {snapshot.generation}\n" + topology_text(sets, COMMENT)
        if damaged is None and path.read_text(encoding="utf-8") == text == last_text(
            config.state_dir, source.enterprise
        ):
            self._looked = _signature(path)
            return False
        refuse_contradictions(path, sets, text)
        try:
            remember(config.state_dir, source.enterprise, text)  # before it is in force: that asks what was read
            aside = put_in_place(path, text) if damaged is not None else None
            if damaged is None:
                write_file(path, text)
        except (ConfigError, OSError) as error:
            raise WrongHere(f"what the directory says cannot be written: {error}") from None
        self._looked = _signature(path)
        if damaged is not None:
            log.warning("20118 %s", told(path, damaged, "what the directory says", aside))
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
        if problem and problem not in self._told:
            self._told.add(problem)
            self._incidents.report(Cause.DIRECTORY, problem, problem)
        elif self.problem and not problem:
            self._told.clear()
            log.info("the directory can be read again")
        self.problem = problem

    def status(self) -> dict[str, Any]:
        """What `frs status` says of it."""
        source = self._config().directory
        assert source is not None
        server = self._server or self._choice.server(source, self._members())
        host, port, _ = server
        servers = self._places.status(ordered(source, self._members()), dict(zip(source.servers, source.sites)), server)
        return {
            "server": f"{host}:{port}",
            "generation": seq_text(self._generation),
            "in_force": seq_text(self._config().serial),
            "since": next((one["since"] for one in servers if one["read"]), None),
            "taken": moment(self._places.taken_at),
            "answered": moment(self._places.answered_at),
            "enterprise": source.enterprise.hex(),
            "site": source.site,
            "servers": servers,
            "problem": self.problem,
            "kept": self._kept,
            "notified": self.hints.received,
        }


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns


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
