"""What is kept of what others deleted: for how long, and how much."""

from __future__ import annotations

import os

import pytest

from agent.conflicts import deletedroom
from agent.wire.filetime import DAY, HOUR
from tests.unit.conflicts.deleting import B, Bench, C, keep_deleted


def test_it_is_kept_for_a_time(bench: Bench) -> None:
    bench.open(days=2)
    bench.keep("a")
    bench.later(DAY)
    bench.keep("b")
    bench.later(DAY)
    bench.store.expire()
    assert bench.files() == [["b"], ["a"]]
    bench.later(1)
    bench.store.expire()
    assert bench.files() == [["b"]]
    bench.later(DAY)
    bench.open(days=2)
    assert bench.files() == []
    assert os.listdir(bench.folder / "deleted") == []


@pytest.mark.parametrize("wrong", [400 * DAY, -400 * DAY])
def test_a_start_with_a_wrong_clock_drops_nothing(bench: Bench, wrong: int) -> None:
    bench.keep("a")
    for _ in range(5):
        bench.later(wrong)
        bench.open()
        bench.store.expire()
        bench.later(-wrong)
        bench.open()
    assert bench.files() == [["a"]]
    for _ in range(31):
        bench.later(DAY)
        bench.open()
    assert bench.files() == []


def test_whatever_is_dropped_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.open(quota=100_000, days=2)
    for number in range(8):
        bench.keep(f"f{number}", bytes(20_000))
        bench.later(HOUR)
    bench.store.flush()
    told = [record.args for record in caplog.records if "deleted_quota, or" in record.message]
    assert (sum(files for files, *_ in told), sum(size for _, size, _ in told)) == (4, 80_000)
    caplog.clear()
    caplog.set_level("INFO")
    for _ in range(4):
        bench.later(DAY)
        bench.store.expire()
    assert caplog.text.count("is dropped: 1 files") == 4
    assert bench.files() == []


def test_groups_are_not_too_many_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deletedroom, "GROUPS", 8)
    for number in range(3):
        bench.keep(f"honest {number}")
        bench.later(HOUR)
    for number in range(20):
        bench.keep(f"junk {number}", by=number.to_bytes(16, "big"), via=C)
    assert bench.files() == [[f"junk {number}"] for number in range(19, 14, -1)] + [
        [f"honest {number}"] for number in (2, 1, 0)
    ]
    assert "1 files" in caplog.text
    assert len(os.listdir(bench.folder / "deleted")) <= 9


def test_nothing_is_kept_where_that_is_not_wanted(bench: Bench) -> None:
    bench.open(days=0)
    assert not bench.store.keeps
    assert os.listdir(bench.folder / "deleted") == []


def test_the_oldest_files_go_first(bench: Bench) -> None:
    bench.open(quota=100_000)
    for number in range(8):
        assert bench.keep(f"f{number}", bytes(20_000))
        if number == 1:
            bench.later(HOUR)
        if number == 4:
            bench.later(HOUR)
    assert bench.store.used_bytes <= 100_000
    assert bench.files() == [["f5", "f6", "f7"], ["f4"]]
    bench.later(HOUR)
    bench.open(quota=50_000)
    assert bench.files() == [["f6", "f7"]]
    bench.keep("x", bytes(20_000))
    assert bench.files() == [["x"], ["f7"]]
    assert sorted(os.listdir(bench.folder / "deleted")) == sorted(
        [*(group.id for group in bench.store.groups()), "age"]
    )


def test_no_member_pushes_out_what_others_deleted(bench: Bench) -> None:
    """Whoever takes most gives way, in a group that goes on as in many."""
    bench.open(quota=200_000, durable=False)
    assert bench.keep("of b", bytes(20_000))
    bench.later(HOUR)
    kept = [bench.keep(f"of c {number}", bytes(20_000), by=C) for number in range(20)]
    assert kept == [True] * 8 + [False] * 12
    for number in range(20):
        bench.later(HOUR)
        assert bench.keep(f"later of c {number}", bytes(20_000), by=C)
    assert ["of b"] in bench.files()
    for number in range(20):
        bench.later(HOUR)
        bench.keep(f"later of b {number}", bytes(20_000))
    took = {by: sum(group.charge for group in bench.store.groups() if group.by == by) for by in (B, C)}
    assert min(took.values()) > 60_000, "each has its share"


