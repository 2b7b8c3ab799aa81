"""A store of what lost a conflict, and where its files come from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.conflicts.kept import KeptStore
from staging import fsops
from tests.unit.conflicts.deleting import Bench
from tests.unit.conflicts.keeping import OBJECT_ID, QUOTA, opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where things are once they were taken out of the tree."""
    (tmp_path / "out").mkdir(0o700)
    return tmp_path / "out"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeptStore]:
    with KeptStore(str(tmp_path / "kept"), QUOTA) as opened:
        yield opened


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system that holds user attributes."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="frs-kept-", dir="/dev/shm"))
    except OSError:
        pytest.skip("no second file system here")
    try:
        if folder.stat().st_dev == tmp_path.stat().st_dev or not fsops.object_id_set(str(folder), OBJECT_ID):
            pytest.skip("no second file system with user attributes here")
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def folders() -> Iterator[None]:
    """Closes what at() opened."""
    yield
    while opened:
        os.close(opened.popitem()[1])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
