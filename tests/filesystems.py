"""File systems of other kinds for tests: made in an image, mounted through a loop device, or in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest


class FileSystem(NamedTuple):
    """How to make and mount one: the program that makes it (none for what is in memory), bytes of the image, and the
    options of mount(8)."""

    make: tuple[str, ...]
    size: int
    mount: tuple[str, ...]


_MIB: Final = 1 << 20
#: Blocks are as large as those of a real disk: the attributes of a file have the room of one. By the names that tests
#: are told with. `ext4-128` has inodes without room for parts of a second and birth times.
KINDS: Final[dict[str, FileSystem]] = {
    "ext4": FileSystem(("mkfs.ext4", "-q", "-b", "4096", "-I", "256"), 32 * _MIB, ()),
    "ext4-128": FileSystem(("mkfs.ext4", "-q", "-b", "4096", "-I", "128"), 32 * _MIB, ()),
    "xfs": FileSystem(("mkfs.xfs", "-q"), 320 * _MIB, ()),
    "btrfs": FileSystem(("mkfs.btrfs", "-q"), 128 * _MIB, ()),
    "tmpfs": FileSystem((), 0, ("-t", "tmpfs", "-o", "size=64m", "none")),
    "ramfs": FileSystem((), 0, ("-t", "ramfs", "none")),
    "vfat": FileSystem(("mkfs.vfat",), 32 * _MIB, ("-o", "umask=077,quiet")),
    # the driver that works by inodes: with the other one an open file that was renamed is not found again
    "ntfs": FileSystem(("mkntfs", "-qFf"), 32 * _MIB, ("-t", "lowntfs-3g", "-o", "streams_interface=none,umask=077")),
    "overlay": FileSystem((), 0, ("-t", "overlay")),
}


@contextlib.contextmanager
def mounted(kind: str, folder: Path, scratch: Path, options: str = "", *, size: int = 0) -> Iterator[None]:
    """A file system of that kind at `folder`; `scratch` is a folder for its image, outside it; `options` are
    more of mount(8), `size` is that of the image in bytes, if it is to be larger. Skips the test, with the reason,
    where it cannot be made or mounted."""
    made = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    if os.geteuid():
        pytest.skip(f"{kind}: only root can mount file systems")
    mount = [*made.mount, *(("-o", options) if options else ())]
    if kind == "tmpfs" and size:
        mount += ["-o", f"size={size}"]
    if made.make:
        if shutil.which(made.make[0]) is None:
            pytest.skip(f"{kind}: {made.make[0]} is not installed")
        image = scratch / f"{kind}.img"
        with open(image, "wb") as stream:
            stream.truncate(max(made.size, size))
        subprocess.run([*made.make, os.fspath(image)], check=True, capture_output=True)
        mount += ["-o", "loop", os.fspath(image)]
    elif kind == "overlay":
        lower, upper, work = (scratch / f"{kind}-{name}" for name in ("lower", "upper", "work"))
        for one in (lower, upper, work):
            one.mkdir()
        mount += ["-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "none"]
    done = subprocess.run(["mount", *mount, os.fspath(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{kind}: cannot be mounted here: {done.stderr.strip()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            (folder / "lost+found").rmdir()
        yield
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(folder)], check=True)
