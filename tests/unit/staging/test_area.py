"""The staging area: quota, publishing, receiving, eviction, sweeping."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from staging import area as area_module
from staging import held
from staging.area import StagingArea
from staging.errors import NoSpace, StagingError, Vanished
from staging.restore import verify
from staging.shares import LOCAL, STALLED_S, ShareUsed

A, B, C, D, E = (bytes([i]) * 16 for i in (1, 2, 3, 4, 5))


@pytest.fixture
def area(tmp_path):
    return StagingArea(str(tmp_path / "area"), 10_000)


def receive(area, guid, data, size=None):
    writer = area.open_writer(guid, len(data) if size is None else size)
    for at in range(0, len(data), 700):
        writer.write(at, data[at : at + 700])
    return writer.finish()


def names(area):
    return sorted(os.listdir(area.path))


def test_receive_and_read(area):
    data = os.urandom(5000)
    path = receive(area, A, data)
    assert path == area.path_of(A)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(area.path).st_mode) == 0o700
    assert area.read_block(A, 0, 700) == data[:700]
    assert area.read_block(A, 4900, 700) == data[4900:]
    assert area.read_block(A, 9000, 700) == b""
    assert area.used_bytes == area.size_of(A) == 5000
    assert area.free_bytes == 5000
    assert area.read_cached(A, 4999) is area.read_cached(B, 5000) is None
    assert area.read_cached(A, 5000) in (data, None)  # None where the file system cannot say what is in memory
    with pytest.raises(Vanished):
        area.read_block(B, 0, 1)
    assert area.remove(A)
    assert not area.remove(A)
    assert area.used_bytes == 0
    assert names(area) == []


def test_small_files_in_memory(area, monkeypatch):
    """On the same account as all others; no file is made of them unless somebody asks for a path."""
    data = os.urandom(3000)
    assert area.hold(A, data, LOCAL)
    assert not area.hold(A, data, LOCAL), "one is there"
    assert area.size_of(A) == area.used_bytes == 3000
    assert area.guids() == [A]
    assert area.read_block(A, 1000, 700) == data[1000:1700]
    assert area.read_cached(A, 3000) == data
    assert area.read_cached(A, 2999) is None
    assert names(area) == []
    assert not area.hold(B, bytes(7001), LOCAL), "nothing makes room for it"
    monkeypatch.setattr(held, "MOST_OF_ONE", 4000)
    monkeypatch.setattr(held, "MOST", 5000)
    assert not area.hold(B, bytes(1001), LOCAL)
    assert area.hold(B, bytes(1001), b"partner")
    assert not area.hold(C, bytes(1000), b"another"), "all have no more"
    with open(area.path_of(A), "rb") as file:
        assert file.read() == data
    assert stat.S_IMODE(os.stat(area.path_of(A)).st_mode) == 0o600
    assert area.hold(C, bytes(1000), b"another"), "there is room for others then"
    assert area.used_bytes == 5001
    assert names(area) == [f"{A.hex()}.stage"]
    assert area.remove(A)
    assert area.remove(B)
    assert not area.remove(B)
    assert area.used_bytes == 1000
    receive(area, C, bytes(500))
    assert area.size_of(C) == area.used_bytes == 500, "the last one counts"


def test_a_file_in_memory_gives_way_like_any_other(area):
    assert area.hold(A, bytes(6000), LOCAL)
    receive(area, B, bytes(7000))
    assert area.guids() == [B]
    assert area.read_cached(A, 6000) is None
    assert area.used_bytes == 7000


def test_stage(area, tmp_path):
    (tmp_path / "f").write_bytes(os.urandom(3000))
    staged = area.stage(A, str(tmp_path / "f"), object_id=A)
    assert area.size_of(A) == staged.stage_size == area.used_bytes
    assert verify(area.path_of(A)) == staged.md5
    again = area.stage(A, str(tmp_path / "f"), object_id=A)
    assert again.md5 == staged.md5
    assert area.used_bytes == staged.stage_size


def test_quota_of_staging(area, tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(12_000))
    (tmp_path / "some").write_bytes(os.urandom(6000))
    too_large = "bytes are needed, which is larger than the whole staging area of 10000 bytes; raise `staging_quota`"
    with pytest.raises(NoSpace, match=f"12000 {too_large}"):
        area.stage(A, str(tmp_path / "big"), object_id=A)
    with pytest.raises(NoSpace, match=f"10001 {too_large}"):
        area.open_writer(A, 10_001)
    area.stage(A, str(tmp_path / "some"), object_id=A)
    area.stage(B, str(tmp_path / "some"), object_id=A)
    assert area.guids() == [B]
    assert len(names(area)) == 1


def test_quota_of_receiving(area):
    with pytest.raises(NoSpace):
        area.open_writer(B, 10_001)
    writer = area.open_writer(B, 4000)
    assert area.used_bytes == 0  # what is announced takes no room
    writer.write(0, bytes(4000))
    assert area.free_bytes == 6000
    with pytest.raises(NoSpace):  # it was announced smaller than it is
        writer.write(4000, bytes(6001))
    assert area.used_bytes == 0
    assert names(area) == []
    with pytest.raises(StagingError):
        writer.finish()
    receive(area, B, bytes(9000), size=0)
    assert area.guids() == [B]


def test_a_claim_takes_no_room(area, tmp_path):
    """A partner that claims the whole area and falls silent is in nobody's way."""
    silent = area.open_writer(A, 10_000)
    silent.write(0, b"x" * 700)
    receive(area, B, bytes(9000))
    (tmp_path / "f").write_bytes(os.urandom(5000))
    area.stage(C, str(tmp_path / "f"), object_id=C)
    assert area.used_bytes <= 10_000
    silent.write(700, b"x" * 700)  # and may go on


