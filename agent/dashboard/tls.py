"""The dashboard over TLS: the certificate, and the edge behind which a connection is a bare socket until its whole
ClientHello is there.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

from agent.edge.gate import Arrival, Gate, GateLimits, Verdict
from agent.edge.http import MOST, HttpEdge
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from config.errors import ConfigError
from config.model import DashboardTls
from config.private import check_private

#: As those of agent.edge.http, for the ClientHello.
_GATE: Final = GateLimits(strangers=256, known=0, patience=10.0, message=8192)
_HANDSHAKE_S: Final = 10.0
_RECORD: Final = 5  # bytes before what a record holds
_HANDSHAKE: Final = 0x16


def context_of(tls: DashboardTls) -> ssl.SSLContext:
    """Raises ``ConfigError`` where a file cannot be read, is none, or the key can be read by others."""
    check_private(tls.key, "the key of the dashboard", "dashboard.key in agent.toml names it")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = tls.certificate
    try:
        context.load_cert_chain(path, tls.key, password=lambda: "")  # nobody is there to be asked for one
        if tls.client_ca is not None:
            path = tls.client_ca
            context.load_verify_locations(path)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:  # ssl.SSLError, too
        raise ConfigError(path, None, "", f"this is no certificate in PEM with its key: {error}") from error
    return context


class TlsEdge(HttpEdge):
    """As ``HttpEdge``; no more than MOST handshakes are under way, each for ten seconds at most."""

    def __init__(
        self,
        name: str,
        make_protocol: Callable[[], asyncio.Protocol],
        incidents: Incidents,
        context: ssl.SSLContext,
    ) -> None:
        super().__init__(name, make_protocol, incidents)
        self._context = context
        self._gate.close()
        self._gate = Gate(name, _GATE, _judge, self._admit, incidents)

    def _admit(self, arrival: Arrival, data: memoryview) -> None:
        if len(self._tasks) >= MOST:
            self._refuse(arrival, f"{len(self._tasks)} TLS handshakes are under way")
        else:
            super()._admit(arrival, data)

    def _refuse(self, arrival: Arrival, why: str) -> None:
        text = f"a request of {arrival.source} to the {self._name} is refused: {why}"
        self._incidents.report(Cause.CONNECTIONS, arrival.source, text)
        arrival.sock.close()

    async def _connect(self, arrival: Arrival, one: Any) -> None:
        loop = asyncio.get_running_loop()
        sock = arrival.keep()
        try:
            await loop.connect_accepted_socket(
                lambda: one, sock, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_S, ssl_shutdown_timeout=1.0
            )
        except OSError as error:  # it has gone, takes too long, or does not like our certificate
            sock.close()
            self._answering.discard(one)
            text = f"the TLS handshake of {arrival.source} with the {self._name} failed: {error}"
            self._incidents.report(Cause.PROTOCOL, arrival.source, text)


def _judge(arrival: Arrival, data: memoryview) -> Verdict:
    """Whether the whole ClientHello has come."""
    if data[0] != _HANDSHAKE:
        return Verdict.REFUSE
    if len(data) < _RECORD:
        return Verdict.WAIT
    return Verdict.ADMIT if len(data) >= _RECORD + int.from_bytes(data[3:_RECORD], "big") else Verdict.WAIT
