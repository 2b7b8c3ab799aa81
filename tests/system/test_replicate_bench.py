"""The benchmark runs from one command, compares what it measured, and gives no figure for unequal trees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import tables
from bench.scenarios import SCENARIOS, Result
from bench.trees import QUICK, equal, listing, rename_burst, write_small
from tests.system.demo import PATIENCE, REPOSITORY, environment

SCHEMA = {"peer", "scenario", "outcome", "seconds", "peak_mib", "cpu_s", "extra"}


@pytest.mark.slow
def test_the_quick_benchmark_measures_this_product(tmp_path: Path) -> None:
    """All scenarios on tiny trees; each with seconds, memory of both ends, and equal trees."""
    peers = "frs:0.2,rsync" if shutil.which("rsync") else "frs:0.2"
    command = [sys.executable, "-m", "bench", "--quick", "--peers", peers]
    command += ["--dir", os.fspath(tmp_path), "--json", os.fspath(tmp_path / "results.json")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    ours = [one for one in results if one["peer"].startswith("frs")]
    assert {one["scenario"] for one in ours} == set(SCENARIOS)
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
        Result("frs", "cold", "equal", 2.0, 100.0),
        Result("frs", "big", "DIFFERENT"),
        Result("other", "cold", "equal", 4.0, 50.0),
        Result("other", "big", "equal", 1.0, 50.0),
    ]
    text = tables(results, [Column("frs"), Column("other")], QUICK, 1)
    assert "| **DIFFERENT** | 1.00 s, 50 MiB |" in text
    assert "| 0.50, 2.0 x |" in text
    assert text.count("| - |") == 1
