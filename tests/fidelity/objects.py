"""Objects of every kind from a seed: files, folders and links with all that they can have."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
from pathlib import Path

from staging import posixacl
from tests.system.corpora import odd_names, takes

_REFUSED = (errno.ENOTSUP, errno.EPERM, errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG, errno.ENOSPC, errno.ERANGE)
_SIZES = (0, 1, 511, 4095, 4096, 4097, 20_000, 65_535, 65_537)
_FOLDERS = 12  # in a hundred


class Maker:
    """Makes objects below a folder. What the file system does not have is left out, as a user would have to; so are
    names and symbolic links that not all members take: they would wait there for ever (docs/filesystems.md)."""

    def __init__(self, root: Path, seed: int | str, common: Common) -> None:
        self._rng = random.Random(seed)
        self._names, self._links = common.names, common.links
        self._folders = [root]
        self._dressed: list[Path] = []
        self.made = 0

    def make(self, count: int) -> None:
        """So many objects; folders are given their modes last, lest nothing could be made in them any more."""
        while self.made < count:
            path = self._rng.choice(self._folders) / self._name()
            with contextlib.suppress(FileExistsError, IsADirectoryError):
                self._one(path)
        for folder in reversed(self._folders[1:]):
            self._dress(folder)

    def _name(self) -> str:
        if self._rng.random() < 0.2:
            return self._rng.choice(self._names)
        return f"{self._rng.choice(('file', 'Datei', 'fichier', 'x'))} {self._rng.randrange(10**6)}"

    def _one(self, path: Path) -> None:
        kind = self._rng.random()
        try:
            if kind < _FOLDERS / 100:
                path.mkdir()
                if len(path.parts) < 40:
                    self._folders.append(path)
            elif kind < 0.25 and self._links:
                self._link(path)
            else:
                self._file(path)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            return
        self.made += 1

    def _link(self, path: Path) -> None:
        targets = ("nowhere", "..", "/etc/hosts", "a/" * 200 + "b", "x" * 60, f"file {self._rng.randrange(100)}", " ")
        path.symlink_to(self._rng.choice(targets))
        with contextlib.suppress(OSError):
            os.chown(path, *self._owner(), follow_symlinks=False)
        os.utime(path, ns=self._times(), follow_symlinks=False)

    def _file(self, path: Path) -> None:
        with open(path, "xb") as stream:
            if self._rng.random() < 0.05:
                stream.truncate(self._rng.randrange(1 << 16, 8 << 20))
                stream.seek(self._rng.randrange(1 << 16))
            size = self._rng.choice(_SIZES)
            stream.write(self._rng.randbytes(size) if self._rng.random() < 0.5 else b"text " * (size // 5))
        self._dress(path)

    def _dress(self, path: Path) -> None:
        folder = stat.S_ISDIR(path.lstat().st_mode)
        wanted = self._rng.random
        with contextlib.suppress(OSError):
            os.chown(path, *self._owner())
        mode = self._rng.choice((0o400, 0o444, 0o600, 0o644, 0o664, 0o700, 0o755, 0o777, 0o000, 0o222, 0o1755))
        with contextlib.suppress(OSError):
            path.chmod(mode | (0o2000 if folder and wanted() < 0.2 else 0))
        if wanted() < 0.2:
            self._set(path, posixacl.ACCESS_XATTR, self._list())
        if folder and wanted() < 0.2:
            self._set(path, posixacl.DEFAULT_XATTR, self._list())
        if wanted() < 0.3:
            for _ in range(self._rng.randrange(1, 4)):
                name = self._rng.choice(("user.note", "user.grüße", "user.a.b", f"user.{self._rng.randrange(50)}"))
                self._set(path, name, self._rng.randbytes(self._rng.choice((0, 1, 40, 900))))
        if not folder:
            os.utime(path, ns=self._times())

    def _set(self, path: Path, name: str, value: bytes) -> None:
        with contextlib.suppress(OSError):
            os.setxattr(path, name, value)

    def _list(self) -> bytes:
        bits, who = self._rng.randrange, sorted(self._rng.sample(range(1000, 1020), 3))
        users = tuple((one, bits(8)) for one in who[: bits(3)])
        groups = tuple((one, bits(8)) for one in who[: bits(3)])
        mask = bits(8) if users or groups else None
        return posixacl.encode(posixacl.Acl(bits(8), users, bits(8), groups, mask, bits(8)))

    def _owner(self) -> tuple[int, int]:
        return self._rng.choice((0, 1000, 1001, 65534)), self._rng.choice((0, 100, 1000, 65534))

    def _times(self) -> tuple[int, int]:
        whole = self._rng.choice((0, 1, 10**9, 1_600_000_000, 2**31 - 1))
        return 0, whole * 10**9 + self._rng.choice((0, 1, 999_999_999, self._rng.randrange(10**9)))


class Common:
    """What all of some folders take. To be asked before anybody watches them: it is tried. `longest`: bytes of a name.
    (lowntfs-3g lists a file with a longer name twice now and then, once with a part of its name.)"""

    def __init__(self, *folders: Path, longest: int = 255) -> None:
        names = [name for name in odd_names() if len(os.fsencode(name)) <= longest]
        self.names = [name for name in names if all(takes(folder, name) for folder in folders)]
        self.links = all(takes_links(folder) for folder in folders)


def takes_links(folder: Path) -> bool:
    """Whether there may be symbolic links in that folder."""
    try:
        (folder / "link").symlink_to("target")
    except PermissionError:
        return False
    (folder / "link").unlink()
    return True


def edit(root: Path, seed: int | str, count: int) -> None:
    """Change so many files and links below a folder, each in one way."""
    rng = random.Random(seed)
    found = [Path(folder) / name for folder, _, names in os.walk(root) for name in sorted(names)]
    for path in rng.sample(sorted(found), min(count, len(found))):
        with contextlib.suppress(OSError):  # a mode may forbid it, or the file system
            match rng.randrange(6):
                case 0:
                    path.unlink()
                case 1:
                    path.rename(path.with_name(f"renamed {rng.randrange(10**9)}"))
                case 2:
                    path.rename(root / f"moved {rng.randrange(10**9)}")
                case _ if path.is_symlink():
                    path.unlink()
                    path.symlink_to("elsewhere")
                case 3:
                    with open(path, "ab") as stream:
                        stream.write(b"changed")
                case 4:
                    path.chmod(0o640)
                case 5:
                    path.with_name(".new").write_bytes(b"saved by an editor")
                    path.with_name(".new").rename(path)
