"""Which folder is the root, whose it is, and when it is marked: real folders, attributes, stores and file systems."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.counters.registry import Counters
from agent.tree import identity
from agent.tree import mark as rootmark
from agent.tree.identity import Identity, ReplicaError, RootOfAnotherSet, identify, mark_root
from agent.tree.mark import TRUSTED_XATTR, Mark, RootFacts, read_mark, surely_same
from config.model import LocalSet, Member, ReplicaSet
from idtable.records import IDRecord
from idtable.store import Store
from staging.fsops import OBJECT_ID_XATTR, fingerprint

SECOND = 1_000_000_000
MEMBER = Member("a", b"a" * 16, "localhost", 1)
SET = ReplicaSet("docs", b"s" * 16, "other", {"a": MEMBER}, (), "a", (), ())


def trusted_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "trusted.frs.test", b"")
    except OSError:
        return False
    return True


class Agent:
    """What one agent makes of a root. As with the real one, its store outlives it."""

    def __init__(self, root: Path, state: Path, replica_set: ReplicaSet = SET) -> None:
        self.root, self.state = root, state
        self.told = 0
        folder = state / "sets" / replica_set.name
        folder.mkdir(parents=True, exist_ok=True)
        self.local = LocalSet(replica_set, MEMBER, root, folder, 1 << 20)
        self.store = Store(folder / "frs.db", synchronous="OFF")

    def tell(self) -> None:
        self.told += 1

    def identify(self) -> Identity:
        with opened(self.root) as fd:
            return identify(self.store, self.local, fd, str(self.state), Counters(), self.tell)

    def start(self) -> Identity:
        found = self.identify()
        with opened(self.root) as fd:
            mark_root(self.store, self.local, fd, str(self.state), found.root_guid)
        return found


@contextlib.contextmanager
def opened(root: Path) -> Iterator[int]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def agents(root: Path, tmp_path: Path) -> Iterator[tuple[Agent, Agent]]:
    """Two agents with a state directory each, on one root."""
    pair = Agent(root, tmp_path / "one"), Agent(root, tmp_path / "other")
    yield pair
    for each in pair:
        each.store.close()


@pytest.fixture
def agent(agents: tuple[Agent, Agent]) -> Agent:
    return agents[0]


def mark(root: Path) -> Mark | None:
    with opened(root) as fd:
        return read_mark(fd)


def remove_marks(root: Path) -> None:
    for name in (TRUSTED_XATTR, OBJECT_ID_XATTR):
        with contextlib.suppress(OSError):
            os.removexattr(root, name)


def without_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an agent that is not root has it."""
    setxattr, getxattr = os.setxattr, os.getxattr

    def deny(folder: int, name: str, *rest: object, **options: object) -> None:
        if name == TRUSTED_XATTR:
            raise PermissionError(1, os.strerror(1))
        setxattr(folder, name, *rest, **options)  # type: ignore[arg-type]

    def hide(folder: int, name: str, **options: bool) -> bytes:
        if name == TRUSTED_XATTR:
            raise OSError(61, os.strerror(61))
        return getxattr(folder, name, **options)

    monkeypatch.setattr(os, "setxattr", deny)
    monkeypatch.setattr(os, "getxattr", hide)


