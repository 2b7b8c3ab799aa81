"""Installing what a staging file holds: built beside the tree, compared with what was announced, put in its place."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from agent.engine import events as ev
from agent.files.displaced import Displaced
from agent.files.earlyfiles import EarlyFiles
from agent.files.facts import facts_of, fingerprint_of
from agent.files.keeping import REPLACED
from agent.files.lookups import folder_of, look, opened
from agent.files.underway import Key
from agent.tree.trust import gives_nothing_away, set_id_bits
from config.model import SetIdPolicy
from staging import fsops, install, restore
from staging.area import StagingArea
from staging.beneath import FOLDER, Entry, open_entry, open_same, remove_tree, set_time
from staging.errors import (
    AccessDenied,
    DiskTooSmall,
    Interrupted,
    NoSpace,
    StagingError,
    Swapped,
    Unsupported,
    Vanished,
)
from staging.fsops import Fingerprint
from staging.generate import generate_open
from staging.rootdir import RootDir
from staging.unstored import What

WAS_OPEN: Final = "open for writing here while it was replaced"

OUTCOMES: Final = {
    install.Outcome.DONE: ev.Outcome.DONE,
    install.Outcome.NAME_TAKEN: ev.Outcome.NAME_TAKEN,
    install.Outcome.TARGET_CHANGED: ev.Outcome.TARGET_CHANGED,
    install.Outcome.TARGET_BUSY: ev.Outcome.SHARING_VIOLATION,
    install.Outcome.NOT_EMPTY: ev.Outcome.NOT_EMPTY,
}


class ContentInstaller:
    """In one replica tree. Methods may be called from several threads, one at a time per change order."""

    def __init__(
        self,
        root: RootDir,
        area: StagingArea,
        displaced: Displaced,
        *,
        durable: bool,
        set_id: SetIdPolicy,
        made: Callable[[bytes, Key], None],
        rename_open: Callable[[], bool] = lambda: False,
        early: EarlyFiles | None = None,
    ) -> None:
        """`rename_open`: what somebody has open for writing is replaced, and kept (fRSFlags, 2.3.1.2). `made` hears of
        each change order that puts a file or folder with that local key into the tree. `early` are files that were
        restored while their staging files came."""
        self._root = root
        self._area = area
        self._displaced = displaced
        self._durable = durable
        self._set_id = set_id
        self._made = made
        self._rename_open = rename_open
        self._early = early

    def install(self, action: ev.Install, step: ev.Step, at: Entry) -> ev.Installed:
        """Raises StagingError, OSError."""
        stage = self._area.path_of(action.co_guid)
        expected = fingerprint_of(step.expected) if step.expected is not None else None
        temp = self._displaced.cleared(action)
        try:
            if action.is_dir and expected is not None and stat.S_ISDIR(expected.mode):
                return self._folder(action, at, stage, expected)
            busy = expected is not None and install.is_busy(at, expected)
            if busy and not self._rename_open():
                return ev.Installed(action.co_guid, ev.Outcome.SHARING_VIOLATION)
            bits = set_id_bits(self._set_id, expected)
            built = self._restored(action, stage, temp, bits)
        except Vanished as error:
            lost = not os.path.lexists(stage)
            return ev.Installed(
                action.co_guid, ev.Outcome.STAGE_MISSING if lost else ev.Outcome.FAILED, detail=str(error)
            )
        except (NoSpace, DiskTooSmall, AccessDenied, Unsupported, Interrupted):
            raise
        except StagingError as error:
            self._area.remove(action.co_guid)
            here = isinstance(error.__cause__, OSError)  # it is this host that could not read it, or write the file
            outcome = ev.Outcome.STAGE_MISSING if here else ev.Outcome.STAGE_DAMAGED
            return ev.Installed(action.co_guid, outcome, detail=str(error))
        try:
            wrong = _wrong(action, built)
            if wrong:
                self._area.remove(action.co_guid)
                return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=wrong)
            self._made(action.co_guid, built.fingerprint[:3])
            remember = _to_remember(action, built, opened(open_entry, temp))
            result = install.install(temp, self._root, at, expected, keep=busy or step.keep is not None, opened=busy)
        finally:
            remove_tree(temp.fd, temp.name)
        self._displaced.looked_after(action, step, at, result, WAS_OPEN if busy else REPLACED)
        if result.outcome is install.Outcome.DONE and result.fingerprint is not None:
            self._displaced.tell_refused(built, at)
            return _installed(action, built, result.fingerprint, ev.Outcome.DONE, remember)
        same = self._same_already(action, at, built)
        if same is not None:
            return _installed(action, built, same, ev.Outcome.ALREADY, remember)
        if step.aside and result.outcome is install.Outcome.NAME_TAKEN:
            return self._in_the_way(action, step, at, built, remember)
        return ev.Installed(action.co_guid, OUTCOMES[result.outcome])

    def _restored(self, action: ev.Install, stage: str, temp: Entry, set_id: restore.SetId) -> restore.Restored:
        early = self._early.take(action.co_guid) if self._early is not None else None
        if early is not None:
            with contextlib.suppress(StagingError):
                built = early.finish(temp, durable=self._durable, set_id=set_id)
                if not _wrong(action, built):
                    return built
            remove_tree(temp.fd, temp.name)
        return restore.restore(stage, temp.name, dir_fd=temp.fd, durable=self._durable, set_id=set_id)

    def _folder(self, action: ev.Install, at: Entry, stage: str, expected: Fingerprint) -> ev.Installed:
        """An existing folder stays; it is given what the staging file says of it."""
        changed = ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
        try:
            fd = open_same(at.fd, at.name, expected, FOLDER)
        except Swapped:
            return changed
        try:
            with self._root.alone():
                found = fsops.fingerprint(fd)
                if (found.mode, found.uid, found.gid) != (expected.mode, expected.uid, expected.gid):
                    return changed
                if not self._root.holds(at.fd, folder_of(at)):
                    return changed
                with self._root.rewriting(fd, at.path):
                    built = restore.apply_folder(stage, fd, durable=self._durable)
                remember = _to_remember(action, built, contextlib.nullcontext(fd))
            return _installed(action, built, fsops.fingerprint(fd), ev.Outcome.DONE, remember)
        finally:
            os.close(fd)

    def _same_already(self, action: ev.Install, at: Entry, built: restore.Restored) -> Fingerprint | None:
        """What is in the way is the very thing to install: put there before a crash, or by hand."""
        try:
            fd = open_entry(at.fd, at.name)
        except (StagingError, OSError):
            return None
        try:
            found = fsops.fingerprint(fd)
            if built.kind == "folder":
                if not stat.S_ISDIR(found.mode) or fsops.object_id_get(fd) != action.file_guid:
                    return None
                return self._take_over(action, at, fd, built)
            if built.kind == "file" and found.size != built.info.end_of_file:
                return None
            here = generate_open(fd, None, object_id=action.file_guid, unstored=built.remember)
            if here.md5 != built.md5 or here.kind != built.kind:
                return None
            alone = found.nlink == 1  # else another name of it, perhaps outside the tree, would be changed with it
            if here.info.mtime_ns != built.info.mtime_ns:
                if not alone:
                    return None
                set_time(fd, built.info.mtime_ns)
            if here.info.file_attributes != built.info.file_attributes and built.kind != "symlink":
                if not alone:
                    return None
                restore.give_dos_attributes(fd, built.info)
            if built.kind != "symlink" and alone:
                fsops.object_id_set(fd, action.file_guid)
            return fsops.fingerprint(fd)
        except (StagingError, OSError):
            return None
        finally:
            os.close(fd)

    def _take_over(self, action: ev.Install, at: Entry, fd: int, built: restore.Restored) -> Fingerprint | None:
        """Gives a folder that stands at the name what the staging file says; None when it may not be given that."""
        if not gives_nothing_away(at.fd, fd, fsops.fingerprint(fd), built.descriptor):
            return None
        with self._root.rewriting(fd, at.path):
            fsops.object_id_set(fd, action.file_guid)
            restore.apply_folder(self._area.path_of(action.co_guid), fd, durable=self._durable)
        return fsops.fingerprint(fd)

    def _in_the_way(
        self, action: ev.Install, step: ev.Step, at: Entry, built: restore.Restored, remember: bytes
    ) -> ev.Installed:
        """Initial sync finds something at the name: a folder is taken over by a folder; all else is kept elsewhere,
        and the next attempt finds the name free."""
        seen = look(at)
        if seen is None:
            return ev.Installed(action.co_guid, ev.Outcome.NAME_TAKEN, detail="what was in the way is gone")
        if action.is_dir and stat.S_ISDIR(seen.mode):
            with contextlib.suppress(Swapped), opened(open_same, at, seen, FOLDER) as fd:
                found = self._take_over(action, at, fd, built)
                if found is not None:
                    return _installed(action, built, found, ev.Outcome.ALREADY, remember)
        self._displaced.set_aside(action, step.keep, at, seen)
        return ev.Installed(action.co_guid, ev.Outcome.NAME_TAKEN, detail="what was in the way is kept elsewhere")


def _wrong(action: ev.Install, built: restore.Restored) -> str:
    if action.md5 != bytes(16) and built.md5 != action.md5:
        return "the checksum of the staging file is not the one announced"
    if built.object_id not in (action.file_guid, bytes(16)):
        return "the staging file is of another file"
    if (built.kind == "folder") != action.is_dir:
        return "the staging file is of another kind"
    return ""


def _to_remember(action: ev.Install, built: restore.Restored, opening: AbstractContextManager[int]) -> bytes:
    """What the IDTable is to remember of what was restored; `opening` opens that for reading, if need be. Raises
    StagingError, OSError."""
    if built.formed and built.object_id == action.file_guid:
        return built.remember.encode()
    with opening as fd:
        here = generate_open(fd, None, object_id=action.file_guid, unstored=built.remember)
    if here.md5 == built.md5:
        return built.remember.encode()
    what = built.remember.what | What.STREAMS
    return dataclasses.replace(built.remember, made=here.md5, what=what).encode()


def _installed(
    action: ev.Install, built: restore.Restored, found: Fingerprint, outcome: ev.Outcome, remember: bytes
) -> ev.Installed:
    facts, attributes = facts_of(found), built.info.file_attributes
    return ev.Installed(action.co_guid, outcome, facts, built.md5, attributes, built.kind, unstored=remember)
