"""Five files written at a: `frs counters`, samples, Spark summary and dashboard say the same numbers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.system.chromium import CHROMIUM, chromium
from tests.system.corpora import run_frs, set_counters
from tests.system.demo import Demo

#: What the issue promises for five files written on a.
PROMISED = {
    "a": {
        "Local Change Orders Issued": 5,
        "Change Orders Issued": 5,
        "Staging Files Generated": 5,
        "Staging Files Fetched": 0,
        "Files Installed": 0,
    },
    "b": {
        "Local Change Orders Issued": 0,
        "Staging Files Generated": 0,
        "Remote Change Orders Received": 5,
        "Staging Files Fetched": 5,
        "Files Installed": 5,
    },
}


def chosen(counters: dict[str, int], member: str) -> dict[str, int]:
    """Of all counters those that are promised for the member; absent is 0 (samples leave zeros out)."""
    return {name: counters.get(name, 0) for name in PROMISED[member]}


def last_samples(state: Path, whole: bool) -> dict[str, dict[str, int]]:
    """FileReplicaSet instance -> its counters in the newest line; ``whole``: no line may be torn."""
    newest: dict[str, tuple[int, dict[str, int]]] = {}
    for path in sorted((state / "samples").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                assert not whole, f"a torn line in {path}"
                continue
            if not row["connection"]:
                newest[row["set"]] = max(
                    newest.get(row["set"], (-1, {})), (row["seq"], row["counters"]), key=lambda one: one[0]
                )
    return {instance: counters for instance, (_, counters) in newest.items()}


def sampled(state: Path, name: str) -> bool:
    """Whether the newest sample of a member has the promised numbers."""
    (found,) = last_samples(state, whole=False).values()
    return chosen(found, name) == PROMISED[name]


def fetch(url: str) -> Any:
    """The JSON behind a loopback address."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


class Text(HTMLParser):
    """The visible text of a page, one line for each piece between tags."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Scripts and styles are not text."""
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        """See `handle_starttag`."""
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if not self._hidden and data.strip():
            self.pieces.append(data.strip())


async def rendered(url: str, profile: Path, *, fleet: bool) -> list[str]:
    """The text of a page in headless Chromium once its counters are there, and the summary where there is one."""
    profile.mkdir()
    async with chromium(profile) as page:
        await page.send("Page.navigate", url=f"{url}#counters")
        await page.until("document.querySelector('#counter-table td')")
        if fleet:
            await page.tab("history")
            await page.until("document.querySelector('#fleet-members td')")
        text = Text()
        text.feed(await page.js("document.documentElement.outerHTML"))
    return text.pieces


def shown(pieces: list[str], name: str) -> str | None:
    """The number that stands after a counter's name in a page's text."""
    for at, piece in enumerate(pieces):
        if piece == name:
            for later in pieces[at + 1 : at + 4]:
                if re.fullmatch(r"[\d,.\u202f\u2009 ]+", later):
                    return re.sub(r"\D", "", later)
    return None


@pytest.mark.slow
def test_five_files_give_the_same_numbers_everywhere(tmp_path: Path) -> None:
    """`frs counters`, the dashboard's API and pages, the samples while running and after a stop, `frs summarize`."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        for number in range(5):
            (demo.members["a"].root / f"file {number}").write_bytes(b"content of file %d\n" % number)
        demo.wait_converged()
        asked = {name: set_counters(demo, name) for name in "ab"}
        for name in "ab":
            assert chosen(asked[name], name) == PROMISED[name], f"frs counters of {name}"
            answer = fetch(demo.members[name].dashboard_url + "api/counters")
            sets = find_sets(answer)
            assert chosen(sets, name) == PROMISED[name], f"the dashboard's API of {name}"
            state = demo.members[name].state
            demo.until(f"a sample of {name}", lambda state=state, name=name: sampled(state, name))
        states = {name: demo.members[name].state for name in "ab"}
        # The summary of Spark goes where the dashboard looks for it.
        assert_summed_up([states[name] / "samples" for name in "ab"], demo.directory / "summary")
        if CHROMIUM is not None:
            assert_shown(demo, tmp_path)
    for name in "ab":
        (found,) = last_samples(states[name], whole=True).values()
        assert chosen(found, name) == PROMISED[name], f"the last sample of {name}"
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: the pages were not looked at, all else was")


def assert_summed_up(samples: list[Path], output: Path) -> None:
    """`frs summarize` says the same."""
    done = run_frs("summarize", *map(os.fspath, samples), "--output", os.fspath(output))
    assert done.returncode == 0, done.stderr
    summary = json.loads((output / "summary.json").read_text())
    totals = {one["member"]: one["totals"] for one in summary["sets"]}
    for name in "ab":
        assert chosen(totals[name], name) == PROMISED[name], f"the Spark summary of {name}"
    by_connection = {
        (one["member"], one["connection"]): one["totals"].get("Remote Change Orders Received", 0)
        for one in summary["connections"]
    }
    assert by_connection["b", "a->b"] == 5


def assert_shown(demo: Demo, profiles: Path) -> None:
    """The page of each member shows the numbers once its scripts have run, and that of a the summary, too."""
    for name in "ab":
        url, profile = demo.members[name].dashboard_url, profiles / f"browser {name}"
        pieces = asyncio.run(rendered(url, profile, fleet=name == "a"))
        for counter, value in PROMISED[name].items():
            found = shown(pieces, counter)
            assert found == str(value) or (found is None and value == 0), f"{counter} on the page of {name}: {found}"
        if name == "a":
            fleet = pieces[pieces.index("Fleet summary") :]
            heads = fleet[fleet.index("Member") : fleet.index("Staging used") + 1]
            rows = fleet[fleet.index("Staging used") :]
            for member, installed in (("a", "0"), ("b", "5")):
                row = rows[rows.index(member) :]
                assert row[heads.index("Files installed")] == installed, f"{member} in the summary on the page: {row}"


def find_sets(answer: Any) -> dict[str, int]:
    """The counters of the one replica set in the API's answer."""
    (counters,) = answer["FileReplicaSet"].values()
    return dict(counters)
