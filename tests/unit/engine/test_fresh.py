"""The end of the outbound log as it was made."""

from __future__ import annotations

import pytest

from agent.engine import fresh as module
from agent.engine.fresh import Fresh, Logged
from agent.wire.change_order import ChangeOrder, CoExtension2
from idtable.records import OutlogRow


def item(seq: int, co: int | None = None) -> Logged:
    guid = (seq if co is None else co).to_bytes(16, "big")
    return Logged(
        OutlogRow(seq, b"", b"", guid, guid, guid, seq, b"", 0), ChangeOrder(change_order_guid=guid), CoExtension2(guid)
    )


def numbers(items: list[Logged]) -> list[int]:
    return [one.row.seq for one in items]


def test_only_what_follows_without_a_gap_is_given() -> None:
    fresh = Fresh()
    for seq in range(5, 10):
        fresh.add(item(seq))
    assert numbers(fresh.after(4, 3)) == [5, 6, 7]
    assert numbers(fresh.after(7, 64)) == [8, 9]
    assert fresh.after(3, 64) == [], "4 is in the log alone, and comes before the others"
    assert fresh.after(9, 64) == []
    fresh.acknowledged(6)
    assert fresh.after(5, 64) == []
    assert numbers(fresh.after(6, 64)) == [7, 8, 9]
    fresh.clear()
    assert fresh.after(6, 64) == []
    assert fresh.of((8).to_bytes(16, "big")) is None


def test_of_several_with_one_guid_it_is_the_last() -> None:
    fresh = Fresh()
    for seq in (1, 2, 3):
        fresh.add(item(seq, co=7))
    found = fresh.of((7).to_bytes(16, "big"))
    assert found is not None
    assert found.row.seq == 3
    fresh.acknowledged(2)
    found = fresh.of((7).to_bytes(16, "big"))
    assert found is not None
    assert found.row.seq == 3
    fresh.acknowledged(3)
    assert fresh.of((7).to_bytes(16, "big")) is None
    assert len(fresh) == 0


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    fresh = Fresh()
    for seq in range(10):
        fresh.add(item(seq))
    assert len(fresh) == 3
    assert numbers(fresh.after(6, 64)) == [7, 8, 9]
    assert fresh.of((6).to_bytes(16, "big")) is None
    assert len(fresh._numbers) == 3
