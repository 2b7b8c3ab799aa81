"""A file system of limited size for a member, so that an attack on its disk never fills the real one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


class CannotMount(Exception):
    """Only root may mount, and not everywhere."""


@contextlib.contextmanager
def limited_disk(folder: Path, size: int) -> Iterator[None]:
    """A new ext4 of `size` bytes at `folder`, in a sparse image beside it. Raises CannotMount."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_name(f"{folder.name}.img")
    with open(image, "wb") as stream:
        os.truncate(stream.fileno(), size)
    try:
        _run("mkfs.ext4", "-q", "-F", "-m", "0", os.fspath(image))
        _run("mount", "-o", "loop", os.fspath(image), os.fspath(folder))
        try:
            folder.chmod(0o755)
            yield
        finally:
            # Not lazily: what still uses it would keep the image. Lazily only where that is so.
            if subprocess.run(["umount", os.fspath(folder)], capture_output=True, check=False).returncode:
                subprocess.run(["umount", "--lazy", os.fspath(folder)], check=False)
    finally:
        image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotMount(f"there is no {command[0]} here") from None
    if done.returncode:
        raise CannotMount(f"{command[0]}: {done.stderr.strip() or 'failed'}")
