"""Whether a file system tells all changes apart is tried, and what is waited for where it does not."""

from __future__ import annotations

import os
import time

import pytest

from staging import stamps


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(stamps, "_fine", set())


@pytest.fixture
def folder(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


class Kernel:
    """A clock that goes on with each look at it, ticks of 4 ms, and how that kernel stamps files."""

    def __init__(self, monkeypatch, step_ns, stamp):
        self.now = 10**18
        self.step = step_ns
        monkeypatch.setattr(stamps.time, "clock_gettime_ns", self.clock)
        monkeypatch.setattr(stamps, "_change", lambda fd: stamp(self))

    def clock(self, clock):
        self.now += self.step
        return self.tick() if clock == stamps._COARSE else self.now

    def tick(self):
        return self.now - self.now % 4_000_000


def test_a_kernel_with_fine_stamps(monkeypatch, folder):
    Kernel(monkeypatch, 500, lambda kernel: kernel.clock(time.CLOCK_REALTIME))
    assert stamps.learn(folder)
    assert not stamps.settle(10**18, os.fstat(folder).st_dev)


@pytest.mark.parametrize("step_ns", [500, 300_000, 3_000_000, 5_000_000, 4_000_000_000])
def test_a_kernel_with_coarse_stamps(monkeypatch, folder, step_ns):
    """However slow the file system is: where a tick came between, the look says nothing."""
    Kernel(monkeypatch, step_ns, Kernel.tick)
    assert not stamps.learn(folder)


@pytest.mark.parametrize("step_ns", [5_000_000, 4_000_000_000])
def test_what_takes_longer_than_a_tick_says_nothing(monkeypatch, folder, step_ns):
    Kernel(monkeypatch, step_ns, lambda kernel: kernel.clock(time.CLOCK_REALTIME))
    assert not stamps.learn(folder)


@pytest.mark.parametrize("ahead_ns", [-(10**12), -20_000, 20_000, 10**12])
def test_the_clock_of_a_server(monkeypatch, folder, ahead_ns):
    Kernel(monkeypatch, 500, lambda kernel: kernel.clock(time.CLOCK_REALTIME) + ahead_ns)
    assert not stamps.learn(folder)


def test_what_is_learned_last_counts(monkeypatch, folder):
    """A device number may be another file system's tomorrow."""
    device = os.fstat(folder).st_dev
    Kernel(monkeypatch, 500, lambda kernel: kernel.clock(time.CLOCK_REALTIME))
    assert stamps.learn(folder)
    Kernel(monkeypatch, 500, Kernel.tick)
    assert not stamps.learn(folder)
    assert device not in stamps._fine
    assert os.listdir(folder) == []


def test_what_is_learned_of_this_file_system_is_so(tmp_path, folder):
    """Where it is said to tell all changes apart, it tells a thousand apart that follow each other at once."""
    if not stamps.learn(folder):
        assert stamps.settle(time.time_ns(), os.fstat(folder).st_dev)
        return
    seen = []
    with open(tmp_path / "f", "wb", buffering=0) as stream:
        for _ in range(1000):
            stream.write(b"a")
            seen.append(os.fstat(stream.fileno()).st_ctime_ns)
    assert len(set(seen)) == len(seen)
    assert not stamps.settle(time.time_ns(), os.fstat(folder).st_dev)


def test_a_folder_in_which_nothing_can_be_made(folder, tmp_path):
    os.rmdir(tmp_path)
    assert not stamps.learn(folder)


def test_settle_returns_when_the_tick_is_over(monkeypatch):
    now = [10**18]
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += int(seconds * 1e9) + 1

    monkeypatch.setattr(stamps.time, "clock_gettime_ns", lambda clock: now[0])
    monkeypatch.setattr(stamps.time, "sleep", sleep)
    assert not stamps.settle(10**18 - 20_000_000, 1)
    assert not stamps.settle(10**18 + 10**12, 1)  # a file from the future
    assert slept == []
    assert stamps.settle(10**18, 1)
    assert now[0] >= 10**18 + 10_000_000
