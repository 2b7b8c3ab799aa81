"""A folder whose time an install took that was cut short."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.files.cutshort import folders_of_unfinished, give_times_back
from agent.wire.change_order import ChangeOrder
from idtable.records import IDRecord, InlogRow
from idtable.store import Store
from staging.fsops import fingerprint
from staging.rootdir import RootDir

ROOT, FOLDER, FILE = b"r" * 16, b"d" * 16, b"f" * 16
TIME = 10**18


class Bench:
    """A folder `d` in a root, known with a time of its own."""

    def __init__(self, top: Path) -> None:
        self.path = top / "d"
        self.path.mkdir()
        os.utime(self.path, ns=(TIME, TIME))
        self.root, self.store = RootDir(str(top)), Store(":memory:")
        found = fingerprint(str(self.path))
        self.record = IDRecord(FOLDER, ROOT, "d", True, kind="folder", mtime_ns=TIME)
        self.record.dev, self.record.ino, self.record.btime_ns = found[:3]
        with self.store.transaction():
            self.store.put(IDRecord(ROOT, bytes(16), "", True, kind="folder"))
            self.store.put(self.record)

    def give_back(self) -> int:
        give_times_back(self.root, [("d", self.record)])
        return self.path.stat().st_mtime_ns


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.root.close()
    made.store.close()


def test_the_time_that_an_entry_took_comes_back(bench: Bench) -> None:
    (bench.path / "installed").write_text("x")
    assert bench.path.stat().st_mtime_ns != TIME
    assert bench.give_back() == TIME


def test_a_time_that_was_set_stays(bench: Bench) -> None:
    (bench.path / "installed").write_text("x")
    os.utime(bench.path, ns=(TIME, TIME + 1))
    assert bench.give_back() == TIME + 1


def test_another_folder_of_that_name_is_left_alone(bench: Bench) -> None:
    bench.path.rename(bench.path.with_name("elsewhere"))
    bench.path.mkdir()
    before = bench.path.stat().st_mtime_ns
    assert bench.give_back() == before


def test_a_link_of_that_name_leads_nowhere(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before = elsewhere.stat().st_mtime_ns
    bench.path.rename(bench.path.with_name("elsewhere"))
    bench.path.symlink_to(elsewhere)
    give_times_back(bench.root, [("d", bench.record)])
    assert elsewhere.stat().st_mtime_ns == before


@pytest.mark.parametrize("unfinished", [True, False])
def test_only_folders_of_unfinished_change_orders(bench: Bench, unfinished: bool) -> None:
    if unfinished:
        co = ChangeOrder(change_order_guid=b"c" * 16, file_guid=FILE, new_parent_guid=FOLDER, file_name="installed")
        with bench.store.transaction():
            bench.store.inlog_put(InlogRow(co.change_order_guid, b"x" * 16, co.encode(), b""))
    assert folders_of_unfinished(bench.store) == ([("d", bench.record)] if unfinished else [])
