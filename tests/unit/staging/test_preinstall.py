"""The folder for unfinished installs: where it is chosen, what others do at its name, what a crash left in it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from staging import beneath, preinstall
from staging.errors import NoSpace, StagingError, Vanished
from staging.preinstall import RESERVED_NAME, Preinstall
from staging.rootdir import RootDir
from tests.filesystems import mounted


class Host:
    """A root and a state folder, and the agent on them."""

    def __init__(self, root, state):
        self.path, self.state = root, state
        root.mkdir(exist_ok=True)
        state.mkdir(exist_ok=True)
        self.told = []
        self.root = RootDir(str(root))
        self.area = None

    def start(self):
        self.stop()
        self.area = Preinstall(self.root, str(self.state), self.told.append)
        return self.area

    def stop(self):
        if self.area is not None:
            self.area.close()

    def kill(self):
        """As a crash leaves it."""
        area, self.area = self.area, None
        for fd in (area.fd, area._state_fd):
            os.close(fd)

    @property
    def reserved(self):
        return self.path / RESERVED_NAME


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "root", tmp_path / "state")
    yield host
    host.stop()
    host.root.close()


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """On a host where nothing can be renamed from the state directory into the tree."""
    monkeypatch.setattr(Preinstall, "_can_rename", lambda self: False)
    host = Host(tmp_path / "root", tmp_path / "state")
    yield host
    host.stop()
    host.root.close()


def test_outside_the_tree_on_one_file_system(host):
    os.utime(host.path, ns=(5, 7))
    area = host.start()
    assert area.path == str(host.state / "preinstall")
    assert not area.inside
    assert stat.S_IMODE(os.stat(area.path).st_mode) == 0o700
    assert os.path.samestat(os.stat(area.path), os.fstat(area.fd))
    assert os.listdir(host.path) == os.listdir(area.path) == []
    assert os.stat(host.path).st_mtime_ns == 7
    assert host.start().path == area.path


def test_in_the_tree_on_another_file_system(tmp_path, shm):
    host = Host(shm, tmp_path / "state")
    os.utime(shm, ns=(5, 7))
    area = host.start()
    assert area.path == str(host.reserved)
    assert area.inside
    assert stat.S_IMODE(os.stat(area.path).st_mode) == 0o700
    assert os.path.samestat(os.stat(area.path), os.fstat(area.fd))
    assert os.stat(shm).st_mtime_ns == 7
    assert host.start().path == area.path
    host.stop()
    assert os.listdir(shm) == []
    assert os.stat(shm).st_mtime_ns == 7
    assert host.told == []


def test_two_mounts_with_one_device_number(tmp_path):
    """A bind mount: the device number is the same, and yet nothing can be renamed across."""
    (tmp_path / "real").mkdir()
    (tmp_path / "bound").mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "real", tmp_path / "bound"], check=False).returncode:
        pytest.skip("cannot make a bind mount")
    try:
        assert os.stat(tmp_path).st_dev == os.stat(tmp_path / "bound").st_dev
        host = Host(tmp_path / "bound", tmp_path / "state")
        assert host.start().path == str(tmp_path / "bound" / RESERVED_NAME)
        host.stop()
        host.root.close()
    finally:
        subprocess.run(["umount", tmp_path / "bound"], check=True)


def test_a_full_disk_is_not_taken_for_another_file_system(tmp_path, monkeypatch):
    """A rename that fails for want of room says nothing of the next time: no folder in the tree is chosen for it."""
    host = Host(tmp_path / "root", tmp_path / "state")

    def full(src, dst, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), dst)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        with pytest.raises(NoSpace):
            host.start()
    assert os.listdir(host.path) == []
    assert os.listdir(host.state / "preinstall") == []
    assert host.start().path == str(host.state / "preinstall")
    host.stop()


def test_what_is_no_folder_of_the_agent_in_the_state_directory(host):
    (host.state / "preinstall").symlink_to(host.path)
    with pytest.raises(StagingError, match="is not a folder of this agent"):
        host.start()
    assert os.listdir(host.path) == []


def test_sweep(host):
    folder = host.start().path
    state = host.state / "preinstall"
    (state / "temp").write_text("half a file")
    (state / "folder" / "deep").mkdir(parents=True)
    (state / "link").symlink_to("/")
    ours = state / "ours"
    ours.write_text("x")
    ours.rename(state / f"ours.{ours.stat().st_ino}.swap")
    (state / "theirs.1.swap").write_text("from the tree")
    (state / "removed.aside").write_text("from the tree")
    found = host.start().sweep()
    assert [entry.path for entry in found] == [f"{folder}/removed.aside", f"{folder}/theirs.1.swap"]
    assert sorted(os.listdir(folder)) == ["removed.aside", "theirs.1.swap"]


FOREIGN = {
    "a file": lambda p: p.write_text("mine"),
    "a link": lambda p: p.symlink_to(p.parent.parent),
    "a folder": lambda p: (p.mkdir(), (p / "x").write_text("mine")),
    "a private folder": lambda p: (p.mkdir(0o700), (p / "x").write_text("mine")),
    "a pipe": os.mkfifo,
}


def what(path):
    return sorted(os.listdir(path)) if stat.S_ISDIR(os.lstat(path).st_mode) else os.lstat(path).st_size


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_whatever_has_the_name_is_handed_over_and_the_start_goes_on(where, kind, request, tmp_path):
    host = request.getfixturevalue("host" if where == "outside" else "inside")
    FOREIGN[kind](host.reserved)
    ino, content = os.lstat(host.reserved).st_ino, what(host.reserved)
    os.utime(host.path, ns=(5, 7))
    area = host.start()
    assert area.inside is (where == "inside")
    (entry,) = area.sweep()
    assert entry.name.startswith(RESERVED_NAME)
    assert (os.lstat(entry.path).st_ino, what(entry.path)) == (ino, content)
    assert os.listdir(host.path) == ([RESERVED_NAME] if area.inside else [])
    assert os.stat(host.path).st_mtime_ns == 7
    assert "is not this agent's" in host.told[0]


def test_a_folder_of_the_agent_s_user_is_not_swept_when_it_was_given_the_name(inside):
    """A user who may write to the root renames a folder of root's that only root can enter."""
    inside.start()
    inside.kill()
    inside.reserved.rmdir()
    secret = inside.path / "secret"
    secret.mkdir(0o700)
    (secret / "x").write_text("root's")
    secret.rename(inside.reserved)
    (entry,) = inside.start().sweep()
    assert os.listdir(entry.path) == ["x"]


