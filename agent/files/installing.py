"""Installing in worker threads: the steps of the engine's installs, each on what the IDTable says is there.

The folder of a step is opened once, held against the IDTable, and everything is done in it and with what is open in it:
users of the tree may exchange any name at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.facts import facts_of, fingerprint_of
from agent.files.keeping import keep_deleted, keep_displaced
from agent.files.lookups import folder_of, is_meant, is_the_same, look, make_like, opened, went_on
from agent.files.underway import Key
from agent.reporting.causes import Cause
from agent.tree.trust import gives_nothing_away, set_id_bits
from config.model import SetIdPolicy
from staging import fsops, install, restore
from staging.area import StagingArea
from staging.beneath import (
    FOLDER,
    Entry,
    free_name,
    open_entry,
    open_same,
    remove_tree,
    same_entry,
    set_time,
)
from staging.errors import (
    AccessDenied,
    Interrupted,
    NoSpace,
    StagingError,
    Swapped,
    TooLarge,
    Unsupported,
    Vanished,
    from_oserror,
)
from staging.fsops import Fingerprint
from staging.generate import generate_open
from staging.openat2 import open_beneath
from staging.preinstall import ASIDE_SUFFIX, RESERVED_NAME, Preinstall
from staging.rootdir import FolderKey, RootDir
from staging.unstored import What

NOT_OURS: Final = "at a name of the agent's own"

Report = Callable[[Cause, str, str], None]
"""Told the cause of an incident, where it comes from, and what an administrator should know of it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """A step of an install with the paths and the folders that the IDTable gave for it."""

    step: ev.Step
    path: str
    folder: FolderKey | None
    old_path: str = ""
    old_folder: FolderKey | None = None


@dataclass(frozen=True, slots=True)
class ResolvedInstall:
    """An Install action ready for a worker; None for a folder that has no path any more."""

    action: ev.Install
    steps: tuple[ResolvedStep, ...] | None


