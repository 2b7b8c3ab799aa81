"""kill -9 or a power cut at any instant: what was acknowledged is there, and no transaction is there by halves.

A child commits numbered transactions. Transaction n writes n into several places at once, so that any mixture of
two transactions shows. The child acknowledges each commit on a pipe and is killed, at a random virtual machine
instruction inside SQLite or from outside after a random acknowledgement; then the parent opens the file.

For power cuts a small library under the child writes down every write, truncation, sync, creation and removal. A
disk after a cut is then made up: all that was synced, and of the rest any part, torn at sectors.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import idtable
from idtable.records import IDRecord, OutlogRow
from idtable.store import Store

ROOT = Path(idtable.__file__).parents[1]
RING = 12

CHILD = """
import itertools, os, signal, sys
from idtable.records import IDRecord, InlogRow
from idtable.store import Store

path, synchronous = sys.argv[1:3]
die_at, ring, limit = map(int, sys.argv[3:])
guid = lambda n: n.to_bytes(16, "big")
store = Store(path, synchronous=synchronous)
if die_at >= 0:
    steps = itertools.count()
    store._conn.set_progress_handler(lambda: next(steps) == die_at and os.kill(os.getpid(), signal.SIGKILL), 1)
store._conn.execute("PRAGMA wal_autocheckpoint = 30")
n = int(store.meta_get("n") or b"0")
while n != limit:
    n += 1
    store.begin()
    for j in range(3):
        store.put(IDRecord(guid(1 + (n + j) % ring), guid(99), f"{n}-{j}", False, version=n, originator_vsn=n))
    store.outlog_append(b"%d" % n * 200, b"", guid(n), guid(1), guid(2), n)
    store.inlog_put(InlogRow(guid(n), guid(3), b"%d" % n * 200, b"", arrival=n))
    if n > 1:
        store.inlog_delete(guid(n - 1))
    store.vv_set(guid(2), n)
    store.meta_set("n", b"%d" % n)
    if n % 5 == 0:
        store.rollback()
        n -= 1
        store.begin()
        store.meta_set("n", b"%d" % n)
        store.outlog_append(b"%d" % (n + 1) * 200, b"", guid(n + 1), guid(1), guid(2), n + 1)
        store.inlog_put(InlogRow(guid(n + 1), guid(3), b"%d" % (n + 1) * 200, b"", arrival=n + 1))
        if n > 0:
            store.inlog_delete(guid(n))
        n += 1
        store.vv_set(guid(2), n)
        store.meta_set("n", b"%d" % n)
    store.commit()
    os.write(1, b"%d\\n" % n)
store.close()
"""


def guid(n: int) -> bytes:
    return n.to_bytes(16, "big")


def expected_records(n: int) -> dict[bytes, IDRecord]:
    """The IDTable after transaction n. Each fifth one rolls its records back and commits the rest."""
    records = {}
    for k in range(1, n + 1):
        if k % 5:
            for j in range(3):
                g = guid(1 + (k + j) % RING)
                records[g] = IDRecord(g, guid(99), f"{k}-{j}", False, version=k, originator_vsn=k)
    return records


def examine(path: Path) -> int:
    """Open what the child left, check that it is the result of whole transactions, and tell of how many."""
    store = Store(path, synchronous="OFF")
    assert store.check(thorough=True) == []
    n = int(store.meta_get("n") or b"0")
    assert {r.file_guid: r for r in store.all_live()} == expected_records(n)
    assert store.outlog_head() == n
    assert store.outlog_iter() == [
        OutlogRow(k, b"%d" % k * 200, b"", guid(k), guid(1), guid(2), k, b"", 0) for k in range(1, n + 1)
    ]
    assert [r.co_guid for r in store.inlog_iter()] == ([guid(n)] if n else [])
    assert store.vv_get() == ({guid(2): n} if n else {})
    store.close()
    return n


def run_and_kill(path: Path, synchronous: str, die_at: int, acks: int) -> int:
    """Let the child work until it dies at that instruction, or is killed after `acks`; the last acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), synchronous, str(die_at), str(RING), "-1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    last = b""
    for line in child.stdout:
        last = line
        if die_at < 0:
            acks -= 1
            if acks == 0:
                child.send_signal(signal.SIGKILL)
    _, err = child.communicate()
    assert child.returncode == -signal.SIGKILL, err.decode()
    return int(last or b"0")


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
@pytest.mark.parametrize("inside", [True, False])
def test_kill_at_random(tmp_path: Path, synchronous: str, inside: bool) -> None:
    rng = random.Random(f"{synchronous} {inside}")
    path = tmp_path / "s.db"
    there = 0
    for _ in range(10):
        die_at = int(10 ** rng.uniform(0, 4.2)) if inside else -1
        acknowledged = max(run_and_kill(path, synchronous, die_at, rng.randint(1, 30)), there)
        there = examine(path)
        assert acknowledged <= there <= acknowledged + 1, "an acknowledged commit is lost, or one came from nowhere"
    assert there > 10