def test_what_a_crash_left_is_swept_wherever_the_folder_is_by_now(inside):
    area = inside.start()
    for name in ("temp", "removed.aside"):
        (inside.reserved / name).write_text(name)
    assert os.fstat(area.fd).st_ino == inside.reserved.stat().st_ino
    inside.kill()
    inside.reserved.rename(inside.path / "elsewhere")
    inside.reserved.write_text("mine")
    area = inside.start()
    assert [entry.name for entry in area.sweep()] == ["removed.aside"]
    assert os.listdir(inside.reserved) == ["removed.aside"]
    assert (inside.path / "elsewhere").read_text() == "mine"
    assert len(os.listdir(inside.path)) == 2


def test_a_folder_left_in_the_tree_is_emptied_when_there_is_one_outside(tmp_path, monkeypatch):
    host = Host(tmp_path / "root", tmp_path / "state")
    with monkeypatch.context() as patched:
        patched.setattr(Preinstall, "_can_rename", lambda self: False)
        host.start()
    for name in ("temp", "removed.aside"):
        (host.reserved / name).write_text(name)
    host.kill()
    area = host.start()
    assert not area.inside
    (entry,) = area.sweep()
    assert entry.name.startswith("removed.aside")
    assert Path(entry.path).read_text() == "removed.aside"
    assert os.listdir(host.path) == []
    assert host.told == []
    host.stop()