class Installer:
    """Installs in one replica tree. Methods may be called from several threads, one at a time per change order."""

    def __init__(
        self,
        root: RootDir,
        area: StagingArea,
        kept: KeptStore,
        preinstall: Preinstall,
        *,
        durable: bool,
        set_id: SetIdPolicy,
        report: Report,
        deleted: DeletedStore | None = None,
        made: Callable[[bytes, Key], None] = lambda co_guid, key: None,
    ) -> None:
        """Without `deleted` nothing is kept of what others delete, but for conflicts. `made` hears of each change order
        that puts a file or folder with that local key into the tree."""
        self._root = root
        self._area = area
        self._kept = kept
        self._deleted = deleted
        self._preinstall = preinstall
        self._durable = durable
        self._set_id = set_id
        self._report = report
        self._made = made

    def install_all(self, installs: list[ResolvedInstall]) -> list[ev.Installed]:
        """Carry out installs, then make the folders they touched durable, all at once."""
        folders: dict[tuple[int, int], int] = {}
        try:
            done = [self._install(item, folders) for item in installs]
            self._flush_deleted()
            for fd in folders.values():
                with contextlib.suppress(OSError):
                    os.fsync(fd)
        finally:
            for fd in folders.values():
                os.close(fd)
        return done

    def _flush_deleted(self) -> None:
        if self._deleted is not None:
            try:
                self._deleted.flush()
            except OSError as error:
                log.error("what was deleted elsewhere is kept, but may not outlast a power cut: %s", error)

    def _install(self, item: ResolvedInstall, folders: dict[tuple[int, int], int]) -> ev.Installed:
        action = item.action
        if item.steps is None:
            return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, detail="its folder is gone")
        end = ev.Installed(action.co_guid, ev.Outcome.DONE)
        for number, step in enumerate(item.steps):
            try:
                self.check()
                end = self._step(action, _after(step, item.steps[:number], end), folders)
            except (TooLarge, Unsupported) as error:
                end = ev.Installed(action.co_guid, ev.Outcome.UNSUPPORTED, detail=str(error))
            except NoSpace as error:
                end = ev.Installed(action.co_guid, ev.Outcome.NO_SPACE, detail=str(error))
            except Vanished as error:
                end = ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, detail=str(error))
            except (StagingError, OSError) as error:
                end = ev.Installed(action.co_guid, _failure(error), detail=str(error))
            if end.outcome not in (ev.Outcome.DONE, ev.Outcome.ALREADY):
                return dataclasses.replace(end, done=number)
        return end

    def check(self) -> None:
        """Sees that the folder of unfinished installs is where it should be. Raises StagingError."""
        for entry in self._preinstall.check():
            keep_displaced(self._kept, entry, RESERVED_NAME, None, NOT_OURS)

    def _step(self, action: ev.Install, step: ResolvedStep, folders: dict[tuple[int, int], int]) -> ev.Installed:
        with contextlib.ExitStack() as stack:
            at = stack.enter_context(self._root.parent(step.path, step.folder))
            old = at
            if step.step.step is ev.InstallStep.RENAME:
                old = stack.enter_context(self._root.parent(step.old_path, step.old_folder))
            elif step.step.step is ev.InstallStep.VACATE:
                old = stack.enter_context(self._root.parent(step.old_path))
            if self._durable:
                _to_be_durable(folders, at.fd, old.fd)
            match step.step.step:
                case ev.InstallStep.DELETE:
                    return ev.Installed(action.co_guid, self._delete(action, step.step, at))
                case ev.InstallStep.VACATE:
                    return self._rename(action, at, old, step.step)
                case ev.InstallStep.RENAME:
                    return self._rename_in(action, step.step, old, at)
                case ev.InstallStep.FOLDER:
                    return self._make_folder(action, step.step, at)
                case ev.InstallStep.CONTENT:
                    return self._content(action, step.step, at)

    # -- steps --

    def _delete(self, action: ev.Install, step: ev.Step, at: Entry) -> ev.Outcome:
        found = look(at)
        if found is None:
            return ev.Outcome.DONE
        if step.expected is None:
            return ev.Outcome.TARGET_CHANGED
        expected, keep = fingerprint_of(step.expected), step.keep
        by = keep.winner.originator_guid if keep is not None and keep.reason is ev.KeepReason.ELSEWHERE else None
        if stat.S_ISDIR(found.mode):
            result = install.remove_folder(self._root, at, expected)
            if by is not None and self._deleted is not None and result.outcome is install.Outcome.DONE:
                self._deleted.keep_folder(at.path, found, by=by)
        else:
            if by is not None:
                wanted = self._deleted is not None and self._deleted.keeps
            else:
                wanted = keep is not None and not is_the_same(keep.winner, at, expected)
            result = install.remove_file(self._root, at, expected, self._aside(action), keep=wanted)
        if by is not None and self._deleted is not None and result.outcome is install.Outcome.DONE:
            for entry in result.displaced:
                keep_deleted(self._kept, self._deleted, entry, at.path, by)
            self._tell_swapped(at, result)
        else:  # a conflict, or changed at the last moment
            self._looked_after(action, None if by is not None else step, at, result)
        return _OUTCOMES[result.outcome]

    def _rename(self, action: ev.Install, old: Entry, new: Entry, step: ev.Step) -> ev.Installed:
        if step.expected is None:
            return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
        expected = fingerprint_of(step.expected)
        result = install.rename(self._root, old, new, expected, self._aside(action))
        self._looked_after(action, None, old, result)
        if result.fingerprint is None:
            found = look(new)  # done before a crash?
            if found is not None and same_entry(found, expected):
                return ev.Installed(action.co_guid, ev.Outcome.DONE, step.expected)
            return ev.Installed(action.co_guid, _OUTCOMES[result.outcome])
        return ev.Installed(action.co_guid, _OUTCOMES[result.outcome], facts_of(result.fingerprint))

    def _rename_in(self, action: ev.Install, step: ev.Step, old: Entry, new: Entry) -> ev.Installed:
        end = self._rename(action, old, new, step)
        if end.outcome is ev.Outcome.NAME_TAKEN and step.aside:
            seen = look(new)
            if seen is not None:
                self._set_aside(action, step.keep, new, seen)
            end = self._rename(action, old, new, step)
        if end.outcome is ev.Outcome.TARGET_CHANGED and went_on(action, old, new):
            return dataclasses.replace(end, outcome=ev.Outcome.DONE)
        return end

    def _make_folder(self, action: ev.Install, step: ev.Step, at: Entry) -> ev.Installed:
        """A folder for that place: the one that stands there, or a new one; what else stands there is kept."""
        seen = look(at)
        if seen is not None:
            with contextlib.suppress(Swapped), opened(open_same, at, seen, FOLDER) as fd:
                found = fsops.fingerprint(fd)
                if is_meant(found, step.expected) or gives_nothing_away(at.fd, fd, found, None):
                    fsops.object_id_set(fd, step.file_guid)
                    return ev.Installed(action.co_guid, ev.Outcome.DONE, facts_of(fsops.fingerprint(fd)))
            self._set_aside(action, None, at, seen)
        temp = self._clear(action)
        try:
            os.mkdir(temp.name, 0o700, dir_fd=temp.fd)
            with opened(open_beneath, temp, FOLDER) as fd:
                self._made(action.co_guid, fsops.fingerprint(fd)[:3])
                make_like(fd, at.fd, step.expected)
                fsops.object_id_set(fd, step.file_guid)
                result = install.install(temp, self._root, at, None)
        finally:
            remove_tree(temp.fd, temp.name)
        self._looked_after(action, None, at, result)
        facts = facts_of(result.fingerprint) if result.fingerprint is not None else None
        return ev.Installed(action.co_guid, _OUTCOMES[result.outcome], facts)

    def _content(self, action: ev.Install, step: ev.Step, at: Entry) -> ev.Installed:
        stage = self._area.path_of(action.co_guid)
        expected = fingerprint_of(step.expected) if step.expected is not None else None
        temp = self._clear(action)
        try:
            if action.is_dir and expected is not None:
                return self._folder(action, at, stage, expected)
            if expected is not None and install.is_busy(at, expected):
                return ev.Installed(action.co_guid, ev.Outcome.SHARING_VIOLATION)
            bits = set_id_bits(self._set_id, expected)
            built = restore.restore(stage, temp.name, dir_fd=temp.fd, durable=self._durable, set_id=bits)
        except Vanished as error:
            lost = not os.path.lexists(stage)
            return ev.Installed(
                action.co_guid, ev.Outcome.STAGE_MISSING if lost else ev.Outcome.FAILED, detail=str(error)
            )
        except (NoSpace, AccessDenied, Unsupported, Interrupted):
            raise
        except StagingError as error:
            self._area.remove(action.co_guid)
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=str(error))
        try:
            wrong = _wrong(action, built)
            if wrong:
                self._area.remove(action.co_guid)
                return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=wrong)
            self._made(action.co_guid, built.fingerprint[:3])
            remember = _to_remember(action, built, opened(open_entry, temp))
            result = install.install(temp, self._root, at, expected, keep=step.keep is not None)
        finally:
            remove_tree(temp.fd, temp.name)
        self._looked_after(action, step, at, result)
        if result.outcome is install.Outcome.DONE and result.fingerprint is not None:
            self._tell_refused(built, at)
            return _installed(action, built, result.fingerprint, ev.Outcome.DONE, remember)
        same = self._same_already(action, at, built)
        if same is not None:
            return _installed(action, built, same, ev.Outcome.ALREADY, remember)
        if step.aside and result.outcome is install.Outcome.NAME_TAKEN:
            return self._in_the_way(action, step, at, built, remember)
        return ev.Installed(action.co_guid, _OUTCOMES[result.outcome])

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
        self._set_aside(action, step.keep, at, seen)
        return ev.Installed(action.co_guid, ev.Outcome.NAME_TAKEN, detail="what was in the way is kept elsewhere")

    # -- what is left over --

    def _clear(self, action: ev.Install) -> Entry:
        """Where the change order's file is built; nothing is there."""
        temp = self._preinstall.entry(action.co_guid.hex())
        remove_tree(temp.fd, temp.name)
        return temp

    def _aside(self, action: ev.Install) -> Entry:
        return self._preinstall.entry(free_name(action.co_guid.hex(), ASIDE_SUFFIX))

    def _set_aside(self, action: ev.Install, keep: ev.Keep | None, at: Entry, seen: Fingerprint) -> None:
        """Keep what stands in the way elsewhere; `seen` is what was found there."""
        result = install.take_aside(self._root, at, self._aside(action), seen)
        for entry in result.displaced:
            keep_displaced(self._kept, entry, at.path, keep, ev.KeepReason.IN_THE_WAY.value)
        self._tell_swapped(at, result)

    def _looked_after(self, action: ev.Install, step: ev.Step | None, at: Entry, result: install.InstallResult) -> None:
        """What an operation on the tree displaced is kept, and what was exchanged meanwhile is told."""
        for entry in result.displaced:
            keep_displaced(self._kept, entry, at.path, self._with_size(action, step.keep if step is not None else None))
        self._tell_swapped(at, result)

    def _with_size(self, action: ev.Install, keep: ev.Keep | None) -> ev.Keep | None:
        """A change order tells of the space that its file takes; the staging file, of its length."""
        if keep is None or keep.winner.deleted or keep.winner.file_guid != action.file_guid:
            return keep
        try:
            size = restore.read_header(self._area.path_of(action.co_guid)).info.end_of_file
        except (StagingError, OSError):
            return keep
        return dataclasses.replace(keep, winner=dataclasses.replace(keep.winner, size=size))

    def _tell_swapped(self, at: Entry, result: install.InstallResult) -> None:
        if result.swapped:
            self._report(
                Cause.SWAPPED,
                at.path,
                f"{at.path!r} was exchanged for something else while a change from elsewhere was being installed; what "
                f"is there now is left as it is",
            )

    def _tell_refused(self, built: restore.Restored, at: Entry) -> None:
        if built.refused:
            bits = " and ".join(name for bit, name in _BITS if built.refused & bit)
            self._report(
                Cause.SET_ID,
                at.path,
                f"{at.path!r} came with the {bits} bit and is installed without: no file of that owner that had it was "
                f"here before; set it here with chmod if it is meant, or see set_id in agent.toml",
            )


