"""The addresses of the partners' hosts, looked up beside the event loop and kept while the name service is away."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

from agent.edge.sources import source_of

log = logging.getLogger(__name__)

PERIOD_S: Final = 300.0


class PartnerAddresses:
    """Looks up `hosts`, one after another, at once and every PERIOD_S seconds, and tells `found` in the event loop
    which sources (agent.edge.sources) they are. A name that cannot be looked up keeps the addresses it had.

    A look-up may hang for as long as the resolver likes, so it has a thread of its own, which ends with the process.
    """

    def __init__(self, hosts: Iterable[str], found: Callable[[frozenset[str]], None]) -> None:
        self._found = found
        self._loop = asyncio.get_running_loop()
        self._sources: dict[str, frozenset[str]] = {}
        self._stop = threading.Event()
        names = []
        for host in dict.fromkeys(hosts):
            try:
                self._sources[host] = frozenset({source_of(str(ipaddress.ip_address(host)))})
            except ValueError:
                names.append(host)
        found(self._all())
        if names:
            threading.Thread(target=self._run, args=(names,), name="partner addresses", daemon=True).start()

    def close(self) -> None:
        """Look nothing up any more."""
        self._stop.set()

    def _all(self) -> frozenset[str]:
        return frozenset[str]().union(*self._sources.values())

    def _run(self, names: list[str]) -> None:
        while not self._stop.is_set():
            for name in names:
                try:
                    infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
                except (OSError, UnicodeError) as error:
                    log.debug("%s cannot be looked up: %s", name, error)
                else:
                    self._sources[name] = frozenset(source_of(str(info[4][0])) for info in infos)
                if self._stop.is_set():
                    return
            try:
                self._loop.call_soon_threadsafe(self._found, self._all())
            except RuntimeError:  # the loop has ended
                return
            self._stop.wait(PERIOD_S)