def test_while_it_runs_the_folder_gets_its_name_back(inside):
    area = inside.start()
    (inside.reserved / "temp").write_text("x")
    assert area.check() == []
    inside.reserved.rename(inside.path / "elsewhere")
    assert area.check() == []
    assert os.listdir(inside.path) == [RESERVED_NAME]
    assert os.listdir(inside.reserved) == os.listdir(area.fd) == ["temp"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_while_it_runs_what_took_its_name_gets_another(inside, kind):
    area = inside.start()
    (inside.reserved / "temp").write_text("x")
    inside.reserved.rename(inside.path / "elsewhere")
    FOREIGN[kind](inside.reserved)
    content = what(inside.reserved)
    assert area.check() == []
    assert os.listdir(inside.reserved) == os.listdir(area.fd) == ["temp"]
    assert what(inside.path / "elsewhere") == content
    assert "was renamed to 'elsewhere'" in inside.told[0]


@pytest.mark.parametrize("kind", FOREIGN)
def test_while_it_runs_a_folder_that_was_removed_is_made_again(inside, kind):
    area = inside.start()
    number = area.fd
    inside.reserved.rmdir()
    with pytest.raises(FileNotFoundError):
        os.mkdir("x", dir_fd=number)
    assert area.check() == []
    assert os.path.samestat(os.fstat(number), inside.reserved.stat())
    inside.reserved.rmdir()
    FOREIGN[kind](inside.reserved)
    content = what(inside.reserved)
    (entry,) = area.check()
    assert what(entry.path) == content
    assert os.path.samestat(os.fstat(number), inside.reserved.stat())
    assert stat.S_IMODE(inside.reserved.stat().st_mode) == 0o700
    assert os.listdir(inside.path) == [RESERVED_NAME]


def test_a_name_that_cannot_be_had_is_no_reason_to_stop(inside):
    """Something is mounted there."""
    inside.reserved.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", inside.reserved], check=False).returncode:
        pytest.skip("cannot mount a file system")
    try:
        area = inside.start()
        assert not os.path.samestat(os.fstat(area.fd), inside.reserved.stat())
        os.mkdir("x", dir_fd=area.fd)
        assert inside.root.holds(area.fd)
        assert any("move it away" in text for text in inside.told)
        area.check()
        assert len(os.listdir(inside.path)) == 2
    finally:
        subprocess.run(["umount", inside.reserved], check=True)
    area.check()
    assert os.listdir(inside.reserved) == ["x"]


def test_a_folder_exchanged_the_moment_it_was_made_is_not_used(inside, monkeypatch):
    """Neither a link nor a folder with anything in it, whosever it is."""
    (inside.path.parent / "outside").mkdir(0o700)
    (inside.path / "secret").mkdir(0o700)
    (inside.path / "secret" / "x").write_text("root's")
    real, swaps = os.mkdir, ["link", "secret", "open to all"]

    def mkdir(name, mode=0o777, *, dir_fd=None):
        real(name, mode, dir_fd=dir_fd)
        if dir_fd == inside.root.fd and swaps:
            path = inside.path / name
            path.rename(inside.path / f"gone-{len(swaps)}")
            match swaps.pop(0):
                case "link":
                    path.symlink_to("../outside")
                case "secret":
                    (inside.path / "secret").rename(path)
                case _:
                    real(path)
                    path.chmod(0o777)

    monkeypatch.setattr(beneath.os, "mkdir", mkdir)
    area = inside.start()
    assert swaps == []
    assert os.listdir(area.fd) == []
    assert os.path.samestat(os.fstat(area.fd), inside.reserved.stat())
    (secret,) = [p for p in inside.path.iterdir() if (p / "x").exists()]
    assert (secret / "x").read_text() == "root's"
    assert os.listdir(inside.path.parent / "outside") == []


def test_somebody_who_never_lets_it_be_made(inside, monkeypatch):
    real = os.mkdir

    def mkdir(name, mode=0o777, *, dir_fd=None):
        real(name, mode, dir_fd=dir_fd)
        if dir_fd == inside.root.fd:
            os.rmdir(name, dir_fd=dir_fd)

    area = inside.start()
    inside.reserved.rmdir()
    with monkeypatch.context() as patched:
        patched.setattr(beneath.os, "mkdir", mkdir)
        with pytest.raises(StagingError, match="again and again"):
            area.check()
    area.check()
    assert os.path.samestat(os.fstat(area.fd), inside.reserved.stat())


def test_nothing_is_left_where_it_cannot_be_noted_which_one_is_ours(inside, monkeypatch):
    """The disk of the state directory is full."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(preinstall.os, "write", full)
        for _ in range(2):
            with pytest.raises(NoSpace):
                inside.start()
    assert os.listdir(inside.path) == os.listdir(inside.state / "preinstall") == []
    inside.start()
    assert os.listdir(inside.path) == [RESERVED_NAME]


def test_what_a_crash_left_unnamed_is_removed(inside):
    for name in ("0123456789abcdef", "fedcba9876543210", "0123"):
        (inside.path / f"{RESERVED_NAME}.{name}").mkdir()
    (inside.path / f"{RESERVED_NAME}.fedcba9876543210" / "x").touch()
    inside.start()
    names = [RESERVED_NAME, f"{RESERVED_NAME}.0123", f"{RESERVED_NAME}.fedcba9876543210"]
    assert sorted(os.listdir(inside.path)) == names


def test_a_probe_that_somebody_takes_or_exchanges(host, monkeypatch):
    """What comes back in its place is not deleted."""
    real = os.rename
    for action in ("takes", "exchanges"):
        done = []

        def rename(src, dst, *, action=action, done=done, **fds):
            real(src, dst, **fds)
            if not done:
                done.append(1)
                os.rmdir(host.path / dst)
                if action == "exchanges":
                    (host.path / dst).write_text("mine")

        with monkeypatch.context() as patched:
            patched.setattr(preinstall.os, "rename", rename)
            area = host.start()
        assert done
        found = area.sweep()
        assert [Path(entry.path).read_text() for entry in found] == (["mine"] if action == "exchanges" else [])
        assert os.listdir(host.path) == []


def test_nothing_is_done_after_the_end(inside):
    area = inside.start()
    area.close()
    assert area.check() == []
    assert os.listdir(inside.path) == []


def test_no_state_directory(tmp_path):
    (tmp_path / "root").mkdir()
    with RootDir(str(tmp_path / "root")) as root, pytest.raises(Vanished):
        Preinstall(root, str(tmp_path / "none"))


def test_no_descriptor_is_left_open(inside):
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for kind in ("a file", "a folder"):
        FOREIGN[kind](inside.reserved)
        area = inside.start()
        assert count() == before + 2
        for entry in area.sweep():
            beneath.remove_tree(entry.fd, entry.name)
        inside.reserved.rmdir()
        area.check()
        assert count() == before + 2
        inside.stop()
    assert count() == before


def test_a_file_system_without_modes_is_told_from_somebody_at_work(tmp_path):
    """Where all that is made is open to all, others could get at unfinished installs."""
    (tmp_path / "state").mkdir()
    with mounted("ntfs", tmp_path / "root", tmp_path / "images", "umask=022"):
        with RootDir(str(tmp_path / "root")) as root, pytest.raises(StagingError, match="umask=077"):
            Preinstall(root, str(tmp_path / "state"), print)
        assert os.listdir(tmp_path / "root") == []
