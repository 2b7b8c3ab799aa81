"""Giving back what was deleted elsewhere: one file, or a group with the folders that were removed with it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.deletedgroup import DeletedFile, DeletedFolder
from agent.conflicts.deletedroom import Group
from agent.conflicts.kept import KeptError, UnknownItem
from agent.conflicts.keptrestore import make_folder, open_or_make, put_back
from staging import fsops
from staging.beneath import Entry, has_entry
from staging.errors import StagingError
from staging.rootdir import FolderKey, RootDir, RootKey, check_name

_SAID: Final = 1000


@dataclass(slots=True)
class GroupRestored:
    """How many files are back. `beside`: those whose old place was taken, with the path that they have now; `failed`:
    those that are still kept, and why. Of both only the first thousand."""

    files: int = 0
    beside: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


def restore_file(
    store: DeletedStore,
    group_id: str,
    number: int,
    root: str,
    target: str | None = None,
    root_key: RootKey | None = None,
) -> str:
    """Puts one file back, as KeptStore.restore() does; returns its path. Raises what that raises."""
    with store.claimed(group_id) as group:
        for line in store.lines(group_id):
            if isinstance(line, DeletedFile) and line.number == number:
                return _put_back(store, group, line, root, root_key, target, durable=store.durable)
        raise UnknownItem(f"nothing with the id {group_id}.{number} is kept")


def restore_group(store: DeletedStore, group_id: str, root: str, root_key: RootKey | None = None) -> GroupRestored:
    """Puts all files of a group back at their old places, or beside what is there by now, and the folders that they
    were in as they were. `root_key` says which folder the root must be. Raises UnknownItem, ItemBusy, KeptError when
    the root cannot be opened, OSError."""
    done = GroupRestored()
    with store.claimed(group_id) as group:
        try:
            tree = RootDir(root, root_key)
        except StagingError as error:
            raise KeptError(f"{root}: {error}") from error
        with tree:
            folders = [line for line in store.lines(group_id) if isinstance(line, DeletedFolder)]
            made, as_they_were = _make_folders(tree, folders)
            touched = {folder.path for folder in made}
            try:
                for line in store.lines(group_id):
                    if isinstance(line, DeletedFile):
                        _try(store, group, line, tree, done, touched, as_they_were)
            finally:
                _close_to_others(tree, made)
                if store.durable:
                    _make_durable(tree, touched)
    return done


def _try(
    store: DeletedStore,
    group: Group,
    file: DeletedFile,
    tree: RootDir,
    done: GroupRestored,
    touched: set[str],
    as_they_were: Set[FolderKey],
) -> None:
    try:
        path = _put_back(store, group, file, tree.path, tree.key, None, durable=False, as_they_were=as_they_were)
    except (KeptError, OSError) as error:
        if len(done.failed) < _SAID:
            done.failed.append((file.path, str(error)))
        return
    done.files += 1
    touched.update(_above(path))
    if path != file.path and len(done.beside) < _SAID:
        done.beside.append((file.path, path))


def _put_back(
    store: DeletedStore,
    group: Group,
    file: DeletedFile,
    root: str,
    root_key: RootKey | None,
    target: str | None,
    *,
    durable: bool,
    as_they_were: Set[FolderKey] = frozenset(),
) -> str:
    path, number = file.path if target is None else target, str(file.number)
    with store.opened(group.id) as group_fd:
        st = os.stat(number, dir_fd=group_fd, follow_symlinks=False)
        source = Entry(group_fd, number, store.place(group.id, file))
        restored = put_back(
            source, f"{group.id}.{number}", root, path,
            root_key=root_key, exact=target is not None, durable=durable, as_they_were=as_they_were,
        )  # fmt: skip
        try:
            restored.close(durable)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(number, dir_fd=group_fd)  # it was copied
            store.left(group, st)
    return restored.path


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


def _make_folders(root: RootDir, folders: list[DeletedFolder]) -> tuple[list[DeletedFolder], set[FolderKey]]:
    """Makes the folders that are not there, those above first; returns those that it made, and which of them are what
    they were. What is in the way of one is left to the files."""
    made, as_they_were = [], set()
    for folder in sorted(folders, key=lambda folder: folder.path.count("/")):
        with contextlib.suppress(KeptError, OSError, StagingError, UnicodeEncodeError):
            fd = _make(root, folder)
            if fd is None:
                continue
            try:
                found = fsops.fingerprint(fd)
            finally:
                os.close(fd)
            made.append(folder)
            if found.btime_ns:  # an inode number alone may be used again
                as_they_were.add((found.ino, found.btime_ns))
    return made, as_they_were


def _make(root: RootDir, folder: DeletedFolder) -> int | None:
    """Makes a folder as it was, and opens it; what is missing above it is made, too. None where something is at its
    name, or above it a folder into which others could have it made that may not write there. Raises OSError,
    StagingError, KeptError."""
    *above, name = parts = folder.path.split("/")
    for part in parts:
        check_name(part)
    fd = os.dup(root.fd)
    try:
        for depth in range(len(above)):
            below = open_or_make(root, fd, "/".join(above[: depth + 1]), False)
            if below is None:
                return None
            os.close(fd)
            fd = below
        if has_entry(fd, name):
            return None
        mode = stat.S_IMODE(folder.mode) | (0o700 if os.geteuid() else 0)
        return make_folder(root, fd, folder.path, False, (mode, folder.uid, folder.gid))
    finally:
        os.close(fd)


def _close_to_others(root: RootDir, made: list[DeletedFolder]) -> None:
    """For who is not root, folders had to be open until the files were in them."""
    if os.geteuid() == 0:
        return
    for folder in reversed(made):
        with contextlib.suppress(OSError, StagingError):
            fd = root.open_dir(folder.path)
            try:
                if os.fstat(fd).st_uid == os.geteuid():
                    os.fchmod(fd, stat.S_IMODE(folder.mode))
            finally:
                os.close(fd)


def _make_durable(root: RootDir, folders: set[str]) -> None:
    for folder in folders:
        with contextlib.suppress(StagingError, OSError):  # one that is gone is durable with that
            fd = root.open_dir(folder)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
