"""What open pages are sent: the parts of the view that are others than before, as server-sent events.

A view is a dictionary of parts, each encoded once for all pages::

    member          the member, and in a word how it is
    fleet           the sentence, and what is wrong
    matrix          who has joined whom
    transfers       staging files that are being fetched, without their names
    directory       the directory that the topology comes from, and the server of it that runs here, or null
    summary         when the last summary was made, or null
    set/NAME        a replica set, without its connections
    partner/NAME    a partner, with its connections
    counters        those of the instance that the page has asked for

An event is ``{"at": seconds, "parts": {KEY: part}, "gone": [KEY]}``: whatever there is at first, then what has changed.
So what a fleet of a thousand costs is what happens in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from agent.counters.registry import CONN_OBJECT, SET_OBJECT, Snapshot

#: Seconds between two looks.
EVERY_S: Final = 2.0
#: Pages that are kept up to date at once.
MOST_STREAMS: Final = 24
#: Seconds after which a page that takes nothing is given up.
_PATIENCE_S: Final = 30.0

#: What a set's card shows of its counters.
_FIGURES: Final = ("Files Installed", "Packets Received in Bytes", "Packets Sent in Bytes", "Journal Lag in Seconds")

Parts = dict[str, str]


def parts(
    status: Mapping[str, Any],
    counters: Snapshot,
    transfers: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any] | None,
    seen: Mapping[str, Any],
) -> Parts:
    """The view, of what ``agent.dashboard.fleet.fleet`` and its sources gave."""
    stopped = {one["set"] for one in status.get("problems") or [] if one["stops"]}
    found: dict[str, Any] = {
        "member": {key: status.get(key) for key in ("member", "version", "pid", "started")}
        | {"state": seen["state"], "wrong": len(seen["wrong"]) + seen["wrong_left_out"]},
        "fleet": {key: seen[key] for key in ("sentence", "wrong", "wrong_left_out")},
        "matrix": {key: seen[key] for key in ("members", "left_out", "matrix")},
        "transfers": [{key: value for key, value in one.items() if key != "path"} for one in transfers],
        "directory": seen["directory"],
        "summary": (summary or {}).get("generated"),
    }
    for one in status.get("sets") or []:
        values = counters.get(SET_OBJECT, {}).get(one["name"], {})
        found[f"set/{one['name']}"] = {key: value for key, value in one.items() if key != "connections"} | {
            "connections": len(one["connections"]), "stops": one["name"] in stopped,
            "figures": {name: values.get(name, 0) for name in _FIGURES},
        }  # fmt: skip
    found |= {f"partner/{one['partner']}": one for one in seen["partners"]}
    return {key: json.dumps(part) for key, part in found.items()}


def raw(counters: Snapshot, instance: str) -> Parts:
    """The counters of a set, or of a connection (SET/UPSTREAM->DOWNSTREAM), and what else may be asked for."""
    instances = {name: object_name for object_name in (SET_OBJECT, CONN_OBJECT) for name in counters[object_name]}
    chosen = instance if instance in instances else next(iter(instances), "")
    values = counters[instances[chosen]][chosen] if chosen else {}
    return {
        "instances": json.dumps(list(instances)),
        "counters": json.dumps({"instance": chosen, "object": instances.get(chosen, ""), "values": values}),
    }


class Live:
    """The streams of all open pages. ``look`` gives the view, with the counters of an instance where one is named;
    ``may_send`` says whether there is room for so many bytes more; ``failed`` is told what went wrong in one."""

    def __init__(
        self,
        look: Callable[[str | None], Awaitable[Parts]],
        may_send: Callable[[int], bool],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._look = look
        self._may_send = may_send
        self._failed = failed
        self._closing = asyncio.Event()
        self._open = 0

    def close(self) -> None:
        """End all."""
        self._closing.set()

    async def stream(self, request: web.Request, lasting: Callable[[asyncio.BaseTransport | None], None]) -> Any:
        """Answer a page until it goes; ``lasting`` is told of its connection that it has no end."""
        if self._open >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(reason="too many pages are open; close one")
        self._open += 1
        try:
            return await self._stream(request, lasting)
        finally:
            self._open -= 1

    async def _stream(
        self, request: web.Request, lasting: Callable[[asyncio.BaseTransport | None], None]
    ) -> web.StreamResponse:
        asked = request.query.get("counters")
        now = await self._look(asked)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.force_close()  # see agent.edge.http
        await response.prepare(request)
        lasting(request.transport)
        sent: Parts = {}
        try:
            while not self._closing.is_set():
                event = _event(sent, now)
                if not self._may_send(len(event)):
                    break  # it asks again
                await asyncio.wait_for(response.write(event), _PATIENCE_S)
                sent = now
                try:
                    await asyncio.wait_for(self._closing.wait(), EVERY_S)
                except TimeoutError:
                    now = await self._look(asked)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # it takes nothing
        except Exception as error:
            self._failed(request.path, error)
        return response


def _event(sent: Parts, now: Parts) -> bytes:
    changed = ", ".join(f"{json.dumps(key)}: {part}" for key, part in now.items() if sent.get(key) != part)
    gone = json.dumps([key for key in sent if key not in now])
    return f'data: {{"at": {time.time():.3f}, "parts": {{{changed}}}, "gone": {gone}}}\n\n'.encode()
