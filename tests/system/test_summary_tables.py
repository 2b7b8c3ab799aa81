"""The tables of a summary: what is in them, that they depend on the samples alone, that nothing is computed twice;
as a job and as a stream, wherever it is killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import psutil
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from agent.counters import courses, history, parquet, stream
from agent.counters import summary as job
from agent.counters.archive import Policy, archive
from agent.counters.copying import copy
from agent.counters.ledger import bucket as bucket_of
from agent.counters.store import Store
from tests.system.java import java
from tests.unit.counters.s3server import bucket, s3_server
from tests.unit.counters.test_archive import line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DAY = date(2026, 1, 10)
DAY_S = 86_400
OTHER = {"member": "b", "member_guid": "gb"}
THIRD = {"member": "c", "member_guid": "gc"}
CONNECTION = {"connection": "a->b", "connection_guid": "gab"}
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Sessions:
    """One at a time, in one Java: that of this host alone, or one on a cluster."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._of: dict[str, Any] = {}
        self._spark: SparkSession | None = None

    def get(self, **of: Any) -> SparkSession:
        if self._spark is None or self._of != of:
            self.close()
            self._of, self._spark = of, self._stack.enter_context(job.spark_session(**of))
        return self._spark

    def close(self) -> None:
        self._stack.close()
        self._spark = None


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with java():
        made = Sessions()
        yield made
        made.close()


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    return sessions.get()


