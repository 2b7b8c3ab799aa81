"""What the process that watches puts into the tree itself, which the kernel tells of like of all else."""

from __future__ import annotations

from typing import Final, Protocol


class Own(Protocol):
    """`awaited`: there is something of which the kernel may not have told yet."""

    @property
    def awaited(self) -> bool: ...

    def echo(self, key: tuple[int, int, int]) -> bool:
        """Whether the file with this device, inode and time of birth is such; True once for each."""
        ...

    def makes(self, key: tuple[int, int, int]) -> bool:
        """Whether the file or folder with this device, inode and time of birth is such, or was of late."""
        ...


class _Nothing:
    awaited: Final = False

    def makes(self, key: tuple[int, int, int]) -> bool:
        return False

    def echo(self, key: tuple[int, int, int]) -> bool:
        return False


NOTHING: Final = _Nothing()
