"""Takes the pictures of docs/images: real members, and their page in a real Chromium.

dashboard, history, counters   a member of three, with which all is well, after some minutes of work
faults                         nine members, with four faults at once
fault-KIND                     nine members, with that fault alone
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.system.chromium import CHROMIUM, Page, chromium
from tests.system.demo import Demo
from tests.system.test_demo_faults import cell, told, wrong

PICTURES: Final = Path(__file__).parents[2] / "docs" / "images"
#: What goes wrong, and what the page says then of whom.
FAULTS: Final[Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    "staging-full": ("staging-full=c", (("c", "larger than the whole staging area"),)),
    "partition": ("partition=e,f", (("e", "cannot be reached"), ("f", "cannot be reached"))),
    "clock": ("clock=g:+2h", (("g", "has a clock that is 2 h ahead"), ("g", "does not answer a Join"))),
    "slow": ("slow=h", (("h", "is behind"),)),
}
WELL: Final = ("dashboard", "history", "counters")
#: Of whom the list of what is wrong has something.
NAMED: Final = "[...document.querySelectorAll('#wrong li strong')].map(one => one.textContent)"
_PAUSE_S: Final = 2.0
#: Of a window in which there is room for what nine members have to do with each other.
_WIDTH: Final = 1500


async def photograph(page: Page, into: Path) -> None:
    """The whole page, however long it is: what is not in the window has not been drawn, so that is made as long."""
    for _ in range(2):
        size = (await page.send("Page.getLayoutMetrics"))["cssContentSize"]
        metrics = {"width": _WIDTH, "height": round(size["height"]), "deviceScaleFactor": 1, "mobile": False}
        await page.send("Emulation.setDeviceMetricsOverride", **metrics)
        await page.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    shot = await page.send("Page.captureScreenshot", format="png")
    await page.send("Emulation.clearDeviceMetricsOverride")
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_bytes(base64.b64decode(shot["data"]))
    print(into, flush=True)


async def with_faults(folder: Path, faults: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]], into: Path) -> None:
    """What a shows of nine members of which some have these faults."""
    options = tuple(f"--fault={given}" for given, _ in faults.values())
    with Demo(folder / "demo", members=9, aging=0.3, options=options) as demo:
        async with chromium(folder) as page:
            await page.send("Page.navigate", url=demo.members["a"].dashboard_url)
            for _, said in faults.values():
                for who, what in said:
                    await told(page, who, what)
            if faults == FAULTS:
                await nothing_else(page)
            await photograph(page, into)


async def nothing_else(page: Page) -> None:
    """With all four faults at once: the page says of each member what it has, and nothing of what another has."""
    # of them, and of nobody else; and of each what it has, and nothing of the others' faults
    assert set(await page.js(NAMED)) == set("cefgh")
    for who, what in (
        ("c", "is not joined"), ("c", "clock"), ("c", "is behind"), ("e", "staging"), ("e", "is behind"),
        ("f", "staging"), ("f", "is behind"), ("g", "cannot be reached"), ("g", "staging"),
        ("h", "is not joined"), ("h", "staging"), ("h", "clock that"),
    ):  # fmt: skip
        assert not await page.js(wrong(who, what)), f"{who}: {what}"
    # who has joined whom, between others, too, as they tell
    for one in "efg":
        for other in "bdi":
            await page.until(f"{cell(other, one)}.startsWith('not joined')")
            await page.until(f"{cell(one, other)}.startsWith('not joined')")
    for one, other in ("bd", "db", "bi", "ib", "di", "id", "bh", "hb", "bc", "cb"):
        assert (await page.js(cell(one, other))).startswith("joined"), f"{one} to {other}"
    # what is on its way to h waits there, and not to those who are well
    assert [one for one in "bdhi" if "wait" in await page.js(cell("a", one))] == ["h"]


async def well(folder: Path, minutes: float, names: list[str], output: Path) -> None:
    """What a shows of three members that have worked for some minutes."""
    with Demo(folder / "demo", members=3, aging=0.3) as demo:
        await asyncio.to_thread(work, {name: one.root for name, one in demo.members.items()}, minutes)
        await asyncio.to_thread(demo.wait_converged)
        async with chromium(folder) as page:
            shown = {
                "dashboard": ("now", "document.getElementById('sentence').textContent.startsWith('All is well')"),
                "history": ("history", "document.querySelector('#history-plot canvas')"),
                "counters": ("counters", "document.querySelector('#counter-table td')"),
            }
            for name in names:
                tab, there = shown[name]
                await page.send("Page.navigate", url="about:blank")
                await page.send("Page.navigate", url=f"{demo.members['a'].dashboard_url}#{tab}")
                await page.until(there)
                await photograph(page, output / f"{name}.png")


def work(roots: Mapping[str, Path], minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
    """People write, change, rename and remove files on all of them."""
    rng, end, number = random.Random(1), clock() + minutes * 60, 0
    while clock() < end:
        root = rng.choice([*roots.values()])
        folder = root / rng.choice(("letters", "plans", "pictures"))
        folder.mkdir(exist_ok=True)
        for _ in range(rng.randrange(1, 12)):
            number += 1
            (folder / f"{number:05d}.odt").write_bytes(rng.randbytes(rng.randrange(1, 200_000)))
        there = sorted(folder.glob("*.odt"))
        if len(there) > 20:
            rng.choice(there).unlink(missing_ok=True)
        time.sleep(_PAUSE_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/pictures", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    every = [*WELL, "faults", *(f"fault-{kind}" for kind in FAULTS)]
    parser.add_argument("--dir", type=Path, help="the demos run in DIR/demo, which is removed before")
    parser.add_argument("--output", type=Path, default=PICTURES, help="default: docs/images")
    parser.add_argument("--only", default=",".join(every), metavar="NAME,...", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=6.0, help="of work, before all is well (default: %(default)s)")
    given = parser.parse_args()
    asked = given.only.split(",")
    if unknown := sorted(set(asked) - set(every)):
        parser.error(f"no picture has the name {', '.join(unknown)}")
    if CHROMIUM is None:
        print("Chromium is missing: apt-get install chromium", file=sys.stderr)
        return 2
    runs: list[tuple[str, Callable[[Path], object]]] = []
    if names := [name for name in WELL if name in asked]:
        runs.append(("well", lambda folder: asyncio.run(well(folder, given.minutes, names, given.output))))
    chosen = {"faults": FAULTS} | {f"fault-{kind}": {kind: one} for kind, one in FAULTS.items()}
    for name, faults in chosen.items():
        if name in asked:
            into = given.output / f"{name}.png"
            runs.append((name, lambda folder, faults=faults, into=into: asyncio.run(with_faults(folder, faults, into))))
    for _, run in runs:
        if given.dir is None:
            with tempfile.TemporaryDirectory(prefix="frs-pictures-", dir="/var/tmp") as scratch:
                run(Path(scratch))
        else:
            for there in ("demo", "demo.out", "profile"):
                shutil.rmtree(given.dir / there, ignore_errors=True)
            os.makedirs(given.dir, exist_ok=True)
            run(given.dir)
    return 0
