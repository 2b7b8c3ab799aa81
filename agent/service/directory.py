"""Where the topology comes from while the agent runs ([MS-FRS1] 3.1.2, 3.1.5.1): its source is asked again and again,
and what it says is applied.

A reading that fails, or is older than what is in force, changes nothing, and is told until one succeeds. That this
member has left a set is believed when two complete readings in a row, at least one polling interval apart, say so, or
when an administrator confirms it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.service.applying import Applying, forget
from agent.wire.filetime import SECOND
from agent.work.clock import filetime_now, iso_time
from agent.work.supervise import failure
from config.errors import ConfigError
from config.files import FileSource, Reading, problems
from config.model import AgentConfig
from config.state import SETS_NAME, known_sets
from config.view import view_of
from config.write import write_file

if TYPE_CHECKING:
    from agent.service.service import Service

log = logging.getLogger("frs")

LOOK_S: Final = 1.0
#: What takes effect while the agent runs; of all else it is said that it does at the next start.
_AUTHENTICATION: Final = ("key_path", "key", "keytab", "secret_path", "credential", "secret_for_all")
_LIVE: Final = frozenset(
    ("path", "topology_path", *_AUTHENTICATION, "sets", "serial", "poll_interval_s", "active_directory")
)


class Departures:
    """The sets that this member seems to have left, by their GUIDs, and since which reading."""

    def __init__(self) -> None:
        self.since: dict[bytes, float] = {}

    def staying(self, gone: Collection[bytes], now: float, interval: float, confirmed: Collection[bytes]) -> set[bytes]:
        """After a complete reading, in which the sets `gone` are gone: those of them that go on nevertheless."""
        self.since = {guid: self.since.get(guid, now) for guid in gone}
        left = {guid for guid, first in self.since.items() if guid in confirmed or now - first >= interval}
        for guid in left:
            del self.since[guid]
        return set(gone) - left

    def failed(self) -> None:
        """A reading failed: two in a row have to say it."""
        self.since.clear()


class Directory:
    """The source of a service's topology. Only for the event loop's thread."""

    def __init__(self, service: Service, source: FileSource, asked: asyncio.Event) -> None:
        """`asked` is set to have it read at once."""
        self._service = service
        self._source = source
        self._applying = Applying(service)
        config = service.config
        self._view = view_of(config)
        self._departures = Departures()
        self._problems: list[dict[str, Any]] = []
        self._failed_at: float | None = None
        self._read_at = filetime_now()
        self._restart: list[str] = []
        self._reading = asyncio.Lock()
        self._readings: set[asyncio.Task[dict[str, Any]]] = set()
        self._closed = False
        self._asked = asked
        self._known = {**known_sets(config.state_dir), **{local.name: local.set.guid for local in config.sets}}

    async def run(self) -> None:
        """Read whenever there is something new, and when a reading has to be confirmed or done again."""
        await asyncio.to_thread(self._remember)
        if self._gone(self._view.set_guids):
            await self.read()
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._asked.wait()
                if self._service.active_directory is not None:
                    self._service.active_directory.poll_soon()
            except TimeoutError:
                if not self._due() and not await asyncio.to_thread(self._source.changed):
                    continue
            self._asked.clear()
            await self.read()

    def _due(self) -> bool:
        now, interval = time.monotonic(), self._service.config.poll_interval_s
        waiting = [*self._departures.since.values(), *([self._failed_at] if self._failed_at is not None else [])]
        return any(now - since >= interval for since in waiting)

    def _gone(self, there: Collection[bytes]) -> set[bytes]:
        """The sets that this member was in, or has the state of, and that are not among these."""
        state = self._service.config.state_dir
        left = {guid for guid in self._known.values() if (state_of(state, guid) / "frs.db").exists()}
        return ({*self._view.set_guids, *left}).difference(there)

    async def read(self, confirmed: Collection[bytes] = ()) -> dict[str, Any]:
        """Read, and apply what has changed. `confirmed` are sets that an administrator says this member has left.
        Returns what was changed, or what is wrong. Whoever asked may go away: what was begun is brought to its end."""
        reading = asyncio.get_running_loop().create_task(self._read(confirmed), name="reading the configuration")
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)
        return await asyncio.shield(reading)

    async def close(self) -> None:
        """Read no more; returns when what was begun has ended."""
        self._closed = True
        if self._readings:
            await asyncio.wait(self._readings)

    async def _read(self, confirmed: Collection[bytes]) -> dict[str, Any]:
        async with self._reading:
            if self._closed:
                return self._told([])
            try:
                reading = await asyncio.to_thread(self._source.read, self._service.config, self._known)
            except ConfigError as error:
                self._fail(problems(error))
                return self._told([])
            except Exception as error:
                log.exception("13506 reading the configuration has failed")
                text = failure("reading the configuration", error)
                self._fail([{"file": str(self._source.path), "line": None, "key": "", "message": text, "text": text}])
                return self._told([])
            if self._problems:
                log.info("the configuration can be read again")
            self._problems, self._failed_at, self._read_at = [], None, filetime_now()
            return self._told(await self._take(reading, confirmed))

    async def _take(self, reading: Reading, confirmed: Collection[bytes]) -> list[str]:
        """Apply a complete reading; returns what was changed."""
        running = self._service.config
        gone = await asyncio.to_thread(self._gone, reading.view.set_guids)
        seen = set(self._departures.since)
        now = time.monotonic()
        staying = self._departures.staying(gone, now, reading.config.poll_interval_s, confirmed)
        for guid in staying - seen:
            log.warning("%s", self._leaving_text(guid, reading.config))
        staying &= set(self._view.set_guids)
        view = reading.view.keeping(self._view, staying | self._too_early(reading.config, staying))
        self._note_restart(running, reading.config)
        former = set(self._view.set_guids)
        told = await self._applying.apply(self._view, view, _live(running, reading.config))
        self._view = view
        for guid in gone - former - set(self._departures.since):  # of which only the state was here
            told.append(await self._forget(guid))
        self._known |= {local.name: local.set.guid for local in view.local_sets()}
        await asyncio.to_thread(self._remember)
        return told

    async def _forget(self, guid: bytes) -> str:
        try:
            await asyncio.to_thread(forget, state_of(self._service.config.state_dir, guid))
        except OSError as error:
            log.error("20109 what was known of the set %s cannot be removed: %s", self._name(guid), error)
            return f"what was known of the set {self._name(guid)} cannot be removed: {error}"
        return f"what was known of the set {self._name(guid)}, which this member left, is forgotten"

    def _too_early(self, config: AgentConfig, staying: Collection[bytes]) -> set[bytes]:
        """Sets that come under the name, or at the root, of one that this member has still to leave: they come then."""
        former = [local for local in self._view.local_sets() if local.set.guid in staying]
        found = set()
        for local in config.sets:
            for other in former:
                if local.set.guid not in self._view.set_guids and (
                    local.name == other.name or _overlap(local.root, other.root)
                ):
                    found.add(local.set.guid)
                    log.warning("20108 the set %s begins here when the one at %s is left", local.name, other.root)
        return found

    async def leave(self, set_name: str) -> dict[str, Any]:
        """An administrator says that this member has left the set. Refused while the topology has it there."""
        guid = self._known.get(set_name)
        if guid is None:
            known = ", ".join(f'"{name}"' for name in sorted(self._known)) or "none"
            return {"refused": f'this member is in no replica set "{set_name}"; it is or was in {known}'}
        active, config = self._service.active_directory, self._service.config
        changes = await active.poll({guid}) if active is not None else []
        answer = await self.read(confirmed={guid})
        if answer["problems"]:
            return answer
        if guid not in self._view.set_guids:
            return answer | {"changes": [*changes, *answer["changes"]]}
        how = (
            f"with `frs topology remove-member {config.member_name} --set {set_name}`, or by the [[set]] in agent.toml"
        )
        where = f"{config.topology_path} and {self._source.path}"
        if active is not None:
            how = "its subscriber and its member object, with the tools of the domain; `frs ad check` names them"
            where = f"Active Directory ({active.problem or 'as it was read just now'})"
        return {"refused": f'{where} has this member in the set "{set_name}" still: remove it first, {how}'}

    # -- what is said --

    def _fail(self, found: list[dict[str, Any]]) -> None:
        if found != self._problems:
            for one in found:
                log.error("13562 the changed configuration cannot be used; what was in force stays: %s", one["text"])
        self._problems, self._failed_at = found, time.monotonic()
        self._departures.failed()

    def _leaving_text(self, guid: bytes, config: AgentConfig) -> str:
        return (
            f"20107 this member is not in the set {self._name(guid)} any more, says {config.topology_path} or "
            f"{config.path}: it leaves the set when they say so in {config.poll_interval_s:g} s still, or at once "
            f"after `frs leave --set {self._name(guid)}`; nothing in its root is touched"
        )

    def _name(self, guid: bytes) -> str:
        return next((name for name, known in self._known.items() if known == guid), str(uuid.UUID(bytes_le=guid)))

    def _note_restart(self, running: AgentConfig, config: AgentConfig) -> None:
        names = [one.name for one in dataclasses.fields(config) if one.name not in _LIVE]
        found = [name for name in names if getattr(running, name) != getattr(config, name)]
        for name in found:
            if name not in self._restart:
                log.warning("20106 %s in %s has changed: it takes effect at the next start", name, config.path)
        self._restart = found

    def _told(self, changes: list[str]) -> dict[str, Any]:
        return {"changes": changes, **self.status()}

    def status(self) -> dict[str, Any]:
        """The part of `frs status` that tells of the configuration: what is wrong with it, and what it will lead to."""
        config, now = self._service.config, time.monotonic()
        return {
            "source": "file",
            "files": [str(config.path), str(config.topology_path)],
            "serial": config.serial,
            "read": iso_time(self._read_at),
            "problems": self._problems,
            "leaving": [
                {
                    "set": self._name(guid),
                    "since": iso_time(filetime_now() - int((now - since) * SECOND)),
                    "in_s": max(round(config.poll_interval_s - (now - since), 1), 0.0),
                }
                for guid, since in self._departures.since.items()
            ],
            "restart": self._restart,
        }

    # -- the sets that it was in --

    def _remember(self) -> None:
        path = self._service.config.state_dir / SETS_NAME
        text = json.dumps({name: str(uuid.UUID(bytes_le=guid)) for name, guid in self._known.items()}, indent=1) + "\n"
        try:
            if not path.exists() or path.read_text() != text:
                write_file(path, text, 0o600)
        except (ConfigError, OSError, ValueError) as error:
            log.error("20110 the names of the sets cannot be remembered: %s", error)


def _overlap(one: Path, other: Path) -> bool:
    one, other = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return one.is_relative_to(other) or other.is_relative_to(one)


def state_of(state_dir: Path, guid: bytes) -> Path:
    """The folder of a set in the state directory (config.load)."""
    return state_dir / "sets" / str(uuid.UUID(bytes_le=guid))


def _live(running: AgentConfig, config: AgentConfig) -> AgentConfig:
    """What is in force, with what of `config` takes effect at once."""
    return dataclasses.replace(running, **{name: getattr(config, name) for name in _LIVE})
