"""IDTable records after a change order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from agent.engine import events as ev
from agent.engine.records import UNSTORED, checksum_of, record_after
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from idtable.records import IDRecord
from idtable.store import Store
from staging.unstored import Unstored, What

FACTS = ev.Facts(1, 2, 3, 4, 5, 6, 0o100644, 0, 0)


@pytest.mark.parametrize("exact", [True, False])
def test_what_could_not_be_held_is_marked_until_another_version_is_fetched(exact: bool) -> None:
    co = ChangeOrder(
        flags=c.CO_FLAG_CONTENT_CMD,
        file_guid=b"f" * 16,
        originator_guid=b"o" * 16,
        new_parent_guid=b"p" * 16,
        change_order_guid=b"c" * 16,
        file_name="file",
    )
    end = ev.Installed(
        co.change_order_guid, ev.Outcome.DONE, FACTS, b"m" * 16, 0, "file", unstored=b"" if exact else b"\1x"
    )
    installed = record_after(co, b"m" * 16, None, end, fetched=True)
    assert bool(installed.flags & UNSTORED) is not exact
    renamed = record_after(co, b"m" * 16, installed, ev.Installed(co.change_order_guid, ev.Outcome.DONE), fetched=False)
    assert bool(renamed.flags & UNSTORED) is not exact
    end = ev.Installed(co.change_order_guid, ev.Outcome.DONE, FACTS, b"n" * 16, 0, "file")
    replaced = record_after(co, b"n" * 16, renamed, end, fetched=True)
    assert not replaced.flags & UNSTORED


@pytest.mark.parametrize("made", [None, b"x" * 16], ids=["the same streams", "other streams"])
def test_no_checksum_is_promised_that_what_is_made_here_may_not_have(tmp_path: Path, made: bytes | None) -> None:
    remembered = Unstored(file_attributes=(1, 0), made=made, what=What.FILE_ATTRIBUTES | (What.STREAMS if made else 0))
    record = IDRecord(b"f" * 16, b"p" * 16, "file", False, md5=b"m" * 16, flags=UNSTORED)
    with contextlib.closing(Store(tmp_path / "frs.db")) as store:
        with store.transaction():
            store.put_unstored(record.file_guid, remembered.encode())
        assert checksum_of(record, store) == (bytes(16) if made else b"m" * 16)
        record.flags = 0
        assert checksum_of(record, store) == b"m" * 16
