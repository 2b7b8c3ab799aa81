"""Where each set-up of a peer works: on a file system that nobody has used before.

What was created and removed on a file system before costs who comes after (an ext4 without a journal looks at every
inode that was removed in the last minutes each time it makes one: up to ten times the price of a file), and so does
what another peer has left in its journal. So each set-up gets a new ext4 with a journal, on a loop device over one file
that was written once. That takes root; for others all set-ups are on the file system of the folder, and the report says
so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

MIB = 1 << 20
_TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")


class FreshFolders:
    """Gives empty folders, one at a time, below ``base``: calling it ends the one before, unless ``keep`` says that it
    is to stay. A context manager."""

    def __init__(self, base: Path, mib: int, *, keep: bool = False) -> None:
        self._base = base
        self._keep = keep
        self._count = 0
        self._device = ""
        self._mounted: Path | None = None
        self.wanting = self._attach(mib)

    def __enter__(self) -> FreshFolders:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    @property
    def note(self) -> str:
        """What the report says of it."""
        if self.wanting:
            return f"all on one file system, which earlier runs slow down: {self.wanting}"
        return "each set-up of each peer on a new ext4 with a journal, on a loop device"

    def __call__(self) -> Path:
        """A new one. Whoever works in the one before has ended."""
        if self._count and not self._keep:
            self._remove()
        self._count += 1
        place = self._base / f"run{self._count}"
        place.mkdir()
        if self._device:
            _run("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1", self._device)
            _run("mount", "-o", "noatime,noinit_itable", self._device, os.fspath(place))
            self._mounted = place
            place /= "run"
            place.mkdir()
        return place

    def close(self) -> None:
        """Give everything back."""
        if self._mounted:
            self._remove()
        if self._device:
            _run("losetup", "--detach", self._device)
            self._device = ""

    def _attach(self, mib: int) -> str:
        """Make the device; why that cannot be, or nothing."""
        if self._keep:
            return "they are kept"
        if os.geteuid() != 0:
            return "only root can make others"
        absent = [tool for tool in _TOOLS if not shutil.which(tool)]
        if absent:
            return f"{absent[0]} is not installed"
        image = self._base / "image"
        zeros = bytes(MIB)
        try:
            with open(image, "wb", buffering=0) as out:  # written, not reserved: else the first run pays for that
                for _ in range(mib):
                    out.write(zeros)
                os.fsync(out)
            self._device = _run("losetup", "--find", "--show", "--direct-io=on", os.fspath(image))
        except (OSError, subprocess.CalledProcessError) as error:
            image.unlink(missing_ok=True)
            return f"no loop device: {getattr(error, 'stderr', None) or error}".strip()
        return ""

    def _remove(self) -> None:
        if self._mounted:
            _run("umount", os.fspath(self._mounted))
            self._mounted = None
        shutil.rmtree(self._base / f"run{self._count}", ignore_errors=True)


def _run(*argv: str) -> str:
    """The output of a program. Raises subprocess.CalledProcessError."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
