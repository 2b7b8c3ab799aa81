"""The page of a member with a thousand partners: all are there, and an update costs what has changed."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.dashboard import DashboardServer
from agent.reporting.health import problems
from tests.system.chromium import Page, chromium, needs_chromium
from tests.system.test_dashboard_chromium import FakeAgent

PARTNERS = 1000

pytestmark = [pytest.mark.slow, needs_chromium]


class Many(FakeAgent):
    """Joined with all of them, both ways; ``backlog`` change orders wait for the one in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = 0
        self.away = False
        [first, *_] = super().status()["sets"]
        model = first["connections"][0] | {"state": "joined", "backlog": 0, "since": "2026-01-01T00:00:00Z"}
        model |= {"backlog_bytes": 0, "oldest": None}
        first["connections"] = [
            model | {"name": name, "partner": partner, "direction": direction}
            for partner in (f"m{number:03d}" for number in range(PARTNERS))
            for name, direction in ((f"a->{partner}", "outbound"), (f"{partner}->a", "inbound"))
        ]
        for one in first["connections"]:
            self.registry.add_cxtion("docs", one["name"])
        self.set = first | {"error": None, "last_error": None}

    def transfers(self) -> list[dict[str, Any]]:
        return []

    def status(self) -> dict[str, Any]:
        one = copy.copy(self.set)
        one["connections"] = list(one["connections"])
        one["connections"][PARTNERS] = one["connections"][PARTNERS] | {"backlog": self.backlog}
        return super().status() | {"sets": [one], "problems": problems([one]), "partners": []}


@pytest.fixture
def many() -> Many:
    return Many()


@pytest.fixture
async def page(many: Many, tmp_path: Path) -> AsyncIterator[Page]:
    server = DashboardServer(many, "127.0.0.1", 0, [])
    await server.start()
    try:
        async with chromium(tmp_path) as page:
            await page.send("Page.navigate", url=server.url)
            await page.until(f"document.querySelectorAll('#partner-rows details').length === {PARTNERS}")
            yield page
    finally:
        await server.close()


async def test_all_are_there_and_an_update_touches_what_has_changed(page: Page, many: Many) -> None:
    middle = "document.querySelectorAll('#partner-rows details')[500]"
    assert await page.js("document.getElementById('sentence').textContent") == (
        "All is well: 1000 partners joined, nothing waits."
    )
    assert await page.js("document.querySelectorAll('#partner-rows table').length") == 0, "made when somebody looks"
    assert await page.js(
        "[...document.querySelectorAll('#partner-rows .name')].map(one => one.textContent).join()"
    ) == ",".join(f"m{number:03d}" for number in range(PARTNERS))
    assert await page.js("document.querySelectorAll('#matrix td').length") == 24 * 24, "of no more than fit"
    assert await page.js("document.querySelectorAll('*').length") < 12 * PARTNERS
    # what is changed below partners, from now on
    await page.js(
        "window.touched = new Set(); new MutationObserver(all => all.forEach(one => touched.add("
        "(one.target.closest ? one.target : one.target.parentElement).closest('details')?.querySelector('.name')"
        ".textContent))).observe(document.getElementById('partner-rows'), "
        "{ subtree: true, childList: true, characterData: true, attributes: true })"
    )
    for backlog in (7, 8, 9):
        many.backlog = backlog
        await page.until(f"{middle}.textContent.includes('{backlog} to send')")
    assert await page.js("[...touched].join()") == "m500"

    # one is found, and looked into, by keyboard
    await page.type("partner-find", "M999")
    await page.until("[...document.querySelectorAll('#partner-rows details')].filter(one => !one.hidden).length === 1")
    await page.js("[...document.querySelectorAll('#partner-rows summary')].at(-1).focus()")
    await page.press(" ", "Space", " ")
    await page.until("document.querySelectorAll('#partner-rows table').length === 1")
    assert set(await page.rows("Connections with m999")) == {"a → m999", "m999 → a"}
    assert page.complaints() == []


async def test_what_is_sent_for_a_change_is_small(page: Page, many: Many) -> None:
    await page.js(
        "window.sizes = []; window.other = new EventSource('/api/live');"
        "other.addEventListener('message', event => sizes.push(event.data.length))"
    )
    await page.until("sizes.length >= 2")
    many.backlog = 3
    await page.until("document.querySelectorAll('#partner-rows details')[500].textContent.includes('3 to send')")
    await page.until("sizes.length >= 4")
    first, *others = json.loads(await page.js("JSON.stringify(sizes)"))
    await page.js("other.close()")
    assert first > 400 * PARTNERS, "all of them"
    assert max(others) < 40_000, "one partner, the matrix, the sentence"
