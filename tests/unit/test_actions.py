"""Carrying out the engine's actions: what is read for a partner, and received from it, is bounded."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import resource
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.facts import facts_of
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall
from agent.files.underway import UnderWay
from agent.replica.actions import BYTES_AT_ONCE, INSTALLS_AT_ONCE, Actions
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.reporting.log import get_logger
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.packet import NamedGuid, Packet
from agent.work.bysize import LargeFileThreads
from agent.work.supervise import Supervisor
from idtable.records import IDRecord
from idtable.store import Store
from staging.area import StagingArea
from staging.generate import generate


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


PARTNER, OTHER, CO, GUID = b"p" * 16, b"q" * 16, b"c" * 16, b"g" * 16


class Bench:
    """The actions of a member with one file, `f`, in its tree."""

    def __init__(self, base: Path, quota: int = 1 << 20) -> None:
        for folder in ("root", "staging"):
            (base / folder).mkdir()
        (base / "root" / "f").write_bytes(b"content")
        self.events: list[ev.Event] = []
        self.came = asyncio.Event()
        self.room = True
        self.loop = asyncio.get_running_loop()
        self.store = Store(":memory:")
        with self.store.transaction():
            self.store.put(IDRecord(b"r" * 16, bytes(16), "", True, kind="folder"))
            self.store.put(IDRecord(GUID, b"r" * 16, "f", False, kind="file"))
        self.area = StagingArea(str(base / "staging"), quota, (PARTNER, OTHER))
        self.executor = ThreadPoolExecutor(3)
        self.files = FileOps(
            str(base / "root"),
            str(base),
            self.area,
            KeptStore(str(base / "kept"), 1 << 20),
            durable=False,
            compressions=(),
            dropped=lambda event: self.loop.call_soon_threadsafe(self.post, event),
        )
        log = get_logger("frs", set_name="docs")
        self.actions = Actions(
            self.store,
            threading.RLock(),
            self.files,
            (self.executor, 2),
            LargeFileThreads(1),
            keys={GUID: "a->b"},
            send=lambda action, cxtion: None,
            has_room=lambda partner: self.room,
            post=self.post,
            under_way=UnderWay(),
            supervisor=Supervisor(failed),
            incidents=Incidents(log),
            log=log,
        )

    def post(self, event: ev.Event) -> None:
        self.events.append(event)
        self.came.set()

    async def until(self, count: int) -> None:
        while len(self.events) < count:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 30)

    def read(self, offset: int = 0) -> ev.ReadStage:
        name = NamedGuid(PARTNER, "b")
        packet = Packet(command=c.CMD_SEND_STAGE, to=name, from_=name, replica=name, cxtion=name)
        co = ChangeOrder(change_order_guid=CO, file_guid=GUID, file_name="f")
        none = frozenset((c.COMPRESSION_NONE,))
        return ev.ReadStage(PARTNER, b"x" * 16, packet, co, GUID, bytes(16), offset, none, False, True)


def block(co_guid: bytes, number: int, size: int, claimed: int, partner: bytes = PARTNER) -> ev.StoreBlock:
    last = (number + 1) * size >= claimed
    return ev.StoreBlock(co_guid, number * size, bytes(size), last, claimed, bytes(16), False, partner)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.actions.idle()
    made.executor.shutdown()
    made.files.close()
    made.store.close()


async def test_nothing_is_read_for_a_partner_that_takes_nothing(bench: Bench) -> None:
    bench.room = False
    for _ in range(10):
        bench.actions.act(bench.read())
    await bench.actions.idle()
    assert not bench.events
    assert bench.area.guids() == []
    bench.actions.go_on(PARTNER)
    assert not bench.events
    bench.room = True
    bench.actions.go_on(PARTNER)
    await bench.until(10)
    assert all(isinstance(event, ev.StageBlock) for event in bench.events)


@pytest.mark.parametrize("coc_ext", [bytes(0x28), bytes(range(0x28))])
async def test_the_stage_header_says_what_its_partner_is_to_read(bench: Bench, coc_ext: bytes) -> None:
    """Its change order and the extension for old partners (3.3.4.4.7); all else is that of the file."""
    for number, extension in enumerate((bytes(range(1, 0x29)), coc_ext)):
        bench.actions.act(dataclasses.replace(bench.read(), coc_ext=extension))
        await bench.until(number + 1)
    other, header = (event.data[:0x400] for event in bench.events if isinstance(event, ev.StageBlock))
    assert header[0x3A8:0x3D0] == coc_ext  # behind FileObjId, which is behind the change order at 0x50
    assert header[0x368:0x378] == GUID
    assert (header[:0x3A8], header[0x3D0:]) == (other[:0x3A8], other[0x3D0:])


async def test_what_is_in_memory_is_read_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trip to a thread would cost more than reading; but nothing is waited for."""
    bench.area.stage(CO, os.path.join(bench.files.root.path, "f"), object_id=GUID)
    action = bench.read()
    bench.actions.act(action)
    assert bench.events == [bench.files.read_stage(action, None)]

    def waits(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "preadv", waits)
    bench.actions.act(action)
    assert len(bench.events) == 1
    await bench.until(2)
    assert bench.events[0] == bench.events[1]


