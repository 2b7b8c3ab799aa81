"""The Spark summary on samples whose sums were worked out by hand, in one session of a real Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from agent.cli.summarize_cmd import summarize as command
from agent.counters import summary as job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    pytest.importorskip("pyspark", reason="needs PySpark: pip install 'frs-agent[spark]'")
    if shutil.which("java") is None:
        pytest.skip("needs Java: install openjdk-17-jre-headless")
    with job.spark_session() as session:
        yield session


RUN_STARTS = {"r1": 0, "r2": 60, "r9": 36}


def sample(
    second: float,
    counters: dict[str, Any],
    *,
    member: str = "a",
    connection: str | None = None,
    run: str = "r1",
    **more: Any,
) -> str:
    """One line, ``second`` after 2026-01-01T00:00:00Z; each run numbers its samples from zero."""
    instance = f"docs/{connection}" if connection else "docs"
    millis = round(second * 1000)
    row = {
        "time": f"2026-01-01T00:{millis // 60_000:02d}:{millis // 1000 % 60:02d}.{millis % 1000:03d}Z",
        "member": member,
        "object": "FileReplicaConn" if connection else "FileReplicaSet",
        "set": "docs",
        "instance": instance,
        "run": run,
        "seq": int(second) - RUN_STARTS[run],
        "counters": counters,
        "gauges": {},
    } | more
    return json.dumps(row) + "\n"


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    "odd", [{"time": "9999-12-31T23:59:59.000Z"}, {"time": "1601-01-01T00:00:00.000Z"}, {"seq": -1}], ids=str
)
def test_what_no_clock_showed_is_no_sample(odd: dict[str, Any], spark: SparkSession, tmp_path: Path) -> None:
    """One such line in the file of one member would stretch the series of all over centuries."""
    write(
        tmp_path / "one.jsonl",
        sample(0, {}),
        sample(10, {"Files Installed": 4}),
        sample(20, {"Files Installed": 400}, **odd),
        sample(20, {"Files Installed": 5}),
    )
    summary = job.summarize(spark, [tmp_path], tmp_path / "out", lambda _: None)
    assert summary["source"] == {"files": 1, "lines": 4, "corrupt_lines": 1}
    assert (summary["first"], summary["last"]) == ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:20.000Z")
    assert summary["sets"][0]["totals"] == {"Files Installed": 5}


def test_counters_that_no_member_counted_cost_only_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """Sums that no number holds are left out; the other counters of the same samples are right."""
    top = 2**63 - 1
    write(
        tmp_path / "one.jsonl",
        sample(0, {}),
        sample(10, {"Files Installed": -top - 1, "Packets Sent": 1}),
        sample(20, {"Files Installed": 5, "Packets Sent": 2}),
        sample(31, {"Files Installed": top, "Packets Sent": 3}),
        sample(32, {"Files Installed": top - 1, "Packets Sent": 4}),
    )
    summary = job.summarize(spark, [tmp_path], tmp_path / "out", lambda _: None)
    assert summary["sets"][0]["totals"] == {"Packets Sent": 4}
    (row,) = summary["series"]["rows"]
    assert row["counter"] == "Files Installed"
    assert row["values"] == [0, 0, 0, 5, 0, 0, 0]


def test_sums_by_hand_over_a_restart_and_a_torn_line(spark: SparkSession, tmp_path: Path) -> None:
    staging = {"KB of Staging Space In Use": 100, "KB of Staging Space Free": 300}
    write(
        tmp_path / "a [x]" / "one.jsonl",  # the folder's name must not be taken for a pattern
        sample(0, {}),
        sample(10, {"Files Installed": 4, "Bytes of Files Installed": 1000}),
        # out of order in the file, and nothing happened between 10 and 20
        sample(30, {"Files Installed": 10, "Bytes of Files Installed": 5000, "Change Orders Issued": 8}),
        sample(20, {"Files Installed": 4, "Bytes of Files Installed": 1000}),
        '{"time":"2026-01-01T00:00:40.000Z","member":"a","obj',  # kill -9
    )
    write(
        tmp_path / "a [x]" / "two.jsonl",  # after the restart, counted from zero again
        sample(60, {}, run="r2"),
        sample(70, {"Files Installed": 3, "Bytes of Files Installed": 600, "Files Installed with Error": 1,
                    "Change Orders Issued": 2, "Change Orders Retried": 5, "Invented Here": 6} | staging, run="r2"),
        # the set was left and joined again: smaller than before, so all of it is new
        sample(80, {"Files Installed": 2, "Bytes of Files Installed": 400}
               | {"KB of Staging Space In Use": 50, "KB of Staging Space Free": 350}, run="r2"),
    )  # fmt: skip
    write(
        tmp_path / "b" / "state" / "samples" / "x.jsonl",
        # the first sample of this run is lost: what was counted before it is not of this time
        sample(5, {"Packets Sent": 100, "Packets Sent in Bytes": 9000}, member="b", connection="b->a"),
        sample(15, {"Packets Sent": 107, "Packets Sent in Bytes": 9700, "Packets Sent in Error": 1},
               member="b", connection="b->a", gauges={"Backlog": 12}),
        sample(25, {"Packets Sent": 107, "Packets Sent in Bytes": 9700, "Packets Sent in Error": 1},
               member="b", connection="b->a", gauges={"Backlog": 3}),
        "not a sample\n",
        "\n",
        '{"time":"yesterday","member":"b","object":"FileReplicaConn","set":"docs","instance":"docs/b->a",'
        '"run":"r1","seq":26,"counters":{"Packets Sent":5000}}\n',
        sample(35, {"Packets Sent": "many"}, member="b", connection="b->a"),
        sample(36, {"Packets Sent": -5}, member="b", connection="b->a", run="r9"),
        sample(46, {"Packets Sent": -9}, member="b", connection="b->a", run="r9"),
    )  # fmt: skip

    said: list[str] = []
    out = tmp_path / "out"
    summary = job.summarize(spark, [tmp_path / "a [x]", tmp_path / "b"], out, said.append)

    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["format"] == 1
    # 5 + 3 in a, 9 in b less the empty one; the torn one, the text, "yesterday" and "many" are no samples
    assert summary["source"] == {"files": 3, "lines": 16, "corrupt_lines": 4}
    assert any("4 of them corrupt" in text for text in said)
    assert (summary["first"], summary["last"]) == ("2026-01-01T00:00:00.000Z", "2026-01-01T00:01:20.000Z")
    assert summary["unknown_counters"] == ["Invented Here"]

    [docs] = summary["sets"]
    assert (docs["member"], docs["set"], docs["runs"], docs["samples"]) == ("a", "docs", 2, 7)
    assert docs["observed_s"] == 50  # 0 to 30 and 60 to 80
    assert docs["totals"] == {
        "Files Installed": 15,  # 4 + 0 + 6, then 3 + 2
        "Bytes of Files Installed": 6000,  # 1000 + 0 + 4000, then 600 + 400
        "Files Installed with Error": 1,
        "Change Orders Issued": 10,  # 8, then 2
        "Change Orders Retried": 5,
        "Invented Here": 6,
    }
    assert docs["per_second"]["Files Installed"] == 0.3
    assert docs["per_second"]["Bytes of Files Installed"] == 120
    assert docs["peak_per_second"]["Files Installed"] == 0.6  # 6 in the 10 s to 30
    assert docs["peak_per_second"]["Bytes of Files Installed"] == 400
    assert docs["raw"] == {
        "KB of Staging Space In Use": {"last": 50, "min": 50, "max": 100},
        "KB of Staging Space Free": {"last": 350, "min": 300, "max": 350},
    }
    derived = docs["derived"]
    assert derived["bytes_per_file_installed"] == 400
    assert derived["install_error_ratio"] == 0.0625  # 1 of 16
    assert derived["change_order_retry_ratio"] == 0.5
    assert derived["staging_use"] == 0.125
    assert derived["binding_error_ratio"] is None

    [conn] = summary["connections"]
    assert (conn["member"], conn["set"], conn["connection"]) == ("b", "docs", "b->a")
    assert conn["totals"] == {"Packets Sent": 7, "Packets Sent in Bytes": 700, "Packets Sent in Error": 1}
    assert conn["observed_s"] == 30  # 5 to 25, and 36 to 46
    assert conn["derived"]["packet_send_error_ratio"] == 0.125
    assert (conn["derived"]["backlog"], conn["derived"]["backlog_max"]) == (3, 12)

    # 80 s in buckets of 5 s: 4 by 10 s, 6 by 30 s, 3 by 70 s, 2 by 80 s; the last edge is its own bucket
    [installed] = [row for row in summary["series"]["rows"] if row["counter"] == "Files Installed"]
    assert summary["series"]["bucket_s"] == 5
    assert {i: n for i, n in enumerate(installed["values"]) if n} == {1: 4, 5: 6, 13: 3, 15: 2}

    rows = spark.read.parquet(str(out / "summary.parquet")).where("counter = 'Files Installed'").collect()
    assert [(row["member"], row["object"], row["total"]) for row in rows] == [("a", "FileReplicaSet", 15)]


def test_the_charts_are_pictures_of_text_that_harms_nobody(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'frs-agent[spark]'")
    member = "<script>$x_1$&\x01"
    write(tmp_path / "s.jsonl", sample(0, {}, member=member), sample(9, {"Files Installed": 4}, member=member))
    summary = job.summarize(spark, [tmp_path / "s.jsonl"], tmp_path / "out")
    assert summary["charts"] == {"light": "chart-light.svg", "dark": "chart-dark.svg"}
    for name in summary["charts"].values():
        svg = (tmp_path / "out" / name).read_text()
        assert "Files installed per second" in svg
        assert "&lt;script&gt;$x_1$&amp;" in svg
        assert "<script" not in svg


def test_the_command_writes_the_summary_and_tells_where(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in" / "s.jsonl", sample(0, {}), sample(5, {"Joins": 1}))
    out = tmp_path / "deep" / "out"
    result = CliRunner().invoke(command, [str(tmp_path / "in"), "--output", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out / "summary.json")
    assert "2 lines read, 0 of them corrupt" in result.stderr
    # and once more over the one before
    write(tmp_path / "in" / "t.jsonl", sample(60, {}, run="r2"), sample(65, {"Joins": 2}, run="r2"))
    result = CliRunner().invoke(command, [str(tmp_path / "in"), "--output", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads((out / "summary.json").read_text())["sets"][0]["totals"] == {"Joins": 3}
    assert not list(out.glob("*.tmp"))


@pytest.mark.parametrize("content", [None, "", "torn\n"])
def test_no_sample_is_an_error_of_its_own(spark: SparkSession, tmp_path: Path, content: str | None) -> None:
    (tmp_path / "in").mkdir()
    if content is not None:
        write(tmp_path / "in" / "s.jsonl", content)
    result = CliRunner().invoke(command, [str(tmp_path / "in"), "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "error: no " in result.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
