"""One agent a root, and nobody else keeps it from beginning: real locks of real processes, also in PID namespaces."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.tree.lock import PATIENCE_S, QUESTION, RootInUse, RootLock

NOBODY = 65534
BRIEF = 0.2
"""Seconds for an answer where nobody is there to give one."""
LONG = 60.0
"""And where somebody is: it is not waited for."""
HERE: tuple[str, ...] = ()
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as somebody else")
PLACES = [pytest.param(HERE, id="here"), pytest.param(CONTAINER, id="container", marks=as_root)]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@contextlib.contextmanager
def opened(root: Path) -> Iterator[int]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(root: Path, told: list[str], patience_s: float = BRIEF) -> Iterator[RootLock]:
    """An agent in this process that has begun."""
    with opened(root) as fd:
        lock = RootLock(str(root), fd, told.append, patience_s)
        try:
            yield lock
        finally:
            lock.close()


def is_free(root: Path) -> bool:
    with opened(root) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


AGENT = """
import os, sys
from agent.tree.lock import RootInUse, RootLock
root, patience = sys.argv[1:]
try:
    lock = RootLock(root, os.open(root, os.O_RDONLY | os.O_DIRECTORY), lambda text: None, float(patience))
except RootInUse as error:
    print(error, flush=True)
else:
    print("begun", os.getpid(), flush=True)
    sys.stdin.read()
    lock.close()
"""

#: A user, who locks the root: himself; by a child that has ended; that way, and in the place of his own when told to.
USER = """
import fcntl, os, sys
root, how, uid = sys.argv[1:]
os.chdir(root)  # what is above it need not be open to him
os.setresuid(int(uid), int(uid), int(uid))
def lock(mode, by_child):
    fd = os.open(".", os.O_RDONLY)
    child = os.fork() if by_child else 0
    if not child:
        fcntl.flock(fd, mode)
        if by_child:
            os._exit(0)
    else:
        os.waitpid(child, 0)
    return fd, child
fd, child = lock(fcntl.LOCK_EX if how == "alone" else fcntl.LOCK_SH, how == "ended")
print(child, flush=True)
if how == "exchanged":
    sys.stdin.readline()
    other = lock(fcntl.LOCK_SH, True)
    os.close(fd)
    print("exchanged", flush=True)
