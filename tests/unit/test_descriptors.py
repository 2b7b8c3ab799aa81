"""The limit on open files, and what tells that it is reached."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator

import pytest

from agent.work import descriptors


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is put back at the end."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_soft_limit_is_raised(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    most = descriptors.WANTED if hard == resource.RLIM_INFINITY else min(hard, descriptors.WANTED)
    assert descriptors.raise_limit() == most
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)


def test_a_limit_that_is_high_enough_is_left(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    monkeypatch.setattr(descriptors, "WANTED", 400)
    assert descriptors.raise_limit() == 500
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500, hard)


def test_a_limit_that_cannot_be_raised_is_the_one_that_holds(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))

    def refuse(what: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", refuse)
        assert descriptors.raise_limit() == 500


def test_running_out_is_seen_behind_other_errors() -> None:
    error = RuntimeError("the folder cannot be opened")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert descriptors.run_out(error)
    assert descriptors.run_out(OSError(errno.ENFILE, "Too many open files in system"))
    assert not descriptors.run_out(OSError(errno.ENOENT, "No such file or directory"))
    assert not descriptors.run_out(None)
