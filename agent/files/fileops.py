"""What the engine asks of the file system, carried out in worker threads: storing fetched blocks, reading blocks of
staging files, installing. Nothing here touches the store or the engine; paths are resolved before.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.cutshort import give_times_back
from agent.files.displaced import NOT_OURS, Report
from agent.files.earlyfiles import EarlyFiles
from agent.files.installing import Installer, ResolvedInstall
from agent.files.keeping import keep_displaced
from agent.files.stages import Stages
from agent.files.underway import Key
from agent.reporting.causes import Cause
from agent.wire.change_order import ChangeOrder
from config.model import SetIdPolicy
from idtable.records import IDRecord
from staging.area import StagingArea
from staging.lending import Lending
from staging.preinstall import RESERVED_NAME, Preinstall
from staging.rootdir import RootDir, RootKey
from staging.unstored import Unstored

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
        root_key: RootKey | None = None,
        set_id: SetIdPolicy = "same-owner",
        rename_open: Callable[[], bool] = lambda: False,
        report: Report = lambda cause, source, text: None,
        dropped: Callable[[ev.FetchFailed], None] = lambda event: None,
        deleted: DeletedStore | None = None,
        made: Callable[[bytes, Key], None] = lambda co_guid, key: None,
        lent: Callable[[Key, bool], None] = lambda key, lent: None,
    ) -> None:
        """`root_key` says which folder the root is, `set_id` which set-id bits of received files are taken over,
        `rename_open` whether what is open for writing is replaced and kept (fRSFlags, 2.3.1.2);
        `report` hears of incidents; `dropped`, in any thread, of a staging file half received that had to make room for
        others; `deleted` takes what others delete; `lent` hears in which folders the mode is another one for a moment
        (see staging.lending). Folders that a crash left so get their modes back here. Raises StagingError when the root
        cannot be opened or no folder for installs can be made."""
        self.root = RootDir(root, root_key, Lending(os.path.join(state_dir, "lent"), lent))
        self.root.give_back()
        self.area = area
        try:
            self._preinstall = Preinstall(
                self.root, state_dir, lambda text: report(Cause.RESERVED_NAME, RESERVED_NAME, text)
            )
        except BaseException:
            self.root.close()
            raise
        try:
            for entry in self._preinstall.sweep():
                if entry.name.startswith(RESERVED_NAME):
                    keep_displaced(kept, entry, RESERVED_NAME, None, NOT_OURS)
                else:
                    keep_displaced(kept, entry, entry.name, None, "an install was cut short")
        except BaseException:
            self._preinstall.close()
            self.root.close()
            raise
        self._early = EarlyFiles(lambda co_guid: self._preinstall.entry(co_guid.hex()))
        self._stages = Stages(self.root, area, compressions, dropped, self._early)
        self._installer = Installer(
            self.root,
            area,
            kept,
            self._preinstall,
            durable=durable,
            set_id=set_id,
            rename_open=rename_open,
            report=report,
            deleted=deleted,
            made=made,
            early=self._early,
        )

    def close(self) -> None:
        """Give up what is half done; remove our folder from the tree if it stands there and is empty."""
        self._stages.give_up()
        self._early.close()
        self._preinstall.close()
        self.root.close()

    def check(self) -> None:
        """Now and then: see that the folder of unfinished installs is where it should be. Raises StagingError."""
        self._installer.check()
        self._early.expire()

    def give_times_back(self, folders: Iterable[tuple[str, IDRecord]]) -> None:
        """See cutshort.give_times_back()."""
        give_times_back(self.root, folders)

    def store_blocks(self, blocks: deque[ev.StoreBlock | ev.DropStage]) -> list[Event]:
        """See Stages.store_blocks()."""
        return [*self._stages.store_blocks(blocks)]

    def give_up(self) -> None:
        """See Stages.give_up()."""
        self._stages.give_up()

    def drop(self, co_guid: bytes) -> None:
        """See Stages.drop()."""
        self._stages.drop(co_guid)

    def choose(self, allowed: Iterable[bytes]) -> bytes:
        """See Stages.choose()."""
        return self._stages.choose(allowed)

    def read_stage(
        self, action: ev.ReadStage, path: str | None, unstored: Unstored | None = None, size: int | None = None
    ) -> Event:
        """See Stages.read_stage()."""
        return self._stages.read_stage(action, path, unstored, size)

    def read_cached(self, action: ev.ReadStage) -> Event | None:
        """See Stages.read_cached()."""
        return self._stages.read_cached(action)

    def make_stages(self, wanted: Sequence[tuple[ev.MakeStage, str]]) -> list[tuple[ev.MakeStage, bytes | None]]:
        """See Stages.make()."""
        return self._stages.make(wanted)

    def to_go_with(self, co: ChangeOrder, compressions: Collection[bytes]) -> bytes | None:
        """See Stages.to_go_with()."""
        return self._stages.to_go_with(co, compressions)

    def install_all(self, installs: list[ResolvedInstall]) -> list[Event]:
        """See Installer.install_all()."""
        return [*self._installer.install_all(installs)]
