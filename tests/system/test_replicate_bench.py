"""The benchmark runs from one command, compares what it measured, and gives no figure for unequal trees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.filesystem import FreshFolders
from bench.report import tables
from bench.rules import run as run_rules
from bench.scenarios import SCENARIOS, Result
from bench.trees import QUICK, Sizes, equal, listing, rename_burst, wait_listed_alike, write_small
from tests.system.demo import PATIENCE, REPOSITORY, environment

SCHEMA = {"peer", "scenario", "outcome", "seconds", "peak_mib", "cpu_s", "extra"}


@pytest.mark.slow
def test_the_quick_benchmark_measures_this_product(tmp_path: Path) -> None:
    """All scenarios on tiny trees; each with seconds, memory of both ends, and equal trees."""
    peers = "frs:0.2,frs:0.2:mesh,rsync" if shutil.which("rsync") else "frs:0.2,frs:0.2:mesh"
    command = [sys.executable, "-m", "bench", "--quick", "--peers", peers]
    command += ["--dir", os.fspath(tmp_path), "--json", os.fspath(tmp_path / "results.json")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    ours = [one for one in results if one["peer"].startswith("frs")]
    assert {one["scenario"] for one in ours} == set(SCENARIOS)
    assert len(ours) == 2 * len(SCENARIOS)
    mesh = [one["extra"]["fetches_a_file"] for one in ours if "fetches_a_file" in one["extra"]]
    assert len(mesh) == 2, "the mesh alone tells, of both trees that it was given"
    for one in results:
        assert set(one) == SCHEMA
        assert one["outcome"] == "equal"
        assert one["seconds"] > 0
        assert one["peak_mib"] or one["scenario"] == "latency"
    assert "| 20 renames |" in done.stdout
    assert not list(tmp_path.glob("frs-bench-*")), "the benchmark left its trees behind"


def test_trees_that_differ_are_told_apart(tmp_path: Path) -> None:
    """By a name, by one byte, by an empty folder; and the renames really rename that many."""
    a, b = tmp_path / "a", tmp_path / "b"
    for root in (a, b):
        write_small(root, QUICK)
    assert equal(a, b)
    (b / "dir001" / "empty").mkdir()
    assert not equal(a, b)
    (b / "dir001" / "empty").rmdir()
    with open(b / "dir002" / "file03.bin", "r+b") as stream:
        stream.write(b"!")
    assert listing(a) == listing(b)
    assert not equal(a, b)
    before = set(listing(a))
    assert rename_burst(a, QUICK) == QUICK.renames
    assert len(before - set(listing(a))) == QUICK.renames


def test_a_result_that_is_not_equal_gives_no_figure() -> None:
    """Its cell says so, and no ratio is formed with it."""

    class Column:
        live = fsyncs = seals = True

        def __init__(self, key: str) -> None:
            self.key = self.label = key

    results = [
        Result("frs", "cold", "equal", 2.0, 100.0, 3.0),
        Result("frs", "big", "DIFFERENT"),
        Result("other", "cold", "equal", 4.0, 50.0, 6.0),
        Result("other", "big", "equal", 1.0, 50.0, 0.5),
    ]
    text = tables(results, [Column("frs"), Column("other")], QUICK, 1)
    assert "| **DIFFERENT** | 1.00 s, cpu 0.500 s, 50 MiB |" in text
    assert "| 0.50, cpu 0.50, 2.0 x |" in text
    assert text.count("| - |") == 1


def test_waiting_for_a_tree_asks_for_each_name_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is compared must not take the processor from those that are measured: while names are missing, one
    is asked for at a time, and the tree is listed only when all have been seen."""
    a, b = tmp_path / "a", tmp_path / "b"
    write_small(a, QUICK)
    b.mkdir()
    (b / "left over").write_bytes(b"")
    listed: list[Path] = []
    asked: list[Path] = []
    naps: list[float] = []

    def counted_listing(root: Path) -> dict[str, int]:
        listed.append(root)
        return listing(root)

    def counted_lstat(path: Path) -> os.stat_result:
        asked.append(path)
        return os.stat(path, follow_symlinks=False)

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 50:
            write_small(b, QUICK)
        elif len(naps) == 100:
            (b / "left over").unlink()

    monkeypatch.setattr("bench.trees.listing", counted_listing)
    monkeypatch.setattr("bench.trees.os.lstat", counted_lstat)
    monkeypatch.setattr("bench.trees.time.sleep", nap)
    wait_listed_alike(a, b, PATIENCE)
    assert len(naps) == 100
    assert listed == [a, b, b], "once what is to be, once when all names were seen, once when nothing was too many"
    assert len(asked) == len(listing(a)) + 100


def test_each_set_up_has_a_file_system_that_nobody_has_used(tmp_path: Path) -> None:
    """Where that cannot be made, the report says so, and the folders are empty ones all the same."""
    with FreshFolders(tmp_path, 64) as fresh:
        first = fresh()
        assert not list(first.iterdir())
        (first / "file").write_bytes(b"of the first run")
        born = first.stat().st_ctime_ns
        second = fresh()
        assert not list(second.iterdir())
        assert not first.exists()
        kind = subprocess.run(["findmnt", "-no", "FSTYPE,SOURCE", "--target", second], capture_output=True, text=True)
        if fresh.wanting:
            assert fresh.wanting in fresh.note
            assert second.stat().st_dev == tmp_path.stat().st_dev
        else:
            assert kind.stdout.split()[0] == "ext4"
            assert kind.stdout.split()[1].startswith("/dev/loop")
            assert second.stat().st_dev != tmp_path.stat().st_dev
            assert second.stat().st_ctime_ns > born
            assert (second.parent / "lost+found").is_dir(), "made anew: nothing but what mkfs leaves"
            assert len(list(second.parent.iterdir())) == 2
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if os.fspath(tmp_path) in line]


def test_sizes_say_how_large_a_file_system_a_run_needs() -> None:
    """Content at both ends, what is being made of it, and room for what keeps it."""
    assert Sizes().room_mib({"cold"}) < 2048
    assert Sizes().room_mib({"cold", "big"}) >= 4096
    assert Sizes(folders=6000).room_mib({"cold"}) > 2 * (300_000 * (16 << 10) >> 20)


def test_a_new_file_costs_each_member_a_few_statements() -> None:
    """Counts, which are the same everywhere: each row is looked for once and written once, and what many files change
    is written once a transaction."""
    files, batch = 256, 64
    pair = run_rules(files, batch)
    a, b = pair.ends["a"].costs, pair.ends["b"].costs
    at_most = {
        "SELECT idtable": 2 * files + 4,  # is it known, and has anything its name
        "INSERT idtable": files,
        "INSERT outlog": files,
        "INSERT inlog": files,
        "DELETE inlog": files,
    }
    for costs in (a, b):
        transactions = costs.statements["COMMIT"]
        assert transactions == costs.times["commit"] < files / 4
        for what, number in costs.statements.items():
            assert number <= at_most.get(what, transactions), what
    assert a.statements["INSERT outlog"] == b.statements["INSERT inlog"] == files
    assert a.times["encoding"] == a.times["decoding"] == files, "the content comes with the change order"
