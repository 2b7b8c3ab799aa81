"""`frs demo --fault`: from the page of a member that is well one sees which of the others has what."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
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
    """Of six members; script/pictures reads it of nine."""
    demo = Demo(tmp_path / "demo", members=6, aging=0.3, options=tuple(f"--fault={one}" for one in FAULTS))
    with demo:
        a = demo.members["a"]
        async with chromium(tmp_path) as page:
            await page.send("Page.navigate", url=a.dashboard_url)
            for who, what in (
                ("c", "larger than the whole staging area of 1048576 bytes"),
                ("d", "cannot be reached"),
                ("e", "has a clock that is 2 h ahead of that of this host"),
            ):
                await told(page, who, what)
            await told(page, "f", "is behind", lambda: (a.root / "for all").write_bytes(os.urandom(12 << 20)))
            await page.until("document.title.startsWith('✖')")
            assert not await page.js(wrong("b", ""))
            for who, what in (
                ("c", "clock"),
                ("d", "staging"),
                ("e", "staging"),
                ("f", "staging"),
                ("f", "clock that"),
            ):
                assert not await page.js(wrong(who, what)), f"{who}: {what}"
            # between others, as they tell
            await page.until(f"{cell('b', 'd')}.startsWith('not joined')")
            await page.until(f"{cell('d', 'b')}.startsWith('not joined')")
            await page.until(f"{cell('b', 'f')}.startsWith('joined')")
            assert page.complaints() == []


async def told(page: Page, who: str, what: str, first: Callable[[], object] = lambda: None) -> None:
    """Wait until the list of what is wrong has this, once `first` is done, and tried again when it has not: on a host
    that has much to do it takes minutes until all others have what one of them has not."""
    for _ in range(10):
        first()
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
