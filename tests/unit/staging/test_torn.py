"""A file that changes while it is read is never taken as a whole."""

from __future__ import annotations

import mmap
import os

import pytest

from staging import generate as module
from staging import stamps
from staging.errors import Torn
from staging.generate import generate

OBJECT_ID = bytes(16)


@pytest.fixture
def while_reading(monkeypatch):
    """Calls something once, when the first data has been read."""

    def set_up(action):
        real, calls = os.preadv, []

        def preadv(*args):
            result = real(*args)
            if not calls:
                calls.append(1)
                action()
            return result

        monkeypatch.setattr(module.os, "preadv", preadv)
        return calls

    return set_up


def write_same_size(path):
    with open(path, "r+b") as f:
        f.write(b"different")


def replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(b"n" * path.stat().st_size)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.rename(other, path)


ACTIONS = {
    "write": write_same_size,
    "append": lambda p: p.open("ab").write(b"x"),
    "shorter": lambda p: os.truncate(p, 10),
    "empty": lambda p: os.truncate(p, 0),
    "touch": os.utime,
    "chmod": lambda p: p.chmod(0o600),
    "attribute": lambda p: os.setxattr(p, "user.new", b"x"),
}


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("size", [5000, 3 << 20])
def test_changes_are_seen(tmp_path, while_reading, name, size):
    path = tmp_path / "f"
    path.write_bytes(b"a" * size)
    calls = while_reading(lambda: ACTIONS[name](path))
    with pytest.raises(Torn):
        generate(str(path), str(tmp_path / "s"), object_id=OBJECT_ID)
    assert calls
    assert not (tmp_path / "s").exists()
    generate(str(path), str(tmp_path / "s"), object_id=OBJECT_ID)


@pytest.mark.parametrize("tried", [False, True])
def test_a_change_within_the_tick_of_the_last_one(tmp_path, while_reading, tried, monkeypatch):
    """However coarse the clock of the file system: what was written just before does not hide it. Nor does it when the
    file system was found to tell all changes apart, and nothing is waited for."""
    monkeypatch.setattr(stamps, "_fine", set())
    if tried:
        fd = os.open(tmp_path, os.O_RDONLY)
        stamps.learn(fd)
        os.close(fd)
    path = tmp_path / "f"
    for _ in range(20):
        path.write_bytes(b"a" * 5000)
        calls = while_reading(lambda: write_same_size(path))
        with pytest.raises(Torn):
            generate(str(path), None, object_id=OBJECT_ID)
        assert calls


def test_the_tick_of_the_last_change_is_waited_for(tmp_path, monkeypatch):
    """Kernels that tell changes within a tick apart hide it in the test above when that is forgotten."""
    path = tmp_path / "f"
    path.write_bytes(b"a")
    os.utime(path, ns=(1, 1))
    asked = []

    def settle(change, device):
        assert device == path.stat().st_dev
        asked.append(change)
        path.write_bytes(b"changed while waiting")
        return True

    monkeypatch.setattr(module, "settle", settle)
    staged = generate(str(path), None, object_id=OBJECT_ID)
    assert len(asked) == 1
    assert asked[0] > 1
    assert staged.file_size == 21
    assert staged.fingerprint.size == 21


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path, while_reading):
    """A rename over the name changes nothing of the file being read but its link count and ctime."""
    path = tmp_path / "f"
    path.write_bytes(b"a" * 5000)
    while_reading(lambda: replace(path))
    with pytest.raises(Torn):
        generate(str(path), None, object_id=OBJECT_ID)


def test_a_mapped_writer(tmp_path, while_reading):
    """A page that is dirty already can be written to without the kernel noticing, unless it was cleaned."""
    path = tmp_path / "f"
    path.write_bytes(b"a" * 5000)
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 5000) as mapped:
        mapped[0] = 1
        while_reading(lambda: mapped.__setitem__(1, 2))
        with pytest.raises(Torn):
            generate(str(path), None, object_id=OBJECT_ID)


def test_links_that_change(tmp_path, monkeypatch):
    path = tmp_path / "l"
    path.symlink_to("one")
    real = os.readlink

    def readlink(*args, **kwargs):
        result = real(*args, **kwargs)
        path.unlink()
        path.symlink_to("two")
        return result

    monkeypatch.setattr(module.os, "readlink", readlink)
    with pytest.raises(Torn):
        generate(str(path), None, object_id=OBJECT_ID)


def test_types_that_change(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    real = module._open

    def swap(name, dir_fd):
        path.unlink()
        os.mkfifo(path)
        return real(name, dir_fd)

    monkeypatch.setattr(module, "_open", swap)
    with pytest.raises(Torn):
        generate(str(path), None, object_id=OBJECT_ID)


def test_entries_of_a_folder_do_not_matter_but_its_attributes_do(tmp_path, monkeypatch):
    folder = tmp_path / "d"
    folder.mkdir()
    real = module.attributes.encode
    actions = [lambda: (folder / "new").write_bytes(b""), lambda: folder.chmod(0o700)]

    def encode(user):
        actions.pop(0)()
        return real(user)

    monkeypatch.setattr(module.attributes, "encode", encode)
    generate(str(folder), None, object_id=OBJECT_ID)
    with pytest.raises(Torn):
        generate(str(folder), None, object_id=OBJECT_ID)