def _after(step: ResolvedStep, before: tuple[ResolvedStep, ...], end: ev.Installed) -> ResolvedStep:
    """A step after others, which ended like that. A rename has moved the file's ctime."""
    if not before or before[-1].step.step is not ev.InstallStep.RENAME or end.facts is None:
        return step
    return dataclasses.replace(step, step=dataclasses.replace(step.step, expected=end.facts))


def _failure(error: StagingError | OSError) -> ev.Outcome:
    full = isinstance(error, OSError) and isinstance(from_oserror(error, ""), NoSpace)
    return ev.Outcome.NO_SPACE if full else ev.Outcome.FAILED


def _to_be_durable(folders: dict[tuple[int, int], int], *fds: int) -> None:
    for fd in fds:
        st = os.fstat(fd)
        if (st.st_dev, st.st_ino) not in folders:
            folders[st.st_dev, st.st_ino] = os.dup(fd)


def _wrong(action: ev.Install, built: restore.Restored) -> str:
    if action.md5 != bytes(16) and built.md5 != action.md5:
        return "the checksum of the staging file is not the one announced"
    if built.object_id not in (action.file_guid, bytes(16)):
        return "the staging file is of another file"
    if (built.kind == "folder") != action.is_dir:
        return "the staging file is of another kind"
    return ""


_BITS: Final = ((stat.S_ISUID, "set-user-ID"), (stat.S_ISGID, "set-group-ID"))
_OUTCOMES: Final = {
    install.Outcome.DONE: ev.Outcome.DONE,
    install.Outcome.NAME_TAKEN: ev.Outcome.NAME_TAKEN,
    install.Outcome.TARGET_CHANGED: ev.Outcome.TARGET_CHANGED,
    install.Outcome.TARGET_BUSY: ev.Outcome.SHARING_VIOLATION,
    install.Outcome.NOT_EMPTY: ev.Outcome.NOT_EMPTY,
}


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
