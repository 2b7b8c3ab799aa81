"""agent.localchanges.large: the change of a large file waits until it was read, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.engine import events as ev
from agent.localchanges.stage import Content, Work
from agent.wire.constants import COMPRESSION_LZNT1, COMPRESSION_NONE
from agent.work.bysize import CLASSES
from journal import reasons as why
from journal.changes import Aged
from staging.errors import Torn
from staging.fsops import fingerprint
from staging.generate import generate, generate_open
from staging.interrupt import check
from tests.unit.watched import Host


class Reading(Host):
    """Large files are read when the test lets them, and as often as it does."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.let = threading.Semaphore(0)
        self.begun: list[str] = []
        self.error: Exception | None = None
        self.troubles: list[str] = []
        del self.watch._announcing.stager.stage_all
        self.watch._announcing.stager.content_of = self.read  # type: ignore[method-assign]
        self.watch._announcing.stager._is_small = lambda work: False  # type: ignore[method-assign]

    def read(self, work: Work, compression: bytes) -> Content:
        assert work.change.fingerprint is not None
        if work.change.fingerprint.size < CLASSES[0]:
            return Content(generate(str(self.tree / work.change.path), None, object_id=work.guid), False, False)
        self.begun.append(work.change.path)
        with open(self.tree / work.change.path, "rb") as f:
            while not self.let.acquire(timeout=0.01):
                check()
            if self.error is not None:
                raise self.error
            staged = generate_open(f.fileno(), None, object_id=work.guid)
            return Content(staged, True, compression != COMPRESSION_NONE)

    def make(self, name: str, size: int = CLASSES[0]) -> None:
        with open(self.tree / name, "wb") as f:
            f.truncate(size)

    def local_error(self, text: str) -> None:
        self.troubles.append(text)

    async def tell(self, *paths: str, when: int = 7) -> list[str]:
        """One round of the watch; the names that the engine is told."""
        self.posted.clear()
        self.watch._aged.extend(Aged(path, why.DATA, False, 1, 1, when) for path in paths)
        await self.watch._one_round()
        return [event.name for event in self.posted]

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.begun) < count:
                await asyncio.sleep(0.01)

    async def called_up(self) -> list[tuple[dict[str, int], int]]:
        """What is to be looked at again, once it is."""
        async with asyncio.timeout(30):
            while not self.watch._later.put_offs:
                await asyncio.sleep(0.01)
        self.watch._later.put_offs.clear()
        touched, self.still.touched = self.still.touched, []
        return touched


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Reading]:
    made = Reading(tmp_path)
    yield made
    made.close()


async def test_the_change_comes_when_the_file_was_read_and_others_before(host: Reading) -> None:
    host.make("large")
    (host.tree / "small").write_text("x")
    assert await host.tell("large", "small") == ["small"]
    assert host.watch.pending() == 1
    assert list(host.watch._announcing.large.waiting()) == [("large", 0)]
    host.let.release()
    ((paths, when),) = await host.called_up()
    assert (list(paths), when) == (["large"], 7)
    assert host.watch.pending() == 0
    assert await host.tell("large") == ["large"]
    (event,) = host.posted
    assert isinstance(event, ev.LocalChange)
    assert host.begun == ["large"]
    found = fingerprint(str(host.tree / "large"))
    assert event.facts is not None
    assert (event.facts.ino, event.facts.fsize, event.facts.ctime_ns) == (found.ino, found.size, found.ctime_ns)
    assert event.md5 == generate(str(host.tree / "large"), None, object_id=event.file_guid).md5
    assert os.getxattr(host.tree / "large", "user.frs.object_id") == event.file_guid


async def test_a_new_file_that_is_being_read_is_given_its_object_id_once(host: Reading) -> None:
    """That is a change of the file, of which the journal tells. Where reading takes longer than a change ages, the file
    would be changed again and again while it is read, and never be told of."""
    host.make("large")
    await host.tell("large")
    await host.until_begun(1)
    marked = fingerprint(str(host.tree / "large"))
    object_id = os.getxattr(host.tree / "large", "user.frs.object_id")
    for _ in range(3):
        assert await host.tell("large") == []
        assert fingerprint(str(host.tree / "large")) == marked
    host.let.release()
    await host.called_up()
    assert await host.tell("large") == ["large"]
    assert host.begun == ["large"]
    assert host.posted[0].file_guid == object_id


