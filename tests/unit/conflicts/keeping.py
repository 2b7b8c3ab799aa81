"""Files to be kept, and the store that keeps them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from agent.conflicts.kept import KeptStore
from staging import fsops
from staging.beneath import Entry

REPOSITORY = Path(__file__).parents[3]
QUOTA = 1 << 20
OBJECT_ID = bytes(range(16))
NAMES = [
    b"plain",
    b"two\nlines",
    b"\xff\xfe undecodable \x80",
    "ü€😀".encode(),
    b"a" * 255,
    ("é" * 127).encode() + b"x",
    b"\xc3" * 255,
    b".hidden",
    b"-rf *",
    b"20200101T000000-00000000",
    b"index",
    b"\x1b[31m\r\t'\"\\$`",
]


opened: dict[Path, int] = {}


def at(path: Path) -> Entry:
    """The entry in its folder, which is open until the end of the test."""
    if path.parent not in opened:
        opened[path.parent] = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return Entry(opened[path.parent], path.name, str(path))


def again(store: KeptStore) -> KeptStore:
    """The store as the next start finds it."""
    store.close()
    return KeptStore(store.dir, store.quota_bytes)


def keep(store: KeptStore, out: Path, tree_path: str, data: bytes = b"data", **details: Any) -> str:
    path = out / f"x{random.randbytes(8).hex()}.aside"
    path.write_bytes(data)
    return store.keep(at(path), tree_path=tree_path, reason="lost", **details)


def facts(path: Path) -> tuple[Any, ...]:
    st = path.lstat()
    attributes = {} if path.is_symlink() else {name: os.getxattr(path, name) for name in os.listxattr(path)}
    attributes.pop(fsops.OBJECT_ID_XATTR, None)
    if path.is_symlink():
        content: object = os.readlink(path)
    elif path.is_dir():
        content = {name: facts(path / name) for name in os.listdir(path)}
    elif path.is_file():
        content = path.read_bytes()
    else:
        content = st.st_rdev
    return st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, attributes, content


def make_tree(path: Path) -> None:
    """A folder with one of everything."""
    path.mkdir()
    (path / "file").write_bytes(random.randbytes(100_000))
    os.setxattr(path / "file", "user.colour", b"red\0blue")
    (path / "empty").touch(0o400)
    with open(path / "sparse", "wb") as stream:
        stream.write(b"head")
        stream.seek(8 << 20)
        stream.write(b"middle")
        stream.truncate(16 << 20)
    (path / "link").symlink_to("no\nwhere")
    os.mkfifo(path / "pipe", 0o640)
    (path / "setgid").touch()
    (path / "setgid").chmod(0o2750)
    (path / "closed").mkdir(0o500)
    for raw in NAMES:
        name = os.fsdecode(raw)
        (path / name).write_bytes(raw)
        fsops.object_id_set(str(path / name), OBJECT_ID)
    (path / "deep").mkdir()
    (path / "deep" / "deeper").mkdir(0o2775)
    (path / "deep" / "deeper" / "file").write_bytes(b"x")
    if os.geteuid() == 0:
        os.chown(path / "file", 1234, 2345)
        os.chown(path / "link", 1234, 2345, follow_symlinks=False)
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            if not (entry := Path(folder, name)).is_fifo():
                os.utime(entry, ns=(10**18, 1_234_567_890_123_456_789), follow_symlinks=False)
    fsops.object_id_set(str(path), OBJECT_ID)
