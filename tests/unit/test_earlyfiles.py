"""Large files that are restored while their staging files come: the same files as ever, sooner; and whatever becomes of
them, nothing is left."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files import earlyfiles
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall, ResolvedStep
from agent.wire import constants as c
from staging import restore
from staging.area import StagingArea
from staging.compression import COMPRESSION_NONE, COMPRESSION_ZSTD
from staging.errors import NoSpace
from staging.preinstall import STATE_NAME

GUID, CO, PARTNER = b"g" * 16, b"c" * 16, b"p" * 16
SIZE = 3 << 20
BLOCK = c.LARGE_BLOCK


class Receiver:
    """A member's files, and a large file that comes to it. `started` counts the threads that were begun."""

    def __init__(self, base: Path, compression: bytes = COMPRESSION_ZSTD) -> None:
        for name in ("root", "elsewhere", "from"):
            (base / name).mkdir()
        self.root = base / "root"
        self.base = base
        self.content = random.Random(1).randbytes(SIZE)
        (base / "elsewhere" / "f").write_bytes(self.content)
        os.chmod(base / "elsewhere" / "f", 0o640)
        source = StagingArea(str(base / "from"), 1 << 30)
        staged = source.stage(CO, str(base / "elsewhere" / "f"), object_id=GUID, compression=compression)
        self.md5 = staged.md5
        self.stage = Path(source.path_of(CO)).read_bytes()
        self.area = StagingArea(str(base / "staging"), 1 << 30)
        self.files = FileOps(
            str(self.root), str(base), self.area, KeptStore(str(base / "kept"), 1 << 20), durable=True, compressions=()
        )

    def blocks(self, stage: bytes | None = None) -> list[ev.StoreBlock]:
        data = self.stage if stage is None else stage
        parts = [(at, data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
        return [
            ev.StoreBlock(CO, at, part, at + len(part) >= len(data), len(data), self.md5, False, PARTNER)
            for at, part in parts
        ]

    def store(self, *blocks: ev.StoreBlock) -> None:
        for event in self.files.store_blocks(deque(blocks)):
            assert isinstance(event, ev.FetchStored)

    def install(self) -> ev.Installed:
        step = ev.Step(ev.InstallStep.CONTENT, bytes(16), "f", None, file_guid=GUID)
        item = ResolvedInstall(ev.Install(CO, GUID, False, (step,), self.md5), (ResolvedStep(step, "f", None),))
        (end,) = self.files.install_all([item])
        assert isinstance(end, ev.Installed)
        return end

    def built(self) -> int:
        """Bytes of what is built beside the tree; -1 where nothing is."""
        found = [entry for entry in os.scandir(self.base / STATE_NAME) if entry.name.endswith(".early")]
        return found[0].stat().st_blocks * 512 if found else -1


@pytest.fixture(params=[COMPRESSION_ZSTD, COMPRESSION_NONE], ids=["zstd", "none"])
def receiver(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(earlyfiles, "SMALLEST", 1 << 20)
    made = Receiver(tmp_path, request.param)
    if made.files._preinstall.inside:
        pytest.skip("unfinished installs are in the tree here")
    yield made
    made.files.close()
    assert not early_threads()
    assert made.built() == -1


def early_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "frs-early"]


def raising(error: Exception) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise error

    return fail


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_it_is_written_while_it_comes_and_installed_as_it_is(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = receiver.blocks()
    receiver.store(first, *others[:5])
    until(lambda: receiver.built() >= 4 * BLOCK)
    assert not os.listdir(receiver.root), "nobody sees anything of it"
    for block in others[5:]:
        receiver.store(block)
    assert receiver.area.size_of(CO) == len(receiver.stage), "the staging file is there as ever"
    monkeypatch.setattr(restore, "restore", None)  # is not called
    end = receiver.install()
    assert end.outcome is ev.Outcome.DONE
    assert end.md5 == receiver.md5
    assert (receiver.root / "f").read_bytes() == receiver.content
    assert (receiver.root / "f").stat().st_mode & 0o777 == 0o640
    assert os.listdir(receiver.base / STATE_NAME) == []


def test_it_comes_to_the_same_as_without(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> tuple[object, ...]:
        end = receiver.install()
        st = (receiver.root / "f").stat()
        (receiver.root / "f").unlink()
        return (
            end.outcome,
            end.md5,
            end.attributes,
            end.file_kind,
            end.unstored,
            st.st_mode,
            st.st_mtime_ns,
            st.st_uid,
            st.st_size,
        )

    receiver.store(*receiver.blocks())
    early = told()
    assert told() == early, "from the staging file, which is there still"


def test_what_is_given_up_leaves_nothing(receiver: Receiver) -> None:
    receiver.store(*receiver.blocks()[:4])
    assert receiver.built() >= 0
    receiver.files.drop(CO)
    until(lambda: not early_threads())
    assert receiver.built() == -1
    receiver.store(*receiver.blocks()[:4])
    receiver.store(*receiver.blocks())  # from its beginning: the one before is no more
    assert receiver.install().outcome is ev.Outcome.DONE
    assert (receiver.root / "f").read_bytes() == receiver.content


def test_what_comes_damaged_is_told_of_as_ever(receiver: Receiver) -> None:
    stage = bytearray(receiver.stage)
    stage[len(stage) // 2] ^= 0xFF
    receiver.store(*receiver.blocks(bytes(stage)))
    assert receiver.install().outcome is ev.Outcome.STAGE_DAMAGED
    assert os.listdir(receiver.root) == []
    assert os.listdir(receiver.base / STATE_NAME) == []


def test_what_cannot_be_written_takes_no_room(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(restore, "write_data", raising(NoSpace("no room")))
        receiver.store(*receiver.blocks()[:4])
        until(lambda: not early_threads())
    assert receiver.built() == -1
    receiver.store(*receiver.blocks()[4:])
    assert receiver.install().outcome is ev.Outcome.DONE
    assert (receiver.root / "f").read_bytes() == receiver.content


def test_what_others_damage_beside_the_tree_is_made_anew(receiver: Receiver) -> None:
    receiver.store(*receiver.blocks())
    (name,) = os.listdir(receiver.base / STATE_NAME)
    os.rename(receiver.base / STATE_NAME / name, receiver.base / "taken")
    (receiver.base / STATE_NAME / name).write_bytes(b"something else")
    assert receiver.install().outcome is ev.Outcome.DONE
    assert (receiver.root / "f").read_bytes() == receiver.content
    (receiver.base / "taken").unlink()


def test_so_many_at_a_time_and_not_for_ever(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlyfiles, "MOST", 1)
    early = receiver.files._early
    receiver.store(*receiver.blocks())
    until(lambda: not early_threads())
    early.expire()
    assert receiver.built() >= 0
    monkeypatch.setattr(earlyfiles, "_KEPT_S", -1.0)
    receiver.files.check()
    assert receiver.built() == -1
    assert receiver.install().outcome is ev.Outcome.DONE, "from its staging file"


def test_where_there_is_no_plenty_of_room_none_is_begun(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlyfiles, "room", lambda fd: 2 * len(receiver.stage))
    receiver.store(*receiver.blocks())
    assert receiver.built() == -1
    assert receiver.install().outcome is ev.Outcome.DONE
