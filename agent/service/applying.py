"""A running agent goes on with another view of the topology ([MS-FRS1] 3.1.5.1): sets come, go and change, one after
the other, while all the others go on."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.conflicts.keptcontrol import DELETED_NAME, KEPT_NAME
from agent.engine import events as ev
from agent.partners.links import PartnerLink
from agent.replica.replica import Replica
from agent.replica.unopened import UnopenedSet
from agent.reporting.events import led
from agent.work.supervise import failure
from config.model import AgentConfig, LocalSet
from config.view import DirectoryView, by_set, compare
from staging.preinstall import STATE_NAME

if TYPE_CHECKING:
    from agent.service.service import Service

log = logging.getLogger("frs")

#: A partner that cannot be told in this time that this member has left finds it out by itself.
TELL_S: Final = 5.0
#: What a set's own folder keeps when this member has left the set: what users may want back.
KEPT: Final = (KEPT_NAME, DELETED_NAME)


class Applying:
    """Applies views to a service, one at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        #: By our member GUID: sets that stopped because their root was to be another one, with the root they had.
        self._roots: dict[bytes, Path] = {}

    async def apply(self, old: DirectoryView, new: DirectoryView, config: AgentConfig) -> list[str]:
        """Go on with the view `new` in the place of `old`, and with `config`, but for its sets. Returns what was
        changed, in words. What fails in one set is said of that set, and keeps no other from its changes."""
        before = {local.set.guid: local for local in old.local_sets()}
        after = {local.set.guid: local for local in new.local_sets()}
        changes = by_set(compare(old, new))
        told = []
        for guid, some in changes.items():
            local = after.get(guid) or before.get(guid)
            whole = (guid in before) != (guid in after)  # then it comes, or goes, with all that is in it
            told += [
                f"set {local.name}: {change}" if local is not None else str(change)
                for change in some
                if not whole or change.key.kind == "set"
            ]
        for line in told:
            log.info("the topology has changed: %s", line)
        self._service.use(dataclasses.replace(config, sets=tuple(after.values())))
        for guid in changes:
            was, now = before.get(guid), after.get(guid)
            try:
                if now is None and was is not None:
                    await self._leave(was)
                elif was is None and now is not None:
                    await self._service.sets.begin(now)
                elif was is not None and now is not None and was != now:
                    await self._change(was, now)
            except Exception as error:
                failed = now or was
                assert failed is not None
                log.exception("13506 set %s: the change of the topology", failed.name)
                await self._stop(failed, failure("the change of the topology", error))
        if b"" in changes:
            for replica in list(self._service.sets.replicas.values()):
                await self._relink(replica, replica.local, {member.guid for member in replica.local.partners})
        return told

    async def _change(self, was: LocalSet, now: LocalSet) -> None:
        service, guid = self._service, now.member.guid
        root = self._roots.pop(was.member.guid, was.root)
        if root != now.root:
            text = (
                f"13556 the root of the set {now.name} was {root} and is {now.root} in {service.config.path}: this set "
                f"has stopped, and nothing is deleted in either. Name {root} there again, and it goes on; or, if that "
                f"folder was moved to {now.root}, restart the agent, which goes on where it is the same folder"
            )
            self._roots[guid] = root
            await self._stop(now, text)
        elif was.root != now.root or _is_another(was, now):
            await service.sets.end(was.member.guid)
            if was.name != now.name:
                service.counters.remove_set(was.name)
            await service.sets.begin(now)
        elif guid in service.sets.unopened:
            service.sets.unopened[guid].local = now
        else:
            await self._reconfigure(service.sets.replicas[guid], was, now)

    async def _stop(self, local: LocalSet, text: str) -> None:
        await self._service.sets.end(local.member.guid)
        self._service.sets.unopened[local.member.guid] = UnopenedSet.stopped(local, text)
        log.error("%s", led(f"replication of the set {local.name} has stopped: ", text))

    async def _reconfigure(self, replica: Replica, was: LocalSet, now: LocalSet) -> None:
        """Partners that come have a link before the engine joins them, those that go have one until they are told."""
        moved = {
            member.guid for member in now.partners for former in was.partners
            if former.guid == member.guid and former != member
        }  # fmt: skip
        self._service.partners.begin(replica, now)
        await replica.reconfigure(now)
        former = {member.guid for member in was.partners} - {member.guid for member in now.partners}
        await self._told(former)
        await _close(self._service.partners.take(replica.name, {member.guid for member in now.partners}))
        await self._relink(replica, now, moved)

    async def _relink(self, replica: Replica, local: LocalSet, partners: Collection[bytes]) -> None:
        """These partners are reached otherwise. What is on its way to one the old way is lost, and its session with
        it."""
        service = self._service
        lost = [guid for guid in partners if guid in service.partners.links and service.partners.links[guid].queued]
        former = service.partners.take(replica.name, {member.guid for member in local.partners}.difference(partners))
        service.partners.begin(replica, local)
        await _close(former)
        for guid in lost:
            replica.post(ev.PartnerUnreachable(guid, "it is reached otherwise from now on"))

    async def _told(self, partners: Collection[bytes]) -> None:
        """What is queued for these is delivered, or cannot be."""
        links = self._service.partners.links
        await asyncio.gather(*(links[guid].delivered(TELL_S) for guid in partners if guid in links))

    # -- leaving (3.1.5.1) --

    async def _leave(self, local: LocalSet) -> None:
        service, guid, counters = self._service, local.member.guid, self._service.counters
        self._roots.pop(guid, None)
        replica = service.sets.replicas.get(guid)
        counters.add_set(local.name)
        if replica is not None:
            await replica.unjoin_all()
            await self._told({member.guid for member in local.partners})
            replica.root.unmark()
        await service.sets.end(guid)
        counters.inc_set(local.name, "Replica Sets Removed")
        await asyncio.to_thread(forget, local.state_dir)
        counters.inc_set(local.name, "Replica Sets Deleted")
        await service.samples_written()
        if all(other.name != local.name for other in service.config.sets):
            counters.remove_set(local.name)
        log.warning(
            "20113 this member has left the set %s. Its files in %s are as they were, and are not replicated any more; "
            "what it knew of the set is forgotten, but for %s",
            local.name,
            local.root,
            " and ".join(os.path.join(local.state_dir, name) for name in KEPT),
        )


async def _close(links: Collection[PartnerLink]) -> None:
    await asyncio.gather(*(link.close() for link in links))


def _is_another(was: LocalSet, now: LocalSet) -> bool:
    """The set goes by another name here, or this computer is another member of it: it has to begin anew, with all that
    it knows."""
    one = (was.name, was.member.guid, was.member.name, was.state_dir)
    return one != (now.name, now.member.guid, now.member.name, now.state_dir)


def forget(state_dir: Path) -> None:
    """Remove what is known of a set: records, logs, staging files, unfinished installs. What users may want back stays:
    what is kept, and what unfinished installs have taken out of the tree. Raises OSError."""
    try:
        with os.scandir(state_dir) as entries:
            found = [(entry.path, entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return
    for path, name, is_dir in found:
        if name in KEPT or (name == STATE_NAME and any(one.endswith((".swap", ".aside")) for one in os.listdir(path))):
            continue
        if is_dir:
            shutil.rmtree(path)
        else:
            os.unlink(path)
