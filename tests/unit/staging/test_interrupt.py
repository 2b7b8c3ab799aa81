"""Work on a file that nobody wants any more ends soon, and leaves nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from staging.errors import Interrupted
from staging.generate import generate
from staging.interrupt import check, interruptible
from staging.restore import restore

MIB = 1 << 20


def test_of_several_any_ends_it_and_none_afterwards() -> None:
    one, other = threading.Event(), threading.Event()
    with interruptible(one):
        with interruptible(other):
            check()
            other.set()
            with pytest.raises(Interrupted):
                check()
        check()
        one.set()
        with pytest.raises(Interrupted):
            check()
    check()


def test_it_is_for_one_thread_only() -> None:
    event = threading.Event()
    event.set()
    errors: list[Exception] = []

    def look() -> None:
        try:
            check()
        except Interrupted as error:
            errors.append(error)

    with interruptible(event):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert not errors


@pytest.mark.parametrize("content", ["data", "blocks"])
def test_staging_and_restoring(tmp_path: Path, content: str) -> None:
    path, stage, restored = str(tmp_path / "f"), str(tmp_path / "s"), str(tmp_path / "t")
    with open(path, "wb") as f:
        for number in range(4):
            f.seek(number * (MIB if content == "data" else 8 * MIB))
            f.write(os.urandom(MIB))
    event = threading.Event()
    with interruptible(event):
        generate(path, stage, object_id=bytes(16))
        event.set()
        with pytest.raises(Interrupted):
            restore(stage, restored)
        with pytest.raises(Interrupted):
            generate(path, restored, object_id=bytes(16))
    assert sorted(os.listdir(tmp_path)) == ["f", "s"]
