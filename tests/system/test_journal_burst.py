"""Many changes at once while the machine is busy: whatever is lost is noticed, and a scan makes up for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import uuid

import pytest

from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import Kind
from journal.examine import Examiner
from journal.journal import Journal

FILES = 40_000

MAKER = """
import os, sys
root, count = sys.argv[1], int(sys.argv[2])
for i in range(count):
    if i % 200 == 0:
        folder = os.path.join(root, f"d{i // 200}")
        os.makedirs(folder, exist_ok=True)
    os.close(os.open(os.path.join(folder, f"f{i}"), os.O_CREAT | os.O_WRONLY))
"""


def apply(store: Store, changes) -> None:
    """What the service does with changes, reduced to the creation of records."""
    made: dict[str, bytes] = {}
    store.begin()
    for c in changes:
        assert c.kind is Kind.CREATE or (c.kind is Kind.UPDATE and c.file_kind == "folder"), c
        if c.kind is not Kind.CREATE:
            continue
        parent = made[c.parent_path] if c.parent_guid is None else c.parent_guid
        guid = made[c.path] = uuid.uuid4().bytes_le
        fp = c.fingerprint
        store.put(
            IDRecord(
                guid, parent, c.name, c.file_kind == "folder", kind=c.file_kind, dev=fp.dev, ino=fp.ino,
                btime_ns=fp.btime_ns, mtime_ns=fp.mtime_ns, ctime_ns=fp.ctime_ns, fsize=fp.size, mode=fp.mode,
                uid=fp.uid, gid=fp.gid,
            )
        )  # fmt: skip
    store.commit()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "deaf"), [(False, False), (True, False), (True, True)], ids=["new folders", "old folders", "overflow"]
)
async def test_a_burst_is_followed_whole(tmp_path, there, deaf, record_property):
    root = tmp_path / "root"
    root.mkdir()
    for i in range(FILES // 200 if there else 0):
        (root / f"d{i}").mkdir()
    aged: list = []
    rescans: list = []
    journal = Journal(str(root), str(tmp_path / "journal.db"), aging_s=1000)
    journal.start(asyncio.get_running_loop(), aged.extend, lambda *why: rescans.append(why))
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    busy = threading.Thread(target=spin)
    try:
        await journal.barrier()
        busy.start()
        maker = subprocess.Popen([sys.executable, "-c", MAKER, str(root), str(FILES)])
        if deaf:
            # Nothing is read while the burst lasts: the kernel's queue (16,384 events) cannot hold it.
            reading = journal._source._read
            journal._source._read = lambda: maker.wait() and 0
            await asyncio.to_thread(maker.wait)
            journal._source._read = reading
        else:
            await asyncio.to_thread(maker.wait)
        await journal.barrier()
        stop.set()
        journal.flush()
        await journal.barrier()
        record_property("rescans", len(rescans))
        record_property("records", len(aged))
        if deaf:
            assert rescans, "the overflow went unnoticed"
        if not there and not rescans:
            assert len(aged) == FILES + FILES // 200
        examiner = Examiner(str(root), store := Store(":memory:"))
        apply(store, examiner.examine(aged))
        if rescans:
            for batch in examiner.scan():
                apply(store, batch)
        assert store.counts()[:2] == (FILES, FILES // 200)
        assert list(examiner.scan()) == []
        store.close()
        # The watches are right again, too.
        aged.clear()
        (root / "d7" / "new").write_text("x")
        (root / f"d{FILES // 200 - 1}" / "new").write_text("x")
        await journal.barrier()
        journal.flush()
        await journal.barrier()
        assert {a.path for a in aged} == {"d7/new", f"d{FILES // 200 - 1}/new"}
    finally:
        stop.set()
        journal.stop()


def test_a_file_written_in_small_pieces_costs_little(tmp_path):
    """The reader gathers events: it is not woken for each of the writes."""

    async def run():
        root = tmp_path / "root"
        root.mkdir()
        counts: dict = {}

        def count(name, n):
            counts[name] = counts.get(name, 0) + n

        journal = Journal(str(root), str(tmp_path / "journal.db"), count=count)
        journal.start(asyncio.get_running_loop(), lambda batch: None, lambda *why: None)
        try:
            await journal.barrier()
            fd = os.open(root / "f", os.O_CREAT | os.O_WRONLY)
            for _ in range(20_000):
                os.write(fd, b"x" * 64)
            os.close(fd)
            await journal.barrier()
            assert journal.pending() == 1
            return counts["USN Records Accepted"]
        finally:
            journal.stop()

    assert asyncio.run(run()) < 2_000
