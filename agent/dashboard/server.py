"""The dashboard's web server: one page, a little JSON, and metrics.

    /              the page
    /api/live      what the page shows, as it changes: see `agent.dashboard.live`
    /api/status    the status of this member, as `frs status --json` gives it
    /api/counters  the counters of this member
    /api/fleet     what is wrong, who has joined whom, and each partner: see `agent.dashboard.fleet`
    /events        what event numbers mean, and what to do: docs/events.md as a page
    /api/summary   the last summary of `frs summarize`, 404 before there is one
    /api/history   what its tables say: ?table=hours&level=fleet&counter=NAME, see `agent.counters.history`
    /api/history/own   what the samples of this member say: ?counter=NAME&since=ISO&step=S, see `agent.counters.own`
    /metrics       the counters for Prometheus
    /healthz       200 while all sets replicate, else 503 and why not
    /api/files...  names of files, and giving them back, for whoever shows a token: see `agent.dashboard.files`
    /api/session   who may look, where the network can reach this: see `agent.dashboard.access`

No other route changes anything, and nothing comes from elsewhere. A request whose Host names neither an
address nor this host is refused, so that a page of another site cannot read along by DNS rebinding.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import json
import logging
import os
import socket
import ssl
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from aiohttp import web

from agent.counters.registry import Snapshot
from agent.dashboard import eventspage
from agent.dashboard.access import SESSION, Access
from agent.dashboard.behind import Behind
from agent.dashboard.files import FileProvider, Files
from agent.dashboard.fleet import SUMMARY_FILE, fleet
from agent.dashboard.live import Live, Parts, parts, raw
from agent.dashboard.past import NotAnswered, Past, TooMany
from agent.dashboard.tls import TlsEdge
from agent.dashboard.tokens import Tokens
from agent.edge.http import HttpEdge
from agent.reporting.causes import Cause
from agent.reporting.health import stopped
from agent.reporting.incidents import Incidents

log = logging.getLogger(__name__)

MAX_SUMMARY: Final = 8 << 20
#: Seconds for which an answer that takes work (the database is asked) is good for others who ask the same.
FRESH_S: Final = 1.0
#: And one that was read from the samples.
OWN_FRESH_S: Final = 20.0
_MAX_ASKED: Final = 4096
CHART_FILES: Final = ("chart-light.svg", "chart-dark.svg")

_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
# A chart is a document of its own when opened alone; it may style itself and do nothing else.
_CHART_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"

T = TypeVar("T")


class Provider(FileProvider, Protocol):
    """What the dashboard shows. These methods may also be coroutine functions."""

    def status(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """The status of this member."""

    def counters(self) -> Snapshot | Awaitable[Snapshot]:
        """A snapshot of the counters."""


class DashboardServer:
    """Serves the dashboard of one member.

    ``summary_dirs`` are folders that ``frs summarize --output`` writes to, or that hold such folders: the newest
    summary of all counts. ``allowed_hosts`` are further names that the page may be asked for by. ``samples`` is the
    folder of this member's samples. Without ``tokens`` nobody is told of files by their names. With ``tls`` it is
    served over TLS, to whoever shows a token or a certificate.
    """

    def __init__(
        self,
        provider: Provider,
        host: str = "127.0.0.1",
        port: int = 0,
        summary_dirs: Iterable[str | os.PathLike[str]] = (),
        *,
        allowed_hosts: Iterable[str] = (),
        incidents: Incidents | None = None,
        tokens: Tokens | None = None,
        samples: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._provider = provider
        self._host = host
        self._port = port
        self._summary_dirs = [Path(folder) for folder in summary_dirs]
        names = {"localhost", host, socket.gethostname(), *allowed_hosts}
        self._allowed_hosts = {name.lower() for name in names if name}
        self._incidents = incidents if incidents is not None else Incidents(log)
        self._tls = tls
        self._access = Access(tokens, self._incidents, closed=tls is not None)
        self._files = Files(provider, self._access)
        self._open = {SESSION}  # what everybody may ask for
        self._runner: web.AppRunner | None = None
        self._edge: HttpEdge | None = None
        self._kept: dict[str, tuple[float, Any]] = {}  # by what was asked, with the loop's time
        self._past = Past()
        self._behind = Behind()
        self._samples = samples
        self._live = Live(self._view, self._may_send, self._fault)
        self._checked: tuple[object, bytes] | None = None  # a summary that is JSON, by what tells it from others
        self._summarised: dict[str, Any] | None = None  # and what it says

    async def start(self) -> int:
        """Listen; returns the port. Raises ``OSError`` where the address cannot be had."""
        runner = web.AppRunner(
            self.app(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,  # whoever has gone is not answered
            shutdown_timeout=1.0,
            lingering_time=0,  # nobody has anything to send here
            logger=self._http_log(),
        )
        await runner.setup()
        assert runner.server is not None
        if self._tls is None:
            edge = HttpEdge("dashboard", runner.server, self._incidents)
        else:
            edge = TlsEdge("dashboard", runner.server, self._incidents, self._tls)
        try:
            self._port = await edge.listen(self._host, self._port)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner, self._edge = runner, edge
        return self._port

    async def close(self) -> None:
        """Stop listening. Does nothing where it is not."""
        self._live.close()
        if self._edge is not None:
            await self._edge.close()
            self._edge = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _http_log(self) -> logging.Logger:
        """Where aiohttp tells of requests that it cannot read: anybody can send any number of them."""
        logger = logging.Logger("dashboard", logging.WARNING)
        logger.addHandler(_ToIncidents(self._incidents))
        return logger

    @property
    def url(self) -> str:
        """The address of the page."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/"

    def app(self) -> web.Application:
        """The web application, without a listener."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_ASKED)
        app.on_response_prepare.append(_secured)
        app.router.add_get("/", _static("index.html", "text/html"))
        self._open.add("/")
        for file in resources.files(__package__).joinpath("static").iterdir():
            if (content_type := _TYPES.get(Path(file.name).suffix)) is not None:
                app.router.add_get(f"/{file.name}", _static(file.name, content_type))
                self._open.add(f"/{file.name}")
        app.router.add_get("/api/live", self._stream, allow_head=False)
        app.router.add_get("/api/status", self._status)
        app.router.add_get("/api/counters", self._counters)
        app.router.add_get("/api/fleet", self._fleet)
        app.router.add_get("/api/summary", self._summary)
        app.router.add_get("/api/history", self._history)
        app.router.add_get("/api/history/own", self._own_history)
        app.router.add_get("/events", self._events)
        app.router.add_routes([*self._files.routes(), *self._access.routes()])
        for name in CHART_FILES:
            app.router.add_get(f"/summary/{name}", self._chart)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        response: web.StreamResponse
        if not self._is_ours(request.headers.get("Host", "")):
            response = _json({"error": "this dashboard does not go by that host name"}, status=421)
        elif request.path not in self._open and not self._access.may_look(request):
            response = _json({"error": "a token or a certificate is needed"}, status=401)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _json({"error": error.reason}, status=error.status)
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
            except Exception as error:
                self._fault(request.path, error)
                response = _json({"error": "the agent could not answer; its log says why"}, status=503)
        if not response.prepared and not self._may_send(response.content_length or 0):
            response = _json({"error": "too much is being sent to others; try again shortly"}, status=503)
        response.force_close()  # see agent.edge.http
        return response

    def _may_send(self, size: int) -> bool:
        return self._edge is None or self._edge.may_send(size)

    def _fault(self, path: str, error: Exception) -> None:
        told = "".join(traceback.format_exception(error))
        text = f"the dashboard could not answer {path}\n{told}"
        self._incidents.report(Cause.FAULT, "dashboard", text, level="error")

    def _is_ours(self, host_header: str) -> bool:
        try:
            name = urlsplit(f"//{host_header}").hostname or ""
        except ValueError:
            return False
        if name in self._allowed_hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address cannot be rebound

    async def _fresh(self, name: str, ask: Callable[[], T | Awaitable[T]]) -> T:
        """What `ask` gives, or gave a moment ago."""
        now = asyncio.get_running_loop().time()
        when, value = self._kept.get(name, (0.0, None))
        if value is None or now - when > FRESH_S:
            value = await _maybe(ask())
            self._kept[name] = (now, value)
        found: T = value
        return found

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(await self._fresh("status", self._provider.status))

    async def _counters(self, _request: web.Request) -> web.Response:
        return _json(await self._fresh("counters", self._provider.counters))

    async def _metrics(self, request: web.Request) -> web.Response:
        from agent.dashboard import metrics  # nobody who does not ask pays for it

        status = await self._fresh("status", self._provider.status)
        counters = await self._fresh("counters", self._provider.counters)
        body, content_type = metrics.render(status, counters, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _health(self, _request: web.Request) -> web.Response:
        status = await self._fresh("status", self._provider.status)
        why = stopped(status)
        return _json({"ok": not why, "member": status.get("member"), "why": why}, status=503 if why else 200)

    async def _fleet(self, _request: web.Request) -> web.Response:
        return _json(await self._fresh("fleet", self._seen))

    async def _seen(self) -> dict[str, Any]:
        status = await self._fresh("status", self._provider.status)
        counters = await self._fresh("counters", self._provider.counters)
        await asyncio.to_thread(self._read_summary)
        return fleet(status, counters, self._summarised, time.time(), self._behind)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        found: web.StreamResponse = await self._live.stream(request, self._lasting)
        return found

    def _lasting(self, transport: asyncio.BaseTransport | None) -> None:
        if self._edge is not None:
            self._edge.lasting(transport)

    async def _view(self, instance: str | None) -> Parts:
        async def view() -> Parts:
            seen: dict[str, Any] = await self._fresh("fleet", self._seen)
            status, counters = (self._kept[name][1] for name in ("status", "counters"))
            return parts(status, counters, self._provider.transfers(), self._summarised, seen)

        found: Parts = await self._fresh("view", view)
        return found if instance is None else found | raw(self._kept["counters"][1], instance)

    async def _events(self, _request: web.Request) -> web.Response:
        return web.Response(text=await asyncio.to_thread(eventspage.page), content_type="text/html", charset="utf-8")

    async def _summary(self, _request: web.Request) -> web.Response:
        body = await asyncio.to_thread(self._read_summary)
        if body is None:
            return _json({"error": "there is no summary yet: run `frs summarize`"}, status=404)
        return web.Response(body=body, content_type="application/json")

    async def _history(self, request: web.Request) -> web.Response:
        folder = await asyncio.to_thread(self._newest)
        if folder is None:
            return _json({"error": "there is no summary yet: run `frs summarize`"}, status=404)
        version = (folder / SUMMARY_FILE).stat().st_mtime_ns
        return await self._ask_past("agent.counters.history", folder, version, request)

    async def _own_history(self, request: web.Request) -> web.Response:
        if self._samples is None:
            return _json({"error": "there are no samples here"}, status=404)
        return await self._ask_past("agent.counters.own", self._samples, int(time.time() // OWN_FRESH_S), request)

    async def _ask_past(self, module: str, folder: Path, version: int, request: web.Request) -> web.Response:
        try:
            body = await self._past.ask(module, folder, version, list(request.query.items()))
        except NotAnswered as error:
            return _json({"error": str(error)}, status=503 if isinstance(error, TooMany) else 400)
        return web.Response(body=body, content_type="application/json")

    async def _chart(self, request: web.Request) -> web.Response:
        body = await asyncio.to_thread(self._read_chart, request.path.rpartition("/")[2])
        if body is None:
            return _json({"error": "there is no chart yet"}, status=404)
        return web.Response(body=body, content_type="image/svg+xml", headers={"Content-Security-Policy": _CHART_POLICY})

    def _newest(self) -> Path | None:
        """The folder of the newest summary."""
        found: list[tuple[int, Path]] = []
        for folder in self._summary_dirs:
            for path in (folder / SUMMARY_FILE, *folder.glob(f"*/{SUMMARY_FILE}")):
                try:
                    found.append((path.stat().st_mtime_ns, path.parent))
                except OSError:
                    continue
        return max(found)[1] if found else None

    def _read_summary(self) -> bytes | None:
        folder = self._newest()
        if folder is None:
            self._summarised = None
            return None
        path = folder / SUMMARY_FILE
        try:
            status = path.stat()
        except OSError:
            return None
        key = (path, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._checked is None or self._checked[0] != key:
            body = _read(path)
            if body is None:
                return None
            self._summarised = json.loads(body)  # never hand on what is no JSON
            self._checked = (key, body)
        return self._checked[1]

    def _read_chart(self, name: str) -> bytes | None:
        folder = self._newest()
        return _read(folder / name) if folder else None


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            body = file.read(MAX_SUMMARY + 1)
    except OSError:
        return None
    return body if len(body) <= MAX_SUMMARY else None


async def _secured(_request: web.Request, response: web.StreamResponse) -> None:
    """Whatever is answered."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


class _ToIncidents(logging.Handler):
    """Counts what is logged, and logs it at a bounded rate."""

    def __init__(self, incidents: Incidents) -> None:
        super().__init__()
        self._incidents = incidents

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()}: {error}" if error is not None else record.getMessage()
        self._incidents.report(Cause.PROTOCOL, "dashboard", text)


async def _maybe(value: T | Awaitable[T]) -> T:
    if inspect.isawaitable(value):
        return await value
    return value


def _json(data: Any, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(data), status=status, content_type="application/json")


def _static(name: str, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = resources.files(__package__).joinpath("static", name).read_bytes()

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handler
