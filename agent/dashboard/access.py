"""Who may look at a dashboard that the network can reach: whoever shows a token, or a certificate of an authority that
agent.toml names.

    GET  /api/session   {"needed": whether a token is needed to look}
    POST /api/session   with a token: answers with a cookie

A page asks for a stream of events, with which a browser sends no header, so whoever has shown a token gets a cookie, by
which a page is shown and nothing else is done: what files are called, and giving them back, takes a header
(``agent.dashboard.files``), which no page of another site can have sent. Scripts of the page cannot read the cookie.
"""

from __future__ import annotations

import hmac
from typing import Final

from aiohttp import web

from agent.dashboard.tokens import Right, Tokens
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents

#: Browsers send a cookie to all ports of a host: of each member there it has another name.
COOKIE: Final = "__Host-frs-"
SESSION: Final = "/api/session"


class Access:
    """``tokens`` give rights. ``closed``: without one nobody may look."""

    def __init__(self, tokens: Tokens | None, incidents: Incidents, *, closed: bool) -> None:
        self._tokens = tokens
        self._incidents = incidents
        self._closed = closed

    def routes(self) -> list[web.RouteDef]:
        """What is answered here, to everybody."""
        return [web.get(SESSION, self._needed), web.post(SESSION, self._begin)]

    def rights(self, request: web.Request) -> tuple[Right, ...]:
        """What the token that is shown gives; one that is none of this member's is reported."""
        shown = request.headers.get("Authorization", "")
        rights = self._tokens.rights(shown) if self._tokens is not None else ()
        if shown and not rights:
            peer = request.remote or "somebody"
            text = f"{peer} shows the dashboard a token that is none of this member's"
            self._incidents.report(Cause.AUTHENTICATION, peer, text)
        return rights

    def may_look(self, request: web.Request) -> bool:
        """Whether the page, and what it shows, may be seen."""
        return not self._closed or self._has_session(request) or "read" in self.rights(request)

    def _has_session(self, request: web.Request) -> bool:
        transport = request.transport
        if transport is not None and transport.get_extra_info("peercert"):
            return True  # it was verified, or there would be no connection
        if self._tokens is None:
            return False
        name, value = _cookie(self._tokens)
        return hmac.compare_digest(request.cookies.get(name, "").encode("utf-8", "surrogateescape"), value.encode())

    async def _needed(self, request: web.Request) -> web.Response:
        return web.json_response({"needed": not self.may_look(request)})

    async def _begin(self, request: web.Request) -> web.Response:
        if self._tokens is None or "read" not in self.rights(request):
            return web.json_response({"error": "a token of this member is needed"}, status=401)
        response = web.json_response({"needed": False})
        response.set_cookie(*_cookie(self._tokens), secure=True, httponly=True, samesite="Strict", path="/")
        return response


def _cookie(tokens: Tokens) -> tuple[str, str]:
    return COOKIE + tokens.session[:8], tokens.session[8:]