async def test_what_is_received_is_on_the_disk_before_it_is_installed(bench: Bench) -> None:
    """Else a member that is killed between an install and its record could not do that again, and would take what it
    installed for a change of its user."""
    bench.actions.act(block(CO, 0, 4096, 4096))
    await bench.until(1)
    assert bench.events == [ev.FetchStored(CO, True, 4096)]
    assert [os.stat(os.path.join(bench.area.path, name)).st_size for name in os.listdir(bench.area.path)] == [4096]


async def test_a_small_staging_file_goes_with_its_change_order(bench: Bench) -> None:
    """As it would be sent if it were asked for; to nobody who takes nothing, or does not know its compression."""
    bench.area.stage(CO, os.path.join(bench.files.root.path, "f"), object_id=GUID)
    action = bench.read()
    bench.actions.act(action)
    (answer,) = bench.events
    assert isinstance(answer, ev.StageBlock)
    name = action.packet.to
    for room, compressions, expected in (
        (True, action.compressions, answer.data),
        (False, action.compressions, None),
        (True, frozenset((c.COMPRESSION_LZNT1,)), None),
        (True, None, None),
    ):
        bench.room = room
        packet = Packet(c.CMD_REMOTE_CO, name, name, name, NamedGuid(GUID, "a->b"), remote_co=action.change_order)
        bench.actions.act(ev.Send(PARTNER, packet, brings=compressions))
        assert packet.block == expected
        assert packet.block_size == (None if expected is None else len(expected))


