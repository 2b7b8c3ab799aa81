"""Putting back into a tree what was kept: to a free name, without overwriting anything or following any link."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple

from agent.conflicts import kepttree
from agent.tree.trust import is_as_open
from idtable.reserved import reserved
from staging import fsops
from staging.beneath import (
    FOLDER,
    Entry,
    free_name,
    inherit_lists,
    make_private,
    move_to_free_name,
    open_private,
    open_same,
    remove_tree,
    same_entry,
)
from staging.errors import StagingError
from staging.lending import Folder, moving
from staging.openat2 import open_beneath
from staging.preinstall import RESERVED_NAME
from staging.rootdir import FolderKey, RootDir, RootKey, check_name

_NAME_MAX: Final = 255
_FREE_NAMES: Final = 1000
_NO_FOLDER: Final = (errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger(__name__)


class KeptError(Exception):
    """What was asked for cannot be done, and nothing was changed."""


class TargetTaken(KeptError):
    """Something is at the place where an item was to be restored."""


class GivenBack:
    """An item that is in the tree again; its folder is open until `close`."""

    def __init__(self, path: str, folder: int) -> None:
        self.path = path
        self._folder = folder

    def close(self, durable: bool) -> None:
        """Makes it durable. Raises OSError."""
        try:
            if durable:
                os.fsync(self._folder)
        finally:
            os.close(self._folder)


def put_back(
    source: Entry,
    item_id: str,
    target_root: str,
    path: str,
    *,
    root_key: RootKey | None,
    exact: bool,
    durable: bool,
    as_they_were: Set[FolderKey] = frozenset(),
) -> GivenBack:
    """Moves `source` to `path` in the tree, or copies it where that is another file system; `exact`: there and
    nowhere else, otherwise beside what is there already. `as_they_were`: folders known to be like those it was in.

    Raises TargetTaken, KeptError for what is no path in the tree, OSError.
    """
    suffix = None if exact else f".kept-{item_id}"
    parts = _parts(path, suffix)
    with contextlib.ExitStack() as stack:
        try:
            root = stack.enter_context(RootDir(target_root, root_key))
        except StagingError as error:
            raise KeptError(f"{target_root}: {error}") from error
        on_the_way = [fsops.fingerprint(root.fd)]
        folder, above = _open_folder(root, parts[:-1], suffix, durable, on_the_way)
        try:
            names = list(_names(parts[-1], suffix))
            with _closed_to_others(source, [one for one in on_the_way if one[1:3] not in as_they_were], path):
                name = _put(source, item_id, root, Place(folder, "/".join(above)), names)
            return GivenBack("/".join((*above, name)), folder)
        except BaseException:
            os.close(folder)
            raise


@contextlib.contextmanager
def _closed_to_others(source: Entry, folders: Iterable[fsops.Fingerprint], path: str) -> Iterator[None]:
    """What comes below folders in which somebody else than its owner may rename things may have been in one that nobody
    else could enter: he can have given that another name, and its name to one of his own. So only its owner is let
    in. What is not put there after all is as it was."""
    found = fsops.fingerprint(source.name, dir_fd=source.fd)
    trusted = (0, os.geteuid(), found.uid)
    sure = all(
        folder.uid in trusted and (not folder.mode & _OTHERS_WRITE or folder.mode & stat.S_ISVTX) for folder in folders
    )
    if sure or not found.mode & _OF_OTHERS or not (stat.S_ISREG(found.mode) or stat.S_ISDIR(found.mode)):
        yield
        return
    fd = open_same(source.fd, source.name, found)
    try:
        os.fchmod(fd, stat.S_IMODE(found.mode) & ~_OF_OTHERS)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                if same_entry(fsops.fingerprint(source.name, dir_fd=source.fd), found):  # it is kept still
                    os.fchmod(fd, stat.S_IMODE(found.mode))
            raise
    finally:
        os.close(fd)
    log.warning(
        "20509 %r is restored for its owner alone: others may rename things in a folder above it; chmod opens it again",
        path,
    )


class Place(NamedTuple):
    """An open folder of the tree, and its path there."""

    fd: int
    path: str


def _put(source: Entry, item_id: str, root: RootDir, folder: Place, names: Iterable[str]) -> str:
    kepttree.drop_object_ids(source.fd, source.name)
    try:
        return _move_to_one_of(source, root, folder, names)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    with _beside_the_tree(root) as building:
        copy = Entry(building, f"restore-{item_id}", RESERVED_NAME)
        try:
            kepttree.copy_at_rest(source.fd, source.name, copy.fd, copy.name)
            return _move_to_one_of(copy, root, folder, names)
        finally:
            remove_tree(copy.fd, copy.name)


def _move_to_one_of(source: Entry, root: RootDir, folder: Place, names: Iterable[str]) -> str:
    tried = ""
    moved = fsops.fingerprint(source.name, dir_fd=source.fd)
    for name in names:
        path = f"{folder.path}/{name}" if folder.path else name
        with moving(source, path) as ours, root.changing(Entry(folder.fd, name, path), moved=ours):
            done = move_to_free_name(source.fd, source.name, folder.fd, name)
        if done:
            if not root.holds(folder.fd, folder.path):
                _take_back(source, folder.fd, name, moved)
                raise KeptError(f"{folder.path!r} was moved out of the tree meanwhile; nothing was restored, try again")
            return name
        tried = tried or name
    raise TargetTaken(f"{tried!r} is taken; nothing is overwritten")


def _take_back(source: Entry, folder: int, name: str, moved: fsops.Fingerprint) -> None:
    """Takes what was just put into a folder out of it again; anything else that is there by now goes back."""
    with contextlib.suppress(FileNotFoundError):
        if move_to_free_name(folder, name, source.fd, source.name) and not same_entry(
            fsops.fingerprint(source.name, dir_fd=source.fd), moved
        ):
            move_to_free_name(source.fd, source.name, folder, name)


def _parts(path: str, suffix: str | None) -> list[str]:
    parts = path.split("/")
    try:
        for part in parts:
            check_name(part)
    except (StagingError, UnicodeEncodeError) as error:
        raise KeptError(f"{path!r} is no path in the tree: {error}") from None
    if reserved(parts[0]):
        if suffix is None:
            raise KeptError(f"{parts[0]!r} in the root is a name of the agent's own")
        parts[0] = _with_suffix(f"restored-{parts[0].lstrip('.')}", suffix)
    return parts


def _names(name: str, suffix: str | None) -> Iterator[str]:
    yield name
    if suffix is not None:
        for number in range(1, _FREE_NAMES):
            yield _with_suffix(name, suffix if number == 1 else f"{suffix}-{number}")


def _with_suffix(name: str, suffix: str) -> str:
    """The name with the suffix, shortened to what a file system takes, not in the middle of a character."""
    raw = os.fsencode(name)
    room = end = _NAME_MAX - len(suffix)
    if len(raw) > room:
        while end > room - 4 and raw[end] & 0xC0 == 0x80:
            end -= 1
        raw = raw[:end]
    return os.fsdecode(raw) + suffix


def _open_folder(
    root: RootDir,
    parts: list[str],
    suffix: str | None,
    durable: bool,
    on_the_way: list[fsops.Fingerprint],
) -> tuple[int, list[str]]:
    """Opens a folder of the tree, making what is missing like the folder it is in; returns its path, too, and adds the
    folders `on_the_way`, itself included. What is in the way of a folder is passed by with the suffix, or is
    TargetTaken without one."""
    fd = os.dup(root.fd)
    path: list[str] = []
    try:
        for part in parts:
            name = part
            below = open_or_make(root, fd, "/".join((*path, name)), durable)
            if below is None and suffix is not None:
                name = _with_suffix(part, suffix)
                below = open_or_make(root, fd, "/".join((*path, name)), durable)
            if below is None:
                raise TargetTaken(
                    f"{'/'.join([*path, name])!r} is no folder, or one that the owner of the folder it is in may not "
                    f"write to; nothing was restored"
                )
            os.close(fd)
            fd = below
            on_the_way.append(fsops.fingerprint(fd))
            path.append(name)
    except BaseException:
        os.close(fd)
        raise
    return fd, path


def open_or_make(root: RootDir, above: int, path: str, durable: bool) -> int | None:
    """Opens a folder of the tree in the open folder `above`, or makes one like that. None when something that is no
    folder has the name, or a folder that whoever can give it that name may not write to: he would have something put
    there by it. Raises OSError, KeptError."""
    try:
        fd = open_beneath(above, path.rpartition("/")[2], FOLDER)
    except FileNotFoundError:
        return make_folder(root, above, path, durable)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise
    if is_as_open(above, fd):
        return fd
    os.close(fd)
    return None


def make_folder(
    root: RootDir, above: int, path: str, durable: bool, rights: tuple[int, int, int] | None = None
) -> int | None:
    """Makes a folder with these `rights` (mode, owner, group), or those of the one it is in, open as `above`. It is
    ready before it gets its name, and open from then on: nobody can have another one in its place that is given away.
    None when something has the name by now. Raises OSError, KeptError."""
    st, name = os.fstat(above), path.rpartition("/")[2]
    mode, uid, gid = rights if rights is not None else (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid)
    with _beside_the_tree(root) as building:
        temp = free_name("folder")
        os.mkdir(temp, 0o700, dir_fd=building)
        try:
            fd = open_beneath(building, temp, FOLDER)
            try:
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, uid, gid)
                if rights is not None or (os.fstat(fd).st_uid, os.fstat(fd).st_gid) == (uid, gid):
                    with contextlib.suppress(PermissionError):
                        inherit_lists(above, fd)
                    os.fchmod(fd, mode)
                with root.changing(Entry(above, name, path), moved=Folder(fd, (path,))):
                    moved = move_to_free_name(building, temp, above, name)
                if not moved:
                    os.close(fd)
                    return None
            except BaseException:
                os.close(fd)
                raise
        finally:
            remove_tree(building, temp)
    if durable:
        os.fsync(above)
    return fd


@contextlib.contextmanager
def _beside_the_tree(root: RootDir) -> Iterator[int]:
    """A folder on the file system of the tree that is not replicated and that only this agent can enter, open; it is
    gone afterwards if it was not there before. Who may write to the root may have the agent's name for it, but not one
    that he cannot guess. Raises KeptError when there can be none."""
    name, made, fd = RESERVED_NAME, *_open_or_make_private(root, RESERVED_NAME)
    if fd < 0:
        name = free_name(RESERVED_NAME)
        made, fd = _open_or_make_private(root, name)
    if fd < 0:
        raise KeptError(
            f"no folder that only this agent can enter can be made in {root.path}: others take it away, or its file "
            f"system has no modes (mount it with the options uid={os.geteuid()},umask=077)"
        )
    try:
        yield fd
    finally:
        if made:
            with root.changing(root.top), contextlib.suppress(OSError):
                if os.path.samestat(os.stat(name, dir_fd=root.fd, follow_symlinks=False), os.fstat(fd)):
                    os.rmdir(name, dir_fd=root.fd)
        os.close(fd)


def _open_or_make_private(root: RootDir, name: str) -> tuple[bool, int]:
    """A private folder in the root, open, and whether it was made; -1 where something else has the name. Raises
    OSError."""
    made = False
    with root.changing(root.top), contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=root.fd)
        made = True
    try:
        fd = open_private(name, root.fd)
    except OSError:
        if made:
            with root.changing(root.top), contextlib.suppress(OSError):  # an empty one, whoever's it is by now
                os.rmdir(name, dir_fd=root.fd)
        return made, -1
    if made:
        make_private(fd)
    return made, fd
