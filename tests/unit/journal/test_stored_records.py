"""What of the journal survives the process: records not retired, numbers, and damage of its file."""

from __future__ import annotations

import os

import pytest

from journal import log
from journal import reasons as why
from tests.damage import damage
from tests.unit.journal.ears import Ears


async def test_records_not_retired_come_back(tmp_path):
    async with Ears(tmp_path) as ears:
        for name in ("aging", "retired", "delivered"):
            ears.write(name)
        os.rename(ears.path("delivered"), ears.path("moved"))
        await ears.journal.barrier()
        last = (await ears.flush())["retired"]
        ears.journal.retire([last.usn])
        ears.write("late")
        await ears.journal.barrier()
    async with Ears(tmp_path) as ears:
        seen = await ears.flush()
        assert set(seen) == {"aging", "delivered", "moved", "late"}
        assert seen["delivered"].moved_to == "moved"
        assert seen["late"].reason & why.FILE_CREATE
        ears.write("new")
        new = (await ears.flush())["new"]
        assert new.first_usn > max(a.usn for a in seen.values())
        ears.journal.retire([a.usn for a in seen.values()])
    async with Ears(tmp_path) as ears:
        assert set(await ears.flush()) == {"new"}


async def test_numbers_are_not_given_twice_after_a_crash(tmp_path):
    path = str(tmp_path / "journal.db")
    first = log.JournalLog(path)
    used = [first.take_usn() for _ in range(5)]
    again = log.JournalLog(path)  # the first one was never closed
    assert again.take_usn() > max(used)
    next_usn = again.next_usn
    again.close()
    assert log.JournalLog(path).take_usn() == next_usn


async def test_damaged_records_are_put_aside_and_a_scan_asked_for(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"not a database, though long enough to look at" * 100)
    async with Ears(tmp_path) as ears:
        await ears.until(lambda: ears.rescans)
        assert "damaged" in ears.rescans[0][0]
        ears.write("f")
        assert "f" in await ears.flush()
    assert (tmp_path / "journal.db.damaged").exists()


@pytest.mark.parametrize("tree", ["usn", "meta"])
async def test_a_page_of_the_records_is_damaged_before_the_start(tmp_path, tree):
    async with Ears(tmp_path) as ears:
        ears.write("f")
        await ears.journal.barrier()
    damage(tmp_path / "journal.db", tree)
    async with Ears(tmp_path) as ears:
        await ears.until(lambda: ears.rescans)
        assert "damaged" in ears.rescans[0][0]
        ears.write("g")
        assert "g" in await ears.flush()
    assert (tmp_path / "journal.db.damaged").exists()


@pytest.mark.parametrize("tree", ["usn", "meta"])
def test_a_page_of_the_records_is_damaged_later(tmp_path, tree, monkeypatch):
    monkeypatch.setattr(log, "_RESERVE", 100)
    path = tmp_path / "journal.db"
    records = log.JournalLog(str(path))
    row = log.Row(records.take_usn(), 1, "f", 1, False, False, 0, None)
    records.commit([row], [])
    damage(path, tree, records._db)
    numbers = {records.take_usn() for _ in range(log._RESERVE + 2)}  # more than are reserved
    assert len(numbers) == log._RESERVE + 2
    assert min(numbers) > row.first_usn
    records.commit([row], [row.first_usn + 1])
    assert records.load() == [row]
    assert records.damaged
    assert path.with_name("journal.db.damaged").exists()
    records.close()
