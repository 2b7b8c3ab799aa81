"""Notifications as a host takes them ([MS-MQCN] 3.2.5): whoever sends one says that there is something to be read, and
from which server, and no more. A directory server of this host's own is heard at once, others are throttled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from agent.directory.notification.interface import SERVER_PREFIX
from agent.directory.notification.messages import MACHINE_CHANGED, Body, Updates
from agent.directory.notification.throttle import MOST, Throttle
from agent.directory.objects.table import Type
from agent.rpc.interface import CallContext


class Hints:
    """`mine` are the identifiers of this host's members, `both` the members whose keys are those of directory servers,
    too, by name. `servers` are those that are to be read from, as `host:port`;
    empty for whichever is read from."""

    def __init__(
        self, mine: Callable[[], Collection[bytes]], both: Callable[[], Collection[str]] = frozenset[str]
    ) -> None:
        self._mine = mine
        self._both = both
        self._throttle = Throttle()
        self._timer: asyncio.TimerHandle | None = None
        self._servers: list[str] = []
        self.arrived = asyncio.Event()
        self.received = 0

    def notified(self, context: CallContext, message: Body | Updates) -> None:
        """A message has come from a caller that has authenticated."""
        mine, trusted = self._mine(), context.member.startswith(SERVER_PREFIX) or context.member in self._both()
        if isinstance(message, Body):
            concerned, server = message.event == MACHINE_CHANGED and (trusted or message.guid in mine), message.server
        else:
            concerned = any(one.type == Type.MACHINE and one.guid in mine for one in message.updates)
            server = ""
        if not concerned:
            return
        self.received += 1
        if trusted:
            self._act([server])
            return
        loop = asyncio.get_running_loop()
        self._throttle.received(server, loop.time())
        if self._timer is None and self._throttle.due is not None:
            self._timer = loop.call_at(self._throttle.due, self._expired)

    def _expired(self) -> None:
        self._timer = None
        self._act(self._throttle.expired(asyncio.get_running_loop().time()))

    def _act(self, servers: list[str]) -> None:
        self._servers = list(dict.fromkeys([*self._servers, *servers]))[-MOST:]  # none that is not taken yet is lost
        self.arrived.set()

    def take(self) -> list[str]:
        """What has arrived, once."""
        servers, self._servers = self._servers, []
        self.arrived.clear()
        return servers

    def close(self) -> None:
        """Nothing more is acted on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
