"""What a file system refuses, and what is larger than usual: it is waited for, or replicated like everything else.
docs/filesystems.md has the table."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.filesystems import mounted
from tests.localchanges.member import PATIENCE_S, Member, pair, together
from tests.localchanges.test_waiting import arrives


@contextmanager
def flagged(path: Path, flag: str) -> Iterator[None]:
    """The file has a flag of chattr(1)."""
    if os.geteuid() or subprocess.run(["chattr", f"+{flag}", path], capture_output=True, check=False).returncode:
        pytest.skip("chattr takes root, and a file system that has such flags")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{flag}", path], check=True)


@pytest.mark.parametrize("change", ["written", "removed", "renamed"])
@pytest.mark.parametrize("flag", ["i", "a"])
async def test_what_may_not_be_changed_or_only_appended_to(tmp_path: Path, flag: str, change: str) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root) / "fixed", Path(other.root) / "fixed"
        here.write_text("before")
        await together(one, other)
        with flagged(there, flag):
            if change == "written":
                here.write_text("after")
            elif change == "removed":
                here.unlink()
            else:
                here.rename(here.with_name("new name"))
            (waiting,) = await waits_because(other, "failed")  # chattr itself is looked at first
            (Path(one.root) / "fine").write_text("fine")
            await arrives(Path(other.root) / "fine")
            assert there.read_text() == "before"
        assert waiting["path"] == "fixed"
        assert waiting["advice"].startswith(f"chattr -{flag} ")
        await together(one, other)
        assert {path.name: path.read_text() for path in Path(other.root).iterdir() if path.is_file()} == {
            path.name: path.read_text() for path in Path(one.root).iterdir() if path.is_file()
        }


async def test_a_file_system_without_inodes_left(tmp_path: Path) -> None:
    root = tmp_path / "b" / "root"
    with mounted("tmpfs", root, tmp_path / "scratch", "nr_inodes=60"):
        async with pair(tmp_path, aging_s=0.1) as (one, other):
            for number in range(100):
                (Path(one.root) / f"f{number}").write_text("x")
            waiting = await waits_because(other, "no space")
            assert {each["advice"] for each in waiting} == {"make room where that is said, or raise its quota"}
            for number in range(80):
                (Path(one.root) / f"f{number}").unlink()
            await together(one, other)
            assert sorted(_names(other.root)) == sorted(_names(one.root))


#: How a root is given a limit of 3 MiB, though its file system has room: a project of XFS, a qgroup of Btrfs.
QUOTAS = {
    "xfs": ("prjquota", ["xfs_quota -x -c 'project -s -p {0} 42' {0}", "xfs_quota -x -c 'limit -p bhard=3m 42' {0}"]),
    "btrfs": ("", ["btrfs quota enable {0}", "btrfs qgroup limit 3m 0/5 {0}"]),
}


@pytest.mark.parametrize("kind", QUOTAS)
async def test_a_folder_with_a_quota_of_its_own(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "b" / "root"
    options, commands = QUOTAS[kind]
    with mounted(kind, root, tmp_path / "scratch", options):
        for command in commands:
            words = shlex.split(command.format(root))
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode or " not " in done.stderr:  # xfs_quota may end well without
                pytest.skip(f"no quotas of {kind} here: {done.stderr}")
        async with pair(tmp_path, aging_s=0.1) as (one, other):
            for number in range(6):
                (Path(one.root) / f"f{number}").write_bytes(os.urandom(1 << 20))
            await waits_because(other, "no space")
            for number in range(5):
                (Path(one.root) / f"f{number}").unlink()
            await together(one, other)
            assert (root / "f5").read_bytes() == (Path(one.root) / "f5").read_bytes()


async def test_a_name_that_the_file_system_refuses(tmp_path: Path) -> None:
    root = tmp_path / "b" / "root"
    with mounted("ntfs", root, tmp_path / "scratch", "windows_names"):
        async with pair(tmp_path, aging_s=0.1) as (one, other):
            top = Path(one.root)
            (top / "why: not").write_text("x")
            (top / "fol:der" / "in").mkdir(parents=True)
            waiting = await waits_because(other, "failed", "parent missing")
            (top / "fine").write_text("fine")
            await arrives(root / "fine")
            advice = {each["path"]: each["advice"] for each in waiting if each["reason"] == "failed"}
            assert advice.keys() <= {"why: not", "fol:der"}
            assert {text.partition(" (")[0] for text in advice.values()} == {"see to it that the file system takes it"}
            (top / "why: not").rename(top / "why not")
            (top / "fol:der").rename(top / "folder")
            await together(one, other)
            assert sorted(_names(other.root)) == ["fine", "folder", "why not"]
            assert (root / "folder" / "in").is_dir()


async def test_a_name_that_the_file_system_gives_back_as_another(tmp_path: Path) -> None:
    """The halves of a UTF-16 character, each as if it were one, are that character to ntfs: its member finds that the
    file has been renamed, and so it is, everywhere."""
    root = tmp_path / "b" / "root"
    name = os.fsdecode(b"halves \xed\xa0\xbd\xed\xb8\x80")
    with mounted("ntfs", root, tmp_path / "scratch"):
        async with pair(tmp_path, aging_s=0.1, scan_interval_s=0.4) as (one, other):
            (Path(one.root) / name).write_text("content")
            end = asyncio.get_running_loop().time() + PATIENCE_S
            while _names(one.root) != ["halves \N{GRINNING FACE}"]:
                assert asyncio.get_running_loop().time() < end, f"not found: {_names(one.root)}, {_names(other.root)}"
                await asyncio.sleep(0.01)
            await together(one, other)
            assert _names(one.root) == _names(other.root) == ["halves \N{GRINNING FACE}"]
            assert (Path(one.root) / "halves \N{GRINNING FACE}").read_text() == "content"
            assert not other.kept.list()


async def test_the_target_of_a_link_may_be_as_long_as_any_path(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        target = "/".join(["x" * 63] * 64)[:4095]
        os.symlink(target, Path(one.root) / "link")
        await together(one, other)
        assert os.readlink(Path(other.root) / "link") == target


async def test_a_file_of_a_tebibyte_that_is_a_hole(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        try:
            with open(Path(one.root) / "disk image", "wb") as stream:
                stream.truncate(1 << 40)
                for place in (0, 1 << 35, (1 << 40) - 5):
                    stream.seek(place)
                    stream.write(b"data!")
        except OSError as error:
            pytest.skip(f"no file of that size here: {error}")
        await together(one, other)
        found = (Path(other.root) / "disk image").stat()
        assert found.st_size == 1 << 40
        assert found.st_blocks < 1 << 12
        with open(Path(other.root) / "disk image", "rb") as stream:
            for place in (0, 1 << 35, (1 << 40) - 5):
                stream.seek(place)
                assert stream.read(5) == b"data!"


async def test_a_file_that_never_rests_is_sent_all_the_same(tmp_path: Path) -> None:
    """A log that somebody writes to for hours: as it is after ten times the aging."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        end = asyncio.get_running_loop().time() + PATIENCE_S
        written = 0
        with open(Path(one.root) / "log", "ab", buffering=0) as stream:
            while not (Path(other.root) / "log").exists():
                assert asyncio.get_running_loop().time() < end, "it never came"
                stream.write(b"a line\n")
                written += 1
                await asyncio.sleep(0.02)
        came = (Path(other.root) / "log").read_bytes()
        assert 0 < len(came) <= 7 * written
        assert came == b"a line\n" * (len(came) // 7)
        await together(one, other)
        assert (Path(other.root) / "log").stat().st_size == 7 * written


async def waits_because(member: Member, reason: str, *others: str) -> list[dict[str, Any]]:
    """The change orders that wait at a member, once all of them do for that reason (or one of the others)."""
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        waiting = await member.replica.waiting()
        if reason in (found := {one["reason"] for one in waiting}) and found <= {reason, *others}:
            return waiting
        assert asyncio.get_running_loop().time() < end, f"what waits: {waiting}"
        await asyncio.sleep(0.01)


def _names(root: str) -> list[str]:
    return [name for name in os.listdir(root) if not name.startswith(".frs-preinstall")]