sys.stdin.read()
"""


class Process:
    """A program that says a line once it is where it should be, and ends with its standard input."""

    def __init__(self, where: Sequence[str], program: str, *arguments: str) -> None:
        command = [*where, sys.executable, "-c", program, *arguments]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._popen.pid

    def line(self) -> str:
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().rstrip("\n")

    def say(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()

    def end(self) -> None:
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._popen.wait()


@contextlib.contextmanager
def process(where: Sequence[str], program: str, *arguments: str) -> Iterator[Process]:
    one = Process(where, program, *arguments)
    try:
        yield one
    finally:
        one.end()


@contextlib.contextmanager
def agent(root: Path, where: Sequence[str] = HERE) -> Iterator[Process]:
    with process(where, AGENT, str(root), str(BRIEF)) as one:
        assert one.line().startswith("begun")
        yield one


@contextlib.contextmanager
def user(root: Path, how: str = "alone", where: Sequence[str] = HERE) -> Iterator[Process]:
    with process(where, USER, str(root), how, str(NOBODY if os.geteuid() == 0 else os.geteuid())) as one:
        assert one.line()
        yield one


# -- two agents --


def test_a_lock_is_held_until_it_is_closed_and_leaves_nothing(root: Path, told: list[str]) -> None:
    with locked(root, told, LONG):
        assert not is_free(root)
        assert os.listdir(root) == []
    assert is_free(root)
    assert told == []


@pytest.mark.parametrize("second", PLACES)
@pytest.mark.parametrize("first", PLACES)
def test_a_second_agent_is_refused(root: Path, first: Sequence[str], second: Sequence[str]) -> None:
    """It says which one is there; the first goes on; and the tree is as it was."""
    with agent(root, first) as there:
        before = root.stat().st_mtime_ns
        with process(second, AGENT, str(root), str(LONG)) as other:
            said = other.line()
        assert f"replicates {root} already" in said
        who = f"process {there.pid}" if first == HERE and second == HERE else "a process that cannot be seen"
        if first == HERE or second != HERE:  # one in a container is seen from here, with a number of here
            assert who in said
        assert os.listdir(root) == []
        assert root.stat().st_mtime_ns == before
        assert not is_free(root)


@pytest.mark.parametrize("where", PLACES)
def test_one_that_was_killed_leaves_no_lock(root: Path, told: list[str], where: Sequence[str]) -> None:
    with agent(root, where) as one:
        one.kill()
        with opened(root) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)  # in a container it ends a moment later
        with locked(root, told, LONG):
            pass
    assert told == []


@pytest.mark.parametrize("second", PLACES)
def test_a_second_agent_is_refused_where_a_user_has_the_lock(
    root: Path, told: list[str], second: Sequence[str]
) -> None:
    with user(root), locked(root, told) as lock:
        with process(second, AGENT, str(root), str(LONG)) as other:
            assert f"replicates {root} already" in other.line()
        lock.try_again()
        assert os.listdir(root) == [QUESTION], "it asks again"


def test_so_it_is_when_the_user_lets_go_of_the_lock_just_then(root: Path, told: list[str]) -> None:
    with contextlib.ExitStack() as held:
        held.enter_context(user(root))
        with locked(root, told) as lock:
            held.close()
            with pytest.raises(RootInUse), locked(root, told, LONG):
                pass
            lock.try_again()
            assert not is_free(root)
            assert os.listdir(root) == []


def test_of_two_that_begin_at_once_one_does(root: Path) -> None:
    arguments = (str(root), str(PATIENCE_S))
    with user(root), process(HERE, AGENT, *arguments) as one, process(HERE, AGENT, *arguments) as other:
        said = sorted([one.line(), other.line()])
    assert said[1].startswith("begun")
    assert f"replicates {root} already" in said[0]


def test_two_that_have_begun_notice_each_other(root: Path, told: list[str]) -> None:
    """One was stopped when it was asked, say, and goes on: what has no lock stops, and does not answer any more."""
    with user(root), locked(root, told) as lock, opened(root) as fd:
        question = root / QUESTION / "stands"
        with open(question, "rb") as answer:
            fcntl.flock(answer, fcntl.LOCK_SH)
            with pytest.raises(RootInUse, match=f"process {os.getpid()}"):
                lock.try_again()
        assert os.listdir(root) == []
        RootLock(str(root), fd, told.append, BRIEF).close()


# -- others --


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("how", ["alone", "shared", "ended"])
def test_a_lock_of_a_user_keeps_nobody_from_beginning(
    root: Path, told: list[str], how: str, where: Sequence[str]
) -> None:
    """Whoever took it, and whether that process is still there or can be seen. It is told once, and taken later."""
    with contextlib.ExitStack() as held:
        held.enter_context(user(root, how, where))
        with locked(root, told) as lock:
            lock.try_again()
            (text,) = told
            assert "holds a lock on the root" in text
            folder = root / QUESTION
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            held.close()
            lock.try_again()
            assert not is_free(root)
            assert os.listdir(root) == []


@as_root
def test_nor_one_whose_process_had_the_number_of_the_agent(root: Path, told: list[str]) -> None:
    """In a namespace of its own, where the next number can be chosen."""
    program = f"""
