"""Members tell each other how they are, over the associations that they have: what is wrong with them, and how their
connections are. So each can show a fleet that nobody has summarised.

Whoever lists STATES in its CMD_JOINING (as compressions are listed, of which others leave alone what they do not know)
is told, every few seconds at most, what the teller knows of itself. Nothing is taken of a caller that has not shown
which partner it is, nor too much, nor too often; and what was told is forgotten after a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agent.dashboard.fleet import own_cells, wrong_itself
from agent.reporting.causes import Cause
from agent.rpc.interface import CallContext
from agent.wire.constants import STATES
from agent.work.clock import filetime_now
from agent.work.rates import SourceRates

if TYPE_CHECKING:
    from agent.service.service import Service

#: Seconds between two looks at whether there is something to tell, after which the same is told again, and for which
#: what was told counts.
EVERY_S: Final = 5.0
AGAIN_S: Final = 60.0
LASTS_S: Final = 200.0
#: Bytes, findings, connections of one report, and of a text in it, at most.
MOST_BYTES: Final = 32 << 10
MOST_WRONG: Final = 8
MOST_CELLS: Final = 100
_TEXT: Final = 300
_PER_SECOND: Final = 0.5
_AT_ONCE: Final = 5

Text = Annotated[str, Field(max_length=_TEXT)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Seconds = Annotated[float, Field(ge=0, lt=1e9)]


def _is_a_moment(text: str) -> str:
    datetime.fromisoformat(text)  # raises ValueError for the 99th of a month
    return text


Moment = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"), AfterValidator(_is_a_moment)
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Wrong(_Strict):
    what: Text
    since: Moment | None
    event: Annotated[int, Field(ge=0, lt=100_000)] | None


class _Cell(_Strict):
    set: Text
    connection: Text
    joined: bool
    scheduled: bool
    backlog: Count
    since: Moment | None
    latency_p50_s: Seconds | None
    latency_p95_s: Seconds | None


class _Directory(_Strict):
    """What the teller has read of the directory that its topology comes from."""

    enterprise: Annotated[str, Field(max_length=32)]
    server: Text
    generation: Annotated[str, Field(pattern=r"^[0-9]{1,4}\.[0-9]{1,10}\.[0-9]{1,7}$")]
    since: Moment | None


class _Report(_Strict):
    format: Literal[1]
    clock: Annotated[int, Field(ge=0, lt=1 << 63)]
    wrong: Annotated[list[_Wrong], Field(max_length=MOST_WRONG)]
    cells: Annotated[list[_Cell], Field(max_length=MOST_CELLS)]
    directory: _Directory | None = None


class States:
    """What is told to partners, and what they told. Only for the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._takers: set[bytes] = set()
        self._told: dict[str, tuple[float, _Report]] = {}
        self._rates = SourceRates(_PER_SECOND, _AT_ONCE)

    def announced(self, partner: bytes, listed: Collection[bytes]) -> None:
        """The partner, by its member GUID, has listed this in its CMD_JOINING."""
        (self._takers.add if STATES in listed else self._takers.discard)(partner)

    def take(self, context: CallContext, body: bytes) -> None:
        """What a partner tells of itself."""
        members = {member.name: member for local in self._service.config.sets for member in local.partners}
        sender = members.get(context.member)
        if sender is None or not self._rates.take(context.member):
            return  # it has not shown who it is, or tells too often
        try:
            if len(body) > MOST_BYTES:
                raise ValueError(f"{len(body)} bytes, more than {MOST_BYTES}")
            report = _Report.model_validate_json(body)
        except ValueError as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            text = f"the state that {context.member} tells, from {context.peer}, is refused: {why}"
            self._service.incidents.report(Cause.PACKET, context.peer, text)
            return
        own = [cell for cell in report.cells if context.member in cell.connection.split("->")]
        self._told[context.member] = time.monotonic(), report.model_copy(update={"cells": own})
        self._service.partners.clock_told(sender.guid, report.clock)

    def told(self) -> list[dict[str, Any]]:
        """By whom what was told, and has not grown old: ``{"member", "wrong", "cells",
        "directory"}``."""
        now, known = time.monotonic(), {member.name for local in self._service.config.sets for member in local.partners}
        for name, (when, _) in list(self._told.items()):
            if now - when > LASTS_S or name not in known:
                del self._told[name]
        return [
            {"member": name} | report.model_dump(include={"wrong", "cells", "directory"})
            for name, (_, report) in sorted(self._told.items())
        ]

    async def run(self) -> None:
        """Tell, until cancelled."""
        before: tuple[float, Any] = (0.0, None)
        while True:
            await asyncio.sleep(EVERY_S)
            if not self._takers:
                continue
            try:
                report = self._report()
                anew = report["wrong"], report["cells"], report["directory"]
                if anew != before[1] or time.monotonic() - before[0] > AGAIN_S:
                    before = time.monotonic(), anew
                    body = _Report.model_validate(report).model_dump_json().encode()
                    for partner in self._takers & self._service.partners.links.keys():
                        self._service.partners.links[partner].tell(body)
            except Exception as error:  # what is only to be shown stops no set
                text = f"partners are not told how this member is: {error!r}"
                self._service.incidents.report(Cause.FAULT, "states", text, level="error")

    def _report(self) -> dict[str, Any]:
        """Of connections that are not as they should be first, where there is no room for all."""
        status = self._service.status()
        cells = own_cells(status, self._service.snapshot())
        cells = [cell for cell in cells if len(cell["set"]) <= _TEXT and len(cell["connection"]) <= _TEXT]
        cells.sort(key=lambda cell: (not cell["scheduled"] or cell["joined"], -(cell["backlog"] or 0)))
        wrong = [
            one | {"what": _shown(f"{one['who']} {one['what']}")} for one in wrong_itself(status, cells, time.time())
        ]
        names = _Cell.model_fields
        return {
            "format": 1,
            "clock": filetime_now(),
            "wrong": [{key: one[key] for key in _Wrong.model_fields} for one in wrong[:MOST_WRONG]],
            "cells": [{key: cell[key] for key in names} for cell in cells[:MOST_CELLS]],
            "directory": _directory(status.get("directory", {}).get("reading")),
        }


def _directory(reading: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if reading is None or reading["in_force"] == "none":
        return None
    told = {"server": reading["server"][:_TEXT], "generation": reading["in_force"], "since": reading["taken"]}
    return told | {"enterprise": reading["enterprise"]}


def _shown(text: str) -> str:
    """A text that may have names of files in it, which need not be UTF-8, as much of it as is told."""
    return text.encode(errors="backslashreplace").decode()[:_TEXT]
