"""Installing in worker threads: the steps of the engine's installs, each on what the IDTable says is there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.engine import events as ev
from agent.facts import facts_of, fingerprint_of
from agent.keeping import keep_displaced
from agent.kept import KeptStore
from agent.underway import Key
from staging import fsops, install, preinstall, restore
from staging.area import StagingArea
from staging.errors import AccessDenied, NoSpace, StagingError, Unsupported, Vanished
from staging.fsops import Fingerprint
from staging.generate import generate
from staging.rootdir import RootDir


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """A step of an install with the paths and the folders' inodes that the IDTable gave for it."""

    step: ev.Step
    path: str
    parent_ino: int | None
    old_path: str = ""
    old_parent_ino: int | None = None


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
        preinstall: str,
        *,
        durable: bool,
        made: Callable[[bytes, Key], None] = lambda co_guid, key: None,
    ) -> None:
        """`made` hears of each change order that puts a file or folder with that local key into the tree."""
        self._root = root
        self._area = area
        self._kept = kept
        self._preinstall = preinstall
        self._durable = durable
        self._made = made

    def install_all(self, installs: list[ResolvedInstall]) -> list[ev.Installed]:
        """Carry out installs, then make the folders they touched durable, all at once."""
        done: list[ev.Installed] = []
        folders: set[str] = set()
        for item in installs:
            done.append(self._install(item, folders))
        if self._durable:
            for folder in folders:
                try:
                    self._root.fsync_dir(folder)
                except StagingError:
                    pass  # it was removed or renamed meanwhile, and is durable with that
        return done

    def _install(self, item: ResolvedInstall, folders: set[str]) -> ev.Installed:
        action = item.action
        if item.steps is None:
            return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, detail="its folder is gone")
        end = ev.Installed(action.co_guid, ev.Outcome.DONE)
        for number, step in enumerate(item.steps):
            try:
                end = self._step(action, step, folders)
            except NoSpace as error:
                end = ev.Installed(action.co_guid, ev.Outcome.NO_SPACE, detail=str(error))
            except Vanished as error:
                end = ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, detail=str(error))
            except (StagingError, OSError) as error:
                end = ev.Installed(action.co_guid, ev.Outcome.FAILED, detail=str(error))
            if end.outcome not in (ev.Outcome.DONE, ev.Outcome.ALREADY):
                return dataclasses.replace(end, done=number)
        return end

    def _step(self, action: ev.Install, step: ResolvedStep, folders: set[str]) -> ev.Installed:
        if not self._parents_agree(step):
            return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, detail="its folder has moved")
        folders.add(step.path.rpartition("/")[0])
        facts = None
        match step.step.step:
            case ev.InstallStep.DELETE:
                outcome = self._delete(action, step)
            case ev.InstallStep.VACATE:
                outcome, _ = self._rename(step.path, step.old_path, step.step)
            case ev.InstallStep.RENAME:
                outcome, moved = self._rename(step.old_path, step.path, step.step)
                if outcome is ev.Outcome.NAME_TAKEN and step.step.aside:
                    self._set_aside(action, step)
                    outcome, moved = self._rename(step.old_path, step.path, step.step)
                if outcome is ev.Outcome.TARGET_CHANGED and self._went_on(action, step):
                    outcome = ev.Outcome.DONE
                folders.add(step.old_path.rpartition("/")[0])
                facts = facts_of(moved) if moved is not None else None
            case ev.InstallStep.FOLDER:
                return self._make_folder(action, step)
            case ev.InstallStep.CONTENT:
                return self._content(action, step)
        return ev.Installed(action.co_guid, outcome, facts)

    def _parents_agree(self, step: ResolvedStep) -> bool:
        """The folders at the paths are those that the IDTable means."""
        pairs = [(step.path, step.parent_ino)]
        if step.step.step is ev.InstallStep.RENAME:
            pairs.append((step.old_path, step.old_parent_ino))
        for path, ino in pairs:
            folder = path.rpartition("/")[0]
            if ino is None or not folder:
                continue
            fd = self._root.open_dir(folder)
            try:
                if os.fstat(fd).st_ino != ino:
                    return False
            finally:
                os.close(fd)
        return True

    def _delete(self, action: ev.Install, step: ResolvedStep) -> ev.Outcome:
        found = self._look(step.path)
        if found is None:
            return ev.Outcome.DONE
        if step.step.expected is None:
            return ev.Outcome.TARGET_CHANGED
        expected = fingerprint_of(step.step.expected)
        if stat.S_ISDIR(found.mode):
            result = install.remove_folder(self._root, step.path, expected)
        else:
            keep = step.step.keep is not None and not self._is_the_same(step.step.keep.winner, step.path)
            result = install.remove_file(self._root, step.path, expected, self._preinstall, keep=keep)
        if result.displaced is not None:
            keep_displaced(self._kept, result.displaced, step.path, self._with_size(action, step.step.keep))
        return _OUTCOMES[result.outcome]

    def _rename(self, old: str, new: str, step: ev.Step) -> tuple[ev.Outcome, Fingerprint | None]:
        if step.expected is None:
            return ev.Outcome.TARGET_CHANGED, None
        expected = fingerprint_of(step.expected)
        result = install.rename(self._root, old, new, expected)
        if result.outcome is not install.Outcome.DONE:
            found = self._look(new)  # done before a crash?
            if found is not None and (found.dev, found.ino) == (expected.dev, expected.ino):
                return ev.Outcome.DONE, found
        return _OUTCOMES[result.outcome], result.fingerprint

    def _went_on(self, action: ev.Install, step: ResolvedStep) -> bool:
        """A crash cost the record of an install that renamed the file and then replaced it with its new content: it
        stands under its new name, and is another inode. Whether it has the content, that step finds out."""
        if action.steps[-1].step is not ev.InstallStep.CONTENT or self._look(step.old_path) is not None:
            return False
        found = self._look(step.path)
        if found is None or not stat.S_ISREG(found.mode):
            return False
        with self._root.parent(step.path) as (fd, name):
            return fsops.object_id_get(f"/proc/self/fd/{fd}/{name}") == action.file_guid

    def _make_folder(self, action: ev.Install, step: ResolvedStep) -> ev.Installed:
        """A folder for that place: the one that stands there, or a new one; what else stands there is kept."""
        with self._root.parent(step.path) as (fd, name), self._root.keeping_mtime(fd):
            found = self._look(step.path)
            if found is not None and not stat.S_ISDIR(found.mode):
                aside = os.path.join(self._preinstall, f"{action.co_guid.hex()}{preinstall.ASIDE_SUFFIX}")
                os.rename(name, aside, src_dir_fd=fd)
                keep_displaced(self._kept, aside, step.path, None, ev.KeepReason.IN_THE_WAY.value)
                found = None
            if found is None:
                os.mkdir(name, 0o700, dir_fd=fd)
                self._made(action.co_guid, fsops.fingerprint(name, dir_fd=fd)[:3])
                self._make_like(f"/proc/self/fd/{fd}/{name}", step.step.expected)
            fsops.object_id_set(f"/proc/self/fd/{fd}/{name}", step.step.file_guid)
            return ev.Installed(action.co_guid, ev.Outcome.DONE, facts_of(fsops.fingerprint(name, dir_fd=fd)))

    @staticmethod
    def _make_like(path: str, facts: ev.Facts | None) -> None:
        """A folder made anew has the mode of the one that is gone, and its owner where that is allowed."""
        with contextlib.suppress(PermissionError):
            os.chown(path, facts.uid if facts else -1, facts.gid if facts else -1)
        os.chmod(path, stat.S_IMODE(facts.mode) if facts else 0o755)

    def _content(self, action: ev.Install, step: ResolvedStep) -> ev.Installed:
        stage = self._area.path_of(action.co_guid)
        expected = fingerprint_of(step.step.expected) if step.step.expected is not None else None
        temp = os.path.join(self._preinstall, action.co_guid.hex())
        _remove(temp)
        try:
            if action.is_dir and expected is not None:
                return self._folder(action, step, stage, expected)
            built = restore.restore(stage, temp, durable=self._durable)
        except Vanished:
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_MISSING)
        except (NoSpace, AccessDenied, Unsupported):
            raise
        except StagingError as error:
            self._area.remove(action.co_guid)
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=str(error))
        try:
            wrong = self._wrong(action, built)
            if wrong:
                self._area.remove(action.co_guid)
                return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=wrong)
            self._made(action.co_guid, fsops.fingerprint(temp)[:3])
            result = install.install(temp, self._root, step.path, expected, keep=step.step.keep is not None)
        finally:
            _remove(temp)
        if result.displaced is not None:
            keep_displaced(self._kept, result.displaced, step.path, self._with_size(action, step.step.keep))
        if result.outcome is install.Outcome.DONE and result.fingerprint is not None:
            return _installed(action, built, result.fingerprint, ev.Outcome.DONE)
        same = self._same_already(action, step, built)
        if same is not None:
            return _installed(action, built, same, ev.Outcome.ALREADY)
        if step.step.aside and result.outcome is install.Outcome.NAME_TAKEN:
            return self._in_the_way(action, step, built, stage)
        return ev.Installed(action.co_guid, _OUTCOMES[result.outcome])

    def _wrong(self, action: ev.Install, built: restore.Restored) -> str:
        if action.md5 != bytes(16) and built.md5 != action.md5:
            return "the checksum of the staging file is not the one announced"
        if built.object_id not in (action.file_guid, bytes(16)):
            return "the staging file is of another file"
        if (built.kind == "folder") != action.is_dir:
            return "the staging file is of another kind"
        return ""

    def _folder(self, action: ev.Install, step: ResolvedStep, stage: str, expected: Fingerprint) -> ev.Installed:
        """An existing folder stays; it is given what the staging file says of it."""
        found = self._look(step.path)
        if found is None or (found.dev, found.ino) != (expected.dev, expected.ino):
            return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
        if (found.mode, found.uid, found.gid) != (expected.mode, expected.uid, expected.gid):
            return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
        with self._root.parent(step.path) as (fd, name):
            built = restore.apply_folder(stage, name, durable=self._durable, dir_fd=fd)
            return _installed(action, built, fsops.fingerprint(name, dir_fd=fd), ev.Outcome.DONE)

    def _same_already(self, action: ev.Install, step: ResolvedStep, built: restore.Restored) -> Fingerprint | None:
        """What is in the way is the very thing to install: put there before a crash, or by hand."""
        try:
            with self._root.parent(step.path) as (fd, name):
                if built.kind == "folder":
                    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        return None
                    if fsops.object_id_get(f"/proc/self/fd/{fd}/{name}") != action.file_guid:
                        return None
                    restore.apply_folder(self._area.path_of(action.co_guid), name, durable=self._durable, dir_fd=fd)
                    return fsops.fingerprint(name, dir_fd=fd)
                here = generate(name, None, object_id=action.file_guid, dir_fd=fd)
                if here.md5 != built.md5 or here.kind != built.kind:
                    return None
                if here.info.mtime_ns != built.info.mtime_ns:
                    os.utime(name, ns=(built.info.mtime_ns, built.info.mtime_ns), dir_fd=fd, follow_symlinks=False)
                if built.kind != "symlink":
                    fsops.object_id_set(f"/proc/self/fd/{fd}/{name}", action.file_guid)
                return fsops.fingerprint(name, dir_fd=fd)
        except (StagingError, OSError):
            return None

    def _in_the_way(self, action: ev.Install, step: ResolvedStep, built: restore.Restored, stage: str) -> ev.Installed:
        """Initial sync finds something at the name: a folder is taken over by a folder; all else is kept elsewhere,
        and the next attempt finds the name free."""
        with self._root.parent(step.path) as (fd, name):
            found = fsops.fingerprint(name, dir_fd=fd)
            if action.is_dir and stat.S_ISDIR(found.mode):
                built = restore.apply_folder(stage, name, durable=self._durable, dir_fd=fd)
                fsops.object_id_set(f"/proc/self/fd/{fd}/{name}", action.file_guid)
                return _installed(action, built, fsops.fingerprint(name, dir_fd=fd), ev.Outcome.ALREADY)
        self._set_aside(action, step)
        return ev.Installed(action.co_guid, ev.Outcome.NAME_TAKEN, detail="what was in the way is kept elsewhere")

    def _set_aside(self, action: ev.Install, step: ResolvedStep) -> None:
        """Keep what stands in the way of initial sync elsewhere."""
        aside = os.path.join(self._preinstall, f"{action.co_guid.hex()}{preinstall.ASIDE_SUFFIX}")
        with self._root.parent(step.path) as (fd, name):
            os.rename(name, aside, src_dir_fd=fd)
        keep_displaced(self._kept, aside, step.path, step.step.keep, ev.KeepReason.IN_THE_WAY.value)

    def _is_the_same(self, winner: ev.Edition, path: str) -> bool:
        """What loses is just like what wins, made alike on two members: nothing is lost with it."""
        if winner.deleted or winner.md5 == bytes(16):
            return False
        try:
            with self._root.parent(path) as (fd, name):
                return generate(name, None, object_id=winner.file_guid, dir_fd=fd).md5 == winner.md5
        except (StagingError, OSError):
            return False

    def _with_size(self, action: ev.Install, keep: ev.Keep | None) -> ev.Keep | None:
        """A change order tells of the space that its file takes; the staging file, of its length."""
        if keep is None or keep.winner.deleted or keep.winner.file_guid != action.file_guid:
            return keep
        try:
            size = restore.read_header(self._area.path_of(action.co_guid)).info.end_of_file
        except (StagingError, OSError):
            return keep
        return dataclasses.replace(keep, winner=dataclasses.replace(keep.winner, size=size))

    def _look(self, path: str) -> Fingerprint | None:
        try:
            with self._root.parent(path) as (fd, name):
                return fsops.fingerprint(name, dir_fd=fd)
        except (OSError, Vanished):
            return None


_OUTCOMES: Final = {
    install.Outcome.DONE: ev.Outcome.DONE,
    install.Outcome.NAME_TAKEN: ev.Outcome.NAME_TAKEN,
    install.Outcome.TARGET_CHANGED: ev.Outcome.TARGET_CHANGED,
    install.Outcome.TARGET_BUSY: ev.Outcome.SHARING_VIOLATION,
    install.Outcome.NOT_EMPTY: ev.Outcome.NOT_EMPTY,
}


def _installed(action: ev.Install, built: restore.Restored, found: Fingerprint, outcome: ev.Outcome) -> ev.Installed:
    facts, attributes = facts_of(found), built.info.file_attributes
    return ev.Installed(action.co_guid, outcome, facts, built.md5, attributes, built.kind, exact=built.exact)


def _remove(temp: str) -> None:
    try:
        os.unlink(temp)
    except IsADirectoryError:
        os.rmdir(temp)
    except FileNotFoundError:
        pass