def test_the_disk_is_never_filled(area, monkeypatch, tmp_path):
    """And what is told says which disk, how much was needed and what to do."""
    monkeypatch.setattr("staging.space.reserve", lambda size: size)
    full = f"the disk that holds the staging area {area.path} is full: {{}} bytes are needed, and 0 may be used"
    with pytest.raises(NoSpace, match=re.escape(full.format(7))):
        receive(area, A, b"7 bytes")
    (tmp_path / "f").write_bytes(b"y" * 5000)
    with pytest.raises(NoSpace, match=re.escape(full.format(5000)) + ".*; make room there"):
        area.stage(A, str(tmp_path / "f"), object_id=A)
    assert names(area) == []


P, Q = b"p" * 16, b"q" * 16


@pytest.fixture
def shared(tmp_path):
    """An area of 16,000 bytes: 2,000 are guaranteed to what is staged here, 7,000 to each of two partners."""
    now = [0.0]
    area = StagingArea(str(tmp_path / "shared"), 16_000, (P, Q), clock=lambda: now[0])
    area.now = now
    return area


def test_no_room_beside_what_is_received(shared, tmp_path):
    receiving = shared.open_writer(A, 7000, P)
    receiving.write(0, bytes(7000))
    (tmp_path / "f").write_bytes(os.urandom(12_000))
    with pytest.raises(NoSpace, match="12000 bytes are needed, and 9000 of its 16000 may be used; raise `staging_quo"):
        shared.stage(B, str(tmp_path / "f"), object_id=B)


def begin(area, guid, owner, size, dropped=None):
    writer = area.open_writer(guid, 16_000, owner, on_dropped=lambda guid, why: dropped.append(guid))
    for at in range(0, size, 1000):
        writer.write(at, bytes(min(1000, size - at)))
    return writer


def test_two_that_fill_the_area_together(shared):
    """The older one goes on, the newer one is fetched again later."""
    dropped = []
    older, newer = begin(shared, A, P, 8000, dropped), begin(shared, B, P, 8000, dropped)
    with pytest.raises(ShareUsed):
        newer.write(8000, bytes(1000))
    for at in range(8000, 16_000, 1000):
        older.write(at, bytes(1000))
    older.finish()
    newer = begin(shared, B, P, 1000, dropped)
    assert shared.guids() == []
    assert dropped == []
    newer.abort()


def test_the_newer_one_makes_room_for_the_older(shared):
    dropped = []
    older, newer = begin(shared, A, P, 8000, dropped), begin(shared, B, P, 8000, dropped)
    older.write(8000, bytes(1000))
    assert dropped == [B]
    assert shared.used_bytes == 9000
    with pytest.raises(ShareUsed):
        newer.write(8000, bytes(1000))
    with pytest.raises(ShareUsed):
        newer.finish()
    newer.abort()
    assert shared.used_bytes == 9000
    assert len(names(shared)) == 1


def test_a_share_is_there_for_whom_it_is_guaranteed(shared, tmp_path):
    """One partner may use nearly all, until others want what is theirs."""
    dropped = []
    greedy = begin(shared, A, P, 16_000, dropped)
    one = begin(shared, B, Q, 7000, dropped)
    assert dropped == [A]
    greedy = begin(shared, A, P, 9000, dropped)
    with pytest.raises(ShareUsed):
        greedy.write(9000, bytes(1000))
    greedy = begin(shared, A, P, 9000, dropped)
    (tmp_path / "f").write_bytes(os.urandom(500))
    shared.stage(C, str(tmp_path / "f"), object_id=C)
    assert dropped == [A, A]
    with pytest.raises(ShareUsed):
        greedy.write(9000, bytes(1))
    one.write(7000, bytes(1000))  # and others may use what is left


