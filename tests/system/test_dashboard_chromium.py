"""The page in a real headless Chromium, driven over its debugging protocol, and judged by axe-core."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.counters.registry import SET_OBJECT, Counters, Snapshot, described
from agent.dashboard import DashboardServer
from agent.reporting.health import problems
from tests.system.chromium import Page, chromium, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"

SUMMARY = {
    "format": 3,
    "generated": "2026-01-01T01:00:00.000Z",
    "first": "2026-01-01T00:00:00.000Z",
    "last": "2026-01-01T00:00:10.000Z",
    "source": {"files": 1, "lines": 9, "corrupt_lines": 1},
    "unknown_counters": [],
    "sets": [
        {
            "member": "b", "set": "docs", "observed_s": 10, "runs": 1, "samples": 3,
            "totals": {"Files Installed": 31_337, "Bytes of Files Installed": 2048}, "per_second": {},
            "peak_per_second": {}, "raw": {}, "derived": {"staging_use": 0.125},
        }
    ],
    "connections": [
        {
            "member": "b", "set": "docs", "connection": "a->b", "observed_s": 10, "runs": 1, "samples": 3,
            "totals": {"Packets Sent": 12}, "per_second": {}, "peak_per_second": {}, "raw": {},
            "derived": {"backlog_max": 77},
        }
    ],
    "left_out": {"sets": 9, "connections": 0},
    "health": [
        {"rule": "not joined", "member": "b", "set": "docs", "connection": "a->b", "value": 1,
         "since": "2026-01-01T00:00:00.000Z", "advice": f"ask {HOSTILE}"},
    ],
    "series": {
        "bucket_s": 5, "start": "2026-01-01T00:00:00.000Z",
        "rows": [{"member": "b", "set": "docs", "counter": "Files Installed", "values": [30_000, 1_337]}],
    },
    "charts": {"light": "chart-light.svg", "dark": "chart-dark.svg"},
}  # fmt: skip
CHART = '<svg xmlns="http://www.w3.org/2000/svg" width="749" height="403"><rect width="9" height="9"/></svg>'


class FakeAgent:
    """A member whose counters move at each look and whose states a test sets."""

    def __init__(self) -> None:
        self.registry = Counters()
        self.registry.add_set("docs")
        self.registry.add_set("empty")
        for name in ("a->b", "c->a", "a->c"):
            self.registry.add_cxtion("docs", name)
        self.registry.inc_both("docs", "a->b", "Packets Sent", 4_321)
        self.registry.set_value("docs", "Journal Lag in Seconds", 120)
        self.looks = itertools.count()
        self.state = "vvjoin"
        self.refusal: str | None = f"refused by {HOSTILE}"
        self.joins = "unjoined"
        self.away = self.stopped = False
        self.told: list[dict[str, Any]] = []  # by other members
        self.received = 1 << 20
        self.oldest = f"{datetime.now(UTC) - timedelta(seconds=190):%Y-%m-%dT%H:%M:%SZ}"

    def transfers(self) -> list[dict[str, Any]]:
        self.received += 1 << 20
        return [
            {"id": "1", "set": "docs", "partner": "b", "path": HOSTILE, "received": self.received, "size": 1 << 40},
            {"id": "2", "set": "docs", "partner": "c", "path": "new", "received": 0, "size": None},
        ]

    async def changes(self) -> list[dict[str, Any]]:
        return []

    async def conflicts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"items": [], "groups": []}

    def counters(self) -> Snapshot:
        self.registry.inc_set("docs", "Files Installed", next(self.looks) and 10)
        return self.registry.snapshot()

    def status(self) -> dict[str, Any]:
        if self.away:
            raise OSError("away")

        def conn(name: str, direction: str, state: str, error: str | None = None) -> dict[str, Any]:
            return {
                "name": name, "guid": "", "direction": direction, "partner": name.strip("a->"), "state": state,
                "scheduled": True, "backlog": 1284,
                "last_join_time": None, "last_error": error, "retry_in_s": 12.0 if error else None,
            }  # fmt: skip

        connections = [
            conn("a->b", "outbound", "joined") | {"backlog_bytes": 3_250_586, "oldest": self.oldest},
            conn("c->a", "inbound", self.state),
            conn("a->c", "outbound", self.joins, self.refusal),
        ]
        sets = [{
                "name": "docs", "guid": "", "root": f"/srv/{HOSTILE}", "type": "other",
                "state": "stopped" if self.stopped else "online",
                "error": None,
                "idtable": {"files": 48_211, "folders": 3, "tombstones": 0},
                "staging": {"used_kib": 512, "free_kib": 1536, "quota_kib": 2048},
                "pending": {"aging": 0, "local": 0, "inbound": 5, "outbound": 0},
                "last_error": {"time": "2026-01-01T00:00:00Z", "text": f"{HOSTILE} changed while it was staged"},
                "conflicts": {"kept": 17, "used_kib": 5, "quota_kib": 10, "newest": "2026-01-01T00:00:00Z"},
                "deleted": {"files": 1, "used_kib": 3, "quota_kib": 4}, "disk": {"free_kib": 1024, "size_kib": 8192},
                "connections": connections,
            }, {
                "name": "empty", "guid": "", "root": "/srv/empty", "type": "other", "state": "seeding",
                "error": "broken",
                "idtable": {}, "staging": {}, "pending": {}, "last_error": None, "connections": [],
            }]  # fmt: skip
        return {
            "member": "a", "pid": 7, "version": "0.1.0", "started": "2026-01-01T00:00:00Z",
            "problems": problems(sets), "sets": sets, "told": self.told,
            "partners": [{"set": "docs", "name": "b", "called_by": "key", "clock_offset_s": -3}],
        }  # fmt: skip


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
async def page(agent: FakeAgent, tmp_path: Path) -> AsyncIterator[Page]:
    summary = tmp_path / "summary"
    summary.mkdir()
    (summary / "summary.json").write_text(json.dumps(SUMMARY))
    for name in SUMMARY["charts"].values():
        (summary / name).write_text(CHART)
    samples = tmp_path / "samples"
    samples.mkdir()
    server = DashboardServer(agent, "127.0.0.1", 0, [summary], samples=samples)
    await server.start()
    try:
        async with chromium(tmp_path) as page:
            await page.send("Page.navigate", url=server.url)
            await page.until(
                "document.querySelectorAll('#partners details').length === 2"
                " && document.getElementById('fleet-body')?.hidden === false"
            )
            yield page
    finally:
        await server.close()


async def test_it_shows_the_member_live_and_the_fleet(page: Page, agent: FakeAgent) -> None:
    text = await page.js("document.body.innerText")
    assert await page.js("document.getElementById('sentence').textContent") == (
        "c is not joined, 1284 changes wait; 1 more thing is wrong (b)."
    )
    assert f"c is not joined, 1284 changes wait: refused by {HOSTILE}" in text.splitlines(), "and why"
    assert await page.js("document.getElementById('overall').textContent") == "2 wrong", "in one glance"
    matrix = await page.rows("Who sends to whom: from the member of the row to the one of the column")
    assert matrix["a"] == ["–", "joined, 1,284 wait", "not joined, 1,284 wait"]
    assert matrix["c"] == ["joined, 1,284 wait", "–", "–"]
    assert "17" in text[text.index("Conflicts kept") :].splitlines()[1]
    assert "48,211" in text
    for room in (
        "Staging space: 512 KiB of 2 MiB", "Disk of the tree: 7 MiB of 8 MiB", "Kept of conflicts: 5 KiB of 10 KiB",
        "Kept of deletions: 3 KiB of 4 KiB",
    ):  # fmt: skip
        assert f"{room} in use" in text
    assert "clock 3 s behind" in text
    waits = "0 to come, 1,284 (3.1 MiB) to send · the oldest waits "
    (said,) = (line for line in text.splitlines() if waits in line)
    assert int(said.partition(waits)[2].split(" min")[0]) >= 3
    assert "local changes are 2 min behind" in text

    # text from users stays text
    assert await page.js("document.title") == "✖ 2 a – frs"
    assert await page.js("document.querySelectorAll('main img[src=x]').length") == 0
    assert f"/srv/{HOSTILE}" in text

    # it goes on by itself
    await page.until("document.querySelector('main').innerText.includes('/s')")
    agent.state = "joined"
    await page.until("document.getElementById('announce').textContent === 'docs, c->a: joined'")
    agent.stopped = True
    await page.until("document.getElementById('sentence').textContent.startsWith('set docs does not replicate')")
    agent.stopped = False

    # a partner, by keyboard
    await page.js("document.querySelectorAll('#partners summary')[1].focus()")
    await page.press(" ", "Space", " ")
    await page.until("document.querySelectorAll('#partners details')[1].open")
    await page.until(
        "[...document.querySelectorAll('table')].some(one => one.caption.textContent === 'Connections with c' && "
        "one.tBodies[0].rows.length === 2)"
    )
    connections = await page.rows("Connections with c")
    assert connections["a → c"][1] == "unjoined"
    assert connections["a → c"][-1] == f"refused by {HOSTILE}"
    assert connections["c → a"][:3] == ["docs", "joined", "1,284"]

    # the fleet
    await page.tab("history")
    assert HOSTILE in (await page.rows("What is not well"))["not joined"][-1]
    assert (await page.rows("Replica sets of all members"))["b"][3] == "31,337"
    assert (await page.rows("Connections of all members"))["a → b"][-1] == "77"
    assert [row[0] for row in (await page.rows("Files Installed, every 5 s")).values()] == ["30,000", "1,337"]
    assert "1 of 9 sample lines could not be read" in await page.js("document.body.innerText")
    await page.until("document.querySelector('figure img').naturalWidth > 0")
    assert await page.js("document.querySelector('figure img').alt")
    assert page.complaints() == []


async def test_all_counters_are_behind_a_tab_and_can_be_searched(page: Page) -> None:
    await page.js("document.getElementById('tab-now').focus()")
    for _ in range(2):
        await page.press("ArrowLeft", "ArrowLeft")  # round to the last one, and the one before
    await page.until("document.querySelectorAll('#counter-table tbody tr').length > 1")
    assert await page.js("document.activeElement.id") == "tab-counters"
    assert await page.js("location.hash") == "#counters"
    counters = await page.rows("Counters since the start")
    assert counters["Packets Sent"][0] == "4,321"
    assert "Joins" not in counters, "what is zero is left out at first"
    await page.until(
        "[...document.querySelectorAll('#counter-table tbody th')].some(th => th.textContent === 'Files Installed' "
        "&& Number(th.nextSibling.textContent) >= 20 && th.nextSibling.nextSibling.textContent.endsWith('/s'))"
    )
    await page.js("document.getElementById('counter-zeros').focus()")
    await page.press(" ", "Space", " ")
    whole = len([one for one in described() if one.object_name == SET_OBJECT])
    await page.until(f"document.querySelectorAll('#counter-table tbody tr').length === {whole}")
    assert (await page.rows("Counters since the start"))["Joins"][0] == "0"
    await page.type("counter-find", "packets sent")
    await page.until("document.querySelectorAll('#counter-table tbody tr').length === 3")
    assert list(await page.rows("Counters since the start")) == [
        "Packets Sent", "Packets Sent in Bytes", "Packets Sent in Error",
    ]  # fmt: skip
    await page.js(
        "(of => { of.value = 'docs/a->b'; of.dispatchEvent(new Event('change')); })"
        "(document.getElementById('counter-of'))"
    )
    await page.until("document.getElementById('counter-count').textContent.endsWith('counters of FileReplicaConn')")
    assert (await page.rows("Counters since the start"))["Packets Sent"][0] == "4,321"
    assert page.complaints() == []


async def test_transfers_have_a_rate_and_a_time_that_is_left(page: Page) -> None:
    await page.until(
        "[...document.querySelectorAll('#transfers td')].some(td => td.textContent.includes('days'))"
        " && document.querySelector('#transfers tbody').rows[0].cells[4].textContent.endsWith('/s')"
    )
    transfers = await page.rows("Transfers to this member")
    assert transfers["b"][2] == "1 TiB"
    assert transfers["c"] == ["docs", "0 B", "–", "–", "–"]
    assert page.complaints() == []


async def test_the_state_is_in_the_title_and_the_icon(page: Page, agent: FakeAgent) -> None:
    icon = "document.querySelector('link[rel=icon]').getAttribute('href')"
    assert await page.js(icon) == "/icon-bad.svg"
    agent.refusal, agent.state, agent.joins = None, "joined", "joined"
    await page.until("document.title === '✖ 1 a – frs'")  # that of the summary
    agent.away = True
    await page.until(f"document.title === '? a – frs' && {icon} === '/icon-lost.svg'")
    agent.away = False
    await page.until(f"document.title === '✖ 1 a – frs' && {icon} === '/icon-bad.svg'")


async def test_what_is_wrong_leads_to_what_can_be_done(page: Page, agent: FakeAgent) -> None:
    agent.refusal = "13508 c cannot be reached"
    await page.until("document.querySelector('#wrong a')?.textContent === 'Event 13508'")
    assert "look at the partner" in await page.js("document.querySelector('#wrong .todo').textContent")
    await page.js("document.querySelector('#wrong a').click()")
    await page.until("location.pathname === '/events' && document.querySelector(':target')?.id === '13508'")
    assert await page.js("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    await page.send("Page.navigate", url=await page.js("location.origin"))
    await page.until("document.getElementById('sentence')?.textContent.startsWith('c is not joined')")
    assert page.complaints() == []


async def test_it_says_when_the_agent_is_away_and_recovers(page: Page, agent: FakeAgent) -> None:
    assert await page.js("document.getElementById('lost').hidden") is True
    agent.away = True
    await page.until("!document.getElementById('lost').hidden")
    assert "does not answer" in await page.js("document.getElementById('lost').textContent")
    assert "48,211" in await page.js("document.body.innerText"), "the last that was heard stays"
    agent.away = False
    await page.until("document.getElementById('lost').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
async def test_axe_finds_nothing_to_complain_about(page: Page, scheme: str, width: int) -> None:
    await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await page.send(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
    )
    for tab in ("now", "history", "counters", "files"):
        await page.tab(tab)
        await page.js("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        await page.until("!document.getElementById('view-counters').checkVisibility() || document.querySelector('td')")
        passed, violations = await page.judged()
        assert {"color-contrast", "image-alt", "document-title"} <= passed, "it looked"
        assert violations == [], tab
        assert await page.js("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    assert await page.js("getComputedStyle(document.body).backgroundColor") == (
        "rgb(244, 246, 248)" if scheme == "light" else "rgb(16, 21, 27)"
    )


async def test_a_matrix_of_nine_members_fits_the_page_and_scrolls_on_a_phone(page: Page, agent: FakeAgent) -> None:
    """The others are joined with each other; it takes 3.5 s from each to each, and 12,345 changes wait for one."""
    names = ["b", "c", *(f"files-{number}.example.org" for number in range(4, 10))]
    model = {"set": "docs", "joined": True, "scheduled": True, "since": None, "latency_p95_s": 9.0}
    agent.told = [
        {"member": of, "wrong": [], "cells": [
            model | {"connection": f"{up}->{down}", "backlog": 12_345 if down == names[6] else 0, "latency_p50_s": 3.5}
            for other in names if other != of for up, down in ((of, other), (other, of))
        ]}
        for of in names
    ]  # fmt: skip
    box, rows = "document.querySelector('#matrix .scroll')", "document.querySelector('#matrix tbody').rows"
    await page.until(f"document.querySelector('#matrix tbody') && {rows}.length === 9")
    matrix = await page.rows("Who sends to whom: from the member of the row to the one of the column")
    assert (matrix["b"][2], matrix["b"][7]) == ("joined, 3.5 s", "joined, 3.5 s, 12,345 wait")
    pill = f"{rows}[1].cells[8].querySelector('.pill')"
    assert await page.js(f"[{pill}.dataset.short, {pill}.title]") == ["12.3K wait", "joined, 3.5 s, 12,345 wait"]
    assert await page.js(f"getComputedStyle({pill}, '::after').content") == '"12.3K wait" / ""', (
        "which is not read twice"
    )
    for width in (1500, 1280, 400):
        await page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        assert await page.js("document.documentElement.scrollWidth <= innerWidth"), width
        fits = await page.js(f"{box}.scrollWidth <= {box}.clientWidth")
        assert fits is (width > 400), width
        passed, violations = await page.judged()
        assert {"color-contrast", "scrollable-region-focusable"} & passed
        assert violations == [], width
    await page.js(f"{box}.scrollLeft = {box}.scrollWidth")
    left, start = f"{rows}[1].cells[0].getBoundingClientRect().left", f"{box}.getBoundingClientRect().left"
    assert await page.js(f"Math.abs({left} - {start}) <= 2"), "whose row it is stays in sight"
    last = f"{rows}[1].cells[9].getBoundingClientRect().right"
    assert await page.js(f"{last} <= {box}.getBoundingClientRect().right + 1")
    assert await page.js(f"{rows}[0].cells[0].getBoundingClientRect().width <= {box}.clientWidth / 2")
    assert page.complaints() == []
