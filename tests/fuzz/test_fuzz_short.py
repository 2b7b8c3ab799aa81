"""Each parser with some hundred inputs that are nearly right, and with all that was found so far; script/fuzz gives a
million."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz import campaign
from tests.fuzz.inputs import made
from tests.fuzz.seeds import frozen
from tests.fuzz.targets import TARGETS, Target, findings

COUNT = 300
#: Bytes that a parser may hold at a time, whatever comes: a few, and some for each that came.
FEW, FOR_EACH = 16 << 20, 64


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_what_callers_expect(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    tracemalloc.start()
    try:
        with frozen(), target.begin() as parse:
            for number in range(COUNT):
                data = made(7, number, seeds)
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                try:
                    parse(data)
                except target.refusals:
                    pass
                _, most = tracemalloc.get_traced_memory()
                assert most - before <= FEW + FOR_EACH * len(data), f"input {number}"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_right_is_taken(name: str) -> None:
    """Of what inputs are made from, at least a third: else what comes after it would never be reached."""
    target = TARGETS[name]
    taken = 0
    with frozen(), target.begin() as parse:
        for data in target.seeds():
            try:
                parse(data)
                taken += 1
            except target.refusals:
                pass
    assert taken * 3 >= len(target.seeds())


def test_what_was_found() -> None:
    for name, path in findings():
        target = TARGETS[name]
        with frozen(), target.begin() as parse:
            try:
                parse(path.read_bytes())
            except target.refusals:
                pass


def test_the_input_of_a_number_is_always_the_same() -> None:
    seeds = TARGETS["comm_packet"].seeds()
    some = [made(1, number, seeds) for number in range(100)]
    assert some == [made(1, number, seeds) for number in range(100)]
    assert some[: len(seeds)] == seeds
    assert len(set(some)) > 90


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="there is no atheris for this Python")
def test_inputs_by_coverage(tmp_path: Path) -> None:
    """Inputs that have reached something new are changed further."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", "ntlm", "--count", "300", "--findings", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"new_units_added: +[1-9]", done.stderr)


def _fails(data: bytes) -> None:
    if data[:1] == b"!":
        raise IndexError


def _hangs(data: bytes) -> None:
    while data[:1] == b"!":
        pass


def _hoards(data: bytes) -> None:
    if data[:1] == b"!":
        bytearray(2 << 30)


def _ends(data: bytes) -> None:
    if data[:1] == b"!":
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_campaign_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """So one that was ended can go on."""
    monkeypatch.setattr(campaign, "_TELL_S", 0)
    monkeypatch.setattr(campaign, "_LOOK", 100)
    good, _ = campaign.apart(TARGETS["stage_header"], range(150, 350), 1, tmp_path)
    assert good
    assert re.findall(r"all below (\d+), in \d+ s of a processor", capfd.readouterr().out) == ["200", "300"]


@pytest.mark.parametrize("parse", [_fails, _hangs, _hoards, _ends])
def test_a_campaign_finds(parse: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def begin() -> Iterator[Callable[[bytes], None]]:
        yield parse

    monkeypatch.setattr(campaign, "HANG_S", 0.2)
    target = Target("target", lambda: [b"good", b"!bad", b"better"], (ValueError,), begin)
    assert campaign.apart(target, range(1), 1, tmp_path)[0]
    assert not campaign.apart(target, range(3), 1, tmp_path)[0]
    assert (tmp_path / "target" / "1.bin").read_bytes() == b"!bad"
