"""What the commands of this host are answered (see control)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from agent.conflicts.keptcontrol import KeptOf, conflicts
from agent.service.control import ControlError, Handler, wait_until_done
from agent.service.unjoined import never_joined
from agent.tree.excluded import Excluded
from agent.tree.identity import ReplicaError

if TYPE_CHECKING:
    from agent.service.service import Service

WAIT_POLL_S: Final = 0.05


class Commands:
    """One handler for each command."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handlers(self) -> dict[str, Handler]:
        """By the names of the commands."""
        return {
            "status": self._status,
            "counters": self._counters,
            "pending": self._pending_now,
            "wait": self._wait,
            "conflicts": self._conflicts,
            "force": self._force,
            "accept-deletions": self._accept_deletions,
            "reload": self._reload,
            "leave": self._leave,
        }

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        waiting = {replica.name: await replica.waiting() for replica in list(self._service.sets.replicas.values())}
        status = self._service.status()
        for one in status["sets"]:
            one["waiting"] = waiting.get(one["name"], [])
        return status

    async def _counters(self, _: dict[str, Any]) -> dict[str, Any]:
        return dict(self._service.snapshot())

    async def _pending_now(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"pending": await self._pending()}

    async def _wait(self, arguments: dict[str, Any]) -> dict[str, Any]:
        timeout = arguments.get("timeout")
        pending = await wait_until_done(self._pending, None if timeout is None else float(timeout), WAIT_POLL_S)
        return {"pending": pending}

    async def _conflicts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        stores, sets = [], self._service.sets
        for local in self._service.config.sets:
            guid = local.member.guid
            if guid in sets.kept:
                replica = sets.replicas.get(guid)
                one = KeptOf(local.name, str(local.root), sets.kept[guid], deleted=sets.deleted.get(guid))
                if replica is not None:
                    one = one._replace(refusal=replica.root.moved(), originators=replica.own_originators)
                    one = one._replace(names=replica.originators(), root_key=replica.root_key)
                stores.append(one._replace(excluded=Excluded(local.set.file_filter, local.set.directory_filter)))
        return await asyncio.to_thread(conflicts, stores, arguments)

    async def _force(self, arguments: dict[str, Any]) -> dict[str, Any]:
        set_name, partner = arguments.get("set"), arguments.get("partner")
        for unopened in self._service.sets.unopened.values():
            if set_name in (None, unopened.name):
                raise ControlError(f"{unopened.name}: {unopened.error}")
        replicas = [r for r in self._service.sets.replicas.values() if set_name in (None, r.name)]
        if not replicas:
            known = _listed(r.name for r in self._service.sets.replicas.values())
            return {"refused": f'this member takes no part in a replica set "{set_name}"; it has {known}'}
        partners = {name for r in replicas for name in r.partners()}
        if partner is not None and partner not in partners:
            where = f"set {set_name}" if set_name is not None else "any set"
            return {"refused": f'no connection with a member "{partner}" in {where}; partners: {_listed(partners)}'}
        try:
            return {"connections": [one for r in replicas for one in r.force(partner)]}
        except ReplicaError as error:
            raise ControlError(str(error)) from None

    async def _accept_deletions(self, arguments: dict[str, Any]) -> dict[str, Any]:
        set_name, dry_run = arguments.get("set"), arguments.get("dry_run") is True
        known = [local.name for local in self._service.config.sets]
        if set_name is not None and set_name not in known:
            return {"refused": f'this member takes no part in a replica set "{set_name}"; it has {_listed(known)}'}
        accepted = []
        for replica in self._service.sets.replicas.values():
            if set_name in (None, replica.name):
                try:
                    loss = await replica.holding.accept(dry_run=dry_run)
                except ReplicaError as error:
                    raise ControlError(f"{replica.name}: {error}") from None
                if loss is not None:
                    accepted.append({"set": replica.name} | loss.as_json())
        if not accepted:
            which = f'the set "{set_name}" does not wait' if set_name is not None else "no set of this member waits"
            return {"refused": f"{which} for missing files (`frs status` shows one that does); nothing was changed"}
        return {"accepted": accepted}

    async def _pending(self) -> list[str]:
        found = [line for unopened in self._service.sets.unopened.values() for line in unopened.pending()]
        for replica in list(self._service.sets.replicas.values()):
            with contextlib.suppress(RuntimeError):  # the journal is not running: pending() says why
                await replica.barrier()
            found += replica.pending() + never_joined(replica)
        refusals = self._service.partners.refusals()
        return found + [f"{name}: {why}" for name, why in refusals if not any(why in line for line in found)]

    async def _reload(self, _: dict[str, Any]) -> dict[str, Any]:
        return await self._service.read_topology()

    async def _leave(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._service.directory.leave(str(arguments.get("set")))


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(f'"{name}"' for name in names)) or "none"
