"""Putting back into a tree what was kept: to a free name, without overwriting anything or following any link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from agent import kepttree
from staging.errors import StagingError
from staging.preinstall import RESERVED_NAME
from staging.rootdir import RootDir, check_name

_NAME_MAX: Final = 255
_FREE_NAMES: Final = 1000
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class KeptError(Exception):
    """What was asked for cannot be done, and nothing was changed."""


class TargetTaken(KeptError):
    """Something is at the place where an item was to be restored."""


class Restored:
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


def put_back(source: str, item_id: str, target_root: str, path: str, *, exact: bool, durable: bool) -> Restored:
    """Moves `source` to `path` in the tree, or copies it where that is another file system; `exact`: there and
    nowhere else, otherwise beside what is there already.

    Raises TargetTaken, KeptError for what is no path in the tree, OSError.
    """
    parts = _parts(path)
    suffix = None if exact else f".kept-{item_id}"
    with contextlib.ExitStack() as stack:
        try:
            root = stack.enter_context(RootDir(target_root))
        except StagingError as error:
            raise KeptError(f"{target_root}: {error}") from error
        folder, above = _open_folder(root, parts[:-1], suffix, durable)
        try:
            name = _put(source, item_id, root, folder, list(_names(parts[-1], suffix)))
            return Restored("/".join((*above, name)), folder)
        except BaseException:
            os.close(folder)
            raise


def _put(source: str, item_id: str, root: RootDir, folder: int, names: Iterable[str]) -> str:
    kepttree.drop_object_ids(source)
    try:
        return _move_to_one_of(source, folder, names)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    with _beside_the_tree(root) as building:
        path = os.path.join(building, f"restore-{item_id}")
        try:
            kepttree.copy_at_rest(source, path)
            return _move_to_one_of(path, folder, names)
        finally:
            kepttree.remove(path)


def _move_to_one_of(source: str, folder: int, names: Iterable[str]) -> str:
    tried = ""
    for name in names:
        if kepttree.move_to_free_name(source, folder, name):
            return name
        tried = tried or name
    raise TargetTaken(f"{tried!r} is taken; nothing is overwritten")


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    try:
        for part in parts:
            check_name(part)
    except (StagingError, UnicodeEncodeError) as error:
        raise KeptError(f"{path!r} is no path in the tree: {error}") from None
    if parts[0] == RESERVED_NAME:
        raise KeptError(f"{RESERVED_NAME} in the tree belongs to the agent")
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


def _open_folder(root: RootDir, parts: list[str], suffix: str | None, durable: bool) -> tuple[int, list[str]]:
    """Opens a folder of the tree, making what is missing like the folder it is in; returns its path, too. What is in
    the way of a folder is passed by with the suffix, or is TargetTaken without one."""
    fd = os.dup(root.fd)
    path: list[str] = []
    try:
        for part in parts:
            name = part
            below = _open_or_make(fd, name, durable)
            if below is None and suffix is not None:
                name = _with_suffix(part, suffix)
                below = _open_or_make(fd, name, durable)
            if below is None:
                raise TargetTaken(f"{'/'.join([*path, name])!r} is no folder; nothing is overwritten")
            os.close(fd)
            fd = below
            path.append(name)
    except BaseException:
        os.close(fd)
        raise
    return fd, path


def _open_or_make(above: int, name: str, durable: bool) -> int | None:
    """None when something that is no folder has the name."""
    try:
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except FileNotFoundError:
            os.mkdir(name, dir_fd=above)
        fd = os.open(name, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    st = os.fstat(above)
    with contextlib.suppress(PermissionError):
        os.fchown(fd, st.st_uid, st.st_gid)
        os.fchmod(fd, stat.S_IMODE(st.st_mode))
    if durable:
        os.fsync(above)
    return fd


@contextlib.contextmanager
def _beside_the_tree(root: RootDir) -> Iterator[str]:
    """A folder on the file system of the tree that is not replicated, gone afterwards if it was not there before."""
    made = False
    with root.keeping_mtime(root.fd), contextlib.suppress(FileExistsError):
        os.mkdir(RESERVED_NAME, 0o700, dir_fd=root.fd)
        made = True
    fd = os.open(RESERVED_NAME, _FOLDER, dir_fd=root.fd)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise KeptError(f"{RESERVED_NAME} in the tree is not the agent's")
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
        if made:
            with root.keeping_mtime(root.fd), contextlib.suppress(OSError):
                os.rmdir(RESERVED_NAME, dir_fd=root.fd)
