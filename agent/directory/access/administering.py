"""What an administrator makes of the servers themselves: others come and go, and take the place of one that is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

from agent.directory.access.enterprise import machine_of, site_of
from agent.directory.access.known import Known
from agent.directory.discovery.answering import Place
from agent.directory.objects.model import (
    MQ_ERROR,
    MQ_ERROR_ILLEGAL_PROPERTY_VALUE,
    MQDS_OBJECT_NOT_FOUND,
    DirectoryError,
)
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication.common import S_NAME
from agent.directory.replication.content import deletion
from agent.directory.replication.messages import DELETE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Action
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore
from agent.rpc.security import KeyPair
from agent.rpc.server import RpcServer
from agent.wire.guid import new_guid
from config.directory import DirectoryServerConfig

MQDS_NO_RSP_FROM_OWNER: Final = 0xC00E0519
#: How long the owner of a partition may take for a change that was asked for here (3.3.7.1, note 11: 10 and 20 s).
ANSWER_S: Final = 20.0


class NotAllMade(DirectoryError):
    """Some of what was asked for is made, or may be."""


class Administered:
    """A directory server as its administrator sees it."""

    config: DirectoryServerConfig
    store: DirectoryStore
    known: Known
    _rules: Replicator
    _server: RpcServer | None
    _placed: Place | None
    _asked: dict[int, asyncio.Future[int]]
    _happened: asyncio.Event  # set with the next event of the rules

    def _event(self, make: Callable[[], tuple[Any, list[Action]]]) -> Any:
        raise NotImplementedError

    def _set_clock_right(self) -> None:
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """The number of the last change of the enterprise partition."""
        return self._rules.partitions[0].last

    async def _answer(self, number: int, silent: str) -> int:
        """What became of a request, as its HRESULT. Raises DirectoryError, which says `silent`, where nobody says."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise NotAllMade(MQDS_NO_RSP_FROM_OWNER, silent) from None
        finally:
            del self._asked[number]
            self._rules.unanswered(number)

    def add_server(self, given: dict[str, Any]) -> dict[str, Any]:
        """Another server: one of this site, as a copy, or with a site of its own, as its owner. Raises
        DirectoryError."""
        name, host, port = str(given["name"]), str(given["host"]), int(given["port"])
        key, machine = bytes.fromhex(given["key"]), new_guid()
        self._is_free(name, host, port, key)
        if name in self.known.removed:
            self._removed(self.known.removed - {name})
        if given.get("site"):
            site = new_guid()
            change = site_of(site, str(given["site"]), name, host, port, key)
            self._event(lambda: (None, self._rules.change(ENTERPRISE_PARTITION, change)[1]))
        else:
            site = self.config.site
            change = machine_of(machine, site, name, SERVICE_BSC, host, port, key)
            self._event(lambda: (None, self._rules.change(site, change)[1]))
        if self._server is not None:
            self._server.admit(self.known.credentials())
        own = self.store.of_type(Type.SITE, ENTERPRISE_PARTITION)
        at = next((one for one in own if one.guid == self.config.site), None)
        address = {"host": at.text(1350), "port": at.number(1351)} if at is not None else {}
        enterprise = self.config.enterprise.hex()
        return {"enterprise": enterprise, "site": site.hex(), "machine": machine.hex(), "address": address}

    def _is_free(self, name: str, host: str, port: int, key: bytes) -> None:
        """Raises DirectoryError where another server, or this one, has the name, the address or the key: its own word
        would count for nothing any more."""
        there = self.known.servers()
        taken = MQ_ERROR_ILLEGAL_PROPERTY_VALUE
        if name in (self.config.name, *there):
            raise DirectoryError(taken, f"there is a server {name}; `frs directory remove-server {name}` comes first")
        own = KeyPair(self.config.key).public
        for other, has_key, at in [
            (self.config.name, own, self.known.own_place()),
            *((one, place.key, f"{place.host}:{place.port}") for one, place in there.items()),
        ]:
            if key == has_key:
                raise DirectoryError(taken, f"that is the key of the server {other}")
            if at == f"{host}:{port}":
                raise DirectoryError(taken, f"that is the address of the server {other}")

    def remove_server(self, name: str) -> dict[str, Any]:
        """Let that server in no more, and send it nothing: from now on, and whatever it claims. `deleted`: whether it
        is deleted in the directory, too, which takes the owner of what says where it is; `sites`: those that it owns
        and that have other servers, by name, which stay until another one owns them. Raises DirectoryError."""
        if name == self.config.name:
            raise DirectoryError(MQ_ERROR, "a server removes others, and not itself")
        found = self.known.objects_of(name)
        if not found and name not in self.known.servers() and name not in self.known.removed:
            raise DirectoryError(MQDS_OBJECT_NOT_FOUND, f"there is no server {name}")
        self._removed(self.known.removed | {name})
        owned = [one for one in found if one.type == Type.SITE]
        found = [one for one in found if one.partition not in {site.guid for site in owned}]  # those go with their site
        others = {one.text(S_NAME): self.known.copies_of(one, name) for one in owned}
        sites = {site: names for site, names in others.items() if names}
        if sites or not all(self._rules.takes_changes(one.partition) for one in found):
            return {"deleted": False, "sites": sites}
        for one in found:
            gone = DirectoryChange(DELETE, one.guid, one.partition, 0, 0, 0, deletion(one.type))
            self._event(functools.partial(self._change_of, gone))
        return {"deleted": True, "sites": {}}

    def _change_of(self, change: DirectoryChange) -> tuple[None, list[Action]]:
        return None, self._rules.change(change.partition, change)[1]

    def _removed(self, names: frozenset[str]) -> None:
        self.known.remove(names)
        self._placed = None
        if self._server is not None:
            self._server.admit(self.known.credentials())

    async def promote_site(self, name: str) -> None:
        """Make this server the owner of a site, whose owner is lost or disputed, by the word of the owner of the
        enterprise; returns when it is. Raises DirectoryError."""
        site = self.store.find(Type.SITE, name)
        if site is None:
            raise DirectoryError(MQDS_OBJECT_NOT_FOUND, f"there is no site {name}")
        number: int = self._event(functools.partial(self._rules.promote_site, site.guid))
        if number:
            silent = (
                "the owner of the enterprise does not answer. Where it is lost, `frs directory promote` on another "
                "server comes first; else run this again"
            )
            if result := await self._answer(number, silent):
                text = (
                    f"the owner of the enterprise refuses that (0x{result:08x}); if it has given the site to another "
                )
                raise DirectoryError(result, text + "server meanwhile, and it is still to be this one, run this again")
        try:
            async with asyncio.timeout(ANSWER_S):
                while not self._rules.takes_changes(site.guid):
                    await self._happened.wait()
        except TimeoutError:
            text = f"the site {name} is given to this server, which has not taken it yet: see `frs directory status`"
            raise NotAllMade(MQDS_NO_RSP_FROM_OWNER, text) from None

    def promote(self) -> int:
        """Make this server the owner of the enterprise; gives the generation after that. Raises DirectoryError."""
        self._set_clock_right()
        self._event(lambda: (None, self._rules.promote(ENTERPRISE_PARTITION)))
        return self.generation

    def resign(self, owner: str) -> None:
        """Make this server a copy of what that one owns. Raises DirectoryError."""
        if owner not in self.known.servers():
            there = ", ".join(sorted(self.known.servers())) or "none"
            raise DirectoryError(MQDS_OBJECT_NOT_FOUND, f"there is no other server {owner} here; there are: {there}")
        self._event(lambda: (None, self._rules.resign(ENTERPRISE_PARTITION, owner)))
