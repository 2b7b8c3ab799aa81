"""The place for all members' samples: a folder, S3 (a real server), and what fsspec reaches."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.counters import copying, parquet
from agent.counters.archive import Policy, archive
from agent.counters.archiver import Archiver
from agent.counters.copier import Copier
from agent.counters.copying import copy
from agent.counters.store import Store, StoreError, told
from config.storeurl import parse_store
from tests.unit.counters.s3server import SECRET, bucket, s3_server
from tests.unit.counters.test_archive import DAY, NEVER, journal, line

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The URL of a place in a bucket of its own, on a real server."""
    return bucket(s3_port, request.node.name, monkeypatch)


@pytest.fixture(params=["file", "s3", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, S3, and one that is reached by fsspec alone (of this process, so that is no real server)."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        return "memory://place/fleets"
    return f"file://{tmp_path}/the%20place"


def member(folder: Path, files: int = 2) -> Path:
    """The archive of a member, in which there are so many files."""
    folder.mkdir(exist_ok=True)
    for number in range(1, files + 1):
        journal(folder, number, range(number * 600, number * 600 + 600, 5))
    assert archive(folder, "", NEVER, DAY) == []
    return folder


def names(url: str) -> list[str]:
    store = Store(url)
    return [one.url.removeprefix(store.at.base + "/") for one in store.files(parquet.SUFFIX)]


def test_what_is_archived_is_copied_once_and_is_the_same_there(tmp_path: Path, place: str) -> None:
    folder = member(tmp_path / "samples")
    assert copy(folder, place) == 2
    there = names(place)
    assert [re.sub("-[0-9a-f]{8}", "-HASH", name) for name in there] == [
        f"hq/a/date=2026-01-10/00000001-{number:06d}-HASH.parquet" for number in (1, 2)
    ]
    store = Store(place)
    for stored, path in zip(store.files(parquet.SUFFIX), sorted(folder.rglob("*.parquet")), strict=True):
        assert stored.size == path.stat().st_size
        with store.opened(stored) as file:
            assert parquet.look(file) == parquet.look(path)
        store.fetch(stored, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert copy(folder, place) == 0
    # the list is lost: the same files again are the same names
    (folder / copying.COPIED).unlink()
    assert copy(folder, place) == 2
    assert names(place) == there


def test_another_file_of_the_same_name_takes_nothing_away(tmp_path: Path, place: str) -> None:
    """A state directory that was restored from a backup counts its starts anew."""
    copy(member(tmp_path / "samples", 1), place)
    other = tmp_path / "restored"
    other.mkdir()
    journal(other, 1, range(600, 700, 5), run="other")
    archive(other, "", NEVER, DAY)
    copy(other, place)
    assert len(names(place)) == 2


def test_what_was_thinned_is_copied_only_where_it_was_not_before(tmp_path: Path, place: str) -> None:
    folder, policy = member(tmp_path / "samples", 1), Policy(1, 2, 365, 1 << 40)
    copy(folder, place)
    journal(folder, 2, range(1200, 1800, 5))
    archive(folder, "", NEVER, DAY)
    for later in (1, 2):  # days of which there are samples make others old
        day = DAY + timedelta(days=later)
        (folder / f"0000000{later + 1}-000001.jsonl").write_text(
            line(later * 86_400 + 60, 3, start=later + 1, mono_us=60_000_000)
        )
        assert archive(folder, "", policy, day) == []
        assert copy(folder, place) == 2
    kinds = [name.partition(".")[2] for name in names(place) if "2026-01-10" in name]
    assert sorted(kinds) == ["hours.parquet", "minutes.parquet", "parquet"]


def test_another_place_gets_all_of_it(tmp_path: Path, place: str) -> None:
    folder = member(tmp_path / "samples")
    assert copy(folder, place) == 2
    assert copy(folder, f"file://{tmp_path}/other") == 2
    assert len(names(f"file://{tmp_path}/other")) == 2


def test_a_failure_is_tried_again_and_what_was_copied_is_not_copied_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url, waited = member(tmp_path / "samples", 3), f"file://{tmp_path}/place", list[float]()
    real, tries = Store.put, list[str]()

    def put(self: Store, name: str, data: bytes) -> None:
        tries.append(name)
        if len(tries) in (2, 5, 6, 7):
            raise StoreError("no")
        real(self, name, data)

    monkeypatch.setattr(Store, "put", put)
    assert copy(folder, url, sleep=waited.append) == 3
    assert waited == [1.0]
    (folder / copying.COPIED).unlink()
    with pytest.raises(StoreError):
        copy(folder, url, sleep=waited.append)
    assert waited == [1.0, 1.0, 5.0]
    assert copy(folder, url, sleep=waited.append) == 3
    assert len(tries) == 4 + 3 + 3


def test_after_a_quarter_of_an_hour_no_other_file_is_begun(tmp_path: Path) -> None:
    folder, url, times = member(tmp_path / "samples", 3), f"file://{tmp_path}/place", iter([0.0, 1.0, 899.0, 901.0])
    assert copy(folder, url, clock=lambda: next(times)) == 2
    assert copy(folder, url) == 1


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder it gets its name when it is whole and durable; what was cut short is no file of samples to anyone."""
    import os

    url = f"file://{tmp_path}/place"
    seen: list[list[str]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        seen.append(sorted(path.name for path in (tmp_path / "place").rglob("*.parquet*")))
        if len(seen) == 2:
            raise OSError(28, "No space left on device")
        real(fd)

    folder = member(tmp_path / "samples", 1)
    monkeypatch.setattr(os, "fsync", fsync)
    store, [path] = Store(url), list(folder.rglob("*.parquet"))
    store.put("one.parquet", path.read_bytes())
    with pytest.raises(StoreError, match=r"two.parquet cannot be written: \[Errno 28\]"):
        store.put("two.parquet", path.read_bytes())
    assert seen == [[".one.parquet.tmp"], [".two.parquet.tmp", "one.parquet"]]
    assert names(url) == ["one.parquet"]
    assert [found.name for found in parquet.sample_files([tmp_path / "place"])] == ["one.parquet"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("samples", "must be a URL such as"),
        ("/srv/samples", "must be a URL such as"),
        ("s3:bucket", "must be a URL such as"),
        ("simplecache::s3://b/x", "must be a URL such as"),
        ("s3://key:word@bucket/x", "no user name and no password"),
        ("sftp://root:word@host/x", "no user name and no password"),
        ("s3://", "must be a URL such as"),
        ("s3:///x", "must name a bucket"),
        ("file://host/x", "by its whole path"),
        ("file:///", "by its whole path"),
        ("s3://bucket/x?access_key=word", "'access_key': there are region, endpoint_override, scheme"),
        ("abfs://box/x?sig=word", "'sig': a abfs URL has none"),
        ("s3://bucket/x#y", "must have no #"),
    ],
)
def test_what_is_no_place(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_store(text)
    assert "word" not in str(caught.value).replace("password", "")


def test_nothing_secret_is_told(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = [("AWS_SECRET_ACCESS_KEY", "abc/def+"), ("HOME", "/root"), ("X_TOKEN", "t0ken")]
    text = told(ValueError("at /root: abc/def+ or\n abc%2Fdef%2B with t0ken"), environment)
    assert text == "at /root: (AWS_SECRET_ACCESS_KEY) or (AWS_SECRET_ACCESS_KEY) with (X_TOKEN)"
    with pytest.raises(StoreError) as caught:  # the bucket is not there
        Store(s3.replace("/fleets", "-not/x", 1)).put("one", b"x")
    assert "cannot be written" in str(caught.value)
    for secret in (SECRET, "AKIDOFTHETEST"):
        assert secret not in str(caught.value)


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"gs://bucket: cannot be reached: .*gcsfs"):
        Store("gs://bucket")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StoreError, match="needs the extra `objectstore`"):
        Store("memory://x")


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(400):
        while not true():
            await asyncio.sleep(0.05)


async def test_the_agent_has_it_done_by_other_processes(tmp_path: Path, s3: str) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    journal(folder, 1, range(0, 20, 5))
    copier = Copier(folder, s3)
    archiver = Archiver(folder, ["--quota=1000000", "--seconds=9", "--minutes=9", "--hours=9"], copier.begin)
    archiver.begin(journal(folder, 2, range(15, 30, 5)))
    await until(lambda: copier.status()["copied"] == 1)
    assert copier.status() == {"place": s3, "copied": 1, "problem": None, "since": None}
    await archiver.close()
    await copier.close()
    assert len(names(s3)) == 1


async def test_a_place_that_cannot_be_reached_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And what is here stays as it is."""
    folder, blocked = member(tmp_path / "samples"), tmp_path / "place"
    blocked.write_text("a file, where the folder should be")
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    copier = Copier(folder, f"file://{blocked}", first_pause_s=0.01)
    with caplog.at_level(logging.INFO):
        copier.begin()
        processes: list[Any] = []

        def third() -> bool:
            if copier._process is not None and copier._process not in processes:
                processes.append(copier._process)
            return len(processes) >= 3

        await until(third)
        assert copier.status()["problem"].startswith(f"20703 samples are not copied: file://{blocked}: ")
        assert copier.status()["since"] is not None
        assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == before
        blocked.unlink()
        await until(lambda: copier.status()["copied"] == 2)
    await copier.close()
    assert copier.status()["problem"] is None
    [warning] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert warning.getMessage().startswith("20703 samples are not copied to the place")
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.INFO][-1].endswith("again")


async def test_an_end_of_the_agent_waits_for_no_place(tmp_path: Path) -> None:
    """Whoever takes the connection and says nothing."""
    folder = member(tmp_path / "samples")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        copier = Copier(folder, f"s3://bucket/x?endpoint_override=127.0.0.1:{port}&scheme=http&region=x")
        copier.begin()
        silent.settimeout(400)
        connection, _ = await asyncio.to_thread(silent.accept)
        await asyncio.wait_for(copier.close(), 200)
        connection.close()
    assert copier.status()["problem"] is None
