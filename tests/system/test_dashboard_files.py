"""Names of files, and giving them back, on the dashboard: a real agent, whose page is used in a real Chromium; who may
look is not who may restore."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from agent.cli.demo_layout import DemoOptions, prepare
from agent.dashboard import DashboardServer
from agent.dashboard.tokens import READ_FILE, RESTORE_FILE, Tokens
from agent.service.service import Service
from agent.service.shown import Shown
from config.errors import ConfigError
from config.load import load_agent_config
from staging.beneath import Entry
from tests.ports import port_base
from tests.system.chromium import chromium, needs_chromium

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[tuple[Service, Path, str]]:
    """A running member whose partner is away, its root, and the address of its dashboard."""
    made = prepare(
        DemoOptions(tmp_path / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.1)
    ).members[0]
    service = Service(load_agent_config(made.config))
    await service.start()
    try:
        yield service, made.root, made.dashboard_url
    finally:
        await service.close()


def kept(service: Service, root: Path, name: str, content: bytes) -> str:
    """A file that lost a conflict; its id."""
    (root / name).write_bytes(content)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        [store] = service.sets.kept.values()
        return store.keep(Entry(folder, name, str(root / name)), tree_path=name, reason="a conflict")
    finally:
        os.close(folder)


@pytest.mark.slow
@needs_chromium
async def test_a_conflict_is_shown_to_a_reader_and_given_back_to_a_restorer(
    member: tuple[Service, Path, str], tmp_path: Path
) -> None:
    service, root, url = member
    name = HOSTILE.replace("/", "")
    kept(service, root, name, b"lost")
    (root / "written").write_bytes(b"here")
    [replica] = service.sets.replicas.values()
    await until(lambda: replica.store.outlog_head() > 0, "the change is in the log")
    state = service.config.state_dir
    async with chromium(tmp_path) as page:
        await page.send("Page.navigate", url=f"{url}#files")
        await page.until("document.getElementById('view-files')?.checkVisibility()")

        async def show(token: str) -> None:
            await page.type("file-token", token)
            await page.press("Enter", "Enter", "\r")

        said = "document.getElementById('file-said').textContent"
        await show("guessed")
        await page.until(f"{said} === 'a token of this member is needed'")
        assert await page.js("document.getElementById('file-tables').hidden") is True
        assert "lost" not in await page.js("document.body.innerText")

        await show((state / READ_FILE).read_text().strip())
        await page.until("!document.getElementById('file-tables').hidden")
        assert (await page.rows("Recent changes"))["written"][:3] == ["demo", "written", "a"]
        row = (await page.rows("Kept of conflicts"))[name]
        assert row[:3] == ["demo", "a conflict", "4 B"]
        assert await page.js("document.querySelectorAll('main img[src=x]').length") == 0
        await page.js("document.querySelector('#file-tables button').focus()")
        await page.press("Enter", "Enter", "\r")
        await page.until("!document.getElementById('file-shown').hidden")
        assert "a conflict" in await page.js("document.getElementById('file-facts').innerText")
        assert await page.js("document.getElementById('file-restore').disabled") is True, "who reads does not restore"
        passed, violations = await page.judged()
        assert (violations, "color-contrast" in passed) == ([], True)
        assert not (root / name).exists()

        await show((state / RESTORE_FILE).read_text().strip())
        await page.until("!document.getElementById('file-restore').disabled")
        await page.js("document.getElementById('file-restore').click()")
        await page.until(f"{said} === {json.dumps(f'Restored: {name}')}")
        assert await page.rows("Kept of conflicts") == {}
        refused = [one for one in page.complaints() if "401" not in one]
        assert refused == [], "but that a guessed token is refused"
    assert (root / name).read_bytes() == b"lost"


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {what}")


async def test_each_token_gives_its_right_and_nothing_else_does(member: tuple[Service, Path, str]) -> None:
    service, root, url = member
    item = kept(service, root, "file", b"lost")
    state = service.config.state_dir
    for path in (state / READ_FILE, state / RESTORE_FILE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    reader, restorer = ((state / name).read_text().strip() for name in (READ_FILE, RESTORE_FILE))
    assert reader != restorer
    async with ClientSession() as session:

        async def ask(method: str, path: str, header: str | None, **more: Any) -> tuple[int, dict[str, Any]]:
            headers = {} if header is None else {"Authorization": header}
            async with session.request(method, f"{url}{path}", headers=headers, **more) as response:
                return response.status, await response.json()

        wrong = (
            None,
            "",
            "Bearer",
            "Bearer ",
            f"Basic {reader}",
            f"Bearer {reader[:-1]}",
            f"Bearer {reader}x",
            "Bearer \xe9",
        )
        for header in wrong:
            for method, path in (
                ("GET", "api/files"),
                ("GET", f"api/files/show?id={item}"),
                ("POST", "api/files/restore"),
            ):
                status, answer = await ask(method, path, header)
                assert (status, list(answer)) == (401, ["error"]), (header, path)
        assert service.incidents.counts()["authentication failed"] == 3 * (len(wrong) - 2), (
            "those that showed something"
        )
        for token, rights in ((reader, ["read"]), (restorer, ["read", "restore"])):
            status, answer = await ask("GET", "api/files", f"Bearer {token}")
            assert (status, answer["rights"]) == (200, rights)
            assert [one["id"] for one in answer["conflicts"]] == [item]
            status, answer = await ask("GET", f"api/files/show?id={item}", f"Bearer {token}")
            assert (status, answer["item"]["path"]) == (200, "file")
        status, answer = await ask("POST", "api/files/restore", f"Bearer {reader}", json={"id": item})
        assert (status, answer["error"]) == (403, "this token may see files, and not give them back")
        for body in (b"{", b'{"id": "1", "to": "/etc/x"}', b"[]"):
            assert (await ask("POST", "api/files/restore", f"Bearer {restorer}", data=body))[0] == 400
        status, answer = await ask("POST", "api/files/restore", f"Bearer {restorer}", json={"id": "none"})
        assert (status, "nothing with the id" in answer["error"]) == (400, True)
        status, answer = await ask("GET", "api/files/restore", f"Bearer {restorer}")
        assert status == 405
        assert not (root / "file").exists()
        status, answer = await ask("POST", "api/files/restore", f"bearer {restorer}", json={"id": item})
        assert (status, answer["path"]) == (200, "file")
    assert (root / "file").read_bytes() == b"lost"


def test_tokens_stay_and_are_refused_where_others_can_read_them(tmp_path: Path) -> None:
    first = Tokens(tmp_path)
    restorer = f"Bearer {(tmp_path / RESTORE_FILE).read_text().strip()}"
    assert first.rights(restorer) == Tokens(tmp_path).rights(restorer) == ("read", "restore")
    (tmp_path / READ_FILE).write_text("")  # as a full disk leaves it
    Tokens(tmp_path)
    assert len((tmp_path / READ_FILE).read_text()) > 40
    (tmp_path / RESTORE_FILE).chmod(0o640)
    with pytest.raises(ConfigError, match="token"):
        Tokens(tmp_path)


async def test_nothing_is_told_or_given_back_where_there_are_no_tokens(member: tuple[Service, Path, str]) -> None:
    service, _, _ = member
    async with TestClient(TestServer(DashboardServer(Shown(service)).app())) as client:
        for path in ("/api/files", "/api/files/show?id=1"):
            response = await client.get(path, headers={"Authorization": "Bearer x"})
            assert response.status == 401
        assert (await client.post("/api/files/restore", json={"id": "1"})).status == 401