def put(folder: Path, number: int, seconds: Sequence[float], **more: Any) -> Path:
    """An archived file of samples at these seconds of DAY; two files are installed in each second."""
    path = folder / f"{number}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line(s, round(2 * s), **more) for s in seconds))
    day = DAY + timedelta(days=int(seconds[-1] // DAY_S))
    turned = folder / f"date={day}" / f"00000001-{number:06d}.parquet"
    parquet.write(parquet.Journal(path).table(), turned)
    path.unlink()
    return turned


def summed(spark: SparkSession, folder: Path | str, out: Path) -> list[str]:
    said: list[str] = []
    job.summarize(spark, [folder], out, said.append)
    return [text.removeprefix("adding up ") for text in said if text.startswith("adding up")]


def content(out: Path) -> dict[str, bytes]:
    """All tables."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("*/date=*/*.parquet"))}


def rows(out: Path, table: str, counter: str) -> list[dict[str, Any]]:
    found = [row for path in sorted((out / table).rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted((row for row in found if row["counter"] == counter), key=lambda row: (row["time"], row["level"]))


def test_minutes_hours_and_days_of_every_level(spark: SparkSession, tmp_path: Path) -> None:
    """a counts 2 files a second from 23:59:00 to 00:01:00, b as many in the first minute; no sample is at midnight."""
    folder, out = tmp_path / "in", tmp_path / "out"
    begin = DAY_S - 60
    seconds = [begin, begin + 30, begin + 50, begin + 70, begin + 120]
    put(folder, 1, seconds)
    put(folder, 2, [begin, begin + 59], **OTHER)
    put(folder, 0, [begin, begin + 59], counters={}, gauges={"Backlog": 7}, **CONNECTION)
    assert summed(spark, folder, out) == ["2026-01-10", "2026-01-11"]

    def totals(table: str, level: str) -> list[tuple[str, int, int]]:
        found = [row for row in rows(out, table, "Files Installed") if row["level"] == level]
        return [(f"{row['time']:%d %H:%M}", row["total"], row["peak_minute"]) for row in found]

    # 2 * 50 by 23:59:50; the 40 by 00:00:10 are of the day after, and so are the 100 by 00:01:00
    ours = [("10 23:59", 100, 100), ("11 00:00", 140, 140)]
    both = [("10 23:59", 100 + 118, 100 + 118), ("11 00:00", 140, 140)]
    assert totals("minutes", "fleet") == totals("minutes", "set") == both
    each = sorted([*ours, ("10 23:59", 118, 118)])
    assert sorted(totals("minutes", "replica")) == sorted(totals("minutes", "member")) == each
    assert totals("hours", "fleet") == [("10 23:00", 218, 218), ("11 00:00", 140, 140)]
    assert totals("days", "fleet") == [("10 00:00", 218, 218), ("11 00:00", 140, 140)]
    monday = [row for row in rows(out, "days", "Files Installed") if row["time"].day == 10]
    rates = [row["per_second"] for row in monday if row["level"] == "replica"]
    assert rates == [2.0, 2.0], "of the 50 s and 59 s in which they were seen"
    samples = {
        (row["level"], row["time"].day): (row["samples"], row["starts"], row["observed_us"])
        for row in rows(out, "days", "Sample")
    }
    assert samples["fleet", 10] == (3 + 2, 2, 59 * 10**6)
    assert samples["fleet", 11] == (2, 0, 70 * 10**6)
    assert samples["connection", 10] == (2, 1, 59 * 10**6)
    (backlog,) = [row for row in rows(out, "days", "Backlog") if row["level"] == "connection"]
    assert (backlog["last"], backlog["min"], backlog["max"]) == (7, 7, 7)


def test_a_minute_in_which_an_agent_was_started_again_is_one_row(spark: SparkSession, tmp_path: Path) -> None:
    """2 files a second from :00 to :20, and from :30 to :55, by another start."""
    folder, out = tmp_path / "in", tmp_path / "out"
    put(folder, 1, range(0, 25, 5))
    again = range(0, 30, 5)
    lines = (line(30 + s, 2 * s, start=2, run="s", seq=s // 5, mono_us=s * 10**6) for s in again)
    (folder / "2.jsonl").write_text("".join(lines))
    summed(spark, folder, out)
    (installed,) = [row for row in rows(out, "minutes", "Files Installed") if row["level"] == "replica"]
    assert (installed["total"], installed["peak_minute"]) == (2 * (20 + 25), 2 * (20 + 25))
    (sample,) = [row for row in rows(out, "minutes", "Sample") if row["level"] == "replica"]
    assert (sample["samples"], sample["starts"], sample["observed_us"]) == (5 + 6, 2, (20 + 25) * 10**6)


def test_the_same_samples_give_the_same_bytes_in_one_run_or_in_many(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    put(folder, 1, range(DAY_S - 600, DAY_S, 5))
    put(folder, 2, range(DAY_S - 600, DAY_S, 5), **OTHER)
    summed(spark, folder, out)
    first = content(out)
    assert summed(spark, folder, out) == []
    summary = (out / "summary.json").read_bytes()
    put(folder, 3, range(DAY_S - 5, DAY_S + 600, 5))
    assert summed(spark, folder, out) == ["2026-01-11"], "a day more costs a day"
    assert {path: whole for path, whole in content(out).items() if "2026-01-10" in path} == first
    late = put(folder, 4, range(DAY_S - 900, DAY_S - 595, 5))
    before = content(out)
    assert summed(spark, folder, out) == ["2026-01-10"]
    assert {path for path, whole in content(out).items() if before.get(path) != whole} == {
        path
        for path in before
        if "2026-01-10" in path and not path.endswith(f"part-{bucket_of(('hq', 'b')):02d}.parquet")
    } - {path for path in before if path.startswith("health")}, "its day alone, and not the file that b is in"
    summed(spark, folder, tmp_path / "in one")
    assert content(out) == content(tmp_path / "in one")
    assert (out / "summary.json").read_bytes() != summary

    shutil.copy(late, folder / "copy.parquet")
    archive(folder, "", Policy(1, 30, 365, 1 << 40), DAY + timedelta(days=5))
    assert not late.exists(), "it was thinned"
    before = content(out)
    assert summed(spark, folder, out) == []
    assert content(out) == before


def test_files_of_before_there_were_courses_give_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """Alone, and beside such that have them. One whose numbers are those of another member is left out, and named."""
    folder = tmp_path / "in"
    put(folder, 1, range(0, 600, 5))
    put(folder, 2, range(595, 700, 5))
    other = put(folder, 3, range(0, 300, 5), **OTHER)
    put(folder, 4, [30, 90], counters={"Packets Sent": 5}, **OTHER, **CONNECTION)
    summed(spark, folder, tmp_path / "out")
    for name, bare in (("mixed", ["00000001-000002", "00000001-000003"]), ("bare", [""])):
        shutil.copytree(folder, tmp_path / name)
        for path in (tmp_path / name).rglob("*.parquet"):
            if path.name.startswith(tuple(bare)):
                pq.write_table(pq.read_table(path).drop_columns([courses.COLUMN]), path)
        summed(spark, tmp_path / name, tmp_path / f"{name} out")
        assert content(tmp_path / f"{name} out") == content(tmp_path / "out") != {}, name

    bad = pq.read_table(other)
    mine = pq.read_table(folder / "date=2026-01-10" / "00000001-000001.parquet")[courses.COLUMN][: len(bad)]
    other.unlink()
    summed(spark, folder, tmp_path / "without it")
    pq.write_table(bad.set_column(bad.schema.get_field_index(courses.COLUMN), courses.COLUMN, mine), other)
    summed(spark, folder, tmp_path / "with it")
    assert content(tmp_path / "with it") == content(tmp_path / "without it")
    [skipped] = json.loads((tmp_path / "with it" / "summary.json").read_bytes())["source"]["skipped"]
    assert (skipped["file"], "does not stand for" in skipped["why"]) == (str(other), True)


def test_what_is_in_a_store_gives_the_same_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In S3, which is fetched, and in a place that Spark reads itself; a run takes in what is new there."""
    folder, out = tmp_path / "in", tmp_path / "out"
    put(folder, 1, range(0, 600, 5))
    put(folder, 2, range(0, 600, 5), **OTHER)
    with s3_server() as port:
        url = bucket(port, "summary", monkeypatch)
        copy(folder, url)
        Store(url).put("torn.parquet", b"PAR1")
        assert summed(spark, url, out) == ["2026-01-10"]
        [skipped] = json.loads((out / "summary.json").read_bytes())["source"]["skipped"]
        assert skipped["file"] == f"{url.partition('?')[0]}/torn.parquet"
        assert "torn" in skipped["why"]
        assert summed(spark, url, out) == []
        put(folder, 3, range(600, 900, 5))
        assert copy(folder, url) == 1
        assert summed(spark, url, out) == ["2026-01-10"]
        assert not (out / ".scratch").exists()
    summed(spark, folder, tmp_path / "local")
    assert content(out) == content(tmp_path / "local")

    fsspec.register_implementation("pfile", Proxy, clobber=True)
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.pfile.impl", "org.apache.hadoop.fs.ProxyLocalFileSystem")
    monkeypatch.delattr(Store, "fetch")
    assert summed(spark, f"pfile://{folder}", tmp_path / "by Spark") == ["2026-01-10"]
    assert content(out) == content(tmp_path / "by Spark")


class Proxy(LocalFileSystem):
    """What Hive has to try out another file system than that of files: local ones by another name."""

    protocol = ("pfile",)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("pfile://")))


