"""Whom a directory server knows: the other servers, as the directory or the configuration has them, but for those that
an administrator has removed; and the members of sets, who may read."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from agent.directory.access.outgoing import ServerAddress
from agent.directory.notification.interface import SERVER_PREFIX
from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store.store import FORMER_PREFIX, DirectoryStore
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.errors import RpcAuthError
from agent.rpc.security import Credential, CredentialStore, KeyPair
from config.directory import DirectoryServerConfig

_REMOVED: Final = "removed"
#: So many objects are looked at before others have their turn.
_TURN: Final = 100


@dataclass(frozen=True, slots=True)
class Host:
    """A member as it is told of a change: its identifier, where it is called, its public key."""

    guid: bytes
    host: str
    port: int
    key: bytes


class Known:
    """What is known of others by the store, at any moment; which servers are removed is remembered in it, too."""

    def __init__(self, config: DirectoryServerConfig, store: DirectoryStore, incidents: Incidents) -> None:
        self._config = config
        self._store = store
        self._incidents = incidents
        self._key = KeyPair(config.key)
        self._shared = functools.lru_cache(1 << 16)(self._key.shared)  # each takes 40 us, and there may be 10,000
        self._members: dict[bytes, tuple[str, bytes]] | None = None  # name and key by identifier, until all may differ
        self._servers: dict[str, ServerAddress] | None = None  # until something changes
        self._members_too: dict[str, str] = {}  # by the names of servers that have keys of members
        self.removed = frozenset[str](json.loads(store.setting(_REMOVED) or "[]"))

    def remove(self, names: frozenset[str]) -> None:
        """These servers, and no others, are removed. Raises DirectoryStoreError."""
        with self._store.transaction():
            self._store.set_setting(_REMOVED, json.dumps(sorted(names)))
        self.removed = names
        self.changed()

    def servers(self) -> dict[str, ServerAddress]:
        """The other servers by name. Who owns a site the owner of the enterprise says, and what copies it has its own
        owner: who says that a copy has the name or the key of a server of others is not heard."""
        if self._servers is None:
            self._servers = self._found_servers()
        return self._servers

    def changed(self, what: Iterable[DsObject | DeletedObject] | None = None) -> None:
        """What the store has is not what it was: `what` is of the enterprise; all of it may be where that is None."""
        self._servers = None
        if what is None:
            self._members = None
        elif self._members is not None:
            for one in what:
                if one.type == Type.FRS_MEMBER:
                    self._members.pop(one.guid, None)
                    if isinstance(one, DsObject):
                        self._members[one.guid] = one.text(2103), one.data(2106)

    def _found_servers(self) -> dict[str, ServerAddress]:
        own, sites = self._config.name, self._sites()
        found: dict[str, ServerAddress] = {}
        for site in sites:
            if site.text(304) and site.data(1352):
                found.setdefault(site.text(304), ServerAddress(site.text(1350), site.number(1351), site.data(1352)))
        names = {own, *(site.text(304) for site in sites)}
        keys = {self._key.public, *(one.key for one in found.values())}
        for site in sorted(sites, key=lambda one: (one.guid != self._config.site, one.guid)):
            for machine in self._machines(site):
                name, key = machine.name, machine.data(1252)
                if not name or not machine.number(210) & SERVICE_BSC or not key:
                    continue
                if name in names or key in keys:
                    if name != own and found.get(name) != ServerAddress(machine.text(1250), machine.number(1251), key):
                        text = f"the site {site.name} has a copy {name} with the name or the key of another server"
                        self._incidents.report(Cause.DIRECTORY, name, f"{text}, which is not heard")
                    continue
                names.add(name)
                keys.add(key)
                found[name] = ServerAddress(machine.text(1250), machine.number(1251), key)
        if (up := self._config.upstream) is not None and up.name not in found and up.key not in keys:
            found[up.name] = ServerAddress(up.host, up.port, up.key)
        return {name: one for name, one in found.items() if name != own and name not in self.removed}

    def objects_of(self, name: str) -> list[DsObject]:
        """The objects that say where a server is: sites that it owns, and machines."""
        sites = self._sites()
        machines = [one for site in sites for one in self._machines(site) if one.name == name]
        return [one for one in sites if one.text(304) == name] + machines

    def copies_of(self, site: DsObject, owner: str) -> list[str]:
        """The servers of a site but for its owner, by name, that are not removed."""
        names = {one.name for one in self._machines(site) if one.name and one.number(210) & SERVICE_BSC}
        return sorted(names - {owner} - self.removed)

    def own_place(self) -> str:
        """Where hosts reach this server, as `host:port`; empty where the directory does not say."""
        found = self.objects_of(self._config.name)
        at = [(one.text(1350), one.number(1351)) if one.type == Type.SITE else (one.text(1250), one.number(1251))
              for one in found]  # fmt: skip
        return next((f"{host}:{port}" for host, port in at if host), "")

    async def hosts_of(self, sets: Collection[bytes] | None) -> dict[str, Host]:
        """The members of these sets, by name; all members for None. Others have their turn meanwhile."""
        found: dict[str, Host] = {}
        for turn, guid in enumerate(self._store.identifiers(Type.FRS_MEMBER)):
            if turn % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            one = self._store.get(guid)
            if one is not None and one.data(2106) and (sets is None or one.data(2102) in sets):
                found[one.text(2103)] = Host(guid, one.text(2104), one.number(2105), one.data(2106))
        return found

    def credentials(self) -> CredentialStore:
        """Who is let in: servers, members, and those that were, who may read that they are none. What other servers
        said may be no key, or no member's name: then nobody has it, and all others are let in."""
        if self._members is None:
            found = self._store.of_type(Type.FRS_MEMBER, ENTERPRISE_PARTITION)
            self._members = {one.guid: (one.text(2103), one.data(2106)) for one in found}
        members = {key: f"{FORMER_PREFIX}{name}" for _, name, key in self._store.former()}
        members |= {
            key: name
            for name, key in self._members.values()
            if key and not name.startswith((SERVER_PREFIX, FORMER_PREFIX))
        }
        servers = {one.key: f"{SERVER_PREFIX}{name}" for name, one in self.servers().items()}
        self._members_too = {name: members[key] for key, name in servers.items() if key in members}
        members |= servers
        for name in [members.pop(key) for key in list(members) if not _can_be(key)]:
            self._incidents.report(Cause.DIRECTORY, name, f"what the directory has as the key of {name} is none")
        mqds = self._config.mqds
        accounts = [Credential(mqds.domain, mqds.user, mqds.password)] if mqds is not None and mqds.user else []
        domain = mqds.domain if accounts and mqds is not None else ""
        return CredentialStore(accounts, domain=domain, key=self._key, members=members, shared=self._shared)

    def as_member(self, name: str) -> str:
        """The name of the member, or of the former one, whose key whoever is let in by that name has: of a server whose
        host has one key for the server and for a member; else the same name."""
        return self._members_too.get(name, name)

    def _sites(self) -> list[DsObject]:
        return self._store.of_type(Type.SITE, ENTERPRISE_PARTITION)

    def _machines(self, site: DsObject) -> list[DsObject]:
        return self._store.of_type(Type.MACHINE, site.guid)


@functools.lru_cache(1 << 16)
def _can_be(key: bytes) -> bool:
    """Whether somebody can have that public key."""
    try:
        return bool(KeyPair.new().shared(key))
    except RpcAuthError:
        return False
