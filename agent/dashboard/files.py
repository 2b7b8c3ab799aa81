"""What the dashboard tells of files by their names, and gives back: to whoever shows a token (see ``tokens``).

    GET  /api/files             {"rights", "transfers", "changes", "conflicts", "deleted"}
    GET  /api/files/show?id=ID  as ``frs conflicts show``
    POST /api/files/restore     {"id": ID}, as ``frs conflicts restore``

Without a token the answer is 401; with one that does not give that right, 403. Another site can have nothing sent with
such a header.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from aiohttp import web

from agent.dashboard.access import Access
from agent.dashboard.tokens import Right

#: Conflicts and groups of deleted files that are told, the newest.
MOST: Final = 200


class FileProvider(Protocol):
    """What is known of files, by their names."""

    def transfers(self) -> list[dict[str, Any]]:
        """Staging files that are being fetched: ``{"set", "partner", "path", "received", "size"}``."""

    def changes(self) -> Awaitable[list[dict[str, Any]]]:
        """The last changes of all sets, the newest first: ``{"set", "path", "what", "by", "time"}``."""

    def conflicts(self, arguments: dict[str, Any]) -> Awaitable[dict[str, Any]]:
        """As the control command of that name."""


class Files:
    """Answers for files, to whom ``access`` gives the right."""

    def __init__(self, provider: FileProvider, access: Access) -> None:
        self._provider = provider
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """What is answered here."""
        return [
            web.get("/api/files", self._for("read", self._list)),
            web.get("/api/files/show", self._for("read", self._show)),
            web.post("/api/files/restore", self._for("restore", self._restore)),
        ]

    def _for(
        self, right: Right, handler: Callable[[web.Request], Awaitable[dict[str, Any]]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if not (rights := self._access.rights(request)):
                return web.json_response({"error": "a token of this member is needed"}, status=401)
            if right not in rights:
                return web.json_response({"error": "this token may see files, and not give them back"}, status=403)
            answer = await handler(request)
            if "refused" in answer:
                return web.json_response({"error": answer["refused"]}, status=400)
            return web.json_response(answer | {"rights": rights})

        return handle

    async def _list(self, _request: web.Request) -> dict[str, Any]:
        kept = await self._provider.conflicts({"action": "list"})
        deleted = await self._provider.conflicts({"action": "list-deleted"})
        return {
            "transfers": self._provider.transfers(),
            "changes": await self._provider.changes(),
            "conflicts": kept["items"][:MOST],
            "conflicts_left_out": max(len(kept["items"]) + kept.get("left", 0) - MOST, 0),
            "deleted": deleted["groups"][:MOST],
            "deleted_left_out": max(len(deleted["groups"]) - MOST, 0),
        }

    async def _show(self, request: web.Request) -> dict[str, Any]:
        return await self._provider.conflicts({"action": "show", "id": request.query.get("id")})

    async def _restore(self, request: web.Request) -> dict[str, Any]:
        try:
            asked = await request.json()
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict) or asked.keys() != {"id"}:
            return {"refused": 'what is asked for is JSON, {"id": ID}'}
        return await self._provider.conflicts({"action": "restore"} | asked)
