"""What an install works with beside the tree: where a file is built, and what was displaced and is kept."""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Callable
from typing import Final

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.keeping import REPLACED, keep_displaced
from agent.reporting.causes import Cause
from staging import install, restore
from staging.area import StagingArea
from staging.beneath import Entry, free_name, remove_tree
from staging.errors import StagingError
from staging.fsops import Fingerprint
from staging.preinstall import ASIDE_SUFFIX, RESERVED_NAME, Preinstall
from staging.rootdir import RootDir

NOT_OURS: Final = "at a name of the agent's own"
_BITS: Final = ((stat.S_ISUID, "set-user-ID"), (stat.S_ISGID, "set-group-ID"))

Report = Callable[[Cause, str, str], None]
"""Told the cause of an incident, where it comes from, and what an administrator should know of it."""


class Displaced:
    """Of one replica tree. Methods may be called from several threads, one at a time per change order."""

    def __init__(
        self, root: RootDir, area: StagingArea, kept: KeptStore, preinstall: Preinstall, report: Report
    ) -> None:
        self.kept = kept
        self._root = root
        self._area = area
        self._preinstall = preinstall
        self._report = report

    def check(self) -> None:
        """Sees that the folder of unfinished installs is where it should be. Raises StagingError."""
        for entry in self._preinstall.check():
            keep_displaced(self.kept, entry, RESERVED_NAME, None, NOT_OURS)

    def cleared(self, action: ev.Install) -> Entry:
        """Where the change order's file is built; nothing is there."""
        temp = self._preinstall.entry(action.co_guid.hex())
        remove_tree(temp.fd, temp.name)
        return temp

    def aside(self, action: ev.Install) -> Entry:
        """A free name beside the tree, for what is displaced."""
        return self._preinstall.entry(free_name(action.co_guid.hex(), ASIDE_SUFFIX))

    def set_aside(self, action: ev.Install, keep: ev.Keep | None, at: Entry, seen: Fingerprint) -> None:
        """Keep what stands in the way elsewhere; `seen` is what was found there."""
        result = install.take_aside(self._root, at, self.aside(action), seen)
        for entry in result.displaced:
            keep_displaced(self.kept, entry, at.path, keep, ev.KeepReason.IN_THE_WAY.value)
        self.tell_swapped(at, result)

    def looked_after(
        self, action: ev.Install, step: ev.Step | None, at: Entry, result: install.InstallResult, why: str = REPLACED
    ) -> None:
        """What an operation on the tree displaced is kept, `why` where the step does not say, and what was exchanged
        meanwhile is told."""
        for entry in result.displaced:
            keep = self._with_size(action, step.keep if step is not None else None)
            keep_displaced(self.kept, entry, at.path, keep, why)
        self.tell_swapped(at, result)

    def _with_size(self, action: ev.Install, keep: ev.Keep | None) -> ev.Keep | None:
        """A change order tells of the space that its file takes; the staging file, of its length."""
        if keep is None or keep.winner.deleted or keep.winner.file_guid != action.file_guid:
            return keep
        try:
            size = restore.read_header(self._area.path_of(action.co_guid)).info.end_of_file
        except (StagingError, OSError):
            return keep
        return dataclasses.replace(keep, winner=dataclasses.replace(keep.winner, size=size))

    def tell_swapped(self, at: Entry, result: install.InstallResult) -> None:
        """Somebody exchanged what an install was at work on: an incident."""
        if result.swapped:
            self._report(
                Cause.SWAPPED,
                at.path,
                f"{at.path!r} was exchanged for something else while a change from elsewhere was being installed; what "
                f"is there now is left as it is",
            )

    def tell_refused(self, built: restore.Restored, at: Entry) -> None:
        """A file is installed without a set-id bit that it came with: an incident."""
        if built.refused:
            bits = " and ".join(name for bit, name in _BITS if built.refused & bit)
            self._report(
                Cause.SET_ID,
                at.path,
                f"{at.path!r} came with the {bits} bit and is installed without: no file of that owner that had it was "
                f"here before; set it here with chmod if it is meant, or see set_id in agent.toml",
            )
