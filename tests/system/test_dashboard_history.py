"""The history on the dashboard, in a real Chromium: of this member's own samples and of a summary's tables, from a set
down to a connection, drawn in colours that stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.dashboard import DashboardServer
from tests.system.chromium import Page, chromium, needs_chromium
from tests.system.test_dashboard_chromium import FakeAgent
from tests.unit.counters.test_archive import line

pytestmark = [pytest.mark.slow, needs_chromium]

MEMBERS = [f"m{number}" for number in range(13)]


def samples(folder: Path, now: datetime) -> None:
    """Half an hour: 2 files a second in docs, 4 in other, and a connection of docs whose backlog is 7."""
    folder.mkdir()
    lines = []
    for second in range(0, 1800, 5):
        time = f"{now - timedelta(seconds=1800 - second):%Y-%m-%dT%H:%M:%S.000Z}"
        lines.append(line(second, 2 * second, time=time))
        lines.append(line(second, 4 * second, time=time, set="other", set_guid="go"))
        of = {"connection": "a->b", "connection_guid": "gab"}
        lines.append(line(second, 0, time=time, counters={}, gauges={"Backlog": 7}, **of))
    (folder / "1.jsonl").write_text("".join(lines))


def tables(folder: Path, now: datetime) -> None:
    """Minutes of a summary: member mN installs N files a second in docs, all of them by a connection from m0."""
    texts = ("level", "fleet", "member", "set", "connection", "counter")
    numbers = ("total", "peak_minute", "last", "min", "max")
    rows: list[dict[str, Any]] = []
    for minute in range(1, 31):
        time = (now - timedelta(minutes=minute)).replace(second=0, microsecond=0)

        def add(level: str, rate: float, time: datetime = time, **names: str) -> None:
            of = {"level": level, "fleet": "hq", "counter": "Files Installed", "set": "docs", "time": time}
            rows.append(dict.fromkeys(texts, "") | dict.fromkeys(numbers) | of | {"per_second": rate} | names)

        add("set", sum(range(13)))
        for number, name in enumerate(MEMBERS):
            add("replica", float(number), member=name)
            add("connection", float(number), member=name, connection=f"m0->{name}")
    schema = pa.schema(
        [*((name, pa.string()) for name in texts), *((name, pa.int64()) for name in numbers),
         ("per_second", pa.float64()), ("time", pa.timestamp("us", "UTC"))]
    )  # fmt: skip
    for day in {row["time"].date() for row in rows}:
        path = folder / "minutes" / f"date={day}" / "part-00.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row for row in rows if row["time"].date() == day], schema), path)
    (folder / "summary.json").write_text("{}")


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    now = datetime.now(UTC)
    await asyncio.to_thread(samples, tmp_path / "samples", now)
    (tmp_path / "summary").mkdir()
    await asyncio.to_thread(tables, tmp_path / "summary", now)
    server = DashboardServer(FakeAgent(), "127.0.0.1", 0, [tmp_path / "summary"], samples=tmp_path / "samples")
    await server.start()
    try:
        async with chromium(tmp_path) as page:
            await page.send("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
            await page.send("Page.navigate", url=f"{server.url}#history")
            yield page
    finally:
        await server.close()


LABELS = "[...document.querySelectorAll('#history-plot .u-series .u-label')].map(one => one.textContent).join()"
SAID = "document.getElementById('history-said').textContent"


def colour(label: str) -> str:
    """Of what the legend has by this label."""
    return (
        "(one => one && one.querySelector('.u-marker').style.borderColor)"
        f"([...document.querySelectorAll('#history-plot .u-series')].find(one => one.textContent.includes('{label}')))"
    )


async def click(page: Page, of: str, text: str) -> None:
    await page.js(f"[...document.querySelectorAll('#{of} button')].find(one => one.textContent === '{text}').click()")


async def choose(page: Page, of: str, value: str) -> None:
    await page.js(
        f"(of => {{ of.value = '{value}'; of.dispatchEvent(new Event('change')); }})(document.getElementById('{of}'))"
    )


async def test_of_this_member_without_a_summary_down_to_a_connection(page: Page) -> None:
    await page.until(f"{LABELS}.endsWith('docs,other')")
    assert await page.js("document.querySelector('#history-plot canvas').width") > 100
    rows = await page.rows("The same as a table")
    told = {tuple(row) for row in rows.values()}
    assert ("2/s", "4/s") in told
    assert len(rows) >= 29, "of each minute"
    offset = await page.js("new Date().getTimezoneOffset()")
    assert offset == -330
    local = datetime.now(UTC) + timedelta(minutes=330)
    assert any(when[:13] in (f"{local:%Y-%m-%d %H}", f"{local - timedelta(hours=1):%Y-%m-%d %H}") for when in rows)
    docs = await page.js(colour("docs"))

    await click(page, "history-into", "docs")
    await page.until(f"{SAID} === 'Nothing of “Files Installed” in this time.'")
    await choose(page, "history-counter", "Backlog")
    await page.until(f"{LABELS}.endsWith('a → b')")
    assert {row[0] for row in (await page.rows("The same as a table")).values()} == {"7"}
    await click(page, "history-into", "a → b")
    await page.until("document.getElementById('history-way').textContent === 'This memberdocsa → b'")
    await click(page, "history-way", "This member")
    await choose(page, "history-counter", "Files Installed")
    await page.until(f"{LABELS}.endsWith('docs,other')")
    assert await page.js(colour("docs")) == docs, "it keeps its colour"
    for width, scheme in ((1280, "light"), (400, "dark")):
        await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        await page.until(f"document.querySelector('#history-plot .uplot')?.getBoundingClientRect().right <= {width}")
        assert (await page.judged())[1] == []
        assert await page.js("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    assert page.complaints() == []


async def test_of_the_fleet_from_its_sets_to_the_members_and_their_connections(page: Page) -> None:
    await page.until(f"{LABELS}.endsWith('docs,other')")
    await choose(page, "history-source", "fleet")
    await page.until("document.getElementById('history-way').textContent === 'Fleet'")
    await page.until(f"{LABELS}.endsWith('docs')")
    assert {row[0] for row in (await page.rows("The same as a table")).values()} == {"78/s"}
    await click(page, "history-into", "docs")
    await page.until(f"{SAID} === 'Drawn are the 12 with most of it, of 13.'")
    colours = {await page.js(colour(name)) for name in ("m1", "m2", "m3")}
    assert len(colours) > 1
    third = await page.js(colour("m3"))
    await click(page, "history-into", "m3")
    await page.until(f"{LABELS}.endsWith('m0 → m3')")
    assert {row[0] for row in (await page.rows("The same as a table")).values()} == {"3/s"}
    await click(page, "history-way", "docs")
    await page.until(f"{SAID}.startsWith('Drawn are')")
    assert await page.js(colour("m3")) == third
    for range_ in ("24 h", "7 d", "90 d", "1 h"):
        await click(page, "history-range", range_)
        await page.until(
            "[...document.querySelectorAll('#history-range button')].filter(one => one.ariaPressed === 'true')"
            f".map(one => one.textContent).join() === '{range_}'"
        )
    await page.until(f"{SAID}.startsWith('Drawn are')")
    assert [one for one in page.complaints() if "400" not in one] == [], "but that there are no days"
