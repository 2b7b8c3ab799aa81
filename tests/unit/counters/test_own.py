"""The course of a counter as a member's own samples have it: of the journal and of the archive, over restarts."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agent.counters import history, own, parquet
from agent.counters.own import course
from tests.unit.counters.test_archive import BEGIN, line

CONNECTION = {"connection": "a->b", "connection_guid": "gab"}


def test_rates_and_amounts_of_sets_and_connections(tmp_path: Path) -> None:
    """2 files a second for five minutes, in the archive and then in the journal; another start, 4 a second, then."""
    old = tmp_path / "old.jsonl"
    old.write_text("".join(line(s, 2 * s) for s in range(0, 185, 5)))
    parquet.write(parquet.Journal(old).table(), tmp_path / "date=2026-01-10" / "00000001-000001.parquet")
    old.unlink()
    lines = [line(s, 2 * s) for s in range(180, 305, 5)]
    lines += [line(300 + s, 4 * s, start=2, run="s", seq=s // 5, mono_us=s * 10**6) for s in range(0, 125, 5)]
    lines += [line(s, 0, counters={}, gauges={"Backlog": s}, **CONNECTION) for s in range(0, 125, 5)]
    (tmp_path / "1.jsonl").write_text("".join(lines))
    (tmp_path / "torn.jsonl").write_text('{"format": 2, ')
    (tmp_path / "date=2026-01-10" / "bad.parquet").write_text("no Parquet")

    whole = course(tmp_path, "Files Installed", BEGIN, 60)
    assert whole["more"] is False
    rates = [(row["set"], row["connection"], row["time"], row["per_second"], row["last"]) for row in whole["rows"]]
    minute = lambda n: f"{BEGIN + timedelta(minutes=n):%Y-%m-%dT%H:%M:%SZ}"  # noqa: E731
    # in the sixth minute 10 files in the last 5 s of the first start, and 4 * 55 in the 55 s of the second
    expected = [2.0] * 5 + [(10 + 220) / (5 + 55), 4.0, 4.0]
    assert rates == [("docs", "", minute(n), rate, None) for n, rate in enumerate(expected)]
    later = course(tmp_path, "Files Installed", BEGIN + timedelta(minutes=6), 60)
    assert [row["per_second"] for row in later["rows"]] == [4.0, 4.0]

    backlog = course(tmp_path, "Backlog", BEGIN, 60, "docs")["rows"]
    assert [(row["connection"], row["time"], row["last"], row["per_second"]) for row in backlog] == [
        ("a->b", minute(0), 55, None), ("a->b", minute(1), 115, None), ("a->b", minute(2), 120, None),
    ]  # fmt: skip
    assert course(tmp_path, "Backlog", BEGIN, 60, "docs", "a->b")["rows"] == backlog
    assert course(tmp_path, "Backlog", BEGIN, 60, "docs", "b->a")["rows"] == []
    assert course(tmp_path, "Backlog", BEGIN, 60, "other")["rows"] == []


def test_of_more_than_an_answer_holds_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more days than that takes, whatever somebody asks for."""
    for day in range(10, 16):
        journal = tmp_path / "day.jsonl"
        first = (day - 10) * 86_400
        journal.write_text("".join(line(s, 2 * s) for s in range(first, first + 3600, 5)))
        folder = tmp_path / f"date=2026-01-{day}"
        parquet.write(parquet.Journal(journal).table(), folder / "00000001-000001.parquet")
        journal.unlink()
    whole = course(tmp_path, "Files Installed", BEGIN, 60)
    assert len(whole["rows"]) == 6 * 60
    monkeypatch.setattr(own, "MOST", 50)
    (tmp_path / "date=2026-01-10" / "00000001-000001.parquet").write_bytes(b"not read")
    read = []
    steps = own._steps
    monkeypatch.setattr(own, "_steps", lambda path, only, step_s: read.append(path) or steps(path, only, step_s))
    newest = course(tmp_path, "Files Installed", BEGIN, 60)
    assert newest == {"rows": whole["rows"][-50:], "more": True}
    assert {path.parent.name for path in read} == {"date=2026-01-15", "date=2026-01-14"}


def test_who_asks_for_too_much_is_told_and_takes_no_memory(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from agent.counters import history, own\n"
        "history.MOST_MEMORY = 32 << 20\n"
        "own.course = lambda *_: bytearray(1 << 30)\n"
        "sys.exit(own.main())\n"
    )
    asked = ["--counter=x", "--since=2026-01-01", "--step=1", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", program, *asked], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (2, history.TOO_MUCH)