import subprocess, sys
user = subprocess.Popen([sys.executable, "-c", {USER!r}, sys.argv[1], "ended", "{NOBODY}"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
ended = int(user.stdout.readline())
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(ended - 1))
agent = subprocess.Popen([sys.executable, "-c", {AGENT!r}, sys.argv[1], "{BRIEF}"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(agent.pid == ended, agent.stdout.readline(), flush=True)
agent.communicate()
user.communicate()
"""
    with process(CONTAINER, program, str(root)) as one:
        same, begun, _pid = one.line().split()
    assert (same, begun) == ("True", "begun")


@pytest.mark.parametrize("where", PLACES)
def test_nor_does_one_end_an_agent_that_has_begun(root: Path, told: list[str], where: Sequence[str]) -> None:
    with user(root, "exchanged", where) as one, locked(root, told) as lock:
        one.say()
        assert one.line() == "exchanged"
        lock.try_again()


def test_nor_do_a_thousand_locks(root: Path, told: list[str]) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(500):
            fcntl.flock(held.enter_context(opened(root)), fcntl.LOCK_SH)
        with locked(root, told) as lock:
            lock.try_again()
    assert len(told) == 1


def folder_of_a_user(at: Path) -> None:
    at.mkdir()
    (at / "stands").write_text("his")


def file_of_a_user(at: Path) -> None:
    at.write_text("his")


def link_of_a_user(at: Path) -> None:
    at.symlink_to("elsewhere")


def fifo_of_a_user(at: Path) -> None:
    at.mkdir()
    os.mkfifo(at / "stands")


@pytest.mark.parametrize("make", [folder_of_a_user, file_of_a_user, link_of_a_user, fifo_of_a_user])
def test_what_has_the_name_of_the_question_is_moved_away(root: Path, told: list[str], make: object) -> None:
    assert callable(make)
    make(root / QUESTION)
    his = (root / QUESTION).lstat().st_ino
    with user(root), locked(root, told) as lock:
        question = root / QUESTION
        assert os.listdir(question) == ["stands"]
        os.rename(question, root / "taken away")
        make(question)
        lock.try_again()
        assert os.listdir(question) == ["stands"]
        assert list((root / "taken away").iterdir()) == [], "he can remove it"
        with pytest.raises(RootInUse), locked(root, told, LONG):
            pass
    assert his in {path.lstat().st_ino for path in root.iterdir()}, "nothing of his is lost"


@as_root
def test_a_question_that_was_a_users_file_once_proves_nothing(root: Path, told: list[str]) -> None:
    """He has a lock on what was given to root later, with all modes that ours has."""
    for name in ("asked", "stands"):
        question = root / QUESTION
        question.mkdir(mode=0o700)
        (question / name).touch(mode=0o600)
        with user(root), open(question / name, "rb") as his:
            fcntl.flock(his, fcntl.LOCK_EX)
            with locked(root, told) as lock:
                lock.try_again()


def test_one_that_was_killed_without_the_lock_leaves_a_question_that_says_nothing(root: Path, told: list[str]) -> None:
    with user(root), agent(root) as one:
        one.kill()
        assert os.listdir(root) == [QUESTION]
    with locked(root, told):
        assert not is_free(root)
        assert os.listdir(root) == []
    assert told == []


def test_a_full_disk_keeps_nobody_from_beginning(root: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with user(root), monkeypatch.context() as disk:
        disk.setattr(os, "mkdir", full)
        with locked(root, told) as lock:
            lock.try_again()
            (text,) = told
            assert "cannot be asked" in text
            assert "No space left" in text
            disk.undo()
            lock.try_again()
            assert os.listdir(root) == [QUESTION]


def test_a_file_system_without_modes_proves_nothing(
    root: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.open

    def open_to_all(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = made(name, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            os.fchmod(fd, 0o644)
        return fd

    with user(root):
        monkeypatch.setattr(os, "open", open_to_all)
        with locked(root, told):
            assert os.listdir(root) == []
    assert "no owners and modes" in told[0]


def test_a_file_system_without_locks(root: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(root, told):
        pass
    assert told == []


def test_no_thread_is_left(root: Path, told: list[str]) -> None:
    with locked(root, told), pytest.raises(RootInUse), locked(root, told, LONG):
        pass
    assert not [one for one in threading.enumerate() if one.name == "root lock"]


def test_a_lock_that_fails_leaves_nothing_open(root: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a question that is there: it is looked at again and again."""
    with locked(root, told) as lock:
        lock._closing.set()
        lock._answering.join()
        question = root / QUESTION
        question.mkdir(0o700)
        (question / "asked").touch(0o600)

        def fails(fd: int, how: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        before = os.listdir("/proc/self/fd")
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", fails)
            for _ in range(3):
                with pytest.raises(OSError, match="Input/output"):
                    lock._answer()
        assert len(os.listdir("/proc/self/fd")) == len(before)
