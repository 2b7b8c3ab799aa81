"""What NtFrsApi asks of this member, and has it do ([MS-FRS1] 3.2.4)."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import threading
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from agent.engine import events as ev
from agent.engine.stored import change_order_of
from agent.replica.replica import Replica
from agent.reporting.causes import Cause
from agent.reporting.log import get_logger
from agent.wire.frsapi import NOT_REPLICATED, Force
from agent.wire.guid import guid_text
from agent.work.clock import iso_time
from idtable.store import Store

if TYPE_CHECKING:
    from agent.service.service import Service

#: ReplicaSetTypeOfInterest (3.2.4.4), and the types of sets in the configuration.
_TYPES: Final = {1: "enterprise", 2: "sysvol", 3: "dfs", 4: "other"}
#: Lines of a table that are told, and characters of all; so many lines are read before the engine may go on.
_MOST: Final = 10_000
_MOST_TEXT: Final = 2 << 20
_CHUNK: Final = 100
#: Seconds for which a text is good: it is asked for page by page.
_FRESH_S: Final = 10.0

log = get_logger("frs")


class Administration:
    """Of one member; see agent.ntfrsapi.interface.Host."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._polling: asyncio.Task[Any] | None = None
        self._kept: dict[str, tuple[float, str]] = {}  # by kind, and when it was made, by the loop's time
        self._making = asyncio.Lock()

    async def info(self, kind: str) -> str:
        """Text for people: lines of one table, or of what `frs status --json` says; made for one caller at a time, and
        for all who ask within some seconds."""
        async with self._making:
            now = asyncio.get_running_loop().time()
            when, text = self._kept.get(kind, (0.0, None))
            if text is None or now - when > _FRESH_S:
                text = (await self._info(kind))[:_MOST_TEXT]
                self._kept[kind] = now, text
            return text

    async def _info(self, kind: str) -> str:
        service = self._service
        if kind in ("idtable", "outlog", "inlog"):
            return await asyncio.to_thread(self._tables, kind)
        if kind == "version":
            status = service.status()
            found: Any = {"frs": status["version"], "ntfrs": "0.9", "member": status["member"]}
        elif kind == "memory":
            found = {"resident_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        elif kind == "threads":
            found = {"threads": sorted(thread.name for thread in threading.enumerate())}
        else:
            status = service.status()
            found = {"directory": status["directory"]} if kind == "ds" else {"sets": status["sets"]}
            if kind == "stage":
                found = {one.name: {"kib_used": one.area.used_bytes >> 10, "files": len(one.area.guids())}
                         for one in service.sets.replicas.values()}  # fmt: skip
        return _lines(found)

    def _tables(self, kind: str) -> str:
        found, size = list[str](), 0
        for one in list(self._service.sets.replicas.values()):
            for line in _table(one, kind):
                found.append(line + "\n")
                size += len(found[-1])
                if size > _MOST_TEXT:
                    break
        return "".join(found)

    def replicated(self, path: str, kind: int) -> tuple[bool, int, bool, bytes]:
        """Of an absolute path of this system. What Windows calls paths are none here."""
        here = os.path.normpath(path)
        for local in self._service.config.sets:
            root = str(local.root)
            of_interest = kind == 0 or _TYPES.get(kind) == local.set.type
            if of_interest and (here == root or here.startswith(f"{root}/")):
                return True, int(local.set.primary == local.member.name), here == root, local.set.guid
        return NOT_REPLICATED

    def freeze(self, frozen: bool, who: str) -> None:
        """In all sets, and in those that come later."""
        sets = self._service.sets
        if frozen != sets.frozen:
            how = "wait until they are thawed" if frozen else "go on"
            log.warning("20115 installs %s: %s has said so by NtFrsApi", how, who)
        sets.freeze(frozen, who)

    def force(self, asked: Force) -> None:
        """What is not here is ignored (3.2.4.6)."""
        for replica in self._service.sets.replicas.values():
            local = replica.local
            named = (asked.set_name or local.name).casefold() == local.name.casefold()
            if not named or asked.set_guid not in (None, local.set.guid, local.member.guid):
                continue
            for cxtion in replica.cxtions:
                member = local.set.members.get(cxtion.partner.name)
                names = {cxtion.partner.name.casefold(), member.host.casefold() if member is not None else ""}
                partner = asked.partner is None or asked.partner.casefold() in names
                if partner and asked.cxtion_guid in (None, cxtion.guid):
                    replica.post(ev.ForceReplication(cxtion.guid))

    def too_often(self, who: str) -> None:
        """An incident."""
        self._service.incidents.report(Cause.FLOOD, who, f"{who} calls NtFrsApi more often than is answered")

    def poll(self) -> None:
        """Read the configuration again; not twice at a time (3.2.4.1)."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._service.read_topology())


def _lines(found: Any, indent: str = "") -> str:
    """A line for each value, below its name."""
    if isinstance(found, dict):
        return "".join(
            f"{indent}{name}:\n{_lines(value, indent + '  ')}" if isinstance(value, dict | list) and value
            else f"{indent}{name}: {value if isinstance(value, str) else json.dumps(value)}\n"
            for name, value in found.items()
        )  # fmt: skip
    if isinstance(found, list):
        return "".join(
            _lines(value, indent) if isinstance(value, dict | list) else f"{indent}{value}\n" for value in found
        )
    return f"{indent}{found}\n"


def _table(replica: Replica, kind: str) -> Iterator[str]:
    """The lines of a table; between some and the next the engine may change it."""
    store = replica.store
    lines = {"idtable": _records, "outlog": _outlog, "inlog": _inlog}[kind](store)
    yield f"{replica.name}: {kind}"
    for _ in range(_MOST // _CHUNK):
        with replica.lock:
            some = list(islice(lines, _CHUNK))
        yield from some
        if len(some) < _CHUNK:
            return


def _records(store: Store) -> Iterator[str]:
    for record in store.all_live():
        when, path = iso_time(record.event_time), store.path_of(record.file_guid)
        yield f"{guid_text(record.file_guid)} version {record.version} {when} {record.md5.hex()} {path!r}"


def _outlog(store: Store) -> Iterator[str]:
    after = 0
    while rows := store.outlog_iter(after, _CHUNK):
        for row in rows:
            co = change_order_of(row)
            yield f"{row.seq} {guid_text(row.co_guid)} vsn {row.vsn} flags {row.flags:#x} {co.file_name!r}"
        after = rows[-1].seq


def _inlog(store: Store) -> Iterator[str]:
    for entry in store.inlog_iter():
        co = change_order_of(entry)
        yield f"{guid_text(entry.co_guid)} state {entry.state} retries {entry.retry_count} {co.file_name!r}"
