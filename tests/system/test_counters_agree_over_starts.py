"""Of three members one is restarted and one is killed, and the clock of that one jumps a day ahead and back: what they
have counted is the same wherever one asks, and rates are those of the time that really passed."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agent.cli import run_cli
from agent.counters import stream
from agent.counters import summary as job
from agent.counters.archiver import archive_options
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, Snapshot, described, is_raw_count
from agent.dashboard import DashboardServer
from agent.dashboard.metrics import of_counter
from config.load import load_agent_config
from tests.system.chromium import Page, chromium, needs_chromium
from tests.system.demo import PATIENCE, Demo, ask, spawn
from tests.system.java import java
from tests.system.journals import Journals, Start
from tests.system.stepped import ahead
from tests.system.test_dashboard_chromium import FakeAgent
from tests.system.test_summary_tables import content

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Promised = Mapping[str, Mapping[str, int]]

DAY_S: Final = 86_400
#: Of each file that is written.
SIZE: Final = 1000
#: What three members count: 5 files are written at a; then b and c begin anew; then 7 at a, and 11 at b.
FIRST: Final = {
    "a": {"Local Change Orders Issued": 5, "Files Installed": 0},
    "b": {"Local Change Orders Issued": 0, "Files Installed": 5},
    "c": {"Local Change Orders Issued": 0, "Files Installed": 5},
}
LAST: Final = {
    "a": {"Local Change Orders Issued": 12, "Files Installed": 11},
    "b": {"Local Change Orders Issued": 11, "Files Installed": 7},
    "c": {"Local Change Orders Issued": 0, "Files Installed": 18},
}
WHOLE: Final = {
    "a": {"Local Change Orders Issued": 12, "Files Installed": 11},
    "b": {"Local Change Orders Issued": 11, "Files Installed": 12},
    "c": {"Local Change Orders Issued": 0, "Files Installed": 23},
}
STARTS: Final = {"a": 1, "b": 2, "c": 2}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with java(), job.spark_session() as session:
        yield session


@pytest.mark.slow
@needs_chromium
def test_over_a_restart_a_kill_and_a_clock_that_jumps(spark: SparkSession, tmp_path: Path) -> None:
    begin = time.time()
    demo = Demo(tmp_path / "demo", members=3, aging=0.3)
    with ExitStack() as stack, demo:  # journals are read until members have written what they write at their end
        samples = {name: one.state / "samples" for name, one in demo.members.items()}
        journals = Journals(samples)
        journals.start()
        stack.callback(journals.close)
        run(demo, journals)
        asyncio.run(asked_all(demo, tmp_path))
    end = time.time()
    assert {name: len(starts) for name, starts in journals.starts.items()} == STARTS
    for name, starts in journals.starts.items():
        assert chosen(added(starts, ""), WHOLE[name]) == WHOLE[name]

    # by a job, of what is archived already and of the journals as members left them
    batch = tmp_path / "summary"
    assert run_cli(["summarize", *map(os.fspath, samples.values()), "--output", os.fspath(batch)]) == 0
    summary = json.loads((batch / "summary.json").read_text())
    summed_up(summary, journals, begin, end)

    # by the stream, of the archives that the members' own process makes of the journals
    for name, folder in samples.items():
        options = archive_options(load_agent_config(demo.members[name].config))
        command = [sys.executable, "-P", "-m", "agent.counters.archive", os.fspath(folder), "--current", ""]
        subprocess.run([*command, *options], check=True)
        assert not [*folder.glob("*.jsonl")]
    followed = tmp_path / "followed"
    stream.ended(stream.follow(spark, [*samples.values()], followed, lambda _: None, every_s=None))
    assert content(followed) == content(batch)
    streamed = json.loads((followed / "summary.json").read_text())
    assert [streamed[part] for part in ("sets", "connections", "series")] == [
        summary[part] for part in ("sets", "connections", "series")
    ]
    asyncio.run(shown_of_the_fleet(batch, tmp_path))


def run(demo: Demo, journals: Journals) -> None:
    """What happens."""
    write(demo, "a", range(5))
    demo.wait_converged()
    sampled(demo, journals, FIRST, dict.fromkeys("abc", 1))

    for name in "bc":  # samples of those that begin anew are taken twice a second
        with demo.members[name].config.open("a") as config:
            config.write("\n[counters]\nsample_interval = 0.5\n")
    terminated(demo, "b")
    demo.restart("b")
    demo.kill9("c")
    clock = demo.directory / "clock of c"
    clock.write_bytes(bytes(8))
    one = demo.members["c"]
    program = ["-m", "tests.system.stepped", os.fspath(clock), "run", "--config", os.fspath(one.config)]
    with one.log.with_name("by-hand.log").open("ab") as log:
        demo.by_hand["c"] = spawn([sys.executable, "-P", *program], log)
    demo.until("c answers", lambda: ask(one.state, "status") is not None)
    demo.until("b and c are joined", lambda: all(joined(demo, name) for name in "abc"))

    def one_by_one(member: str, numbers: range) -> None:
        """Each is in a sample of c before the next is written: it writes nothing down where nothing has changed."""
        for number in numbers:
            write(demo, member, range(number, number + 1))
            demo.until(
                f"c has counted file {number}",
                lambda number=number: journals.starts["c"][2].totals().get("Files Installed", 0) > number - 5,
            )

    demo.until("c has begun anew", lambda: 2 in journals.starts["c"])
    one_by_one("a", range(5, 12))
    ahead(clock, DAY_S)
    one_by_one("b", range(12, 18))
    ahead(clock, 0)
    one_by_one("b", range(18, 23))
    demo.wait_converged()
    days = {datetime.fromisoformat(label).timestamp() // DAY_S for label in journals.starts["c"][2].labels}
    assert max(days) > min(days), "its samples were a day ahead"
    assert max(days) > time.time() // DAY_S
    sampled(demo, journals, LAST, STARTS)


def write(demo: Demo, member: str, numbers: range) -> None:
    for number in numbers:
        (demo.members[member].root / f"file {number}").write_bytes(os.urandom(SIZE))


def joined(demo: Demo, member: str) -> bool:
    return all(one["state"] == "joined" for entry in demo.status(member)["sets"] for one in entry["connections"])


def terminated(demo: Demo, member: str) -> None:
    """Asked to end, and gone."""
    descriptor = os.pidfd_open(demo.pid(member))
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        assert select.select([descriptor], [], [], PATIENCE)[0], f"{member} does not end"
    finally:
        os.close(descriptor)


def chosen(counters: Mapping[str, int], of: Mapping[str, int]) -> dict[str, int]:
    """Of all counters those that are promised; absent is 0 (samples leave zeros out)."""
    return {name: counters.get(name, 0) for name in of}


def sampled(demo: Demo, journals: Journals, promised: Promised, start: Mapping[str, int]) -> None:
    """Wait until all of it is in a sample of that start."""
    for name, values in promised.items():
        demo.until(
            f"a sample of {name}",
            lambda name=name, values=values: chosen(journals.starts[name][start[name]].totals(), values) == values,
        )


async def asked_all(demo: Demo, scratch: Path) -> None:
    """All members."""
    async with chromium(scratch) as page:
        for name in "abc":
            await asked(demo, name, page)
        assert page.complaints() == []


async def asked(demo: Demo, member: str, page: Page) -> None:
    """All counters of a member by `frs counters`, by its metrics and on its page, which are asked in between."""
    before: Snapshot = demo.counters(member)
    ((set_name, of_set),) = before[SET_OBJECT].items()
    assert chosen(of_set, LAST[member]) == LAST[member]
    url, found = demo.members[member].dashboard_url, dict[str, dict[str, dict[str, int]]]()

    def scraped() -> bool:
        found["metrics"] = by_metrics(url)
        return no_less(before, found["metrics"])

    demo.until(f"the metrics of {member} are no older than its counters", scraped)
    await page.send("Page.navigate", url="about:blank")
    await page.send("Page.navigate", url=f"{url}#counters")
    await page.until("document.querySelector('#counter-table td')")
    await page.js("document.getElementById('counter-zeros').click()")
    found["page"] = {}
    for instances in (before[SET_OBJECT], before[CONN_OBJECT]):
        for instance, values in instances.items():
            await page.js(
                f"(of => {{ of.value = {json.dumps(instance)}; of.dispatchEvent(new Event('change')); }})"
                "(document.getElementById('counter-of'))"
            )
            sums = {name: value for name, value in values.items() if not is_raw_count(SET_OBJECT, name)}
            await page.until(
                f"document.getElementById('counter-of').value === {json.dumps(instance)} && "
                f"(shown => Object.entries({json.dumps(sums)}).every(([name, value]) => shown[name] >= value))({SHOWN})"
            )
            found["page"][instance] = await page.js(SHOWN)
    after: Snapshot = demo.counters(member)
    for source, told in found.items():
        assert set(told) == {set_name, *before[CONN_OBJECT]}, source
        assert chosen(told[set_name], LAST[member]) == LAST[member], f"{source} of {member}"
        assert no_less(before, told), f"{source} of {member}"
        for instances in (after[SET_OBJECT], after[CONN_OBJECT]):
            for instance, values in instances.items():
                more = {name: value for name, value in told[instance].items() if value > values[name]}
                assert not [name for name in more if not is_raw_count(SET_OBJECT, name)], f"{source}, {more}"


#: The counters that a page shows, with their values.
SHOWN: Final = (
    "Object.fromEntries([...document.querySelectorAll('#counter-table tbody tr')]"
    ".map(row => [row.cells[0].textContent, Number(row.cells[1].textContent.replace(/[^0-9]/g, ''))]))"
)


def no_less(before: Snapshot, told: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether no sum is less than it was before; and all that were asked for are there."""
    return all(
        told[instance][name] >= value
        for object_name, instances in before.items()
        for instance, values in instances.items()
        for name, value in values.items()
        if not is_raw_count(object_name, name) and name in told[instance]
    )


