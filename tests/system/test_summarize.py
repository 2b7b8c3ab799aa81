"""The Spark summary on samples whose sums were worked out by hand, in one session of a real Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from agent.cli import run_cli
from agent.counters import parquet
from agent.counters import summary as job
from tests.system.java import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with java(), job.spark_session() as session:
        yield session


RUN_STARTS = {"r1": 0, "r2": 60, "r9": 36, "copy": 0}
DAY_S = 86_400
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def iso(second: float) -> str:
    """So many seconds after 2026-01-01T00:00:00Z."""
    return (EPOCH + timedelta(seconds=second)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sample(
    second: float,
    counters: dict[str, Any],
    *,
    member: str = "a",
    connection: str = "",
    run: str = "r1",
    **more: Any,
) -> str:
    """One line, ``second`` after 2026-01-01T00:00:00Z; each run numbers its samples from zero."""
    row = {
        "format": 2,
        "fleet": "hq",
        "host": f"host-{member}",
        "member": member,
        "member_guid": f"guid-{member}",
        "set": "docs",
        "set_guid": "guid-docs",
        "connection": connection,
        "connection_guid": connection and f"guid-{connection}",
        "start": int(run[1:]) if run != "copy" else 1,
        "run": run,
        "seq": int(second) - RUN_STARTS[run],
        "mono_us": round((second - RUN_STARTS[run]) * 1e6),
        "time": iso(second),
        "counters": counters,
        "gauges": {},
    } | more
    return json.dumps(row) + "\n"


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def summed(spark: SparkSession, path: Path, **more: Any) -> dict[str, Any]:
    return job.summarize(spark, [path], path / "out", lambda _: None, **more)


def test_clocks_that_jump_change_no_rate_and_no_course(spark: SparkSession, tmp_path: Path) -> None:
    """Four members count 2 a second for 100 s: one whose clock was a day ahead for one sample, one that began in 1970
    and was set right at half time, one that had run two hours ahead before a restart set it right, one whose clock
    shows the year 9999 throughout."""

    def run(member: str, ahead: Callable[[int], float], **more: Any) -> list[str]:
        begin = RUN_STARTS[more.get("run", "r1")]
        return [
            sample(begin + s, {"Files Installed": 2 * s}, member=member, **(more | {"time": iso(begin + s + ahead(s))}))
            for s in range(0, 101, 10)
        ]

    to_1970 = -(EPOCH.timestamp())
    write(tmp_path / "a.jsonl", *run("a", lambda s: DAY_S * (s == 50)))
    write(tmp_path / "b.jsonl", *run("b", lambda s: to_1970 * (s < 50)))
    write(tmp_path / "c1.jsonl", *run("c", lambda s: 7200))
    later = {"start": 2, "run": "r1", "seq": 5}  # 300 s after the beginning of the first
    write(
        tmp_path / "c2.jsonl",
        *(sample(s, {"Files Installed": 2 * s}, member="c", **(later | {"seq": s, "time": iso(300 + s)}))
          for s in range(0, 101, 10)),
    )  # fmt: skip
    write(tmp_path / "d.jsonl", *run("d", lambda s: 0))
    far = (tmp_path / "d.jsonl").read_text().replace('"2026-01-01T', '"9999-01-01T')
    write(tmp_path / "d.jsonl", far)
    now = EPOCH + timedelta(seconds=1000)
    summary = summed(spark, tmp_path, now_ns=lambda: int(now.timestamp() * 1e9))
    assert [entry["per_second"] for entry in summary["sets"]] == [{"Files Installed": 2.0}] * 4
    assert [entry["peak_per_second"]["Files Installed"] for entry in summary["sets"]] == [2.0] * 4
    times = {entry["member"]: (entry["first"], entry["last"]) for entry in summary["sets"]}
    assert times == {
        "a": (iso(0), iso(100)),
        "b": (iso(0), iso(100)),
        "c": (iso(200), iso(400)),  # the first start ends where the second begins, at the latest
        "d": (iso(900), iso(1000)),  # nothing is known but that it has been
    }
    assert (summary["first"], summary["last"]) == (iso(0), iso(1000))
    assert summary["series"]["bucket_s"] == 60
    assert all(len(row["values"]) == 17 for row in summary["series"]["rows"])
    assert {row["member"]: sum(row["values"]) for row in summary["series"]["rows"]} == {
        "a": 200, "b": 200, "c": 400, "d": 200,
    }  # fmt: skip


def test_a_session_that_is_there_already_is_used_and_kept(spark: SparkSession) -> None:
    """Whichever thread it was begun in."""

    def summarize() -> None:
        with job.spark_session() as session:
            assert session.range(2).count() == 2

    thread = threading.Thread(target=summarize)
    thread.start()
    thread.join()
    assert spark.range(3).count() == 3


def test_two_fleets_of_equal_names_are_not_added_up(spark: SparkSession, tmp_path: Path) -> None:
    for number, more in enumerate(
        ({}, {"fleet": "lab"}, {"set_guid": "other"}, {"member_guid": "other"}, {"run": "copy"})
    ):
        lines = (sample(s, {"Joins": s * 10**number}, **({"run": "r1"} | more)) for s in (0, 1))
        write(tmp_path / f"{number}.jsonl", *lines)
    found = sorted(entry["totals"]["Joins"] for entry in summed(spark, tmp_path)["sets"])
    assert found == [10, 100, 1000, 10_001], "a copy of a state directory is the same member"


def test_resets_wraps_gaps_late_and_duplicate_samples(spark: SparkSession, tmp_path: Path) -> None:
    top = 2**32
    lines = [
        sample(0, {"Joins": top - 10, "Packets Sent in Bytes": top - 10}),
        # A counter of 32 bits that wraps, and one of 64 that began anew.
        sample(10, {"Joins": 20, "Packets Sent in Bytes": 20}),
        sample(20, {"Joins": 5, "Packets Sent in Bytes": 5}),  # both began anew
        sample(4000, {"Joins": 45, "Packets Sent in Bytes": 45}),  # nobody looked for more than an hour
        sample(4010, {"Joins": 95, "Packets Sent in Bytes": 95}),
    ]
    write(tmp_path / "late.jsonl", lines[4], lines[2], lines[0])
    write(tmp_path / "twice.jsonl", *lines[1:4], lines[2], lines[3])
    [entry] = summed(spark, tmp_path)["sets"]
    assert entry["totals"] == {"Joins": 30 + 5 + 40 + 50, "Packets Sent in Bytes": 20 + 5 + 40 + 50}
    assert (entry["observed_s"], entry["samples"]) == (4010, 5)
    # 50 in (4000, 4010] is the busiest minute, 4000 to 4020 s being in one: 66.67 min to 67 min
    assert entry["peak_per_second"]["Joins"] == round(50 / 60, 6)


def test_peaks_are_those_of_minutes_and_equal_at_both_ends(spark: SparkSession, tmp_path: Path) -> None:
    """600 blocks a second in one minute, 60 in the others, sampled every 5 s here, every 7 s and now and then twice
    at once there."""

    def moved(second: float) -> int:
        return round(60 * second + 540 * min(max(second - 120, 0), 60))

    ours = [float(s) for s in range(0, 301, 5)]
    theirs = sorted({*(float(s) for s in range(0, 301, 6)), *(s + 0.001 for s in range(30, 301, 60))})
    for name, seconds, counter in (("a", ours, "Fetch Blocks Sent"), ("b", theirs, "Fetch Blocks Received")):
        lines = (
            sample(s, {counter: moved(s)}, member=name, connection="a->b", seq=number)
            for number, s in enumerate(seconds)
        )
        write(tmp_path / f"{name}.jsonl", *lines)
    up, down = summed(spark, tmp_path)["connections"]
    assert up["peak_per_second"] == {"Fetch Blocks Sent": 600.0}
    assert down["peak_per_second"] == {"Fetch Blocks Received": 600.0}


def test_files_that_cannot_be_read_are_named_counted_and_left_out(spark: SparkSession, tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", sample(0, {}), sample(10, {"Files Installed": 4}))
    table = parquet.Journal(good).table()
    for name in ("whole", "torn", "flipped", "removed", "later"):
        rows = table.set_column(table.schema.get_field_index("member_guid"), "member_guid", [[name] * len(table)])
        parquet.write(rows.cast(parquet.SCHEMA), tmp_path / f"{name}.parquet")
    content = (tmp_path / "torn.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(content[: len(content) // 2])
    flipped = bytearray((tmp_path / "flipped.parquet").read_bytes())
    group = pq.read_metadata(tmp_path / "flipped.parquet").row_group(0)
    values = group.column([group.column(one).path_in_schema for one in range(group.num_columns)].index("value"))
    damaged = slice(values.data_page_offset, values.data_page_offset + values.total_compressed_size)
    flipped[damaged] = bytes(byte ^ 0xFF for byte in flipped[damaged])
    (tmp_path / "flipped.parquet").write_bytes(flipped)
    (tmp_path / "text.parquet").write_text("not Parquet")
    as_version_2 = table.replace_schema_metadata({parquet.VERSION_KEY: b"2"})
    pq.write_table(as_version_2, tmp_path / "later.parquet")
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if text.startswith("adding up"):
            (tmp_path / "removed.parquet").unlink(missing_ok=True)  # its member makes room

    summary = job.summarize(spark, [tmp_path], tmp_path / "out", tell)
    assert sorted(entry["member_guid"] for entry in summary["sets"]) == ["guid-a", "whole"]
    skipped = {Path(one["file"]).name: one["why"] for one in summary["source"]["skipped"]}
    assert sorted(skipped) == ["flipped.parquet", "later.parquet", "removed.parquet", "text.parquet", "torn.parquet"]
    assert "version '2'; this frs reads version 1" in skipped["later.parquet"]
    assert summary["source"]["files"] == 7
    for name in skipped:
        assert any(text.startswith(f"skipped: {tmp_path / name}: ") for text in said), name


def test_what_is_no_sample_costs_itself_only(spark: SparkSession, tmp_path: Path) -> None:
    """Sums that no number holds are left out, too; the other counters of the same samples are right."""
    top = 2**63 - 1
    write(
        tmp_path / "one.jsonl",
        sample(0, {}),
        sample(10, {"Files Installed": -top - 1, "Packets Sent": 1}),
        sample(15, {"Packets Sent": 1}, seq=-1),
        sample(15, {"Packets Sent": 1}, mono_us=10**18),
        sample(20, {"Files Installed": 5, "Packets Sent": 2}),
        sample(31, {"Files Installed": top, "Packets Sent": 3}),
        sample(32, {"Files Installed": top - 1, "Packets Sent": 4}),
    )
    summary = summed(spark, tmp_path)
    assert (summary["source"]["lines"], summary["source"]["corrupt_lines"]) == (7, 3)
    assert summary["sets"][0]["totals"] == {"Packets Sent": 4}


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
        sample(26, {"Packets Sent": 5000}, member="b", connection="b->a", time="yesterday"),
        sample(35, {"Packets Sent": "many"}, member="b", connection="b->a"),
        # another start, of which there is nothing but that it was
        sample(36, {}, member="b", connection="b->a", run="r9"),
        sample(46, {}, member="b", connection="b->a", run="r9"),
    )  # fmt: skip

    said: list[str] = []
    out = tmp_path / "out"
    summary = job.summarize(spark, [tmp_path / "a [x]", tmp_path / "b"], out, said.append)

    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["format"] == 3
    # 5 + 3 in a, 9 in b less the empty one; the torn one, the text, "yesterday" and "many" are no samples
    assert summary["source"] == {"files": 3, "new": 3, "lines": 16, "corrupt_lines": 4, "skipped": []}
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
    assert docs["peak_per_second"]["Files Installed"] == round(10 / 60, 6)  # 4 and 6 in the first minute
    assert docs["peak_per_second"]["Bytes of Files Installed"] == round(5000 / 60, 6)
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

    [installed] = [row for row in summary["series"]["rows"] if row["counter"] == "Files Installed"]
    assert summary["series"]["bucket_s"] == 60
    assert installed["values"] == [10, 5]

    rows = [row for row in pq.read_table(out / "days").to_pylist() if row["counter"] == "Files Installed"]
    found = {(row["level"], row["member"], row["total"], row["peak_minute"], row["per_second"]) for row in rows}
    assert found == {
        (level, member, 15, 10, 0.3)
        for level, member in (("replica", "a"), ("member", "a"), ("set", ""), ("fleet", ""))
    }


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


def test_the_command_writes_the_summary_and_tells_where(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in" / "s.jsonl", sample(0, {}), sample(5, {"Joins": 1}))
    out = tmp_path / "deep" / "out"
    assert run_cli(["summarize", str(tmp_path / "in"), "--output", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(out / "summary.json")
    assert "2 lines of journals read, 0 of them corrupt" in said.err
    # and once more over the one before
    write(tmp_path / "in" / "t.jsonl", sample(60, {}, run="r2"), sample(65, {"Joins": 2}, run="r2"))
    assert run_cli(["summarize", str(tmp_path / "in"), "--output", str(out)]) == 0
    assert json.loads((out / "summary.json").read_text())["sets"][0]["totals"] == {"Joins": 3}
    assert not [path for path in out.iterdir() if path.name.startswith(".") or path.suffix == ".tmp"]


@pytest.mark.parametrize("content", [None, "", "torn\n"])
def test_no_sample_is_an_error_of_its_own(
    spark: SparkSession, tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    if content is not None:
        write(tmp_path / "in" / "s.jsonl", content)
    assert run_cli(["summarize", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 2
    assert "Error: no " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