def test_whoever_a_partner_says_has_deleted_it_its_own_share_gives_way(bench: Bench) -> None:
    """A share for each partner, and of that one for each member that it passes deletions on of."""
    bench.open(quota=200_000, durable=False)
    for number in range(4):
        assert bench.keep(f"honest {number}", bytes(20_000), by=B, via=B)
        assert bench.keep(f"behind c {number}", bytes(10_000), by=b"h" * 16, via=C)
    for number in range(50):
        bench.keep(f"junk {number}", bytes(10_000), by=number.to_bytes(16, "big"), via=C)
        if number == 20:
            bench.open(quota=200_000, durable=False)
    assert [f"honest {number}" for number in range(4)] in bench.files()
    bench.later(HOUR)
    for number in range(40):
        bench.keep(f"of d {number}", bytes(10_000), by=b"d" * 16, via=C)
        bench.later(HOUR)
    assert [f"honest {number}" for number in range(4)] in bench.files()
    assert sum(len(files) for files in bench.files() if files[0].startswith("junk")) > 2, "each has its share of c's"


def test_of_a_group_that_is_too_large_the_first_are_kept(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.open(quota=100_000)
    bench.keep("older", bytes(20_000))
    bench.later(HOUR)
    kept = [bench.keep(f"f{number}", bytes(20_000)) for number in range(10)]
    assert kept == [True] * 4 + [False] * 6
    assert bench.files() == [["f0", "f1", "f2", "f3"]]
    assert caplog.text.count("not all that is deleted now") == 1
    for _ in range(2):
        (group,) = bench.store.groups()
        assert (group.files, group.missed) == (4, 6)
        bench.open(quota=100_000)
    bench.later(HOUR)
    assert not bench.keep("large", bytes(200_000)), "what does not fit is gone"
    assert bench.store.groups()[0].missed == 1


def test_holes_cost_nothing_and_empty_files_something(bench: Bench) -> None:
    bench.open(quota=50_000)
    with open(bench.out / "sparse", "wb") as stream:
        stream.truncate(1 << 40)
    fd = os.open(bench.out, os.O_RDONLY)
    assert keep_deleted(bench.store, "sparse", fd, str(bench.out / "sparse"), tree_path="sparse", by=B)
    os.close(fd)
    assert bench.store.groups()[0].size == 1 << 40
    assert sum(bench.keep(f"empty {number}", b"") for number in range(200)) < 100


def test_lines_count_whatever_they_hold(bench: Bench) -> None:
    """Of empty files with the longest paths the lines are nearly all that is on the disk."""
    bench.open(quota=500_000, durable=False)
    path = "/".join(["\udcff" * 250] * 15)
    for number in range(100):
        bench.keep(f"{path}/{number}", b"")
        bench.later(HOUR)
    lists = sum(one.stat().st_size for one in (bench.folder / "deleted").rglob("list"))
    assert 200_000 < lists <= bench.store.used_bytes <= 500_000
    used = bench.store.used_bytes
    assert bench.open(quota=500_000).used_bytes == used


def test_lines_count_also_after_what_there_was_no_room_for(bench: Bench) -> None:
    bench.open(quota=500_000, durable=False)
    path = "/".join(["\udcff" * 250] * 15)
    assert not bench.keep("larger than the quota", bytes(600_000))
    for number in range(100):
        bench.keep(f"{path}/{number}", b"")
    lists = sum(one.stat().st_size for one in (bench.folder / "deleted").rglob("list"))
    assert lists <= bench.store.used_bytes
    assert bench.store.count() < 25, "of more than 20,000 bytes each"


def test_a_partner_that_makes_up_who_deletes_takes_no_more_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletedroom, "GROUPS", 20)
    bench.open(durable=False)
    for number in range(500):
        bench.keep("x", b"", by=number.to_bytes(16, "big"), via=C)
    assert len(bench.store._open) < 100


def test_lines_of_folders_and_of_what_is_missed_are_bounded(bench: Bench) -> None:
    bench.open(quota=100_000)
    bench.keep("a")
    for number in range(1000):
        bench.folder_gone(f"d{number}", 0o755)
    assert bench.store.used_bytes <= 100_000
    for number in range(3000):
        bench.keep(f"x{number}", bytes(100_000))
    assert bench.store.groups()[0].missed == 3000
    used = bench.store.used_bytes
    assert bench.open(quota=1_000_000).used_bytes == used
    assert sum(path.stat().st_size for path in (bench.folder / "deleted").rglob("list")) < 700_000
