"""What the engine asks of the file system, carried out in worker threads: storing fetched blocks, reading blocks of
staging files, installing. Nothing here touches the store or the engine; paths are resolved before.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable

from agent.engine import events as ev
from agent.installing import Installer, ResolvedInstall
from agent.keeping import keep_displaced
from agent.kept import KeptStore
from agent.stages import Stages
from agent.underway import Key
from staging import preinstall
from staging.area import StagingArea
from staging.rootdir import RootDir

Event = ev.FetchStored | ev.FetchFailed | ev.Installed | ev.StageBlock | ev.StageRefused


class FileOps:
    """The file system side of one replica set. Methods may be called from several threads, one at a time per
    change order."""

    def __init__(
        self,
        root: str,
        state_dir: str,
        area: StagingArea,
        kept: KeptStore,
        *,
        durable: bool,
        compressions: Iterable[bytes],
        made: Callable[[bytes, Key], None] = lambda co_guid, key: None,
    ) -> None:
        """Raises StagingError when the root cannot be opened or no folder for installs can be made."""
        self.root = RootDir(root)
        self.area = area
        try:
            self.preinstall = preinstall.preinstall_dir(root, state_dir)
            for path in preinstall.sweep(self.preinstall):
                keep_displaced(kept, path, os.path.basename(path), None, "an install was cut short")
        except BaseException:
            self.root.close()
            raise
        self._stages = Stages(self.root, area, compressions)
        self._installer = Installer(self.root, area, kept, self.preinstall, durable=durable, made=made)

    def close(self) -> None:
        """Give up what is half done; remove our folder from the tree if it stands there and is empty."""
        self._stages.close()
        if os.path.basename(self.preinstall) == preinstall.RESERVED_NAME:
            try:
                os.rmdir(self.preinstall)
            except OSError:
                pass
        self.root.close()

    def store_blocks(self, blocks: deque[ev.StoreBlock | ev.DropStage]) -> list[Event]:
        """See Stages.store_blocks()."""
        return [*self._stages.store_blocks(blocks)]

    def drop(self, co_guid: bytes) -> None:
        """See Stages.drop()."""
        self._stages.drop(co_guid)

    def choose(self, allowed: Iterable[bytes]) -> bytes:
        """See Stages.choose()."""
        return self._stages.choose(allowed)

    def read_stage(self, action: ev.ReadStage, path: str | None) -> Event:
        """See Stages.read_stage()."""
        return self._stages.read_stage(action, path)

    def install_all(self, installs: list[ResolvedInstall]) -> list[Event]:
        """See Installer.install_all()."""
        return [*self._installer.install_all(installs)]