def seen_as(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    """The file system tells something else of the root from now on."""
    look = rootmark.look_at_root
    monkeypatch.setattr(identity, "look_at_root", lambda fd: replace(look(fd), **changes))


@pytest.mark.parametrize("trust", [True, False])
def test_the_mark_comes_last_and_stays(agent: Agent, root: Path, trust: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not trust:
        without_trust(monkeypatch)
    elif not trusted_attributes(root):
        pytest.skip("no trusted attributes here, or not for this user")
    first = agent.identify()
    assert mark(root) is None, "whatever fails after this, the root is as it was"
    assert agent.start() == first
    assert mark(root) == (Mark(first.root_guid, True, str(agent.state)) if trust else Mark(first.root_guid))
    changed = root.stat().st_ctime_ns
    assert agent.start() == first
    assert root.stat().st_ctime_ns == changed, "it was written again"
    assert agent.told == 0


@pytest.mark.parametrize("trust", [True, False])
def test_the_root_of_another_set_of_this_member_is_not_taken(
    root: Path, tmp_path: Path, trust: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as what is known of that set is there: its entry may have got another name by mistake."""
    if not trust:
        without_trust(monkeypatch)
    state, another = tmp_path / "one", replace(SET, name="another", guid=b"t" * 16)
    docs = Agent(root, state)
    first = docs.start()
    docs.store.close()
    agent = Agent(root, state, another)
    with pytest.raises(RootOfAnotherSet, match=f"{docs.local.state_dir}.*frs leave"):
        agent.identify()
    assert mark(root).guid == first.root_guid  # type: ignore[union-attr]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    third = Agent(elsewhere, state, replace(SET, name="third", guid=b"u" * 16))
    third.start()
    third.store.close()
    (docs.local.state_dir / "frs.db").unlink()  # it was left
    second = agent.start()
    agent.store.close()
    assert mark(root).guid == second.root_guid  # type: ignore[union-attr]
    assert first.root_guid != second.root_guid


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("value", [None, b"x" * 16, b"short"])
def test_the_owner_of_the_root_has_no_power_over_its_mark(
    agent: Agent, root: Path, trust: bool, value: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed or changed, it neither stops the member nor makes the root another's."""
    if not fingerprint(str(root)).btime_ns % SECOND:
        pytest.skip("no times of birth here that tell folders apart")
    if not trust:
        without_trust(monkeypatch)
    first = agent.start()
    with contextlib.suppress(OSError):
        os.removexattr(root, OBJECT_ID_XATTR)
    if value is not None:
        os.setxattr(root, OBJECT_ID_XATTR, value)
    assert agent.start() == first
    assert agent.told == (0 if trust and mark(root).trusted else 1)  # type: ignore[union-attr]
    assert mark(root).guid == first.root_guid  # type: ignore[union-attr]


def test_the_top_folder_of_another_disk(agent: Agent, root: Path) -> None:
    """It may have the inode number of the root, and even its object ID: what rsync -aX makes of a whole disk."""

    def mount() -> None:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount a file system here: {done.stderr.strip()}")

    mount()
    try:
        first = agent.start()
        if not fingerprint(str(root)).btime_ns:
            pytest.skip("no times of birth here")
        subprocess.run(["umount", str(root)], check=True)
        mount()
        with contextlib.suppress(OSError):
            os.setxattr(root, OBJECT_ID_XATTR, first.root_guid)
        assert root.stat().st_ino == int(agent.store.meta_get("root_ino") or b"")
        with pytest.raises(ReplicaError, match="is not the folder it was"):
            agent.identify()
    finally:
        subprocess.run(["umount", str(root)], check=True)
    with pytest.raises(ReplicaError, match="is not the folder it was"):
        agent.identify()


FACTS = RootFacts(5, 2, 1_700_000_000 * SECOND + 5, 77)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"dev": 6}, True),
        ({"dev": 6, "fsid": 78}, True),  # some file systems make the one of the other
        ({"ino": 3}, False),
        ({"btime_ns": FACTS.btime_ns + 1}, False),
        ({"btime_ns": 0}, None),
    ],
)
def test_what_tells_a_root(changes: dict[str, int], same: bool | None) -> None:
    assert surely_same(FACTS, replace(FACTS, **changes)) is same


@pytest.mark.parametrize(("fsid", "same"), [(77, True), (78, None), (0, None)])
def test_a_time_of_birth_in_whole_seconds_is_that_of_many_disks(fsid: int, same: bool | None) -> None:
    """mkfs gives it to the top folder."""
    made = replace(FACTS, btime_ns=1_700_000_000 * SECOND)
    assert surely_same(made, replace(made, fsid=fsid)) is same


