"""How long the page of a member with a thousand partners keeps a browser busy: `python -m bench.page`.

Prints for the first display, for twenty updates in each of which one partner changes, and for one in which all do, the
longest task of the page, and all tasks above 50 ms together, in milliseconds.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from agent.dashboard import DashboardServer
from tests.system.chromium import Page, chromium
from tests.system.test_dashboard_thousand import PARTNERS, Many

_WATCH = (
    "window.tasks = []; new PerformanceObserver(list => list.getEntries().forEach(one => tasks.push(one.duration)))"
    ".observe({ type: 'longtask', buffered: true })"
)


async def main() -> None:
    """The command."""
    many = Many()
    server = DashboardServer(many, "127.0.0.1", 0, [])
    await server.start()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            async with chromium(Path(scratch)) as page:
                await page.send("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
                await page.send("Page.navigate", url=server.url)
                rows = "document.querySelectorAll('#partner-rows details')"
                await page.until(f"{rows}.length === {PARTNERS} && document.readyState === 'complete'")
                await _told(page, "first display")
                for backlog in range(1, 21):
                    many.backlog = backlog
                    await page.until(f"{rows}[500].textContent.includes('{backlog} to send')")
                await _told(page, "20 updates of one partner")
                for one in many.set["connections"]:
                    one["backlog"] = 5
                await page.until(f"{rows}[0].textContent.includes('5 to send')")
                await _told(page, "an update of all")
    finally:
        await server.close()


async def _told(page: Page, what: str) -> None:
    await page.js("new Promise(done => setTimeout(done, 1000))")  # until the browser has told of all
    longest, whole = await page.js("[Math.max(0, ...tasks), tasks.splice(0).reduce((sum, one) => sum + one, 0)]")
    print(f"{what}: longest task {longest:.0f} ms, all above 50 ms together {whole:.0f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
