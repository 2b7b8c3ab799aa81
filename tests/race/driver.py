"""Change orders of every kind: an editor on the member that nobody attacks, on the names of the pool.

Each operation is told by its kind, its path and what was at the path when it was done (see safely.signature): where the
same is found on an attacked member, the operation took effect there.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.race import layout, safely
from tests.race.layout import OTHER, USER

# posix_acl_xattr of version 2: user::rw-, user:OTHER:r--, group::r--, mask::r--, other::r--
_ACL = b"\2\0\0\0" + b"".join(
    tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + who.to_bytes(4, "little", signed=True)
    for tag, rights, who in ((1, 6, -1), (2, 4, OTHER), (4, 4, -1), (16, 4, -1), (32, 4, -1))
)


@dataclass(frozen=True)
class Operation:
    """One operation; `result` is None for what is removed."""

    kind: str
    path: str
    result: tuple[Any, ...] | None


class Driver:
    """Edits the tree of an open root. It is root, and follows no link: what the attackers of another member put into
    their tree is replicated to this one."""

    def __init__(self, root_fd: int, seed: int) -> None:
        self._root = root_fd
        self._random = random.Random(seed)
        self._serial = 0
        self._queue: list[str] = []
        self._homes, self._near = layout.HOMES, frozenset(layout.TARGETS)
        self._kinds: dict[str, Callable[[], str]] = {
            "file made": self._file_made,
            "file written": self._file_written,
            "file replaced": self._file_replaced,
            "file removed": self._file_removed,
            "file's mode": self._file_mode,
            "file's owner": self._file_owner,
            "file's ACL": self._file_acl,
            "file's attribute": self._file_attribute,
            "file's time": self._file_time,
            "big file": self._big_file,
            "folder made": self._folder_made,
            "folder filled": self._folder_filled,
            "folder changed": self._folder_changed,
            "folder's owner": self._folder_owner,
            "folder removed": self._folder_removed,
            "deep folder": self._deep_folder,
            "empty folder": self._empty_folder,
            "link": self._link,
            "renamed within": self._renamed_within,
            "renamed between": self._renamed_between,
            "folder renamed": self._folder_renamed,
            "file to folder": self._file_to_folder,
            "folder to file": self._folder_to_file,
            "file to link": self._file_to_link,
            "root's file": self._roots_file,
            "root's folder": self._roots_folder,
            "vault changed": self._vault_changed,
            "admin's file": self._admins_file,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._kinds)

    def step(self, *, only: tuple[str, ...] = (), but: tuple[str, ...] = ()) -> Operation | None:
        """The next operation: one of `only`, or in turns of all kinds `but` some; None where it cannot be done now."""
        if only:
            self._queue.append(self._random.choice(only))
        if not self._queue:
            # What works on a folder that is there is what most can go wrong with.
            again = ("folder changed", "folder's owner", "folder made", "folder filled") * 2
            self._queue = [kind for kind in (*self._kinds, *again) if kind not in but]
            self._random.shuffle(self._queue)
        kind = self._queue.pop()
        try:
            path = self._kinds[kind]()
        except OSError:
            return None
        return Operation(kind, path, safely.signature(self._root, path))

    def settle(self, *, one_folder: bool = False) -> list[str]:
        """Another few names to work on for a while, or `one_folder`, which are returned: what is attacked all the time
        and changed again and again is what gives way."""
        home = self._random.choice(layout.HOMES)
        folders = self._random.sample(layout.FOLDERS, 1 if one_folder else self._random.choice((1, 2)))
        others = self._random.sample((*layout.FILES, *layout.KINDS), 0 if one_folder else self._random.choice((1, 2)))
        self._homes, self._near = (home,), frozenset(f"{home}/{name}" for name in (*folders, *others))
        return sorted(self._near)

    def fill(self, count: int) -> list[Operation]:
        """A tree to begin with, after whatever was there is gone: `count` entries in each folder of the pool."""
        safely.empty(self._root)
        os.mkdir(layout.ADMIN, 0o755, dir_fd=self._root)
        for home in layout.HOMES:
            self._folder(home, USER, 0o755)
            self._vault(f"{home}/{layout.VAULT}")
            self._put(f"{home}/{layout.SECRET}", layout.OF_ROOT, 0, 0o600)
        made = [f"{home}/{name}" for home in layout.HOMES for name in (*layout.FOLDERS, *layout.FILES, *layout.KINDS)]
        for path in made:
            if layout.is_folder(path):
                self._folder(path, USER, 0o755)
                for number in range(count):
                    self._put(f"{path}/x{number}")
                self._folder(f"{path}/e", USER, 0o755)
                self._put(f"{path}/e/x0")
            else:
                self._put(path)
        for name in layout.ADMIN_FILES:
            self._put(f"{layout.ADMIN}/{name}", layout.OF_ADMIN, 0, 0o644)
        return [Operation("seeded", path, safely.signature(self._root, path)) for path, *_ in safely.walk(self._root)]

    def repair(self) -> None:
        """The folders of the pool are there again, should attackers have had them removed."""
        self._folder(layout.ADMIN, 0, 0o755)
        for home in layout.HOMES:
            self._folder(home, USER, 0o755)
            self._vault(f"{home}/{layout.VAULT}")

    # ------------------------------------------------------------ what operations are made of

    def _home(self) -> str:
        return self._random.choice(self._homes)

    def _some(self, names: tuple[str, ...]) -> str:
        """One of these names in one of the folders of the pool; one of those that are worked on now, if it can be."""
        near = [path for path in self._near if path.rpartition("/")[2] in names]
        return self._random.choice(near) if near else f"{self._home()}/{self._random.choice(names)}"

    def _content(self, begin: bytes, size: int | None = None) -> bytes:
        self._serial += 1
        size = self._random.choice((0, 10, 4000, 70_000)) if size is None else size
        return begin + b"%d " % self._serial + self._random.randbytes(size)

    def _put(self, path: str, begin: bytes = layout.OF_DRIVER, owner: int = USER, mode: int = 0o644,
             size: int | None = None) -> str:  # fmt: skip
        """A new file, whatever was at the path before."""
        with safely.parent(self._root, path) as (fd, name):
            safely.wipe(fd, name)
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | safely.FILE, 0o600, dir_fd=fd)
            try:
                data = memoryview(self._content(begin, size))
                while data:
                    data = data[os.write(file, data) :]
                os.fchown(file, owner, owner)
                os.fchmod(file, mode)
            finally:
                os.close(file)
        return path

    def _folder(self, path: str, owner: int, mode: int) -> str:
        """A folder at the path: what is one stays, unless it would go from root to a user or the other way round. (The
        agent of this member may rename anything at any time: what is changed is looked at when it is open.)"""
        with safely.parent(self._root, path) as (fd, name):
            found = safely.look(fd, name)
            fresh = found is None or not stat.S_ISDIR(found.st_mode) or (found.st_uid == 0) != (owner == 0)
            begin = "new" if fresh else name
            if fresh:
                safely.wipe(fd, begin)
                os.mkdir(begin, 0o700, dir_fd=fd)

            def change(entry: int) -> None:
                if fresh or (os.fstat(entry).st_uid == 0) == (owner == 0):
                    os.fchown(entry, owner, owner)
                    os.fchmod(entry, mode)

            self._change(fd, begin, change)
            if fresh:
                safely.wipe(fd, name)
                os.rename(begin, name, src_dir_fd=fd, dst_dir_fd=fd)
        return path

    def _vault(self, path: str) -> str:
        self._folder(path, 0, 0o700)
        return self._put(f"{path}/{layout.IN_VAULT}", layout.OF_ROOT, 0, 0o600)

    @staticmethod
    def _change(fd: int, name: str, change: Callable[[int], object]) -> None:
        entry = os.open(name, os.O_RDONLY | safely.FILE, dir_fd=fd)
        try:
            change(entry)
        finally:
            os.close(entry)

    def _change_file(self, change: Callable[[int], object]) -> str:
        """A change of a file of the pool, which is made if there is none."""
        path = self._some(layout.FILES)
        with safely.parent(self._root, path) as (fd, name):
            found = safely.look(fd, name)
            if found is None or not stat.S_ISREG(found.st_mode):
                self._put(path)
            self._change(fd, name, change)
        return path

    def _change_folder(self, change: Callable[[int], object]) -> str:
        path = self._some(layout.FOLDERS)
        with safely.parent(self._root, path) as (fd, name):
            found = safely.look(fd, name)
            if found is None or not stat.S_ISDIR(found.st_mode):
                self._folder_at(path)
            self._change(fd, name, change)
        return path

    def _folder_at(self, path: str) -> str:
        self._folder(path, USER, 0o755)
        for name in ("x0", "x1"):
            self._put(f"{path}/{name}")
        return path

    def _set(self, entry: int) -> None:
        self._serial += 1
        os.setxattr(entry, f"user.race-{self._random.choice('mn')}", b"%d" % self._serial)

    def _is_open_to_all(self, entry: int) -> bool:
        """Whether a file is none that only root may read: others must not own it, then."""
        return os.fstat(entry).st_uid != 0

    # ------------------------------------------------------------ files

    def _file_made(self) -> str:
        return self._put(self._some((*layout.FILES, *layout.KINDS, *layout.MOVES)))

    def _file_written(self) -> str:
        path = self._some(layout.FILES)
        with safely.parent(self._root, path) as (fd, name):
            found = safely.look(fd, name)
            if found is None or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                return self._put(path)
            file = os.open(name, os.O_RDWR | safely.FILE, dir_fd=fd)
            try:
                begin = os.pread(file, 16, 0)
                if begin.startswith((layout.OF_ROOT, layout.OF_ATTACKER)):
                    return self._put(path)
                os.pwrite(file, self._content(layout.OF_DRIVER), 0)
            finally:
                os.close(file)
        return path

    def _file_replaced(self) -> str:
        path = self._some(layout.FILES)
        new = f"{layout.home_of(path)}/new"
        self._put(new)
        with safely.parent(self._root, path) as (fd, name):
            found = safely.look(fd, name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                safely.wipe(fd, name)
            os.rename("new", name, src_dir_fd=fd, dst_dir_fd=fd)
        return path

    def _file_removed(self) -> str:
        return self._removed(self._some((*layout.FILES, *layout.KINDS, *layout.LINKS)))

    def _removed(self, path: str) -> str:
        with safely.parent(self._root, path) as (fd, name):
            safely.wipe(fd, name)
        return path

    def _file_mode(self) -> str:
        mode = self._random.choice((0o600, 0o644, 0o755, 0o440))

        def change(entry: int) -> None:
            if self._is_open_to_all(entry):
                os.fchmod(entry, mode)

        return self._change_file(change)

    def _file_owner(self) -> str:
        owner = self._random.choice((USER, OTHER))

        def change(entry: int) -> None:
            if self._is_open_to_all(entry):
                os.fchown(entry, owner, owner)

        return self._change_file(change)

    def _file_acl(self) -> str:
        def change(entry: int) -> None:
            if self._is_open_to_all(entry):
                os.setxattr(entry, "system.posix_acl_access", _ACL)

        return self._change_file(change)

    def _file_attribute(self) -> str:
        return self._change_file(self._set)

    def _file_time(self) -> str:
        when = self._random.randrange(10**18, 17 * 10**17, 100)
        return self._change_file(lambda entry: os.utime(entry, ns=(when, when)))

    def _big_file(self) -> str:
        return self._put(f"{self._home()}/{layout.BIG}", size=self._random.choice((1, 4, 12)) << 20)

    # ------------------------------------------------------------ folders

    def _folder_made(self) -> str:
        path = self._some(layout.FOLDERS)
        self._removed(path)
        return self._folder_at(path)

    def _folder_filled(self) -> str:
        path = self._some(layout.FOLDERS)
        self._folder_at(path)
        return self._put(f"{path}/{self._random.choice(('x0', 'x1', 'x2'))}")

    def _folder_changed(self) -> str:
        mode = self._random.choice((0o755, 0o775, 0o700))
        when = self._random.randrange(10**18, 17 * 10**17, 100)

        def change(entry: int) -> None:
            self._set(entry)
            if self._is_open_to_all(entry):
                os.fchmod(entry, mode)
            os.utime(entry, ns=(when, when))

        return self._change_folder(change)

    def _folder_owner(self) -> str:
        owner = self._random.choice((USER, USER, OTHER))

        def change(entry: int) -> None:
            if self._is_open_to_all(entry):
                os.fchown(entry, owner, owner)
            self._set(entry)

        return self._change_folder(change)

    def _folder_removed(self) -> str:
        return self._removed(self._some(layout.FOLDERS))

    def _deep_folder(self) -> str:
        path = self._some(layout.FOLDERS)
        self._folder_at(path)
        for name in ("e", "e/e", "e/e/e"):
            self._folder(f"{path}/{name}", USER, 0o755)
        return self._put(f"{path}/e/e/e/x0")

    def _empty_folder(self) -> str:
        path = self._some((*layout.FOLDERS, *layout.KINDS))
        self._removed(path)
        return self._folder(path, USER, 0o755)

    # ------------------------------------------------------------ links, renames, other kinds

    def _link(self) -> str:
        return self._link_at(self._some(layout.LINKS))

    def _link_at(self, path: str) -> str:
        self._serial += 1
        with safely.parent(self._root, path) as (fd, name):
            safely.wipe(fd, name)
            os.symlink(f"nowhere/{self._serial}", name, dir_fd=fd)
            os.chown(name, USER, USER, dir_fd=fd, follow_symlinks=False)
        return path

    def _rename(self, old: str, new: str) -> str:
        """What is at `old`, made if need be, is at `new` afterwards."""
        with safely.parent(self._root, old) as (old_fd, old_name), safely.parent(self._root, new) as (new_fd, new_name):
            if safely.look(old_fd, old_name) is None:
                if layout.is_folder(old):
                    self._folder_at(old)
                else:
                    self._put(old)
            safely.wipe(new_fd, new_name)
            os.rename(old_name, new_name, src_dir_fd=old_fd, dst_dir_fd=new_fd)
        return new

    def _renamed_within(self) -> str:
        home = self._home()
        old = self._random.choice((*layout.FILES, *layout.MOVES))
        new = self._random.choice([name for name in (*layout.FILES, *layout.MOVES) if name != old])
        return self._rename(f"{home}/{old}", f"{home}/{new}")

    def _renamed_between(self) -> str:
        old, new = self._home(), self._random.choice(layout.HOMES)
        return self._rename(f"{old}/{self._random.choice(layout.FILES)}", f"{new}/{self._random.choice(layout.MOVES)}")

    def _folder_renamed(self) -> str:
        old = self._some(layout.FOLDERS)
        others = [f"{home}/{name}" for home in layout.HOMES for name in layout.FOLDERS]
        return self._rename(old, self._random.choice([path for path in others if path != old]))

    def _file_to_folder(self) -> str:
        path = self._some(layout.KINDS)
        self._removed(path)
        return self._folder_at(path)

    def _folder_to_file(self) -> str:
        return self._put(self._some((*layout.KINDS, *layout.FOLDERS)))

    def _file_to_link(self) -> str:
        return self._link_at(self._some(layout.KINDS))

    # ------------------------------------------------------------ root's own

    def _roots_file(self) -> str:
        return self._put(f"{self._home()}/{layout.SECRET}", layout.OF_ROOT, 0, 0o600)

    def _roots_folder(self) -> str:
        path = self._some(layout.FOLDERS)
        self._removed(path)
        return self._vault(path)

    def _vault_changed(self) -> str:
        path = f"{self._home()}/{layout.VAULT}"
        self._folder(path, 0, 0o700)
        with safely.parent(self._root, path) as (fd, name):
            self._change(fd, name, self._set)
        return path

    def _admins_file(self) -> str:
        return self._put(f"{layout.ADMIN}/{self._random.choice(layout.ADMIN_FILES)}", layout.OF_ADMIN, 0, 0o644)
