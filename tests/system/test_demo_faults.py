"""`frs demo --fault`: from the page of a member that is well one sees which of the others has what."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from agent.cli.demo_faults import faults
from tests.system.chromium import Page, chromium, needs_chromium
from tests.system.demo import Demo

FAULTS = ("staging-full=c", "partition=d", "clock=e:+2h", "slow=f")


@pytest.mark.slow
@needs_chromium
async def test_from_one_page_one_sees_which_member_has_what(tmp_path: Path) -> None:
    demo = Demo(tmp_path / "demo", members=6, aging=0.3, options=tuple(f"--fault={one}" for one in FAULTS))
    with demo:
        a = demo.members["a"]
        async with chromium(tmp_path) as page:
            await page.send("Page.navigate", url=a.dashboard_url)
            for who, what in (
                ("c", "larger-than-the-staging-area"),
                ("d", "is not joined"),
                ("e", "has a clock that is 2 h ahead of that of this host"),
            ):
                await page.until(wrong(who, what))
            await page.until("document.title.startsWith('✖')")
            assert not await page.js(wrong("b", ""))
            assert not await page.js(wrong("f", ""))
            # what is sent to f takes its time: it waits there longer than anywhere
            (a.root / "for all").write_bytes(os.urandom(2 << 20))
            await page.until(f"{cell('a', 'f')}.includes('wait') && !{cell('a', 'b')}.includes('wait')")
            # between others, as they tell
            assert (await page.js(cell("b", "d"))).startswith("not joined")
            assert (await page.js(cell("d", "b"))).startswith("not joined")
            assert (await page.js(cell("b", "f"))).startswith("joined")
            assert page.complaints() == []
            await screenshot(page)


def wrong(who: str, what: str) -> str:
    """Whether the list of what is wrong has this."""
    return (
        "[...document.querySelectorAll('#wrong li')].some(one => "
        f"one.querySelector('strong').textContent === '{who}' && one.textContent.includes('{what}'))"
    )


def cell(upstream: str, downstream: str) -> str:
    """What the matrix says of a connection."""
    return (
        "(({ rows }) => rows[[...rows].findIndex(row => row.cells[0].textContent === "
        f"'{upstream}')].cells[[...rows[0].cells].findIndex(one => one.textContent === '{downstream}')].textContent)"
        "(document.querySelector('#matrix table'))"
    )


async def screenshot(page: Page) -> None:
    """Kept where FRS_SCREENSHOT says."""
    if place := os.environ.get("FRS_SCREENSHOT"):
        import base64

        shot = await page.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(place).write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fire=a", "KIND is staging-full, partition, clock, slow"), ("slow", "KIND is"), ("slow=", "KIND is"),
        ("slow=z", "no member 'z'"), ("slow=a,z", "no member 'z'"), ("clock=a", "by how much"),
        ("clock=a:2h", "by how much"), ("clock=a:+2w", "by how much"), ("slow=a:+1h", "only a clock has a time"),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_refused(text: str, why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        faults([text], "ab")


def test_faults_of_a_command_line() -> None:
    found = faults(["slow=a,b", "clock=c:-90m", "partition=d", "staging-full=a"], "abcd")
    assert (found.slow, found.partition, found.staging_full) == ({"a", "b"}, {"d"}, {"a"})
    assert found.clocks == {"c": -5400.0}
    assert found.apart == {"c", "d"}
    assert faults(["clock=c:+10s"], "abc").apart == frozenset()