def test_the_child_can_be_caught_lying(tmp_path: Path) -> None:
    """The examination does see half a transaction and a lost one."""
    path = tmp_path / "s.db"
    run_and_kill(path, "OFF", -1, 3)
    n = examine(path)
    assert n >= 3
    store = Store(path)
    with store.transaction():
        store.meta_set("n", b"%d" % (n + 1))
    store.close()
    with pytest.raises(AssertionError):
        examine(path)


# -- power cuts

RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int out = -1;

static void note(char op, const char *path, int64_t offset, const void *data, uint32_t size)
{
    const char *dir = getenv("RECORD_DIR");
    if (!dir || strncmp(path, dir, strlen(dir)) != 0) return;
    if (out < 0) out = syscall(SYS_openat, AT_FDCWD, getenv("RECORD_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    struct __attribute__((packed)) { char op; uint32_t path, size; int64_t offset; } head =
        { op, strlen(path), size, offset };
    struct iovec v[3] = { { &head, sizeof head }, { (void *)path, head.path }, { (void *)data, size } };
    if (writev(out, v, 3) != (ssize_t)(sizeof head + head.path + size)) abort();
}

static void note_fd(char op, int fd, int64_t offset, const void *data, uint32_t size)
{
    char link[32] = "/proc/self/fd/", path[4096], digits[12];
    int n = 0, d = fd;
    do digits[n++] = '0' + d % 10; while (d /= 10);
    for (char *p = link + 14; n; ) *p++ = digits[--n];
    ssize_t len = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (len < 0) return;
    path[len] = 0;
    note(op, path, offset, data, size);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    ssize_t r = syscall(SYS_pwrite64, fd, buf, n, at);
    if (r > 0) note_fd('w', fd, at, buf, r);
    return r;
}
ssize_t pwrite(int fd, const void *buf, size_t n, off_t at) { return pwrite64(fd, buf, n, at); }
ssize_t write(int fd, const void *buf, size_t n)
{
    ssize_t r = syscall(SYS_write, fd, buf, n);
    if (r > 0 && fd == 1) note('a', getenv("RECORD_DIR"), 0, buf, r);
    else if (r > 0) note_fd('w', fd, lseek(fd, 0, SEEK_CUR) - r, buf, r);
    return r;
}
int ftruncate64(int fd, off64_t n)
{
    int r = syscall(SYS_ftruncate, fd, n);
    if (!r) note_fd('t', fd, n, "", 0);
    return r;
}
int ftruncate(int fd, off_t n) { return ftruncate64(fd, n); }
int fsync(int fd) { int r = syscall(SYS_fsync, fd); if (!r) note_fd('s', fd, 0, "", 0); return r; }
int fdatasync(int fd) { int r = syscall(SYS_fdatasync, fd); if (!r) note_fd('s', fd, 0, "", 0); return r; }
int unlink(const char *path) { int r = syscall(SYS_unlink, path); if (!r) note('u', path, 0, "", 0); return r; }
int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    int fresh = (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && fresh) note('c', path, 0, "", 0);
    return fd;
}
int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    return open64(path, flags, mode);
}
"""

Op = tuple[str, str, int, bytes]


@dataclass
class File:
    """What the disk surely holds of a file, and the operations whose fate a power cut decides."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)


