"""A replica set that waits for room on its disk: what counts as a full disk, what is said, what is left open."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.conflicts.kept import KeptStore
from agent.files.fileops import FileOps
from agent.replica.unopened import UnopenedSet, disk_is_full
from config.load import load_agent_config
from idtable.errors import StoreDamaged, StoreError, StoreFull
from staging.area import StagingArea
from staging.errors import AccessDenied, NoSpace
from staging.preinstall import Preinstall
from staging.space import room
from tests.unit.config.member_files import write


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every disk has not one block left."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=1000, f_bavail=0, f_files=100, f_favail=50))


@pytest.mark.parametrize(
    "error", [NoSpace("x"), StoreFull("x"), OSError(errno.ENOSPC, "x"), OSError(errno.EDQUOT, "x")]
)
def test_what_says_that_there_is_no_room(error: Exception, tmp_path: Path) -> None:
    assert disk_is_full(error, tmp_path)


@pytest.mark.parametrize(
    "error", [AccessDenied("x"), StoreError("x"), OSError(errno.EACCES, "x"), sqlite3.OperationalError("x")]
)
def test_what_says_something_else(error: Exception, tmp_path: Path) -> None:
    assert not disk_is_full(error, tmp_path)


@pytest.mark.usefixtures("no_room")
def test_sqlite_says_nothing_so_the_disk_is_asked(tmp_path: Path) -> None:
    assert disk_is_full(StoreError("unable to open database file"), tmp_path)
    assert disk_is_full(sqlite3.OperationalError("disk I/O error"), tmp_path)
    assert not disk_is_full(StoreError("unable to open database file"))
    assert not disk_is_full(StoreDamaged("damaged"), tmp_path)
    assert not disk_is_full(OSError(errno.EACCES, "x"), tmp_path)


def test_neither_does_a_disk_without_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=1000, f_bavail=10, f_files=100, f_favail=0))
    assert disk_is_full(StoreError("unable to open database file"), tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=1000, f_bavail=10, f_files=0, f_favail=0))
    assert not disk_is_full(StoreError("unable to open database file"), tmp_path), "btrfs does not count inodes"


def test_a_waiting_set_says_why(tmp_path: Path) -> None:
    (local,) = load_agent_config(write(tmp_path)).sets
    waiting = UnopenedSet(local, NoSpace("choosing a folder: No space left on device"))
    shown = waiting.status()
    assert shown["state"] == "stopped"
    assert shown["error"].startswith("13511 the disk is full: choosing a folder")
    assert "trying again" in shown["error"]
    assert waiting.pending() == [f"docs: {shown['error']}"]
    waiting.failed(AccessDenied("Permission denied"))
    assert waiting.status()["error"].startswith("13552 Permission denied; trying again")


def test_trying_again_and_again_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root is opened before the folder for installs is made, and each try would leave it open."""
    (tmp_path / "root").mkdir()
    area = StagingArea(str(tmp_path / "staging"), 1 << 20)

    def no_space(self: Preinstall) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Preinstall, "_begin", no_space)
    with KeptStore(str(tmp_path / "kept"), 1 << 20) as kept:
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            with pytest.raises(NoSpace):
                FileOps(str(tmp_path / "root"), str(tmp_path), area, kept, durable=False, compressions=())
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_system_that_does_not_say_how_large_it_is_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ramfs is one."""
    found = SimpleNamespace(f_blocks=0, f_bavail=0, f_files=0, f_favail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert not disk_is_full(StoreError("unable to open database file"), tmp_path)
    assert room(str(tmp_path)) > 1 << 60