def test_who_comes_is_guaranteed_a_share_from_then_on(tmp_path):
    """And the quota may be another one."""
    area = StagingArea(str(tmp_path / "area"), 1_000, (P,))
    assert area._shares.share(Q) == 0
    area.divide(16_000, (P, Q))
    assert area.quota_bytes == 16_000
    assert area._shares.share(P) == area._shares.share(Q) == 7_000
    area.divide(1_600, (Q,))
    assert (area._shares.share(P), area._shares.share(Q)) == (0, 1_400)


def test_who_falls_silent_gives_way_to_everybody(shared):
    dropped = []
    begin(shared, A, P, 6000, dropped)  # within its share
    shared.now[0] += STALLED_S - 1
    moving = begin(shared, B, Q, 10_000, dropped)
    with pytest.raises(ShareUsed):
        moving.write(10_000, bytes(1000))
    shared.now[0] += 1
    begin(shared, B, Q, 11_000, dropped)
    assert dropped == [A]


def test_what_waits_to_be_installed_does_not_make_room_for_the_greedy(shared):
    dropped = []
    begin(shared, A, Q, 6000, dropped).finish()
    writer = begin(shared, B, P, 10_000, dropped)
    with pytest.raises(ShareUsed):
        writer.write(10_000, bytes(1000))
    assert shared.guids() == [A]


def test_dropped_in_the_middle_of_a_write(shared, monkeypatch):
    """Whoever writes at that moment writes to a file without a name, and learns of it."""
    dropped = []
    older, newer = begin(shared, A, P, 8000, dropped), begin(shared, B, P, 7000, dropped)
    pwrite = os.pwrite

    def slow(fd, data, offset):
        monkeypatch.setattr(os, "pwrite", pwrite)
        older.write(8000, bytes(1000))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    with pytest.raises(ShareUsed):
        newer.write(7000, bytes(1000))
    assert dropped == [B]
    assert len(names(shared)) == 1
    assert shared.used_bytes == 9000


def test_dropped_before_the_file_is_there(shared, monkeypatch):
    dropped = []
    older = begin(shared, A, P, 15_500, dropped)
    newer = begin(shared, B, P, 0, dropped)
    opened = os.open

    def slow(*args, **options):
        monkeypatch.setattr(os, "open", opened)
        older.write(15_500, bytes(500))
        return opened(*args, **options)

    monkeypatch.setattr(os, "open", slow)
    with pytest.raises(ShareUsed):
        newer.write(0, bytes(500))
    assert len(names(shared)) == 1
    assert shared.used_bytes == 16_000


def test_no_descriptors_are_held(area):
    before = len(os.listdir("/proc/self/fd"))
    writers = [area.open_writer(bytes([i]) * 16, 100) for i in range(50)]
    for writer in writers:
        writer.write(0, b"x")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("offset", [(1 << 63) - 1, 1 << 63, 1 << 64])
def test_offsets_no_file_has(area, offset):
    receive(area, A, bytes(100))
    assert area.read_block(A, offset, 700) == b""
    writer = area.open_writer(B, 100)
    with pytest.raises(StagingError):
        writer.write(offset, b"x")


def test_blocks_in_order(area):
    writer = area.open_writer(A, 1000)
    writer.write(0, b"x" * 10)
    for offset in (0, 9, 11, 1 << 40):
        with pytest.raises(StagingError):
            writer.write(offset, b"y")
    assert writer.position == 10
    writer.write(10, b"z")
    with open(writer.finish(), "rb") as f:
        assert f.read() == b"x" * 10 + b"z"
    assert area.used_bytes == 11


def test_given_up(area):
    writer = area.open_writer(A, 1000)
    writer.write(0, b"x" * 10)
    writer.abort()
    writer.abort()
    assert area.used_bytes == 0
    assert names(area) == []
    assert area.size_of(A) is None


def test_least_recently_used_go_first(area):
    for guid in (A, B, C):
        receive(area, guid, bytes(3000))
    area.read_block(A, 0, 1)
    receive(area, D, bytes(1000))
    assert area.guids() == [B, C, A, D]
    receive(area, E, bytes(3000))
    assert area.guids() == [C, A, D, E]
    receive(area, B, bytes(9000))
    assert area.guids() == [B]


def test_found_again(tmp_path, area):
    receive(area, A, bytes(100))
    receive(area, B, bytes(200))
    os.utime(area.path_of(A), ns=(2, 2))
    os.utime(area.path_of(B), ns=(1, 1))
    half = area.open_writer(C, 500)
    half.write(0, bytes(100))
    (tmp_path / "area" / "something else").write_bytes(b"")
    again = StagingArea(area.path, 10_000)
    assert again.guids() == [B, A]
    assert again.used_bytes == 300
    assert again.sweep() == 1  # the half one
    assert again.sweep(keep={A}) == 1
    assert again.guids() == [A]
    assert sorted(os.listdir(area.path)) == [f"{A.hex()}.stage", "something else"]


