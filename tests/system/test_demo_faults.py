"""`frs demo --fault`: from the page of a member that is well one sees which of the others has what."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
import pytest

from agent.cli.demo_faults import faults
from tests.system.chromium import Page, chromium, needs_chromium
from tests.system.demo import Demo

FAULTS = ("staging-full=c", "partition=e,f", "clock=g:+2h", "slow=h")


@pytest.mark.slow
@needs_chromium
async def test_from_one_page_one_sees_which_member_has_what(tmp_path: Path) -> None:
    demo = Demo(tmp_path / "demo", members=9, aging=0.3, options=tuple(f"--fault={one}" for one in FAULTS))
    with demo:
        async with chromium(tmp_path) as page:
            await page.send("Page.navigate", url=demo.members["a"].dashboard_url)
            for who, what in (
                ("c", "larger than the whole staging area of 1048576 bytes"),
                ("e", "cannot be reached"),
                ("f", "cannot be reached"),
                ("g", "has a clock that is 2 h ahead of that of this host"),
                ("h", "is behind, 1 change waits: others have it already"),
            ):
                await told(page, who, what)
            await page.until("document.title.startsWith('✖')")
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
            assert page.complaints() == []


#: Of whom the list of what is wrong has something.
NAMED = "[...document.querySelectorAll('#wrong li strong')].map(one => one.textContent)"


async def told(page: Page, who: str, what: str) -> None:
    """Wait until the list of what is wrong has this: on a host that has much to do it takes minutes until all others
    have what one of them has not."""
    for _ in range(10):
        with contextlib.suppress(AssertionError):
            return await page.until(wrong(who, what))
    found = await page.js("document.getElementById('wrong').textContent")
    raise AssertionError(f"{who}: {what!r} is not in {found!r}")


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
