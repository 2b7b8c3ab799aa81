"""Files to stage, on the file system of the tests and on tmpfs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


@pytest.fixture(scope="session")
def captures() -> dict[str, dict]:
    """The staging files of section 4 by section."""
    with open(VECTORS / "stages.json", encoding="utf-8") as f:
        return {stage["section"]: stage for stage in json.load(f)["stages"]}


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on tmpfs."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["disk", "tmpfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder on the disk of the tests, and one on tmpfs."""
    if request.param == "disk":
        return tmp_path
    return request.getfixturevalue("shm")


def has_user_attributes(path: Path) -> bool:
    """Whether the file system keeps user attributes."""
    try:
        os.setxattr(path, "user.probe", b"x")
    except OSError:
        return False
    os.removexattr(path, "user.probe")
    return True


@pytest.fixture
def attributes_work(place: Path) -> None:
    """Skips where there are no user attributes."""
    if not has_user_attributes(place):
        pytest.skip("this file system has no user attributes")
