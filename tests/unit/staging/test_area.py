"""The staging area: quota, publishing, receiving, eviction, sweeping."""

from __future__ import annotations

import os
import stat
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from staging.area import StagingArea
from staging.errors import NoSpace, StagingError, Vanished
from staging.restore import verify

A, B, C = (bytes([i]) * 16 for i in (1, 2, 3))


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
    with pytest.raises(Vanished):
        area.read_block(B, 0, 1)
    assert area.remove(A)
    assert not area.remove(A)
    assert area.used_bytes == 0
    assert names(area) == []


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
    with pytest.raises(NoSpace):
        area.stage(A, str(tmp_path / "big"), object_id=A)
    area.stage(A, str(tmp_path / "some"), object_id=A)
    area.pin(A)
    with pytest.raises(NoSpace):
        area.stage(B, str(tmp_path / "some"), object_id=A)
    area.unpin(A)
    area.stage(B, str(tmp_path / "some"), object_id=A)
    assert area.guids() == [B]
    assert len(names(area)) == 1


def test_quota_of_receiving(area):
    receive(area, A, bytes(6000))
    area.pin(A)
    with pytest.raises(NoSpace):
        area.open_writer(B, 4001)
    writer = area.open_writer(B, 4000)
    assert area.free_bytes == 0
    with pytest.raises(NoSpace):  # it was announced smaller than it is
        writer.write(0, bytes(4001))
    assert area.used_bytes == 6000
    assert len(names(area)) == 1
    with pytest.raises(StagingError):
        writer.finish()
    area.unpin(A)
    receive(area, B, bytes(9000), size=0)
    assert area.guids() == [B]


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
    assert area.evict(1000) == []
    assert area.evict(2000) == [B]
    area.pin(C)
    assert area.evict(10_000) == [A]
    area.pin(C)
    area.unpin(C)
    assert area.evict(10_000) == []
    area.unpin(C)
    assert area.evict(10_000) == [C]


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
    """Whatever is done: what the area says is what is on disk, and never above the quota."""

    def __init__(self):
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.area = StagingArea(self.folder.name, 1000)
        self.writers = []

    def teardown(self):
        self.folder.cleanup()

    guids = st.integers(0, 4).map(lambda i: bytes([i]) * 16)

    @rule(guid=guids, size=st.integers(0, 1200))
    def begin(self, guid, size):
        try:
            self.writers.append(self.area.open_writer(guid, size))
        except NoSpace:
            pass

    @precondition(lambda self: self.writers)
    @rule(data=st.binary(max_size=400), last=st.booleans())
    def write(self, data, last):
        writer = self.writers[-1]
        try:
            writer.write(writer.position, data)
            if last:
                writer.finish()
        except NoSpace:
            last = True
        if last:
            self.writers.pop()

    @precondition(lambda self: self.writers)
    @rule()
    def give_up(self):
        self.writers.pop().abort()

    @rule(guid=guids)
    def remove(self, guid):
        self.area.remove(guid)

    @rule(guid=guids)
    def pin(self, guid):
        self.area.pin(guid)

    @rule(guid=guids)
    def unpin(self, guid):
        self.area.unpin(guid)

    @rule(size=st.integers(0, 1000))
    def evict(self, size):
        self.area.evict(size)

    @invariant()
    def agrees(self):
        sizes = {n[:32]: os.stat(os.path.join(self.area.path, n)).st_size for n in os.listdir(self.area.path)
                 if n.endswith(".stage")}  # fmt: skip
        assert sizes == {guid.hex(): self.area.size_of(guid) for guid in self.area.guids()}
        assert sum(sizes.values()) <= self.area.used_bytes <= self.area.quota_bytes


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