def test_without_a_time_of_birth_the_mark_tells(agent: Agent, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_as(monkeypatch, btime_ns=0, fsid=0)
    first = agent.start()
    assert agent.start() == first
    remove_marks(root)
    with pytest.raises(ReplicaError, match="is not the folder it was"):
        agent.start()


def test_another_device_number_is_that_of_all_records(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a start of the host: by device, inode and time of birth files are known."""
    agent.start()
    dev = agent.root.stat().st_dev
    here = IDRecord(b"f" * 16, b"d" * 16, "f", False, dev=dev, ino=7, btime_ns=8)
    away = IDRecord(b"t" * 16, b"d" * 16, "t", False, deleted=True)
    with agent.store.transaction():
        agent.store.put(here)
        agent.store.put(away)
    seen_as(monkeypatch, dev=dev + 1)
    assert agent.start().root_key == (dev + 1, agent.root.stat().st_ino)
    assert agent.store.get(here.file_guid) == replace(here, dev=dev + 1)
    assert agent.store.get(away.file_guid) == away
    assert agent.store.by_local_key(dev + 1, 7, 8) == [replace(here, dev=dev + 1)]
    assert agent.store.by_local_key(dev, 7, 8) == []


def test_a_store_of_an_earlier_version(agent: Agent, root: Path) -> None:
    """It knows the inode, and that the root was marked where users could write."""
    first = agent.start()
    dev = root.stat().st_dev
    record = IDRecord(b"f" * 16, b"d" * 16, "f", False, dev=dev + 1, ino=7, btime_ns=8)
    remove_marks(root)
    with agent.store.transaction():
        for key in ("root_btime", "root_fsid", "root_dev"):
            agent.store._write("DELETE FROM meta WHERE key = ?", (key,))
        agent.store.put(record)
    with pytest.raises(ReplicaError, match="is not the folder it was"):
        agent.identify()
    os.setxattr(root, OBJECT_ID_XATTR, first.root_guid)
    assert agent.start() == first
    assert mark(root).trusted == trusted_attributes(root)  # type: ignore[union-attr]
    assert agent.store.get(record.file_guid) == replace(record, dev=dev)
    remove_marks(root)
    assert agent.start() == first


class TestAnotherAgent:
    """Two states on one root, one after the other: whose it is stands where no user can write."""

    @pytest.fixture(autouse=True)
    def needs_trust(self, root: Path) -> None:
        if not trusted_attributes(root):
            pytest.skip("no trusted attributes here, or not for this user")

    def test_does_not_get_the_root(self, agents: tuple[Agent, Agent], root: Path) -> None:
        one, other = agents
        one.start()
        marked = mark(root)
        for _ in range(2):
            with pytest.raises(ReplicaError, match=f"belongs to the agent with the state directory {one.state}"):
                other.start()
        assert mark(root) == marked
        assert other.store.meta_get("originator_guid") is None
        one.start()

    def test_that_began_at_the_same_moment(self, agents: tuple[Agent, Agent], root: Path) -> None:
        one, other = agents
        second = other.identify()
        one.start()
        with opened(root) as fd, pytest.raises(ReplicaError, match="belongs to the agent"):
            mark_root(other.store, other.local, fd, str(other.state), second.root_guid)

    def test_that_is_quicker_by_a_hair(
        self, agents: tuple[Agent, Agent], root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = agents
        second = other.identify()
        one.start()
        monkeypatch.setattr(identity, "read_mark", lambda fd: None)
        monkeypatch.setattr(rootmark, "read_mark", lambda fd: None)
        with opened(root) as fd, pytest.raises(ReplicaError, match="at this moment"):
            mark_root(other.store, other.local, fd, str(other.state), second.root_guid)
        monkeypatch.undo()
        assert mark(root).state == str(one.state)  # type: ignore[union-attr]

    def test_whose_state_was_removed(self, agents: tuple[Agent, Agent], root: Path) -> None:
        """An administrator starts anew, with another state directory."""
        one, other = agents
        one.start()
        one.state.rename(root.parent / "gone")
        found = other.start()
        assert mark(root) == Mark(found.root_guid, True, str(other.state))
        (root.parent / "gone").rename(one.state)
        with pytest.raises(ReplicaError, match=f"belongs to the agent with the state directory {other.state}"):
            one.start()

    def test_in_the_same_state_directory(self, agent: Agent, root: Path) -> None:
        """State removed and begun anew, or put back from a backup: one agent runs on a state directory anyway."""
        first = agent.start()
        agent.store.close()
        (agent.state / "sets").rename(root.parent / "backup")
        anew = Agent(root, agent.state)
        second = anew.start()
        anew.store.close()
        assert second.root_guid != first.root_guid
        assert mark(root).guid == second.root_guid  # type: ignore[union-attr]
        (agent.state / "sets").rename(root.parent / "anew")
        (root.parent / "backup").rename(agent.state / "sets")
        again = Agent(root, agent.state)
        assert again.start() == first
        again.store.close()
