"""A folder that was opened before something was made in it."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journal.system import System
from staging import listing
from tests.filesystems import mounted
from tests.unit.journal.ears import Ears
from tests.unit.test_effects import REPOSITORY

KINDS = ("ext4", "xfs", "btrfs", "tmpfs", "overlay")
PACKAGES = ("staging", "agent", "journal", "idtable", "config")
#: (module, text of the argument): these are paths.
BY_PATH = {
    ("agent/service/applying.py", "state_dir"),
    ("agent/service/applying.py", "path"),
    ("agent/replica/awaited.py", "f'/proc/{pid}/fd'"),
    ("agent/replica/awaited.py", "'/proc'"),
    ("staging/lending.py", "self._records"),
    ("staging/area.py", "path"),
    ("staging/area.py", "self.path"),
    ("staging/listing.py", "fd"),
}


def _entries(fd: int) -> list[str]:
    with listing.entries(fd) as found:
        return [entry.name for entry in found]


@pytest.mark.parametrize("listed", [listing.names, _entries])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_made_since_it_was_opened_is_listed(
    kind: str, listed: Callable[[int], list[str]], tmp_path: Path
) -> None:
    with mounted(kind, tmp_path / "root", tmp_path / "images"):
        folder = tmp_path / "root" / "folder"
        folder.mkdir()
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for number in range(3):
                (folder / f"{number}").touch()
                assert sorted(listed(fd)) == [f"{one}" for one in range(number + 1)]
        finally:
            os.close(fd)


class Late(System):
    """Makes a file in each new folder that is opened: it is not watched yet."""

    def open_beneath(self, fd: int, path: str, flags: int) -> int:
        opened = super().open_beneath(fd, path, flags)
        if path.startswith("new"):
            with open(f"/proc/self/fd/{opened}/file", "w"):
                pass
        return opened


@pytest.mark.parametrize("kind", KINDS)
async def test_what_comes_into_a_new_folder_before_it_is_watched_is_noticed(kind: str, tmp_path: Path) -> None:
    """The file comes once the folder is open, and before there is a watch on it: no event tells of it."""
    with mounted(kind, tmp_path / "root", tmp_path / "images"):
        async with Ears(tmp_path, system=Late()) as ears:
            os.mkdir(ears.path("new"))
            assert {"new", "new/file"} <= (await ears.flush()).keys()


def test_no_open_folder_is_listed_in_another_way() -> None:
    found = set()
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="os"), attr="listdir" | "scandir" | "fwalk"), args=[one]
                    ):
                        found.add((path.relative_to(REPOSITORY).as_posix(), ast.unparse(one)))
    assert found == BY_PATH, "what is open is listed by staging.listing; what is not is named here"
