"""A disk whose power can be cut: what was not synced is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from tests.hostile.disks import CannotMount

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


class Disk:
    """An ext4 of its own at `folder`, with what is in the folder; from mount() to close(). Raises CannotMount."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._image = folder.with_name(f"{folder.name}.img")
        with open(self._image, "wb") as stream:
            stream.truncate(size)
        _run("mkfs.ext4", "-q", "-F", os.fspath(self._image))
        before = folder.with_name(f"{folder.name}.before")
        folder.rename(before)
        folder.mkdir()
        self._mount()
        shutil.rmtree(folder / "lost+found")
        shutil.copytree(before, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(before)
        os.sync()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", os.fspath(self._image), os.fspath(self._folder))

    def cut(self) -> None:
        """Cut the power: nothing reaches the disk any more."""
        fd = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def restore(self, patience: float = 30) -> None:
        """Mount it again, once nobody has it open any more."""
        end = time.monotonic() + patience
        while subprocess.run(["umount", os.fspath(self._folder)], capture_output=True, check=False).returncode:
            if time.monotonic() > end:
                raise CannotMount(f"{self._folder} is still in use")
            time.sleep(0.05)
        self._mount()

    def close(self) -> None:
        """Unmount it, and remove its image."""
        subprocess.run(["umount", "--lazy", os.fspath(self._folder)], capture_output=True, check=False)
        self._image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMount(f"{command[0]}: {done.stderr.strip() or 'failed'}")
