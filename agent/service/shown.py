"""The agent as its dashboard sees it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.dashboard.tls import context_of
from agent.engine import flags as fl
from agent.engine.stored import change_order_of
from agent.replica.replica import Replica
from agent.service.commands import Commands
from agent.wire.guid import guid_text
from agent.work.clock import iso_time
from config.errors import ConfigError
from config.model import AgentConfig
from idtable.errors import StoreError

if TYPE_CHECKING:
    from agent.service.service import Service

#: Changes of one set that are told, the newest.
MOST_CHANGES: Final = 30

#: Seconds that a disk is waited for.
_DISK_S: Final = 1.0


class Shown:
    """What `agent.dashboard` shows of the service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._disks: dict[str, dict[str, int]] = {}
        self._looking: asyncio.Task[dict[str, dict[str, int]]] | None = None
        self.counters = service.snapshot
        self.conflicts = Commands(service).handlers()["conflicts"]

    async def status(self) -> dict[str, Any]:
        """The status of the member, with what is left of the disks: as much as is known, where one does not answer."""
        if self._looking is None or self._looking.done():
            roots = {local.name: local.root for local in self._service.config.sets}
            self._looking = asyncio.create_task(asyncio.to_thread(_disks, roots))
        done, _ = await asyncio.wait({self._looking}, timeout=_DISK_S)
        self._disks = self._looking.result() if done else self._disks
        status = self._service.status()
        quota = {"quota_kib": self._service.config.kept_quota_bytes >> 10}
        for one in status["sets"]:
            one |= {"disk": self._disks.get(one["name"]), "conflicts": one["conflicts"] | quota}
        members = sorted({name for local in self._service.config.sets for name in local.set.members})
        return status | {"told": self._service.states.told(), "members": members}

    def transfers(self) -> list[dict[str, Any]]:
        """Of all sets."""
        return [one for replica in self._service.sets.replicas.values() for one in replica.transfers()]

    async def changes(self) -> list[dict[str, Any]]:
        """Of all sets, as their outbound logs have them: what was done here, and what came and is passed on."""
        replicas = list(self._service.sets.replicas.values())
        found = [one for some in await asyncio.to_thread(lambda: [*map(_changes, replicas)]) for one in some]
        return sorted(found, key=lambda one: str(one["time"]), reverse=True)


def tls_of(config: AgentConfig) -> ssl.SSLContext | None:
    """What the dashboard is served with; None where it is for this host alone, in the clear. Raises ConfigError, also
    where the network could read along."""
    if config.dashboard_tls is not None:
        return context_of(config.dashboard_tls)
    host = config.dashboard_host
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            config.path, None, "dashboard.host",
            f"{host!r} is no address of this host alone, and what goes over the network unencrypted can be read by "
            "others: set dashboard.certificate and dashboard.key, too, or forward the port (ssh -L)",
        )  # fmt: skip
    return None


def _disks(roots: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    found = {}
    for name, root in roots.items():
        try:
            disk = os.statvfs(root)
        except OSError:
            continue  # the set says so
        found[name] = {"free_kib": disk.f_bavail * disk.f_frsize >> 10, "size_kib": disk.f_blocks * disk.f_frsize >> 10}
    return found


def _changes(replica: Replica) -> list[dict[str, Any]]:
    here = replica.local.member.name
    names = replica.originators() | {guid_text(guid): here for guid in replica.own_originators}
    found = []
    try:
        with replica.lock:
            store = replica.store
            for row in store.outlog_iter(store.outlog_head() - MOST_CHANGES):
                co = change_order_of(row)
                found.append(
                    {
                        "set": replica.name,
                        "path": store.path_of(row.file_guid, through_tombstones=True) or co.file_name,
                        "what": _what(co.location_cmd, co.flags, co.content_cmd),
                        "by": names.get(guid_text(row.originator)),
                        "time": iso_time(co.event_time),
                    }
                )
    except StoreError:
        return []  # the set has stopped, and says why
    return found


def _what(location: int, flags: int, content: int) -> str:
    if fl.is_delete(location, flags):
        return "removed"
    return "renamed" if fl.is_rename(location, flags, content) else "written"
