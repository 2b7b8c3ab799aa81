"""IDTable records after a change order."""

from __future__ import annotations

import pytest

from agent.engine import events as ev
from agent.engine.records import UNSTORED, record_after
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder

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