async def test_a_staging_file_that_lost_its_content_goes_with_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may leave it so: it is asked for, and made anew then."""
    monkeypatch.setattr(bench.area, "read_cached", lambda co_guid, most: b"")
    name = bench.read().packet.to
    co = bench.read().change_order
    packet = Packet(c.CMD_REMOTE_CO, name, name, name, NamedGuid(GUID, "a->b"), remote_co=co)
    bench.actions.act(ev.Send(PARTNER, packet, brings=bench.read().compressions))
    assert packet.block is None
    assert packet.block_size is None


async def test_a_staging_file_of_one_file_is_not_sent_for_another(bench: Bench) -> None:
    """A partner may ask for any file by the GUID of any change order, also one that others will ask by; what it gets is
    not what they get. Nor is that what a partner has sent under that GUID."""
    (Path(bench.files.root.path) / "g").write_bytes(b"another")
    action, other = bench.read(), OTHER
    wanted = dataclasses.replace(action, file_guid=other, change_order=action.change_order.replace(file_guid=other))

    def object_id(asked: ev.ReadStage, path: str) -> bytes:
        answer = bench.files.read_stage(asked, path)
        assert isinstance(answer, ev.StageBlock)
        return answer.data[0x368:0x378]

    assert object_id(wanted, "g") == other
    assert object_id(action, "f") == GUID
    bench.area.stage(CO, os.path.join(bench.files.root.path, "g"), object_id=other)
    assert object_id(action, "f") == GUID
    assert bench.files.read_cached(action) is None
    assert bench.files.to_go_with(action.change_order, action.compressions) is None
    bench.area.stage(CO, os.path.join(bench.files.root.path, "g"), object_id=GUID)  # as it is said to be
    arriving = dataclasses.replace(action, at_hand=False)
    bench.actions.act(arriving)
    await bench.until(1)
    (answer,) = bench.events
    assert isinstance(answer, ev.StageBlock)
    assert b"content" in answer.data


def to_be_made(bench: Bench, co_guid: bytes = CO) -> ev.MakeStage:
    path = os.path.join(bench.files.root.path, "f")
    staged = generate(path, None, object_id=GUID)
    none = frozenset((c.COMPRESSION_NONE,))
    return ev.MakeStage(PARTNER, co_guid, GUID, staged.md5, facts_of(staged.fingerprint), none)


async def test_a_staging_file_is_made_before_it_is_asked_for(bench: Bench) -> None:
    """In memory, on the account of whom it is for, and as it would be made if it were asked for."""
    bench.actions.act(bench.read())
    await bench.until(1)
    (answer,) = bench.events
    assert isinstance(answer, ev.StageBlock)
    there = os.listdir(bench.area.path)
    bench.actions.act(to_be_made(bench))
    await bench.actions.idle()
    assert os.listdir(bench.area.path) == there
    assert bench.files.to_go_with(bench.read().change_order, (c.COMPRESSION_NONE,)) == answer.data
    assert bench.events == [answer]


@pytest.mark.parametrize("why", ["changed", "exchanged", "dropped", "gone"])
async def test_no_staging_file_is_made_of_what_is_not_sent(bench: Bench, why: str) -> None:
    path = Path(bench.files.root.path, "f")
    wanted = to_be_made(bench)
    if why == "changed":
        path.write_bytes(b"CONTENT")
    elif why == "exchanged":
        path.rename(path.with_name("g"))
        path.write_bytes(b"content")
    elif why == "gone":
        path.unlink()
    bench.actions.act(wanted)
    if why == "dropped":
        bench.actions.act(ev.DropStage(CO))
    await bench.actions.idle()
    assert bench.area.guids() == []
    assert not bench.actions._to_make


def of_size(size: int) -> ResolvedInstall:
    return ResolvedInstall(ev.Install(CO, GUID, False, (), bytes(16)), (), size)


async def test_installs_of_small_files_are_one_batch_and_of_larger_ones_several(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[ResolvedInstall]] = []
    monkeypatch.setattr(bench.files, "install_all", lambda installs: batches.append(installs) or [])
    waiting = deque([*(of_size(4096) for _ in range(40)), *(of_size(BYTES_AT_ONCE) for _ in range(2)), of_size(1)])
    while waiting:
        bench.actions._install_some(waiting, INSTALLS_AT_ONCE)
    assert [len(batch) for batch in batches] == [INSTALLS_AT_ONCE, 9, 1, 1]


@pytest.mark.parametrize("offset", [1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
async def test_a_block_beyond_the_end_is_refused(bench: Bench, offset: int) -> None:
    bench.actions.act(bench.read())
    bench.actions.act(bench.read(offset))
    await bench.until(2)
    (refused,) = (event for event in bench.events if isinstance(event, ev.StageRefused))
    assert refused.retry
    assert "not so long" in refused.error


async def test_a_claim_of_the_whole_area_is_in_nobodys_way(bench: Bench) -> None:
    """One block of a staging file as large as the quota, and then silence: the others are received all the same, and
    the tree is staged."""
    size = 4 << 10
    bench.actions.act(block(CO, 0, size, 1 << 20))
    for number in range(20):
        for part in range(12):
            bench.actions.act(block(bytes([number]) * 16, part, size, 12 * size, OTHER))
    bench.actions.act(bench.read())
    await bench.until(1 + 20 * 12 + 1)
    assert not [event for event in bench.events if isinstance(event, ev.FetchFailed | ev.StageRefused)]


async def test_what_makes_room_for_others_is_told_of(bench: Bench) -> None:
    """Whoever uses more than its share gives way, and is fetched again later."""
    size = 64 << 10
    for part in range(14):
        bench.actions.act(block(CO, part, size, 1 << 20))
    await bench.until(14)
    for part in range(7):
        bench.actions.act(block(b"o" * 16, part, size, 7 * size, OTHER))
    await bench.until(14 + 7 + 1)
    await bench.actions.idle()
    (failed,) = (event for event in bench.events if isinstance(event, ev.FetchFailed))
    assert (failed.co_guid, failed.outcome, failed.cause) == (CO, ev.Outcome.NO_SPACE, Cause.STAGING_SHARE)
    assert bench.area.guids() == [b"o" * 16]
    assert bench.area.used_bytes == 7 * size


async def test_a_claim_that_could_never_fit_is_refused_at_once(bench: Bench) -> None:
    bench.actions.act(block(CO, 0, 4096, (1 << 20) + 1))
    await bench.until(1)
    (failed,) = bench.events
    assert isinstance(failed, ev.FetchFailed)
    assert (failed.outcome, failed.cause) == (ev.Outcome.NO_SPACE, None)
    assert bench.area.used_bytes == 0


async def test_a_new_engine_gives_back_what_the_old_one_began(bench: Bench) -> None:
    bench.actions.act(block(CO, 0, 4096, 1 << 20))
    await bench.until(1)
    assert bench.area.used_bytes == 4096
    bench.actions.renew()
    assert bench.area.used_bytes == 0
    bench.actions.act(dataclasses.replace(block(CO, 0, 4096, 4096)))
    await bench.until(2)
    assert bench.area.guids() == [CO]


@pytest.mark.parametrize("queued", [False, True])
async def test_what_is_dropped_gives_its_room_back(bench: Bench, queued: bool) -> None:
    """The session that it was fetched in has ended, perhaps while blocks were still to be stored."""
    for part in range(2):
        bench.actions.act(block(CO, part, 4096, 1 << 19))
        if not queued:
            await bench.until(part + 1)
    if not queued:
        await bench.actions.idle()
        assert bench.area.used_bytes == 2 * 4096
    bench.actions.act(ev.DropStage(CO))
    await bench.actions.idle()
    assert bench.area.used_bytes == 0
    assert os.listdir(bench.area.path) == []


async def test_a_staging_file_larger_than_the_file_system_holds_is_not_tried_again(bench: Bench) -> None:
    """The file system is played by a limit of this process, with the same error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        for part in range(3):
            bench.actions.act(block(CO, part, 4096, 1 << 19))
        await bench.until(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    failed = bench.events[-1]
    assert isinstance(failed, ev.FetchFailed)
    assert failed.outcome is ev.Outcome.UNSUPPORTED
    assert bench.area.used_bytes == 0
