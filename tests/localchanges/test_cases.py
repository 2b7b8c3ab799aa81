"""Sequences that once went wrong: what is in the tree is in the IDTable afterwards, and is the same file as before."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.localchanges.member import Member, member, pair, together
from tests.localchanges.sequences import Hand, Step, assert_identities, assert_same, carry_out

Case = Callable[[Path, Callable[[float], object]], object]


def _source(root: Path) -> None:
    (root / "src" / "etc").mkdir(parents=True)
    for number in range(3):
        (root / "src" / "etc" / f"f{number}").write_text(str(number))


async def rotation(root: Path, one: Member, pause: float, copy: Callable[[Path, Path], object]) -> None:
    """A backup is rotated, and made anew, twice in about the aging time."""
    _source(root)
    copy(root / "src", root / "d0")
    await one.quiet()
    (root / "d0").rename(root / "d1")
    copy(root / "src", root / "d0")
    await asyncio.sleep(pause)
    (root / "d1").rename(root / "d2")
    (root / "d0").rename(root / "d1")
    copy(root / "src", root / "d0")


def copied(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True)


def linked(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)


@pytest.mark.parametrize("copy", [copied, linked])
@pytest.mark.parametrize("pause", [0.0, 0.5, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0])
async def test_a_backup_is_rotated(tmp_path: Path, pause: float, copy: Callable[[Path, Path], object]) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        await rotation(Path(one.root), one, 0.2 * pause, copy)
        await together(one, other)
        one.assert_scan_finds_nothing()
        assert_same(one, other)


@pytest.mark.parametrize("pause", [0.0, 0.5, 1.0, 1.5])
async def test_a_folder_moves_into_a_new_folder_of_its_old_name(tmp_path: Path, pause: float) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "p").mkdir()
        for number in range(3):
            (root / "p" / f"x{number}").write_text(str(number))
        (root / "q").write_text("file")
        await together(one, other)
        before = one.assert_tree_is_known()
        (root / "p").rename(root / "t")
        (root / "q").rename(root / "p")
        (root / "q").mkdir()
        await asyncio.sleep(0.2 * pause)
        (root / "t").rename(root / "q" / "p")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_folders_are_rotated(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        for name in ("d1", "d2", "d3", "d4", "d5"):
            (root / name).mkdir()
            (root / name / name).write_text(name)
        await together(one, other)
        before = one.assert_tree_is_known()
        for old, new in (("d1", "t"), ("d2", "d1"), ("d3", "d2"), ("d4", "d3"), ("d5", "d4"), ("t", "d5")):
            (root / old).rename(root / new)
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)
        one.assert_scan_finds_nothing()


@pytest.mark.parametrize("pause", [0.0, 0.6, 1.0, 1.4])
async def test_a_hard_link_and_the_folder_of_its_other_name_are_renamed(tmp_path: Path, pause: float) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "F").mkdir()
        (root / "x").write_text("content")
        os.link(root / "x", root / "F" / "h")
        for number in range(3):
            (root / "F" / f"important{number}").write_text(str(number))
        await together(one, other)
        before = one.assert_tree_is_known()
        (root / "x").rename(root / "y")
        await asyncio.sleep(0.2 * pause)
        (root / "F").rename(root / "G")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_folders_may_be_nested_deeply(tmp_path: Path) -> None:
    async with member(tmp_path, aging_s=0.2) as one:
        path = Path(one.root)
        for _ in range(600):
            path = path / "d"
        os.makedirs(path)
        await one.quiet()
        one.assert_tree_is_known()
        (path / "file").write_text("content")
        (Path(one.root) / "d").rename(Path(one.root) / "e")
        await one.quiet()
        one.assert_tree_is_known()


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("pause", [0.0, 1.2])
async def test_one_name_of_a_hard_link_goes(tmp_path: Path, pause: float, gone: int) -> None:
    """Each name is a file of its own: with the first one goes the file that was known, unless the second one had not
    aged by then; with the second one, never."""
    (tmp_path / "outside").mkdir()
    steps = [Step("write"), Step("quiet"), Step("hardlink", (0, 0, 1)), Step("pause", seconds=0.2 * pause)]
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        await carry_out(one, other, Hand(one.root, str(tmp_path / "outside")), [*steps, Step("delete", (gone, 0, 0))])