def apply(content: bytearray, op: Op) -> None:
    kind, _, offset, data = op
    if kind == "t":
        del content[offset:]
    end = offset + len(data)
    content.extend(bytes(max(0, end - len(content))))
    content[offset:end] = data


def torn(op: Op, rng: random.Random) -> list[Op]:
    """Some of the sectors of a write."""
    kind, path, offset, data = op
    if kind != "w" or rng.random() < 0.5:
        return [op]
    pieces = [(kind, path, offset + i, data[i : i + 512]) for i in range(0, len(data), 512)]
    return [piece for piece in pieces if rng.random() < 0.5]


def read_log(path: Path) -> list[Op]:
    ops = []
    raw = path.read_bytes()
    at = 0
    while at < len(raw):
        kind, name_size, size, offset = struct.unpack_from("<cIIq", raw, at)
        at += 17
        name = os.path.basename(raw[at : at + name_size].decode())
        at += name_size
        ops.append((kind.decode(), name, offset, raw[at : at + size]))
        at += size
    return ops


def disk_after(ops: list[Op], directory: str, rng: random.Random) -> dict[str, bytes]:
    """One of the directories that a power cut after `ops` may leave behind."""
    inodes: dict[str, File] = {}
    entries: dict[str, File | None] = {}  # durable directory entries
    changes: list[tuple[str, File | None]] = []  # and those not synced yet
    for op in ops:
        kind, name = op[:2]
        if kind == "c":
            inodes[name] = File()
            changes.append((name, inodes[name]))
        elif kind == "u":
            changes.append((name, None))
        elif kind == "s" and name == directory:
            entries.update(changes)
            changes.clear()
        elif kind == "s":
            for done in inodes[name].pending:
                apply(inodes[name].durable, done)
            inodes[name].pending.clear()
        elif kind in "wt":
            inodes[name].pending.append(op)
    # Changes of a directory reach the disk in order, but who knows how many of them.
    entries.update(changes[: rng.randint(0, len(changes))])
    disk = {}
    for name, file in entries.items():
        if file is not None:
            content = bytearray(file.durable)
            keep = rng.choice([0.0, 0.3, 0.9, 1.0])
            for op in file.pending:
                if rng.random() < keep:
                    for piece in torn(op, rng):
                        apply(content, piece)
            disk[name] = bytes(content)
    return disk


def record(tmp_path: Path, synchronous: str) -> list[Op]:
    """What a child that commits 60 transactions does to its directory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "recorder.c").write_text(RECORDER)
    library = tmp_path / "recorder.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, tmp_path / "recorder.c"], check=True)
    (tmp_path / "disk").mkdir()
    log = tmp_path / "log"
    subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "disk" / "s.db", synchronous, "-1", str(RING), "60"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "RECORD_DIR": str(tmp_path / "disk"), "RECORD_LOG": str(log)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return read_log(log)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="records through Linux system calls")
@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_power_cut_at_random(tmp_path: Path, synchronous: str) -> None:
    ops = record(tmp_path, synchronous)
    assert sum(op[0] == "a" for op in ops) == 60
    rng = random.Random(f"power {synchronous}")
    lost = 0
    for trial in range(120):
        cut = rng.randint(0, len(ops))
        acknowledged = max((int(op[3]) for op in ops[:cut] if op[0] == "a"), default=0)
        place = tmp_path / f"after{trial}"
        place.mkdir()
        for name, content in disk_after(ops[:cut], "disk", rng).items():
            (place / name).write_bytes(content)
        there = examine(place / "s.db")
        assert there <= acknowledged + 1
        if synchronous == "FULL":
            assert there >= acknowledged, f"trial {trial}: acknowledged {acknowledged}, there {there}"
        lost += there < acknowledged
        shutil.rmtree(place)
    # NORMAL does lose commits to a power cut, which shows that these cuts are real ones.
    assert (lost > 0) == (synchronous == "NORMAL")
