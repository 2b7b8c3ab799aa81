"""A replica set that waits for what is missing in its tree: it looks again and again, and goes on when it may."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from agent.localchanges.lookup import LockedLookup
from agent.localchanges.missing import Loss, MissingFiles, TooMuchMissing
from agent.tree.excluded import Excluded
from agent.tree.identity import Identity, ReplicaError
from config.model import AgentConfig, LocalSet
from idtable.errors import StoreDamaged, StoreError
from idtable.store import Store
from journal.changes import RootGone
from journal.examine import Examiner

LOOK_S: Final = 2.0
_SHARE: Final = 10  # of the time, one part in so many is spent on looking

log = logging.getLogger(__name__)


class Holding:
    """Whether a set has to wait, and for what (`loss`, None while it does not). `say` is told what to say of it,
    after each look. Only for the event loop's thread."""

    def __init__(self, files: MissingFiles, say: Callable[[str], None]) -> None:
        self.loss: Loss | None = None
        self._files = files
        self._say = say
        self._looking = asyncio.Lock()
        self._accepted = asyncio.Event()

    async def before_start(self) -> None:
        """See MissingFiles.before_start()."""
        async with self._looking:
            await asyncio.to_thread(self._files.before_start)

    def begin(self, why: TooMuchMissing) -> None:
        """The set waits from now on."""
        self.loss = why.loss
        self._say(str(why))

    async def over(self) -> None:
        """Returns when nothing is waited for any more. Raises RootGone, StoreDamaged."""
        pause = LOOK_S
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._accepted.wait()
            except TimeoutError:
                pass
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                async with self._looking:
                    self._accepted.clear()
                    await asyncio.to_thread(self._files.look)
                self.loss = None
                return
            except TooMuchMissing as why:
                self.begin(why)
            except StoreDamaged:
                raise
            except StoreError as error:
                log.error("20207 what is missing cannot be looked at: %s", error)
            pause = max(LOOK_S, _SHARE * (loop.time() - began))

    async def accept(self, *, dry_run: bool) -> Loss | None:
        """See MissingFiles.accept(); None when the set does not wait. Raises ReplicaError."""
        try:
            async with self._looking:
                if self.loss is None:
                    return None
                loss = await asyncio.to_thread(self._files.accept, dry_run=dry_run)
                if not dry_run:
                    self._accepted.set()
                return loss
        except (RootGone, StoreError) as error:
            raise ReplicaError(str(error)) from error


def missing_files(
    config: AgentConfig,
    local: LocalSet,
    excluded: Excluded,
    identity: Identity,
    store: Store,
    lock: threading.RLock,
) -> MissingFiles:
    """What decides on what is missing in the tree of a set."""
    lookup = LockedLookup(store, lock)
    return MissingFiles(
        store,
        lock,
        lambda: Examiner(str(local.root), lookup, excluded, root_guid=identity.root_guid, root_key=identity.root_key),
        root=str(local.root),
        set_name=local.name,
        config_path=str(config.path),
        limit=config.missing_percent,
    )
