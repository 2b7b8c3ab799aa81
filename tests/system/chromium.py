"""A real headless Chromium, driven over its debugging protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install chromium")


class Navigated(Exception):
    """The page in which something was asked for has given way to another."""


class Page:
    """One tab. ``until`` waits for the page itself to say that something is so."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def send(self, method: str, **params: Any) -> Any:
        number = next(self.ids)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json()
            if message.get("id") == number:
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise Navigated
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    async def js(self, expression: str) -> Any:
        answer = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until ``condition`` holds in the page, or in one that it leads to; after a minute it is taken for a
        hang."""
        for _ in range(3):
            with contextlib.suppress(Navigated):
                return await self._until(condition)
        raise AssertionError(f"one page leads to the next: {condition}")

    async def _until(self, condition: str) -> None:
        await self.js(
            "new Promise((done, fail) => { const end = Date.now() + 60000; const look = () => "
            f"({condition}) ? done(true) : Date.now() > end ? fail({json.dumps(condition)}) : setTimeout(look, 20); "
            "look(); })"
        )

    async def rows(self, caption: str) -> dict[str, list[str]]:
        """The rows of the table with that caption, by their heading."""
        found: dict[str, list[str]] = await self.js(
            "Object.fromEntries([...document.querySelectorAll('table')]"
            f".filter(table => table.caption?.textContent === {json.dumps(caption)})"
            ".flatMap(table => [...table.tBodies[0].rows].map(row => "
            "[row.cells[0].textContent, [...row.cells].slice(1).map(cell => cell.textContent)])))"
        )
        return found

    def complaints(self) -> list[str]:
        """What the browser said about scripts that failed and policies that were broken."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    async def tab(self, name: str) -> None:
        """Click on a tab of the dashboard."""
        await self.js(f"document.getElementById('tab-{name}').click()")

    async def press(self, key: str, code: str, text: str = "") -> None:
        """A key."""
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code, text=text)

    async def type(self, where: str, text: str) -> None:
        """Into what this id names, which is emptied before."""
        await self.js(f"document.getElementById('{where}').focus(); document.getElementById('{where}').select()")
        await self.send("Input.insertText", text=text)

    async def judged(self) -> tuple[set[str], list[Any]]:
        """The rules by which axe-core passed the page, and what violates others."""
        axe = pytest.importorskip("axe_core_python", reason="needs axe-core: pip install axe-core-python")
        await self.js(resources.files(axe.__name__).joinpath("axe.min.js").read_text(encoding="utf-8") + "; true")
        found = await self.js(
            "axe.run(document).then(result => ({ passes: result.passes.map(rule => rule.id), violations: "
            "result.violations.map(rule => [rule.id, rule.help, rule.nodes.map(node => node.html)]) }))"
        )
        return set(found["passes"]), found["violations"]


@contextlib.asynccontextmanager
async def chromium(scratch: Path) -> AsyncIterator[Page]:
    """A browser with one empty tab; its profile is in ``scratch``."""
    assert CHROMIUM is not None
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en",
        f"--user-data-dir={scratch / 'profile'}", "--remote-debugging-port=0", "--window-size=1280,1000", "about:blank",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    drain: asyncio.Task[bytes] | None = None
    try:
        assert browser.stderr is not None
        while b"DevTools listening on" not in (line := await browser.stderr.readline()):
            assert line, "Chromium ended before it listened"
        address = line.decode().split("ws://", 1)[1].split("/", 1)[0]
        drain = asyncio.create_task(browser.stderr.read())
        async with ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as response:
                targets = await response.json()
            [target] = [one for one in targets if one["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.send(f"{domain}.enable")
                yield page
                await page.send("Page.navigate", url="about:blank")
    finally:
        if browser.returncode is None:
            browser.terminate()
        await browser.wait()
        if drain is not None:
            drain.cancel()
