"""A directory server: the rules of replication with their store, the RPC interface, what goes to other servers, and
discovery."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from agent.directory.access import shown
from agent.directory.access.administering import ANSWER_S, Administered, NotAllMade
from agent.directory.access.interface import directory_interface
from agent.directory.access.known import Known
from agent.directory.access.mapper import start_mapper
from agent.directory.access.moments import Heard, moment
from agent.directory.access.notifying import Notifier
from agent.directory.access.outgoing import Outgoing, ServerAddress
from agent.directory.access.readers import Readers
from agent.directory.access.snapshot import Page, ReadRequest
from agent.directory.access.topology import TOPOLOGY_TYPES, is_of_topology
from agent.directory.discovery.answering import Answering, Place
from agent.directory.discovery.sockets import DiscoveryServer
from agent.directory.mqds.service import Mqds
from agent.directory.objects.model import (
    MQ_ERROR,
    MQ_ERROR_ACCESS_DENIED,
    MQDS_OBJECT_NOT_FOUND,
    DeletedObject,
    DirectoryError,
    DsObject,
)
from agent.directory.objects.table import Type
from agent.directory.replication.messages import ChangeRequest, DirectoryChange, Message, PscAck, encode_message
from agent.directory.replication.numbers import AHEAD_S, MAX_REIGN, reign_of, seq_text
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Action, Answered, Me, Send, Told
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore, DirectoryStoreError
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.interface import CallContext
from agent.rpc.security import KeyPair
from agent.rpc.server import Limits, RpcServer
from agent.work import descriptors
from agent.work.rates import SourceRates
from config.directory import DirectoryServerConfig
from config.errors import ConfigError

log = logging.getLogger("frs")

PROPAGATE_S: Final = 2.0
RETRY_S: Final = 10.0
ANNOUNCE_S: Final = 20 * 60.0
ACKNOWLEDGE_S: Final = 12 * 3600.0
#: How many changes another server may have this one make in a second, and at once: each is written to the disk.
REQUESTS_PER_S: Final = 20.0
REQUESTS_AT_ONCE: Final = 200.0
#: Of so many changes at once it is looked up whom they concern; of more, it is all members that are told.
MOST_CHANGED: Final = 10_000


class DirectoryServer(Administered):
    """One of them, in the event loop's thread, with the store that it is given. Raises DirectoryStoreError."""

    def __init__(self, config: DirectoryServerConfig, store: DirectoryStore, incidents: Incidents) -> None:
        self.config = config
        self.store = store
        self.incidents = incidents
        self.port = 0
        self.counted = Counter[str]()  # from the start on: see `shown`
        self.known = Known(config, store, incidents)
        upstream = config.upstream
        self._me = Me(config.name, config.machine, config.site, upstream.name if upstream is not None else "")
        self._rules: Replicator
        self._outgoing = Outgoing(KeyPair(config.key), self._address, incidents)
        self._notifier = Notifier(KeyPair(config.key), self.known)
        self._readers = Readers(self)
        self._heard = Heard()
        self._server: RpcServer | None = None
        self._mapper: RpcServer | None = None
        self._discovery: DiscoveryServer | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._turns: dict[str, asyncio.Lock] = {}  # of those that have changes made, by their names
        self._placed: Place | None = None  # until the next event: anybody may ask for it at any rate
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._happened = asyncio.Event()
        self._requests = SourceRates(REQUESTS_PER_S, REQUESTS_AT_ONCE)
        self._begin()

    def _begin(self, *, anew: bool = False) -> None:
        """A reign begins. One of a clock that was ahead is not followed by others of such a time, unless this server
        has given numbers of it: not before an epoch begins (`anew`), which makes the former ones matter no more."""
        now, remembered = min(int(time.time()), MAX_REIGN), int(self.store.setting("reign") or 0)
        partitions = self.store.partitions()
        given = max((reign_of(one.last) for one in partitions if one.authority == self.config.name), default=0)
        ahead = now + AHEAD_S
        reign = now if anew or (given <= ahead < remembered) else max(now, remembered + 1)
        with self.store.transaction():
            self.store.set_setting("reign", str(reign))
            self._rules = Replicator(self._me, self.store, min(reign, MAX_REIGN))

    def _begin_anew(self) -> None:
        """What the rules remember may be of changes that were rolled back, and that nobody has been told of: others are
        told how far the partitions are, and ask for what they may have been about to hear."""
        former = self._rules
        self._rules = Replicator(self._me, self.store, former.reign)
        self._rules.goes_on(former)
        self.known.changed()

    def _set_clock_right(self) -> None:
        """An epoch is about to begin, whose numbers need not follow those of a clock that was ahead."""
        if self._ahead_s() or int(self.store.setting("reign") or 0) > time.time() + AHEAD_S:
            former = self._rules
            self._begin(anew=True)
            self._rules.goes_on(former)

    def _ahead_s(self) -> int:
        """By how many seconds the generation is ahead of the clock, where no host believes it; else 0."""
        ahead = reign_of(self.generation) - int(time.time())
        return ahead if ahead > AHEAD_S else 0

    async def start(self) -> None:
        """Listen, and begin to replicate. Raises OSError."""
        limits = Limits().within(descriptors.raise_limit() // 2)
        asks = (self._read, self._received, self._asked_for, self._malformed, self.known.as_member)
        interfaces = [directory_interface(*asks)]
        if self.config.mqds is not None:
            interfaces += Mqds(self, tolerant=self.config.mqds.tolerant).interfaces()
        self._server = RpcServer(interfaces, self.known.credentials(), limits=limits, incidents=self.incidents)
        self.port = await self._server.start(self.config.listen_host, self.config.port)
        self._mapper = await start_mapper(self._server, self.config, self.incidents)
        if self.config.discovery_interfaces:
            self._discovery = DiscoveryServer(Answering(self._place, time.monotonic))
            await self._discovery.start(self.config.discovery_interfaces, self.config.discovery_port)
        self._event(lambda: (None, self._rules.start()))
        for call, seconds in (
            ("propagate", PROPAGATE_S),
            ("retry", RETRY_S),
            ("announce", ANNOUNCE_S),
            ("acknowledge", ACKNOWLEDGE_S),
        ):
            self._timers.append(asyncio.get_running_loop().create_task(self._every(call, seconds)))

    async def close(self) -> None:
        """Stop all of it."""
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        if self._discovery is not None:
            self._discovery.close()
        await self._outgoing.close()
        await self._notifier.close()
        for one in (self._mapper, self._server):
            if one is not None:
                await one.close()

    async def _every(self, call: str, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                self._event(lambda: (None, getattr(self._rules, call)()))
            except DirectoryStoreError as error:  # a full disk, most likely: it is tried again
                self.incidents.report(Cause.DIRECTORY, call, f"nothing goes on until this ends: {error}", level="error")
            except Exception as error:  # a fault of this program: the next event finds rules that were made anew
                told = "".join(traceback.format_exception(error))
                self.incidents.report(Cause.FAULT, call, f"what is done again and again failed\n{told}", level="error")

    # -- changes --

    def change(self, changes: list[DirectoryChange]) -> int:
        """Make these changes in partitions that this server owns, all or none; gives the generation after them. Raises
        DirectoryError."""

        def make() -> tuple[None, list[Action]]:
            actions: list[Action] = []
            for one in changes:
                _, more = self._rules.change(one.partition, one)
                actions += more
            return None, actions

        self._event(make)
        self._event(lambda: (None, self._rules.propagate()))
        return self.generation

    async def request(self, changes: list[DirectoryChange]) -> None:
        """Make these changes here, all or none, where this server owns their partitions; else have the owners make
        them, one after the other, each when the one before is durable there. Raises DirectoryError."""
        if all(self._rules.owns(one.partition) for one in changes):
            self.change(changes)
            return
        for done, change in enumerate(changes):
            number: int = self._event(functools.partial(self._rules.ask_owner, change.partition, change))
            self.counted["asked"] += 1
            silent = f"the owner does not answer: it may have made this change, or not; {done} before it were made"
            if result := await self._answer(number, silent):
                text = f"the owner refuses a change (0x{result:08x}); {done} before it were made"
                raise (NotAllMade if done else DirectoryError)(result, text)

    def _event(self, make: Callable[[], tuple[Any, list[Action]]]) -> Any:
        """One event of the rules: a transaction, and after it what is to be done."""
        before, were = self.generation, {one.id: one.last for one in self._rules.partitions}
        try:
            with self.store.transaction():
                result, actions = make()
        except BaseException:
            self._begin_anew()
            raise
        anew, self._rules.anew = self._rules.anew, set()
        changed: list[DsObject | DeletedObject] | None = []
        if ENTERPRISE_PARTITION in anew:  # what came back, or went, has whatever numbers
            changed = None
        elif self.generation != before:
            found = self.store.changed(ENTERPRISE_PARTITION, before, self.generation, MOST_CHANGED)
            self.counted["changed"] += len(found)
            changed = found if len(found) < MOST_CHANGED else None
        if anew or were != {one.id: one.last for one in self._rules.partitions}:
            self.known.changed(changed)
        self._placed = None
        self._happened.set()
        self._happened = asyncio.Event()
        for action in actions:
            match action:
                case Send():
                    within = ANSWER_S if isinstance(action.message, ChangeRequest) else math.inf  # later nobody waits
                    self._outgoing.send(action.to, encode_message(action.message), within)
                case Told():
                    self.incidents.report(Cause.DIRECTORY, action.source, action.text)
                case Answered():
                    waiting = self._asked.get(action.request)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(action.result)
        self._others_are_known(were, anew)
        if changed is None or changed:
            self._has_changed(changed)
        return result

    def _others_are_known(self, were: dict[bytes, int], anew: Collection[bytes]) -> None:
        """Servers of sites may have come, or have other keys, since partitions had these numbers, or were taken
        anew."""
        for one in self._rules.partitions:
            since = 0 if one.id in anew else were.get(one.id, 0)
            if self._server is not None and one.id != ENTERPRISE_PARTITION and (one.last != since or one.id in anew):
                changed = self.store.changed(one.id, since, one.last, MOST_CHANGED)
                if one.id in anew or any(found.type == Type.MACHINE for found in changed):
                    self._server.admit(self.known.credentials())
                    return

    def _has_changed(self, changed: list[DsObject | DeletedObject] | None) -> None:
        """These objects of the enterprise partition (None: too many to look at each) are not as they were: others may
        be known now, and hosts that do not just wait for it are told by the owner."""
        if self._server is not None:
            if changed is None or any(one.type in (Type.FRS_MEMBER, Type.SITE) for one in changed):
                self._server.admit(self.known.credentials())
            if self._rules.owns(ENTERPRISE_PARTITION):
                self._notifier.changed(changed, frozenset(self._readers.waiting))
        self._readers.changed(changed)

    # -- what calls ask --

    async def _received(self, sender: str, message: Message) -> None:
        """A message; one that asks for a change has its turn, so whoever sends many waits with each call for the one
        before, and others do not."""
        if isinstance(message, ChangeRequest):
            async with self._turns.setdefault(sender, asyncio.Lock()):
                if not self._requests.take(sender):
                    await asyncio.sleep(1 / REQUESTS_PER_S)
                    self._requests.take(sender)
        if sender not in self.known.removed:
            self.counted["messages"] += 1
            self._heard.message(sender)
            if isinstance(message, PscAck) and any(one.id == message.partition for one in self._rules.partitions):
                self._heard.acknowledgement(sender, message.partition)
            self._event(lambda: (None, self._rules.received(sender, message)))

    async def _asked_for(self, who: str, changes: Sequence[DirectoryChange]) -> int:
        """Changes of the topology, and of nothing else, that an administrator makes from a host; gives the generation
        after them. Raises DirectoryError."""
        if who not in self.config.administrators:
            text = f"{who} is none of the administrators in {self.config.path.name} of the server {self.config.name}"
            raise DirectoryError(MQ_ERROR_ACCESS_DENIED, text)
        for one in changes:
            if not is_of_topology(one, self.store.get(one.guid or b"")):
                raise DirectoryError(MQDS_OBJECT_NOT_FOUND, "what is to be changed is no part of the topology here")
        async with self._turns.setdefault(who, asyncio.Lock()):
            try:
                await self.request(list(changes))
            except DirectoryStoreError as error:
                raise DirectoryError(MQ_ERROR, str(error)) from None
        log.info("%s has changed the topology: %d changes", who, len(changes))
        return self.generation

    def _malformed(self, context: Any, error: Exception) -> None:
        self.incidents.report(Cause.DIRECTORY, context.peer, f"a message of {context.member} is refused: {error}")

    async def _read(self, who: str, request: ReadRequest) -> Page:
        self.counted["pages"] += 1
        return await self._readers.read(who, request)

    # -- what it is --

    @property
    def purged(self) -> int:
        """Up to which number tombstones of the enterprise partition are gone."""
        return self._rules.partitions[0].purged

    @property
    def complete(self) -> bool:
        """Whether this server has all of the enterprise partition, and nobody disputes it."""
        return self._rules.complete(ENTERPRISE_PARTITION) and not self._rules.partitions[0].disputed

    @property
    def enterprise(self) -> bytes:
        """The identifier of the enterprise."""
        return self.config.enterprise

    def topology(self) -> list[DsObject]:
        """The objects of the FRS topology."""
        return [one for type_ in TOPOLOGY_TYPES for one in self.store.of_type(type_, ENTERPRISE_PARTITION)]

    def servers(self) -> dict[str, ServerAddress]:
        """The other servers by name."""
        return self.known.servers()

    def _address(self, name: str) -> ServerAddress | None:
        return self.servers().get(name)

    @property
    def site(self) -> bytes:
        """The site that it is in."""
        return self.config.site

    def may_write(self, context: CallContext) -> bool:
        """Whether a caller has the account of directory.toml: whoever has a key alone reads."""
        return bool(context.user) and not context.member

    def connected(self) -> set[int]:
        """The identifiers of the associations that there are."""
        there = self._server.established if self._server is not None else ()
        return {one.context.connection_id for one in there}

    def _place(self) -> Place:
        if self._placed is None:
            names = tuple(sorted(name for name in {self.config.name, *self.servers()} if "," not in name))
            self._placed = Place(self.enterprise, self.config.site, names)
        return self._placed

    def status(self) -> dict[str, Any]:
        """The answer of `frs directory status`."""
        rules = self._rules
        speaking = {*rules.neighbours(), *(one.authority for one in rules.partitions if one.id == self.config.site)}
        return {
            "name": self.config.name,
            "started": moment(self._heard.started),
            "enterprise": self.enterprise.hex(),
            "port": self.port,
            "generation": seq_text(self.generation),
            "complete": self.complete,
            "ahead_s": self._ahead_s(),
            "partitions": [
                shown.of_partition(self.store, one, self.config.name, rules.complete(one.id), self._heard)
                for one in rules.partitions
            ],
            "servers": self._heard.status(self._outgoing.status(self.servers()), speaking),
            "removed": sorted(self.known.removed),
            **shown.of_hosts(self, self._readers.waiting),
            **self._readers.status(),
            "told": {"hosts": self._notifier.told, "unreachable": self._notifier.unreachable},
            "incidents": self.incidents.counts(),
        }


def open_server(config: DirectoryServerConfig, incidents: Incidents) -> DirectoryServer:
    """The server of that configuration; raises ConfigError where its database is of another enterprise, or not there,
    and DirectoryStoreError."""
    if not config.database.exists():
        raise ConfigError(config.path, None, "state", f"has no {config.database.name}; `frs directory init` makes it")
    store = DirectoryStore(config.database)
    if store.setting("enterprise") != config.enterprise.hex():
        store.close()
        raise ConfigError(config.path, None, "enterprise", f"is not that of {config.database}")
    return DirectoryServer(config, store, incidents)
