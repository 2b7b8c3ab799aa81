"""What cannot be carried out for now: the rest passes, and the status says what is waited for, and what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.status_cmd import describe_waiting
from agent.replica import awaited
from tests.localchanges.member import PATIENCE_S, Member, pair, together
from tests.unit.config.member_files import TOPOLOGY

HOLD = "import sys; f = open(sys.argv[1], 'r+b'); print('open', flush=True); sys.stdin.read()"


@contextmanager
def held_open(path: Path) -> Iterator[int]:
    """Another process has the file open for writing; its process id."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def mounted_over(path: Path) -> Iterator[None]:
    """Something is mounted over the folder."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "none", path], check=False).returncode != 0:
        pytest.skip("mounting takes root, and the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


async def arrives(path: Path) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not path.exists():
        assert asyncio.get_running_loop().time() < end, f"{path} never came"
        await asyncio.sleep(0.01)


async def waits(member: Member) -> dict[str, Any]:
    """The one change order that waits at that member."""
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not (waiting := await member.replica.waiting()):
        assert asyncio.get_running_loop().time() < end, "nothing waits"
        await asyncio.sleep(0.01)
    (one,) = waiting
    return one


async def test_a_target_that_is_open_elsewhere(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        (Path(one.root) / "held").write_text("before")
        await together(one, other)
        with held_open(Path(other.root) / "held") as pid:
            (Path(one.root) / "held").write_text("after")
            waiting = await waits(other)
            (Path(one.root) / "fine").write_text("fine")
            await arrives(Path(other.root) / "fine")
            assert (Path(other.root) / "held").read_text() == "before"
        assert (waiting["path"], waiting["reason"]) == ("held", "sharing violation")
        assert [holder["pid"] for holder in waiting["held_by"]] == [pid]
        kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], check=True, capture_output=True, text=True).stdout
        assert waiting["file_system"] in (kind.strip(), "ext4"), "stat calls it ext2/ext3"
        line = describe_waiting(waiting)
        assert f"(pid {pid})" in line
        assert "have it closed by the process that has it open" in line
        await together(one, other)
        assert (Path(other.root) / "held").read_text() == "after"


async def test_a_folder_that_something_is_mounted_over(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        (Path(one.root) / "covered").mkdir()
        (Path(one.root) / "open").mkdir()
        await together(one, other)
        with mounted_over(Path(other.root) / "covered"):
            (Path(one.root) / "covered" / "f").write_text("below")
            waiting = await waits(other)
            (Path(one.root) / "open" / "fine").write_text("fine")
            await arrives(Path(other.root) / "open" / "fine")
        assert (waiting["path"], waiting["mounted_over"]) == ("covered/f", "covered")
        assert waiting["advice"].startswith(f"unmount {other.root}/covered")
        await together(one, other)
        assert (Path(other.root) / "covered" / "f").read_text() == "below"


async def test_a_folder_that_holds_what_is_not_replicated(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        (Path(one.root) / "folder").mkdir()
        await together(one, other)
        os.mkfifo(Path(other.root) / "folder" / "fifo")
        (Path(one.root) / "folder").rmdir()
        waiting = await waits(other)
        (Path(one.root) / "fine").write_text("fine")
        await arrives(Path(other.root) / "fine")
        assert (waiting["path"], waiting["reason"], waiting["holds"]) == ("folder", "folder not empty", ["fifo"])
        assert "'fifo'" in waiting["advice"]
        (Path(other.root) / "folder" / "fifo").unlink()
        await together(one, other)
        assert not (Path(other.root) / "folder").exists()


async def test_a_folder_that_holds_what_a_filter_excludes_comes_back(tmp_path: Path) -> None:
    """After ten attempts (5 minutes) to remove it; here after three."""
    topology = TOPOLOGY.replace('primary = "a"\n', 'primary = "a"\nfile_filter = ["*.tmp"]\n')
    async with pair(tmp_path, aging_s=0.1, topology=topology) as (one, other):
        here, there = Path(one.root), Path(other.root)
        (here / "folder").mkdir()
        (here / "folder" / "file").write_text("content")
        await together(one, other)
        ctx = other.replica.engine.ctx
        assert ctx.limits.unknown_grace == 10
        ctx.limits = replace(ctx.limits, unknown_grace=3)
        (there / "folder" / "x.tmp").write_text("of this member")
        shutil.rmtree(here / "folder")
        assert (await waits(other))["reason"] == "folder not empty"
        await together(one, other)
        assert os.listdir(here / "folder") == []
        assert os.listdir(there / "folder") == ["x.tmp"]
        assert (there / "folder" / "x.tmp").read_text() == "of this member"


async def test_nothing_waits(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (_, other):
        assert await other.replica.waiting() == []


def test_only_what_is_open_in_the_tree_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system elsewhere may never answer, and with it neither would the status."""
    (tmp_path / "root").mkdir()
    for name in ("root/held", "elsewhere"):
        (tmp_path / name).write_text("x")
    looked: list[str] = []
    stat = os.stat

    def seen(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        if str(path).startswith("/proc/"):
            looked.append(os.readlink(path))
        return stat(path, *rest, **more)

    held = stat(tmp_path / "root" / "held")
    with held_open(tmp_path / "root" / "held") as pid, held_open(tmp_path / "elsewhere"):
        monkeypatch.setattr(os, "stat", seen)
        found = awaited._holders({(held.st_dev, held.st_ino)}, str(tmp_path / "root"), frozenset())
        monkeypatch.undo()
    assert [holder.pid for holder in found[held.st_dev, held.st_ino]] == [pid]
    assert looked == [str(tmp_path / "root" / "held")]
