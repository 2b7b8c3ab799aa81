"""`frs top`, driven as somebody at a terminal does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from agent.cli.top import LookFailed, Top
from agent.cli.top_cmd import looking
from agent.dashboard.fleet import fleet
from tests.unit.dashboard.test_fleet import AWAY, NOON, SUMMARY, WELL, status

HOSTILE = "[red]c[/red]\x1b[2J"


def table(top: Top, name: str) -> list[list[str]]:
    found = top.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in found.get_row_at(number)] for number in range(found.row_count)]


def said(top: Top, name: str) -> str:
    return str(top.query_one(f"#{name}", Static).content)


async def looked(top: Top, pilot: Pilot[None]) -> None:
    """Until all that was asked for has been shown."""
    await pilot.pause()
    await top.workers.wait_for_complete()
    await pilot.pause()


async def test_it_shows_what_is_wrong_and_what_to_do_and_looks_again() -> None:
    seen: list[dict[str, Any]] = [fleet(status(*WELL, *AWAY), None, SUMMARY, NOON)]
    top = Top(lambda: seen[-1], every_s=3600)
    async with top.run_test(size=(120, 40)) as pilot:
        await looked(top, pilot)
        assert said(top, "sentence").startswith("c is not joined for 4 min, 152 changes wait; 1 more thing")
        assert [row[0] for row in table(top, "wrong")] == ["c", "b"]
        assert "(event 13508, docs/events.md)" in said(top, "advice")
        await pilot.press("down")
        assert said(top, "advice").startswith("look (event 13508")
        assert [row[:2] for row in table(top, "partners")] == [["b", "2 of 2"], ["c", "0 of 2"]]
        matrix = {row[0]: row[1:] for row in table(top, "matrix")}
        assert matrix["a"] == ["-", "joined", "NOT JOINED, 152 wait", "-"]
        assert matrix["b"] == ["joined, 2 wait", "-", "-", "joined, 7 wait"]
        seen.append(fleet(status(*WELL), None, None, NOON))
        await pilot.press("r")
        await looked(top, pilot)
        assert said(top, "sentence").startswith("All is well")
        assert not top.query_one("#wrong").display
        assert said(top, "advice") == ""
        await pilot.press("q")
    assert top.return_code == 0


async def test_what_was_seen_last_stays_while_nothing_can_be_seen_and_names_are_text() -> None:
    hostile = json.loads(json.dumps(SUMMARY).replace('"d"', json.dumps(HOSTILE)))
    answers: list[Any] = [LookFailed("the agent is away"), fleet(None, None, hostile, NOON)]

    def look() -> dict[str, Any]:
        answer = answers.pop()
        if isinstance(answer, LookFailed):
            raise answer
        found: dict[str, Any] = answer
        return found

    top = Top(look, every_s=3600)
    async with top.run_test(size=(120, 40)) as pilot:
        await looked(top, pilot)
        assert "[red]c[/red]\\x1b[2J" in [row[0] for row in table(top, "matrix")]
        await pilot.press("r")
        await looked(top, pilot)
        assert said(top, "sentence") == "the agent is away"
        assert len(table(top, "wrong")) == 1


async def test_it_looks_at_a_summary_where_no_agent_runs(tmp_path: Path) -> None:
    look = looking(tmp_path / "agent.toml", tmp_path)
    with pytest.raises(LookFailed, match="the summary cannot be read"):
        await asyncio.to_thread(look)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    seen = await asyncio.to_thread(look)
    assert [one["who"] for one in seen["wrong"]] == ["b"]
    with pytest.raises(LookFailed, match=r"agent\.toml"):
        await asyncio.to_thread(looking(tmp_path / "agent.toml", None))
