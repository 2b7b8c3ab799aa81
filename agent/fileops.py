"""What the engine asks of the file system, carried out in worker threads: storing fetched blocks, reading blocks of
staging files, installing. Nothing here touches the store or the engine; paths are resolved before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent.engine import events as ev
from agent.kept import KeptStore
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.guid import guid_text
from staging import fsops, install, preinstall, restore
from staging.area import StageWriter, StagingArea
from staging.errors import AccessDenied, NoSpace, StagingError, Torn, Unsupported, Vanished
from staging.fsops import Fingerprint
from staging.generate import generate
from staging.header import HEADER_SIZE, StageHeader
from staging.rootdir import RootDir

_CHANGE_ORDER_AT: Final = 0x50
_CHANGE_ORDER_END: Final = _CHANGE_ORDER_AT + 0x318

log = logging.getLogger(__name__)

Event = ev.FetchStored | ev.FetchFailed | ev.Installed | ev.StageBlock | ev.StageRefused


def facts_of(found: Fingerprint) -> ev.Facts:
    """The part of a fingerprint that the IDTable keeps."""
    return ev.Facts(
        found.dev,
        found.ino,
        found.btime_ns,
        found.mtime_ns,
        found.ctime_ns,
        found.size,
        found.mode,
        found.uid,
        found.gid,
    )


def fingerprint_of(facts: ev.Facts) -> Fingerprint:
    """The fingerprint that the facts stand for; the link count is not kept."""
    return Fingerprint(
        dev=facts.dev,
        ino=facts.ino,
        btime_ns=facts.btime_ns,
        size=facts.fsize,
        mtime_ns=facts.mtime_ns,
        ctime_ns=facts.ctime_ns,
        mode=facts.mode,
        uid=facts.uid,
        gid=facts.gid,
        nlink=1,
    )


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
    ) -> None:
        """Raises StagingError when the root cannot be opened or no folder for installs can be made."""
        self.root = RootDir(root)
        self.area = area
        self.kept = kept
        self.durable = durable
        self.compressions = tuple(compressions)  # those to choose from, best first
        self.preinstall = preinstall.preinstall_dir(root, state_dir)
        for path in preinstall.sweep(self.preinstall):
            self._keep(path, os.path.basename(path), None, "an install was cut short")
        self._writers: dict[bytes, StageWriter] = {}
        self._making: dict[bytes, threading.Lock] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give up what is half done; remove our folder from the tree if it stands there and is empty."""
        for writer in self._writers.values():
            writer.abort()
        self._writers.clear()
        if os.path.basename(self.preinstall) == preinstall.RESERVED_NAME:
            try:
                os.rmdir(self.preinstall)
            except OSError:
                pass
        self.root.close()

    # -- fetching --

    def store_blocks(self, blocks: deque[ev.StoreBlock]) -> list[Event]:
        """Append the blocks of one staging file, in order."""
        done: list[Event] = []
        while blocks:
            block = blocks.popleft()
            try:
                if block.offset == 0:
                    self._abandon(block.co_guid)
                    self._writers[block.co_guid] = self.area.open_writer(block.co_guid, block.file_size)
                writer = self._writers.get(block.co_guid)
                if writer is None:
                    continue  # an earlier block failed, and was answered
                writer.write(block.offset, block.data)
                if block.last:
                    del self._writers[block.co_guid]
                    writer.finish()
                done.append(ev.FetchStored(block.co_guid, block.last))
            except NoSpace as error:
                self._abandon(block.co_guid)
                done.append(ev.FetchFailed(block.co_guid, ev.Outcome.NO_SPACE, str(error)))
            except StagingError as error:
                self._abandon(block.co_guid)
                done.append(ev.FetchFailed(block.co_guid, ev.Outcome.FAILED, str(error)))
        return done

    def _abandon(self, co_guid: bytes) -> None:
        writer = self._writers.pop(co_guid, None)
        if writer is not None:
            writer.abort()

    # -- serving --

    def choose(self, allowed: Iterable[bytes]) -> bytes:
        """The compression to stage with for somebody who understands `allowed`."""
        wanted = set(allowed)
        return next((guid for guid in self.compressions if guid in wanted), c.COMPRESSION_NONE)

    def read_stage(self, action: ev.ReadStage, path: str | None) -> Event:
        """Read the block that is asked for; make the staging file from the tree (at `path`) if there is none."""
        co = action.change_order
        guid = co.change_order_guid
        generated = 0
        try:
            block = self._read(guid, action)
            if block is None:
                guid = hashlib.md5(guid + b"other compression", usedforsecurity=False).digest()
                block = self._read(guid, action)
            if block is None:
                if not action.regenerate or path is None:
                    return ev.StageRefused(action, action.regenerate, "the version asked for is no longer here")
                with self._lock_of(guid):
                    block = self._read(guid, action)
                    if block is None:
                        generated = self._generate(guid, path, action)
                        block = self._read(guid, action)
            if block is None:
                return ev.StageRefused(action, True, "the staging file was removed at once")
            return ev.StageBlock(action, block, self.area.size_of(guid) or 0, generated)
        except (Torn, Vanished, NoSpace) as error:
            return ev.StageRefused(action, True, str(error))
        except Unsupported as error:
            return ev.StageRefused(action, False, str(error))
        except AccessDenied as error:
            log.error("%r cannot be staged: %s", path, error)
            return ev.StageRefused(action, False, str(error))
        except StagingError as error:
            self.area.remove(guid)  # damaged: it is made anew at the next request (3.3.4.4.7)
            return ev.StageRefused(action, True, str(error))

    def _read(self, guid: bytes, action: ev.ReadStage) -> bytes | None:
        if self.area.size_of(guid) is None:
            return None
        try:
            block = self.area.read_block(guid, action.offset, c.MAX_BLOCK)
        except Vanished:
            return None
        if action.offset:
            return block
        header = StageHeader.decode(block[:HEADER_SIZE])
        if header.compression not in action.compressions:
            return None
        co = action.change_order
        if header.compression != c.COMPRESSION_NONE:
            co = co.replace(flags=co.flags | c.CO_FLAG_COMPRESSED_STAGE)  # 4.4.7
        return with_change_order(block, co)

    def _generate(self, guid: bytes, path: str, action: ev.ReadStage) -> int:
        folder, _, name = path.rpartition("/")
        fd = self.root.open_dir(folder)
        try:
            staged = self.area.stage(
                guid,
                name,
                object_id=action.file_guid,
                compression=self.choose(action.compressions),
                dir_fd=fd,
            )
        finally:
            os.close(fd)
        if action.md5 != bytes(16) and staged.md5 != action.md5:
            self.area.remove(guid)
            raise Torn("the file has changed since")
        return staged.stage_size

    def _lock_of(self, guid: bytes) -> threading.Lock:
        with self._lock:
            if len(self._making) > 10_000:
                self._making.clear()
            return self._making.setdefault(guid, threading.Lock())

    # -- installing --

    def install_all(self, installs: list[ResolvedInstall]) -> list[Event]:
        """Carry out installs, then make the folders they touched durable, all at once."""
        done: list[Event] = []
        folders: set[str] = set()
        for item in installs:
            done.append(self._install(item, folders))
        if self.durable:
            for folder in folders:
                try:
                    self.root.fsync_dir(folder)
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
            fd = self.root.open_dir(folder)
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
            result = install.remove_folder(self.root, step.path, expected)
        else:
            keep = step.step.keep is not None and not self._is_the_same(step.step.keep.winner, step.path)
            result = install.remove_file(self.root, step.path, expected, self.preinstall, keep=keep)
        if result.displaced is not None:
            self._keep(result.displaced, step.path, self._with_size(action, step.step.keep))
        return _OUTCOMES[result.outcome]

    def _rename(self, old: str, new: str, step: ev.Step) -> tuple[ev.Outcome, Fingerprint | None]:
        if step.expected is None:
            return ev.Outcome.TARGET_CHANGED, None
        expected = fingerprint_of(step.expected)
        result = install.rename(self.root, old, new, expected)
        if result.outcome is not install.Outcome.DONE:
            found = self._look(new)  # done before a crash?
            if found is not None and (found.dev, found.ino) == (expected.dev, expected.ino):
                return ev.Outcome.DONE, found
        return _OUTCOMES[result.outcome], result.fingerprint

    def _make_folder(self, action: ev.Install, step: ResolvedStep) -> ev.Installed:
        """A folder for that place: the one that stands there, or a new one; what else stands there is kept."""
        with self.root.parent(step.path) as (fd, name), self.root.keeping_mtime(fd):
            found = self._look(step.path)
            if found is not None and not stat.S_ISDIR(found.mode):
                aside = os.path.join(self.preinstall, f"{action.co_guid.hex()}{preinstall.ASIDE_SUFFIX}")
                os.rename(name, aside, src_dir_fd=fd)
                self._keep(aside, step.path, None, ev.KeepReason.IN_THE_WAY.value)
                found = None
            if found is None:
                os.mkdir(name, 0o755, dir_fd=fd)
            fsops.object_id_set(f"/proc/self/fd/{fd}/{name}", step.step.file_guid)
            return ev.Installed(action.co_guid, ev.Outcome.DONE, facts_of(fsops.fingerprint(name, dir_fd=fd)))

    def _content(self, action: ev.Install, step: ResolvedStep) -> ev.Installed:
        stage = self.area.path_of(action.co_guid)
        expected = fingerprint_of(step.step.expected) if step.step.expected is not None else None
        temp = os.path.join(self.preinstall, action.co_guid.hex())
        try:
            os.unlink(temp)
        except IsADirectoryError:
            os.rmdir(temp)
        except FileNotFoundError:
            pass
        try:
            if action.is_dir and expected is not None:
                return self._folder(action, step, stage, expected)
            built = restore.restore(stage, temp, durable=self.durable)
        except Vanished:
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_MISSING)
        except (NoSpace, AccessDenied, Unsupported):
            raise
        except StagingError as error:
            self.area.remove(action.co_guid)
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=str(error))
        try:
            wrong = self._wrong(action, built)
            if wrong:
                self.area.remove(action.co_guid)
                return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail=wrong)
            result = install.install(temp, self.root, step.path, expected, keep=step.step.keep is not None)
        finally:
            _remove(temp)
        if result.displaced is not None:
            self._keep(result.displaced, step.path, self._with_size(action, step.step.keep))
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
        with self.root.parent(step.path) as (fd, name):
            built = restore.apply_folder(stage, name, durable=self.durable, dir_fd=fd)
            return _installed(action, built, fsops.fingerprint(name, dir_fd=fd), ev.Outcome.DONE)

    def _same_already(self, action: ev.Install, step: ResolvedStep, built: restore.Restored) -> Fingerprint | None:
        """What is in the way is the very thing to install: put there before a crash, or by hand."""
        try:
            with self.root.parent(step.path) as (fd, name):
                if built.kind == "folder":
                    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        return None
                    if fsops.object_id_get(f"/proc/self/fd/{fd}/{name}") != action.file_guid:
                        return None
                    restore.apply_folder(self.area.path_of(action.co_guid), name, durable=self.durable, dir_fd=fd)
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
        with self.root.parent(step.path) as (fd, name):
            found = fsops.fingerprint(name, dir_fd=fd)
            if action.is_dir and stat.S_ISDIR(found.mode):
                built = restore.apply_folder(stage, name, durable=self.durable, dir_fd=fd)
                fsops.object_id_set(f"/proc/self/fd/{fd}/{name}", action.file_guid)
                return _installed(action, built, fsops.fingerprint(name, dir_fd=fd), ev.Outcome.ALREADY)
            aside = os.path.join(self.preinstall, f"{action.co_guid.hex()}{preinstall.ASIDE_SUFFIX}")
            os.rename(name, aside, src_dir_fd=fd)
        self._keep(aside, step.path, step.step.keep, ev.KeepReason.IN_THE_WAY.value)
        return ev.Installed(action.co_guid, ev.Outcome.NAME_TAKEN, detail="what was in the way is kept elsewhere")

    def _is_the_same(self, winner: ev.Edition, path: str) -> bool:
        """What loses is just like what wins, made alike on two members: nothing is lost with it."""
        if winner.deleted or winner.md5 == bytes(16):
            return False
        try:
            with self.root.parent(path) as (fd, name):
                return generate(name, None, object_id=winner.file_guid, dir_fd=fd).md5 == winner.md5
        except (StagingError, OSError):
            return False

    def _with_size(self, action: ev.Install, keep: ev.Keep | None) -> ev.Keep | None:
        """A change order tells of the space that its file takes; the staging file, of its length."""
        if keep is None or keep.winner.deleted or keep.winner.file_guid != action.file_guid:
            return keep
        try:
            size = restore.read_header(self.area.path_of(action.co_guid)).info.end_of_file
        except (StagingError, OSError):
            return keep
        return dataclasses.replace(keep, winner=dataclasses.replace(keep.winner, size=size))

    def _look(self, path: str) -> Fingerprint | None:
        try:
            with self.root.parent(path) as (fd, name):
                return fsops.fingerprint(name, dir_fd=fd)
        except (OSError, Vanished):
            return None

    def _keep(
        self, path: str, tree_path: str, keep: ev.Keep | None, reason: str = "changed while it was replaced"
    ) -> None:
        """What came out of the tree and is not to be lost goes to the store of `frs conflicts`."""
        loser = keep.loser if keep is not None else None
        try:
            found = self.kept.keep(
                path,
                tree_path=tree_path,
                reason=keep.reason.value if keep is not None else reason,
                md5=loser.md5 if loser is not None else None,
                winner=_edition(keep.winner) if keep is not None else None,
                loser=_edition(loser) if loser is not None else None,
            )
        except OSError as error:
            log.error("%s cannot be kept where `frs conflicts` finds it, and stays: %s", path, error)
        else:
            log.warning(
                "%r: %s; kept as %s, see `frs conflicts`", tree_path, keep.reason.value if keep else reason, found
            )


