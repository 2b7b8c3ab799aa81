"""The topology of a running member out of Active Directory ([MS-FRS1] 3.1.2, 3.1.5.1): polled, and written into the
member's topology file, from where it is applied as any change of that file is, and where it still is when no controller
answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.activedirectory.deciding import Deciding, Disbelieved, Memory, memory_of
from agent.activedirectory.objects import Answer
from agent.activedirectory.request import Reply, Request, ask
from agent.activedirectory.translation import Fault, Found, Place, translate
from agent.ntfrsapi.polling import Polling
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.work.clock import filetime_now, iso_time
from config.document import read_text
from config.errors import ConfigError
from config.model import ActiveDirectory, AgentConfig, DirectoryClient, Topology
from config.topologyfile import parse_file
from config.write import topology_text, write_file

log = logging.getLogger("frs")

#: In the state directory: what was read before (deciding.Memory).
MEMORY_NAME: Final = "active-directory.json"
#: After a failure one waits no longer than this.
RETRY_S: Final = 60.0
COMMENT: Final = (
    "From Active Directory, for this member alone, and written anew when that changes: change it there.\n"
    "It is here so that this member goes on when no domain controller answers."
)
#: Faults that are told of one by one; of all others it is said how many there are.
_MOST_TOLD: Final = 50


def request_of(
    there: ActiveDirectory,
    keytab: Path | None,
    *,
    first: str = "",
    without: Iterable[str] = (),
    known: Iterable[str] = (),
    operations: Iterable[tuple[str, str, Mapping[str, str | None]]] = (),
) -> Request:
    """What is asked for on behalf of this member; with `operations`, of the server `first` alone."""
    operations = tuple(operations)
    by_password = there.user is not None
    return Request(
        domain=there.domain,
        computer=there.computer,
        mechanism="simple" if by_password else "kerberos",
        user=there.user if there.user is not None else f"{there.computer}$",
        realm=there.domain.upper(),
        keytab=None if by_password or keytab is None else os.fspath(keytab),
        password=there.password,
        ca=os.fspath(there.ca) if there.ca is not None else None,
        servers=(first,) if operations else there.servers,
        first=first,
        without=tuple(without),
        known=tuple(known),
        operations=operations,
    )


def root_of(place: Place, there: ActiveDirectory) -> Path | str:
    """The folder that a subscriber names, where the directory may say so; else why it may not."""
    root = place.root
    if not root:
        return "has no fRSRootPath"
    if "\0" in root or not root.startswith("/"):
        return f"fRSRootPath is {root}, which is no path of this system; name the root in a [[set]] of agent.toml"
    path = Path(os.path.normpath(root))
    if not any(path.is_relative_to(one) for one in there.roots):
        return f"fRSRootPath is {root}, which is below none of active_directory.roots in agent.toml"
    return path


def roots_of(found: Found, there: ActiveDirectory) -> dict[bytes, Path]:
    """Where the sets are here, by their GUIDs, as the directory says; those that agent.toml names are where that says,
    which needs no path here. What cannot be is a fault more."""
    roots = {}
    for one in found.sets:
        said = Path("/") if one.name in there.named else root_of(found.places[one.guid], there)
        if isinstance(said, Path):
            roots[one.guid] = said
        else:
            found.faults.append(Fault("", f"the set {one.name}: {said}"))
    return roots


class Outcome(NamedTuple):
    """What the topology file is to be: None where it stays; which sets were left."""

    text: str | None
    left: frozenset[bytes]


class Reading:
    """Takes the answers for one member."""

    def __init__(self, memory_file: Path) -> None:
        self._file = memory_file
        self._deciding = Deciding(_remembered(memory_file))
        self.faults: tuple[Fault, ...] = ()
        self.kept: tuple[str, ...] = ()
        self._parsed: tuple[str | None, Topology] = (None, Topology((), 0))

    @property
    def known(self) -> Iterable[str]:
        """The GUIDs, as text, of all objects that there were."""
        return self._deciding.memory.objects

    @property
    def doubtful(self) -> bool:
        """Whether something has to be read once more to be believed."""
        return bool(self._deciding.vanished)

    def failed(self) -> None:
        """There was no answer."""
        self._deciding.failed()

    def take(self, answer: Answer, client: DirectoryClient, now: float, confirmed: Collection[bytes] = ()) -> Outcome:
        """What follows from an answer, which is remembered; see Deciding.take(). Raises Disbelieved, ConfigError for
        what cannot be a topology."""
        there, path = client.there, client.topology_path
        found = translate(answer, there.computer, client.member_name)
        roots = roots_of(found, there)
        self.faults = tuple(found.faults)
        before, current = self._in_force(path)
        decision = self._deciding.take(answer, found, roots, current, now, client.poll_interval_s, confirmed)
        self.kept = decision.kept
        if not decision.sets and before is None:
            raise Disbelieved(f"the computer {there.computer} is in no replica set that can be used")
        by_directory = {name: root for name, root in decision.roots.items() if name not in there.named}
        body = topology_text(decision.sets, COMMENT, by_directory)
        self._remember()
        if before == f"serial = {current.serial}\n{body}":
            return Outcome(None, decision.left)
        text = f"serial = {current.serial + 1}\n{body}"
        self._parsed = text, parse_file(path, text)
        return Outcome(text, decision.left)

    def _in_force(self, path: Path) -> tuple[str | None, Topology]:
        """The topology file, and what stands in it; None, and nothing, where it is not there. It is taken apart only
        where it is another than before: that of many thousand members takes seconds."""
        text = read_text(path, "the topology", "") if path.exists() else None
        if text != self._parsed[0]:
            self._parsed = text, parse_file(path, text) if text is not None else Topology((), 0)
        return self._parsed

    def _remember(self) -> None:
        try:
            write_file(self._file, json.dumps(self._deciding.memory.as_json()) + "\n", 0o600)
        except ConfigError as error:
            log.error("20143 what was read in Active Directory cannot be remembered: %s", error)


def _remembered(path: Path) -> Memory:
    try:
        return memory_of(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return Memory()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("20143 what was read in Active Directory before is not known: %s: %s", path, error)
        return Memory()


class ActiveDirectorySource:
    """Polls for as long as the agent runs. `config` tells the configuration in force; `changed` is called when the
    topology file has been written, with the sets that this member has left; `count` counts one of the counters of
    section 2.4 in all sets."""

    def __init__(
        self,
        config: Callable[[], AgentConfig],
        changed: Callable[[Collection[bytes]], Awaitable[list[str]]],
        polling: Polling,
        incidents: Incidents,
        count: Callable[[str, int], None],
    ) -> None:
        self._config, self._changed, self._polling = config, changed, polling
        self._incidents, self._count = incidents, count
        self._reading = Reading(config().state_dir / MEMORY_NAME)
        self._one_at_a_time = asyncio.Lock()
        self._asked = asyncio.Event()
        self._told: set[str] = set()
        self._server = ""
        self._passed_over: tuple[str, ...] = ()
        self._read_at: int | None = None
        self._next_at = time.monotonic()
        self.problem = ""

    async def run(self) -> None:
        """Poll at the present interval, which 3.1.2 makes long where nothing changes; sooner where a reading failed, or
        has to be confirmed."""
        while True:
            await self.poll()
            there = self._config().active_directory
            if there is None:
                return
            wait = self._polling.present_s(there.long_interval_s, there.short_interval_s)
            if self.problem or self._reading.doubtful:
                wait = min(wait, RETRY_S if self.problem else self._config().poll_interval_s)
            self._next_at = time.monotonic() + wait
            self._asked.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._asked.wait()
            except TimeoutError:
                pass

    def poll_soon(self) -> None:
        """Poll now, and go on from then."""
        self._asked.set()

    async def poll(self, confirmed: Collection[bytes] = ()) -> list[str]:
        """Poll now; returns what was changed. Where something was under way already, after that. `confirmed` are sets
        that an administrator says this member has left."""
        async with self._one_at_a_time:
            config = self._config()
            there = config.active_directory
            if there is None:
                return []
            self._count("DS Polls", 1)
            problems: list[str] = []
            refused: list[str] = []
            outcome = None
            while outcome is None:
                known, first = self._reading.known, self._server
                reply = await ask(request_of(there, config.keytab, first=first, without=refused, known=known))
                self._count_reply(reply)
                problems += reply.errors
                if reply.answer is None:
                    self._reading.failed()
                    return self._fail("; ".join(problems) or "no server was asked")
                answer = reply.answer
                try:
                    outcome = await asyncio.to_thread(
                        self._take, answer, there, config, confirmed
                    )  # it is not cut short
                except (Disbelieved, ConfigError, OSError) as error:
                    problems.append(f"{answer.server}: {error}")
                    refused.append(answer.server)
                finally:
                    self._tell_faults()
            self._server, self._passed_over = answer.server, tuple(problems)
            changed = outcome.text is not None or bool(outcome.left)
            self._count("DS Polls with Changes" if changed else "DS Polls Without Changes", 1)
            self._polling.polled(changed=changed)
            if self.problem:
                log.info("Active Directory can be read again, from %s", answer.server)
            self.problem, self._read_at = "", filetime_now()
            return await self._changed(outcome.left) if changed else []

    def _take(
        self, answer: Answer, there: ActiveDirectory, config: AgentConfig, confirmed: Collection[bytes]
    ) -> Outcome:
        client = DirectoryClient(
            there, config.member_name, config.topology_path, config.state_dir, config.keytab, config.poll_interval_s
        )
        outcome = self._reading.take(answer, client, time.monotonic(), confirmed)
        if outcome.text is not None:
            write_file(config.topology_path, outcome.text)
            log.info("the topology has changed in Active Directory, says %s", answer.server)
        return outcome

    def _count_reply(self, reply: Reply) -> None:
        self._count("DS Bindings", reply.counts["bindings"])
        self._count("DS Bindings in Error", reply.counts["bindings_failed"])
        self._count("DS Searches", reply.counts["searches"])
        self._count("DS Searches in Error", reply.counts["searches_failed"])
        if reply.answer is not None:
            self._count("DS Objects", len(reply.answer.entries))

    def _fail(self, problem: str) -> list[str]:
        self.problem = problem
        self._incidents.report(Cause.ACTIVE_DIRECTORY, problem, f"{problem}; the topology stays as it is")
        return []

    def _tell_faults(self) -> None:
        """Log what is wrong with objects, once for as long as it lasts."""
        self._count("DS Objects in Error", len(self._reading.faults))
        told = {f"20141 Active Directory: {one}" for one in self._reading.faults[:_MOST_TOLD]}
        told |= {f"20142 Active Directory {one}" for one in self._reading.kept}
        for line in sorted(told - self._told):
            log.warning("%s", line)
        self._told = told

    def status(self) -> dict[str, Any]:
        """What `frs status` says of it."""
        there = self._config().active_directory
        return {
            "domain": there.domain if there is not None else "",
            "server": self._server,
            "read": iso_time(self._read_at) if self._read_at is not None else None,
            "next_in_s": round(max(self._next_at - time.monotonic(), 0.0), 1),
            "problem": self.problem,
            "passed_over": list(self._passed_over),
            "faults": [str(one) for one in self._reading.faults[:_MOST_TOLD]],
            "faults_count": len(self._reading.faults),
            "kept": list(self._reading.kept),
        }


async def first_reading(client: DirectoryClient) -> None:
    """Write the topology file of a member that has none yet, and has a state directory. Raises Disbelieved,
    ConfigError."""
    reply = await ask(request_of(client.there, client.keytab))
    if reply.answer is None:
        raise Disbelieved("; ".join(reply.errors) or "no server was asked")
    reading = Reading(client.state_dir / MEMORY_NAME)
    try:
        outcome = reading.take(reply.answer, client, time.monotonic())
    except Disbelieved as error:
        raise Disbelieved("; ".join([str(error), *map(str, reading.faults)])) from None
    for fault in reading.faults:
        log.warning("20141 Active Directory: %s", fault)
    if outcome.text is not None:
        write_file(client.topology_path, outcome.text)