async def test_nor_is_it_given_another_when_it_is_read_anew(host: Reading) -> None:
    host.make("large")
    await host.tell("large")
    host.let.release()
    await host.called_up()
    object_id = os.getxattr(host.tree / "large", "user.frs.object_id")
    with open(host.tree / "large", "r+b") as f:
        f.write(b"x")
    written = fingerprint(str(host.tree / "large"))
    assert await host.tell("large") == []
    assert fingerprint(str(host.tree / "large")) == written
    host.let.release()
    await host.called_up()
    assert await host.tell("large") == ["large"]
    assert host.posted[0].file_guid == object_id


async def test_a_file_that_is_changed_is_read_anew_at_once(host: Reading) -> None:
    host.make("large")
    await host.tell("large")
    host.make("large", CLASSES[0] + 1)
    assert await host.tell("large") == []
    assert len(await host.called_up()) == 1, "what was begun for the former content is given up"
    assert await host.tell("large") == []
    host.let.release()
    await host.called_up()
    assert await host.tell("large") == ["large"]
    assert host.posted[0].facts.fsize == CLASSES[0] + 1
    assert len(host.begun) == 2


async def test_a_file_that_has_changed_since_is_read_anew_and_leaves_no_staging_file(host: Reading) -> None:
    host.make("large")
    await host.tell("large")
    host.let.release()
    await host.called_up()
    with open(host.tree / "large", "r+b") as f:
        f.write(b"x")
    assert await host.tell("large") == []
    assert len(host.dropped) == 1
    host.let.release()
    await host.called_up()
    assert await host.tell("large") == ["large"]


async def test_wherever_it_is_by_then(host: Reading) -> None:
    """Renamed before it was read, and found at its new name as well: it is told of once, and read once."""
    host.make("large")
    await host.tell("large")
    await host.until_begun(1)
    os.rename(host.tree / "large", host.tree / "other")
    assert await host.tell("other") == []
    host.let.release()
    touched = await host.called_up()
    assert sorted(path for paths, _ in touched for path in paths) == ["large", "other"]
    assert await host.tell("large", "other") == ["other"]
    assert host.begun == ["large"]


async def test_each_name_of_a_hard_link_is_a_file_of_its_own(host: Reading) -> None:
    host.make("one")
    os.link(host.tree / "one", host.tree / "two")
    assert await host.tell("one", "two") == []
    host.let.release(2)
    touched = []
    while len(touched) < 2:
        touched += await host.called_up()
    assert sorted(await host.tell("one", "two")) == ["one", "two"]
    assert len({event.file_guid for event in host.posted}) == 2


async def test_what_cannot_be_read_is_told_and_tried_again(host: Reading) -> None:
    host.make("large")
    host.error = Torn("it changed")
    await host.tell("large")
    host.let.release()
    async with asyncio.timeout(30):
        while not host.watch._later.timers:
            await asyncio.sleep(0.01)
    assert list(host.watch._later.timers.values()) == [("large", 0)]
    for handle in host.watch._later.timers:
        handle.cancel()
    host.watch._later.timers.clear()
    host.error = None
    await host.tell("large")
    host.let.release()
    await host.called_up()
    assert await host.tell("large") == ["large"]


async def test_a_tree_to_seed_others_from_is_known_with_its_large_files(host: Reading) -> None:
    host.make("large")
    (host.tree / "small").write_text("x")
    host.watch._first = host.watch.scanning = True
    host.missing = SimpleNamespace(judge=lambda missing: None, scanned=lambda: None)  # type: ignore[attr-defined]
    looking = asyncio.create_task(host.watch._look_at_all())
    await host.until_begun(1)
    assert not looking.done()
    host.let.release()
    await asyncio.wait_for(looking, 30)
    assert {event.name for event in host.posted} == {"large", "small"}
    assert host.begun == ["large"]


async def test_nothing_is_called_up_for_a_watch_that_has_stopped(host: Reading) -> None:
    host.make("large")
    await host.tell("large")
    await host.until_begun(1)
    host.watch._announcing.large.stop()
    await asyncio.wait_for(host.watch._announcing.large.idle(), 30)
    assert not host.watch._later.put_offs
    assert not host.still.touched


async def test_it_is_announced_as_it_was_staged(host: Reading) -> None:
    """By the time that it was read others have joined, who do not understand that compression."""
    host.make("large")
    host.files.choose = lambda allowed: COMPRESSION_LZNT1
    await host.tell("large")
    host.let.release()
    await host.called_up()
    host.files.choose = lambda allowed: COMPRESSION_NONE
    assert await host.tell("large") == ["large"]
    assert host.posted[0].compressed