def test_sweeping_spares_what_this_run_writes(area):
    writer = area.open_writer(A, 10)
    writer.write(0, b"x" * 10)
    assert area.sweep(keep=()) == 0
    writer.finish()
    assert area.guids() == [A]


def test_the_folder_may_be_missing_but_not_a_file(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(StagingError):
        StagingArea(str(tmp_path / "f"), 10)


def test_threads(area):
    errors = []

    def work(n):
        try:
            for i in range(30):
                receive(area, bytes([n, i]) * 8, bytes(900))
        except StagingError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    on_disk = sum(os.stat(os.path.join(area.path, n)).st_size for n in os.listdir(area.path))
    assert on_disk == area.used_bytes <= area.quota_bytes
    assert not errors


class Machine(RuleBasedStateMachine):
    """Whatever is done: what the area says is what is on disk, never above the quota; a request within the share of its
    owner succeeds; and somebody always comes to an end."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 0.0
        self.area = StagingArea(self.folder.name, 1000, (P, Q), clock=lambda: self.now)
        self.writers = []
        self.dropped = []

    def teardown(self):
        self.folder.cleanup()

    guids = st.integers(0, 4).map(lambda i: bytes([i]) * 16)
    owners = st.sampled_from([LOCAL, P, Q, b"unknown"])

    @rule(guid=guids, owner=owners, size=st.integers(0, 1200))
    def begin(self, guid, owner, size):
        try:
            writer = self.area.open_writer(guid, size, owner, on_dropped=lambda guid, why: self.dropped.append(guid))
        except NoSpace:
            assert size > 1000
        else:
            self.writers.append((writer, owner))

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 20), data=st.binary(min_size=1, max_size=400), last=st.booleans())
    def write(self, which, data, last):
        number = which % len(self.writers)
        writer, owner = self.writers[number]
        shares = self.area._shares
        within = shares.usage(owner) + len(data) <= shares.share(owner)
        over = writer._over
        try:
            writer.write(writer.position, data)
            if last:
                writer.finish()
        except NoSpace:
            assert over or not within, "a share is guaranteed"
            last = True
        if last:
            del self.writers[number]

    @rule(guid=guids, owner=owners, size=st.integers(1, 600))
    def stage(self, guid, owner, size):
        shares = self.area._shares
        limit = shares.obtainable(owner, self.now)
        assert limit >= min(shares.share(owner) - shares.usage(owner), 1000)
        path = self.area.temp_path(guid)
        with open(path, "wb") as f:
            f.write(bytes(size))
        try:
            self.area.publish(guid, path, owner)
        except NoSpace:
            assert size > limit, "what can be had can be had"
            os.unlink(path)

    @precondition(lambda self: self.writers)
    @rule()
    def give_up(self):
        self.writers.pop()[0].abort()

    @rule(guid=guids)
    def remove(self, guid):
        self.area.remove(guid)

    @rule(seconds=st.sampled_from([1.0, 70.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def the_oldest_comes_to_an_end(self):
        """However the others hold what they have: once they are silent for long, one may have everything."""
        if not self.writers:
            return
        self.now += 100
        writer, owner = self.writers.pop(0)
        try:
            while writer.position < 900:
                writer.write(writer.position, bytes(100))
            writer.finish()
        except NoSpace:
            others = sum(s.size for s in self.area._shares.stored.values() if s.owner not in (owner, LOCAL))
            assert writer._over
            assert others > 0 or writer.position == 0 or writer.co_guid in self.dropped

    @invariant()
    def agrees(self):
        sizes = {n[:32]: os.stat(os.path.join(self.area.path, n)).st_size for n in os.listdir(self.area.path)
                 if n.endswith(".stage")}  # fmt: skip
        assert sizes == {guid.hex(): self.area.size_of(guid) for guid in self.area.guids()}
        everything = sum(os.stat(os.path.join(self.area.path, n)).st_size for n in os.listdir(self.area.path))
        assert everything == self.area.used_bytes <= self.area.quota_bytes


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_file_that_vanishes_while_there_is_no_room_for_it_has_vanished(tmp_path, monkeypatch):
    """Whoever may write to the tree can do that at any moment: it is no error that nobody expects."""
    area = StagingArea(str(tmp_path / "area"), 10_000)
    path = tmp_path / "f"
    path.write_bytes(os.urandom(12_000))
    real = area_module.generate_to

    def and_gone(*args, **how):
        try:
            return real(*args, **how)
        finally:
            path.unlink()

    monkeypatch.setattr(area_module, "generate_to", and_gone)
    with pytest.raises(Vanished):
        area.stage(bytes(16), str(path), object_id=bytes(16))
    assert os.listdir(tmp_path / "area") == []