def by_metrics(url: str) -> dict[str, dict[str, int]]:
    """The counters as the parser of the Prometheus client finds them, but those of which a histogram is made."""
    request = urllib.request.Request(f"{url}metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text = answer.read().decode()
    values: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            values.setdefault(one.name, []).append((one.labels, one.value))
    found: dict[str, dict[str, int]] = {}
    for counter in described():
        family_of = of_counter(counter)
        if family_of.kind == "histogram":
            continue
        scale = 1024 if counter.counter.startswith("KB of ") else 1
        for labels, value in values[family_of.sample]:
            instance = "/".join(labels[name] for name in ("set", "connection") if name in labels)
            found.setdefault(instance, {})[counter.counter] = int(value) // scale
    return found


def added(starts: Mapping[int, Start], connection: str) -> dict[str, int]:
    """What all starts have counted."""
    sums = Counter[str]()
    for one in starts.values():
        sums.update({name: n for name, n in one.totals(connection).items() if not is_raw_count(SET_OBJECT, name)})
    return dict(sums)


def summed_up(summary: Mapping[str, Any], journals: Journals, begin: float, end: float) -> None:
    """The summary has all that was counted, at the time at which it was, and rates of the time that passed."""
    assert summary["source"]["skipped"] == []
    sets = {entry["member"]: entry for entry in summary["sets"]}
    assert set(sets) == set("abc")
    for name, entry in sets.items():
        starts = journals.starts[name]
        assert entry["totals"] == added(starts, "")
        assert chosen(entry["totals"], WHOLE[name]) == WHOLE[name]
        assert entry["totals"].get("Bytes of Files Installed", 0) == SIZE * WHOLE[name]["Files Installed"]
        assert entry["runs"] == STARTS[name]
        took = sum(one.really() for one in starts.values())
        for counter in ("Files Installed", "Bytes of Files Installed", "Packets Sent in Bytes"):
            assert entry["per_second"][counter] == pytest.approx(entry["totals"][counter] / took, rel=0.01), name
        for which in ("first", "last"):
            assert begin - 60 < datetime.fromisoformat(entry[which]).timestamp() < end + 60, f"{which} of {name}"
    ends = {(entry["member"], entry["connection"]): entry["totals"] for entry in summary["connections"]}
    assert len(ends) == 12
    for (name, connection), totals in ends.items():
        assert totals == added(journals.starts[name], connection), f"{connection} as {name} has it"


async def shown_of_the_fleet(folder: Path, scratch: Path) -> None:
    """What a page shows of a summary."""
    server = DashboardServer(FakeAgent(), "127.0.0.1", 0, [folder])
    await server.start()
    try:
        async with chromium(scratch) as page:
            await page.send("Page.navigate", url=f"{server.url}#history")
            await page.until("document.querySelectorAll('#fleet-members tbody tr').length === 3")
            rows = await page.rows("Replica sets of all members")
            for name in "abc":
                _, _, starts, installed, *_ = rows[name]
                assert (starts, installed) == (str(STARTS[name]), str(WHOLE[name]["Files Installed"])), name
            assert [one for one in page.complaints() if "/api/history/own" not in one] == [], "it has no samples itself"
    finally:
        await server.close()