def test_late_samples_of_one_member_keep_what_others_had_whose_files_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    put(folder, 1, range(0, 60, 5))
    put(folder, 2, range(0, 60, 5), **OTHER)
    summed(spark, folder, out)
    shutil.rmtree(folder)
    put(folder, 3, range(55, 125, 5))
    assert summed(spark, folder, out) == ["2026-01-10"]
    found = {row["member"]: row["total"] for row in rows(out, "days", "Files Installed") if row["level"] == "replica"}
    assert found == {"a": 2 * (120 - 55), "b": 2 * 55}, "a's first minute went with its file"


def test_what_is_not_well_is_told_while_it_holds(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"

    def amounts(backlog: int, unjoined: int) -> dict[str, Any]:
        return {"gauges": {"Backlog": backlog, "Unjoined": unjoined}, "counters": {}, **CONNECTION}

    # From 1 GiB on bytes count; what is older than an hour all the time waits long, unless it is not joined.
    gib, other = 1 << 30, {"connection": "b->a", "connection_guid": "guid of b->a"}
    hours = [(90, 0), (150, 1), (200, 1), (180, 1)]
    waits = [(gib, 3601), (gib + 1, 3601), (gib + 1, 3600), (gib - 1, 7200)]
    folder.mkdir()
    for number, ((backlog, unjoined), (size, age)) in enumerate(zip(hours, waits, strict=True)):
        there = {"Backlog in Bytes": size, "Age of Oldest Change Order in Seconds": age}
        also = {"counters": there, "gauges": {"Unjoined": int(number == 3)}, **other}
        seconds = 3600 * number + 1, 3600 * number + 1800
        lines = [line(at, 0, **of) for at in seconds for of in (amounts(backlog, unjoined), also)]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    lags = [(300, 301), (301, 1200), (0, 5000)]
    (folder / "c.jsonl").write_text("".join(
        line(3600 * number + at, 0, counters={"Journal Lag in Seconds": lag, "Backlog in Bytes": 3 * gib}, **THIRD)
        for number, (least, most) in enumerate(lags) for at, lag in ((1, least), (1800, most))
    ))  # fmt: skip
    full = {"KB of Staging Space Free": 4, "KB of Staging Space In Use": 96, "Change Orders Retried": 11}
    little = {"Journal Lag in Seconds": 100, "Backlog in Bytes": 1}
    lines = [
        line(2, 0, counters=little, **OTHER),
        line(3 * 3600, 0, counters={}, **OTHER),
        line(3 * 3600 + 1800, 0, counters=full, **OTHER),
    ]
    (folder / "b.jsonl").write_text("".join(lines))
    summed(spark, folder, out)
    found = [row for path in (out / "health").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    told = sorted((row["rule"], row["time"].hour, row["value"]) for row in found)
    assert told == [
        ("backlog", 1, 150), ("backlog", 2, 200), ("backlog in bytes", 1, gib + 1), ("journal lag", 1, 1200),
        ("not joined", 1, 1), ("not joined", 2, 1), ("not joined", 3, 1), ("not joined", 3, 1),
        ("retries", 3, 11), ("staging full", 3, 96), ("waits long", 0, 3601), ("waits long", 1, 3601),
    ]  # fmt: skip
    for counter, amount in (("Journal Lag in Seconds", 300), ("Backlog in Bytes", 3 * gib + 1)):
        of_all = [row for row in rows(out, "minutes", counter) if row["level"] in ("set", "fleet")]
        assert [row["last"] for row in of_all[:2]] == [amount] * 2, "of ages the highest counts"
    summary = job.summarize(spark, [folder], out, lambda _: None)
    open_ = {(one["rule"], one["member"], one["connection"], one["since"]) for one in summary["health"]}
    assert open_ == {
        ("not joined", "a", "a->b", "2026-01-10T01:00:00.000Z"),
        ("not joined", "a", "b->a", "2026-01-10T03:00:00.000Z"),
        ("silent", "c", "", "2026-01-10T02:30:00.000Z"),
        ("retries", "b", "", "2026-01-10T03:00:00.000Z"),
        ("staging full", "b", "", "2026-01-10T03:00:00.000Z"),
    }


def test_history_reads_what_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    put(folder, 1, range(0, 7200, 60))
    put(folder, 2, range(0, 7200, 60), **OTHER)
    put(folder, 3, range(DAY_S - 60, DAY_S + 60, 60))
    summed(spark, folder, out)

    def asked(table: str, level: str, **more: Any) -> list[tuple[str, str, int]]:
        found = history.history(out, table, level, ["Files Installed"], **more)
        return [(row["time"], row["member"], row["total"]) for row in found["rows"]]

    one = datetime(2026, 1, 10, 1, tzinfo=UTC)
    assert asked("hours", "fleet", until=one) == [("2026-01-10T00:00:00Z", "", 2 * 2 * 3600)]
    second = [("2026-01-10T01:00:00Z", name, 2 * 3540) for name in "ab"]
    until = datetime(2026, 1, 10, 23, tzinfo=UTC)
    assert asked("hours", "replica", since=one, until=until) == second
    assert asked("hours", "replica", since=one, until=until, names={"member": "b"}) == second[1:]
    found = history.history(out, "minutes", "member", ["Files Installed"], most=3)
    assert (len(found["rows"]), found["more"]) == (3, True)
    assert found["rows"][0]["peak_per_second"] == found["rows"][0]["per_second"] == 2.0
    with pytest.raises(FileNotFoundError, match="holds no table 'days'"):
        history.history(tmp_path, "days", "fleet")


def test_a_stream_that_is_killed_at_any_point_counts_every_sample_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended before its n-th replacement of a file, for ten n, and begun again with the checkpoint. A batch makes
    ten: the part, what is above it, hours, days, health, two charts, the summary, and two of the state. What is
    removed at the end of a job stays there, as it does after a kill."""
    folder, out = tmp_path / "in", tmp_path / "out"
    for number in range(3):
        put(folder, number, range(max(600 * number - 5, 0), 600 * (number + 1), 5))
    real, left = Path.replace, [0]

    def replace(path: Path, into: Path) -> Path:
        if out in Path(into).parents:
            left[0] -= 1
            if left[0] == 0:
                raise OSError("killed")
        return real(path, into)

    remove: Callable[..., None] = shutil.rmtree

    def rmtree(path: Path, **more: Any) -> None:
        if left[0] != 0 or out not in Path(path).parents:
            remove(path, **more)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    killed = 0
    for number, point in enumerate(range(1, 11), 3):
        left[0] = point
        try:
            stream.ended(stream.follow(spark, [folder], out, lambda _: None, every_s=None))
        except job.SummaryError:
            assert left[0] == 0, "it ended by itself"
            killed += 1
        if number % 3 == 0:
            put(folder, number, range(600 * number - 5, 600 * (number + 1), 5))
    left[0] = -1
    stream.ended(stream.follow(spark, [folder], out, lambda _: None, every_s=None))
    assert killed >= 8
    summed(spark, folder, tmp_path / "as a job")
    assert content(out) == content(tmp_path / "as a job")


def test_a_cluster_makes_the_same_bytes_also_where_an_executor_is_killed(sessions: Sessions, tmp_path: Path) -> None:
    """A standalone master with two workers, here in the Java of the driver; each has an executor, which is a process.
    `script/spark` has them as processes, too, and kills workers."""
    for number, of in enumerate(({}, OTHER)):
        for day in range(2):
            put(tmp_path / "in", 2 * number + day, range(max(day * DAY_S - 5, 0), day * DAY_S + 600, 5), **of)
    summed(sessions.get(), tmp_path / "in", tmp_path / "here")
    sessions.close()
    from pyspark import SparkConf, SparkContext

    jvm = SparkContext._jvm
    assert jvm is not None
    cluster = jvm.org.apache.spark.deploy.LocalSparkCluster.apply(2, 1, 1024, SparkConf(_jvm=jvm)._jconf)
    [url] = cluster.start()
    assert url.startswith("spark://")
    killed: list[int] = []

    def executes(one: psutil.Process) -> bool:
        try:
            return _EXECUTOR in one.cmdline()
        except psutil.Error:  # it has ended
            return False

    def tell(text: str) -> None:
        if text == "adding up 2026-01-11":
            executors = [one for one in psutil.Process().children(recursive=True) if executes(one)]
            assert len(executors) == 2
            executors[0].kill()
            killed.append(executors[0].pid)

    try:
        events = tmp_path / "events"
        events.mkdir()
        there = sessions.get(master=url, driver_host="127.0.0.1", event_log=events.as_uri(), patience_s=600)
        assert there.sparkContext.master == url
        job.summarize(there, [tmp_path / "in"], tmp_path / "there", tell)
    finally:
        sessions.close()
        cluster.stop()
    assert len(killed) == 1
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert any(events.iterdir()), "the event log that was asked for"
