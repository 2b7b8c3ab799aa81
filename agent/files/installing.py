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
from dataclasses import dataclass

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.content import OUTCOMES, ContentInstaller
from agent.files.displaced import Displaced, Report
from agent.files.earlyfiles import EarlyFiles
from agent.files.facts import facts_of, fingerprint_of
from agent.files.keeping import Deletions
from agent.files.lookups import is_meant, is_the_same, look, make_like, opened, to_be_durable, went_on
from agent.files.smallinstalls import SmallInstalls
from agent.files.underway import Key
from agent.tree.trust import gives_nothing_away
from config.model import SetIdPolicy
from staging import fsops, install
from staging.area import StagingArea
from staging.beneath import (
    FOLDER,
    Entry,
    open_same,
    remove_tree,
    same_entry,
)
from staging.errors import (
    DiskTooSmall,
    NoSpace,
    StagingError,
    Swapped,
    TooLarge,
    Unsupported,
    Vanished,
    from_oserror,
)
from staging.openat2 import open_beneath
from staging.preinstall import Preinstall
from staging.rootdir import FolderKey, RootDir

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
    """An Install action ready for a worker; None for a folder that has no path any more. Its staging file has `size`
    bytes."""

    action: ev.Install
    steps: tuple[ResolvedStep, ...] | None
    size: int = 0


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
        rename_open: Callable[[], bool],
        report: Report,
        deleted: DeletedStore | None = None,
        made: Callable[[bytes, Key], None] = lambda co_guid, key: None,
        early: EarlyFiles | None = None,
    ) -> None:
        """Without `deleted` nothing is kept of what others delete, but for conflicts. `made` hears of each change order
        that puts a file or folder with that local key into the tree."""
        self._root = root
        self._deleted = deleted
        self._durable = durable
        self._made = made
        self._displaced = Displaced(root, area, kept, preinstall, report)
        self._small = SmallInstalls(root, area, preinstall, self._displaced, durable=durable, made=made)
        self._contents = ContentInstaller(
            root, area, self._displaced, durable=durable, set_id=set_id, made=made, rename_open=rename_open, early=early
        )

    def install_all(self, installs: list[ResolvedInstall]) -> list[ev.Installed]:
        """Carry out installs, then make the folders they touched durable, all at once."""
        folders: dict[tuple[int, int], int] = {}
        deletions = Deletions(self._displaced.kept, self._deleted)
        try:
            for item in installs:
                self._note(item, deletions)
            deletions.note_all()
            small = self._small.install(installs, folders)
            done = [small.get(item.action.co_guid) or self._install(item, folders, deletions) for item in installs]
            deletions.end()
            for fd in folders.values():
                with contextlib.suppress(OSError):
                    os.fsync(fd)
        finally:
            for fd in folders.values():
                os.close(fd)
        return done

    def _note(self, item: ResolvedInstall, deletions: Deletions) -> None:
        for step in item.steps or ():
            if _elsewhere(step.step) is not None:
                with contextlib.suppress(StagingError, OSError), self._root.parent(step.path, step.folder) as at:
                    self._note_at(item.action, step.step, at, deletions)

    def _note_at(self, action: ev.Install, step: ev.Step, at: Entry, deletions: Deletions) -> None:
        """Notes the file that is to be deleted there, but not with each attempt while somebody has it open."""
        keep = _elsewhere(step)
        if keep is not None and step.expected is not None and look(at) is not None:
            expected = fingerprint_of(step.expected)
            if not stat.S_ISDIR(expected.mode) and not install.is_busy(at, expected):
                deletions.note(action, keep, at.path, expected, self._displaced.aside(action))

    def _install(
        self, item: ResolvedInstall, folders: dict[tuple[int, int], int], deletions: Deletions
    ) -> ev.Installed:
        action = item.action
        if item.steps is None:
            return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, detail="its folder is gone")
        end = ev.Installed(action.co_guid, ev.Outcome.DONE)
        for number, step in enumerate(item.steps):
            try:
                self.check()
                end = self._step(action, _after(step, item.steps[:number], end), folders, deletions)
            except (TooLarge, DiskTooSmall, Unsupported) as error:
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
        """See Displaced.check()."""
        self._displaced.check()

    def _step(
        self, action: ev.Install, step: ResolvedStep, folders: dict[tuple[int, int], int], deletions: Deletions
    ) -> ev.Installed:
        with contextlib.ExitStack() as stack:
            own = step.step.file_guid == action.file_guid
            try:
                at = stack.enter_context(self._root.parent(step.path, step.folder))
            except Vanished as error:
                if own and step.step.step is ev.InstallStep.DELETE:
                    return _not_there(action, error)
                raise
            old = at
            if step.step.step is ev.InstallStep.RENAME:
                try:
                    old = stack.enter_context(self._root.parent(step.old_path, step.old_folder))
                except Vanished as error:
                    return _not_there(action, error)
            elif step.step.step is ev.InstallStep.VACATE:
                old = stack.enter_context(self._root.parent(step.old_path))
            if self._durable:
                to_be_durable(folders, at.fd, old.fd)
            match step.step.step:
                case ev.InstallStep.DELETE:
                    return ev.Installed(action.co_guid, self._delete(action, step.step, at, deletions))
                case ev.InstallStep.VACATE:
                    return self._rename(action, at, old, step.step)
                case ev.InstallStep.RENAME:
                    return self._rename_in(action, step.step, old, at)
                case ev.InstallStep.FOLDER:
                    return self._make_folder(action, step.step, at)
                case ev.InstallStep.CONTENT:
                    return self._contents.install(action, step.step, at)

    # -- steps --

    def _delete(self, action: ev.Install, step: ev.Step, at: Entry, deletions: Deletions) -> ev.Outcome:
        found = look(at)
        if found is None:
            return ev.Outcome.DONE
        if step.expected is None or stat.S_ISDIR(found.mode) != stat.S_ISDIR(step.expected.mode):
            return ev.Outcome.TARGET_CHANGED
        expected, keep = fingerprint_of(step.expected), step.keep
        elsewhere = _elsewhere(step) if self._deleted is not None else None
        if stat.S_ISDIR(found.mode):
            result = install.remove_folder(self._root, at, expected)
            if elsewhere is not None and result.outcome is install.Outcome.DONE:
                deletions.keep_folder(action, elsewhere, at.path, found)
        elif elsewhere is not None and self._deleted is not None and self._deleted.keeps:
            aside = deletions.aside(action)
            if aside is None:  # it had another state when the batch began
                self._note_at(action, step, at, deletions)
                deletions.note_all()
                aside = deletions.aside(action)
            if aside is None:
                return OUTCOMES[install.Outcome.TARGET_BUSY]
            result = install.remove_file(self._root, at, expected, aside, keep=True)
        else:
            wanted = _elsewhere(step) is None and keep is not None and not is_the_same(keep.winner, at, expected)
            result = install.remove_file(self._root, at, expected, self._displaced.aside(action), keep=wanted)
        if elsewhere is not None and result.outcome is install.Outcome.DONE:
            for entry in result.displaced:
                deletions.keep(action, entry, at.path)
            self._displaced.tell_swapped(at, result)
        else:  # a conflict, or changed at the last moment
            self._displaced.looked_after(action, None if _elsewhere(step) is not None else step, at, result)
        return OUTCOMES[result.outcome]

    def _rename(self, action: ev.Install, old: Entry, new: Entry, step: ev.Step) -> ev.Installed:
        if step.expected is None:
            return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
        expected = fingerprint_of(step.expected)
        result = install.rename(self._root, old, new, expected, self._displaced.aside(action))
        self._displaced.looked_after(action, None, old, result)
        if result.fingerprint is None:
            found = look(new)  # done before a crash?
            if found is not None and same_entry(found, expected):
                return ev.Installed(action.co_guid, ev.Outcome.DONE, step.expected)
            return ev.Installed(action.co_guid, OUTCOMES[result.outcome])
        return ev.Installed(action.co_guid, OUTCOMES[result.outcome], facts_of(result.fingerprint))

    def _rename_in(self, action: ev.Install, step: ev.Step, old: Entry, new: Entry) -> ev.Installed:
        end = self._rename(action, old, new, step)
        if end.outcome is ev.Outcome.NAME_TAKEN and step.aside:
            seen = look(new)
            if seen is not None:
                self._displaced.set_aside(action, step.keep, new, seen)
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
            self._displaced.set_aside(action, None, at, seen)
        temp = self._displaced.cleared(action)
        try:
            os.mkdir(temp.name, 0o700, dir_fd=temp.fd)
            with opened(open_beneath, temp, FOLDER) as fd:
                self._made(action.co_guid, fsops.fingerprint(fd)[:3])
                make_like(fd, at.fd, step.expected)
                fsops.object_id_set(fd, step.file_guid)
                result = install.install(temp, self._root, at, None)
        finally:
            remove_tree(temp.fd, temp.name)
        self._displaced.looked_after(action, None, at, result)
        facts = facts_of(result.fingerprint) if result.fingerprint is not None else None
        return ev.Installed(action.co_guid, OUTCOMES[result.outcome], facts)


def _after(step: ResolvedStep, before: tuple[ResolvedStep, ...], end: ev.Installed) -> ResolvedStep:
    """A step after others, which ended like that. A rename has moved the file's ctime."""
    if not before or before[-1].step.step is not ev.InstallStep.RENAME or end.facts is None:
        return step
    return dataclasses.replace(step, step=dataclasses.replace(step.step, expected=end.facts))


def _not_there(action: ev.Install, error: Vanished) -> ev.Installed:
    """What is to be removed or renamed has gone with its folder: somebody removed that, or moved it."""
    return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED, detail=str(error))


def _elsewhere(step: ev.Step) -> ev.Keep | None:
    """What a step that deletes, as another member did, says of what is to be kept for a while."""
    keep = step.keep if step.step is ev.InstallStep.DELETE else None
    return keep if keep is not None and keep.reason is ev.KeepReason.ELSEWHERE else None


def _failure(error: StagingError | OSError) -> ev.Outcome:
    full = isinstance(error, OSError) and isinstance(from_oserror(error, ""), NoSpace)
    return ev.Outcome.NO_SPACE if full else ev.Outcome.FAILED