_OUTCOMES: Final = {
    install.Outcome.DONE: ev.Outcome.DONE,
    install.Outcome.NAME_TAKEN: ev.Outcome.NAME_TAKEN,
    install.Outcome.TARGET_CHANGED: ev.Outcome.TARGET_CHANGED,
    install.Outcome.TARGET_BUSY: ev.Outcome.SHARING_VIOLATION,
    install.Outcome.NOT_EMPTY: ev.Outcome.NOT_EMPTY,
}


def with_change_order(block: bytes, co: ChangeOrder) -> bytes:
    """The first block of a staging file with this change order in its header (3.3.4.4.7)."""
    return block[:_CHANGE_ORDER_AT] + co.replace().encode() + block[_CHANGE_ORDER_END:]


def _installed(action: ev.Install, built: restore.Restored, found: Fingerprint, outcome: ev.Outcome) -> ev.Installed:
    return ev.Installed(action.co_guid, outcome, facts_of(found), built.md5, built.info.file_attributes, built.kind)


def _edition(edition: ev.Edition) -> dict[str, object]:
    """A version as `frs conflicts` shows it."""
    return {
        "file": guid_text(edition.file_guid),
        "name": edition.name,
        "originator": guid_text(edition.originator_guid),
        "vsn": edition.originator_vsn,
        "version": edition.version,
        "event_time": _iso(edition.event_time),
        "size": edition.size,
        "deleted": edition.deleted,
    }


def _iso(filetime: int) -> str:
    seconds = max(filetime - 116_444_736_000_000_000, 0) / 10_000_000
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).isoformat(timespec="milliseconds")


def _remove(temp: str) -> None:
    try:
        os.unlink(temp)
    except IsADirectoryError:
        os.rmdir(temp)
    except FileNotFoundError:
        pass
