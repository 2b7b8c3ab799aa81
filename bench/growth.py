"""What a member costs as its tree grows: `python -m bench.growth [--files N,N,...] [--folder N] [--deep N,N,...]
[--big GIB]`.

For each number of files (50 to a folder, 1 to 4 KiB) two members start with empty roots, the files are written at A,
and both become quiet. Printed, as a table in Markdown: seconds from the first file until both are quiet, and for each
file; the processor time of each member in that time, for each file; the most memory of each member; the database of
each; the seconds of a start with the whole tree there; the processor time that a member takes in a minute in which
nothing happens; and how much more memory than before the first file that was. `--folder`: the same with all files in
one folder. `--deep`: with so many folders in each other, and a file in each. `--big`: one file of so many GiB.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers.base import until
from bench.peers.frs import Frs
from bench.processes import TICK, Failed

MIB = 1 << 20
IN_A_FOLDER = 50
IDLE_S = 60.0
PATIENCE_S = 7200.0


@dataclass
class Growth:
    """One row."""

    what: str
    seconds: float
    files: int
    processor_s: dict[str, float]
    memory_mib: dict[str, float]
    database_mib: dict[str, float]
    start_s: dict[str, float]
    idle_s: dict[str, float]
    above_mib: dict[str, float]

    def cells(self) -> list[str]:
        each = [self.memory_mib, self.database_mib, self.start_s, self.idle_s, self.above_mib]
        pairs = [" / ".join(f"{one[member]:.1f}" for member in "ab") for one in each]
        used = " / ".join(f"{self.processor_s[member] * 1000 / self.files:.2f}" for member in "ab")
        return [self.what, f"{self.seconds:.1f}", f"{self.seconds * 1000 / self.files:.2f}", used, *pairs]


HEAD = ["tree", "seconds", "ms a file", "processor ms a file, A / B", "peak MiB", "database MiB", "start, s",
        "idle, s of a minute", "MiB above idle"]  # fmt: skip


def fill(root: Path, files: int, in_a_folder: int) -> None:
    """So many files below the root."""
    chance = random.Random(files)
    block = chance.randbytes(MIB)
    for folder, numbers in itertools.groupby(range(files), lambda number: number // in_a_folder):
        place = root / f"folder {folder:05d}"
        place.mkdir()
        for number in numbers:
            start = chance.randrange(len(block) - 4096)
            (place / f"file {number:06d}").write_bytes(block[start : start + chance.randrange(1024, 4096)])


def fill_deep(root: Path, levels: int) -> None:
    """So many folders in each other, with a file in each."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        above, fd = fd, os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(above)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


def write_big(path: Path, gib: float) -> None:
    """Half of it random, half of it text."""
    chance = random.Random(0)
    block = chance.randbytes(MIB // 2) + b"a line of text\n" * (MIB // 30)
    with open(path, "wb") as stream:
        for number in range(int(gib * 1024)):
            stream.write(number.to_bytes(8, "big") + block)


def measure(what: str, base: Path, change: Callable[[Path], None], files: int, idle_s: float) -> Growth:
    """One row; `change` is given the root of A."""
    peer = Frs(1)
    peer.lay(base)
    try:
        for member in "ba":
            peer.start(member)
        peer.settle()
        pids = {member: daemon.pid for member, daemon in peer.daemons.items()}
        before = {member: _processor_s(pid) for member, pid in pids.items()}
        resting = {member: _memory_mib(pid, "VmRSS") for member, pid in pids.items()}
        began = time.perf_counter()
        change(peer.near)
        _arrive(peer, files)
        peer.settle()
        seconds = time.perf_counter() - began
        used = {member: _processor_s(pid) - before[member] for member, pid in pids.items()}
        memory = {member: _memory_mib(pid, "VmHWM") for member, pid in pids.items()}
        above = {member: memory[member] - resting[member] for member in pids}
        idle = _idle(pids, idle_s)
        database = {member: _database_mib(peer, member) for member in "ab"}
        start = {}
        for member in "ab":
            peer.daemons.pop(member).stop(120)
            began = time.perf_counter()
            peer.start(member)
            peer.settle()
            start[member] = time.perf_counter() - began
        return Growth(what, seconds, files, used, memory, database, start, idle, above)
    finally:
        peer.stop()


def _arrive(peer: Frs, files: int) -> None:
    """Wait until both members know so many files, before they are asked whether they have anything to do: that makes
    them count it, again and again."""

    def known() -> bool:
        told = [peer.status(member) for member in "ab"]
        return all(one is not None and one["sets"][0]["idtable"]["files"] >= files for one in told)

    until(f"{files} files at both members", known, timeout=PATIENCE_S, poll=min(1.0, files / 10_000))


def _memory_mib(pid: int, which: str) -> float:
    """A line of /proc/PID/status: VmHWM is the most it ever was."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(which))


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _idle(pids: dict[str, int], seconds: float) -> dict[str, float]:
    before = {member: _processor_s(pid) for member, pid in pids.items()}
    time.sleep(seconds)
    return {member: (_processor_s(pid) - before[member]) * 60 / seconds for member, pid in pids.items()}


def _database_mib(peer: Frs, member: str) -> float:
    folder = peer.folder / member / "state" / "sets"
    return sum(path.stat().st_size for path in folder.glob("*/frs.db*")) / MIB


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",") if word and int(word) > 0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--files", default="10000,30000,100000,300000", metavar="N,N", help="(%(default)s)")
    parser.add_argument("--folder", type=int, default=0, metavar="N", help="so many in one folder (none)")
    parser.add_argument("--deep", default="", metavar="N,N", help="so many folders in each other (none)")
    parser.add_argument("--big", type=float, default=0, metavar="GIB", help="one file of that size (none)")
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="T", help="seconds without work (%(default)s)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="work below this folder")
    args = parser.parse_args()
    rows = []
    counts = _numbers(args.files)
    runs = [(f"{count:,} files", lambda root, n=count: fill(root, n, IN_A_FOLDER), count) for count in counts]
    if args.folder:
        runs.append(
            (f"{args.folder:,} files in one folder", lambda root: fill(root, args.folder, args.folder), args.folder)
        )
    runs += [(f"{n:,} folders in each other", lambda root, n=n: fill_deep(root, n), n) for n in _numbers(args.deep)]
    if args.big:
        runs.append((f"one file of {args.big:g} GiB", lambda root: write_big(root / "big", args.big), 1))
    code = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for what, change, files in runs:
            print(f"{what}: begun {time.strftime('%X')}", file=sys.stderr, flush=True)
            folder = tempfile.mkdtemp(prefix="frs-growth.", dir=args.dir or "/var/tmp")
            try:
                rows.append(measure(what, Path(folder), change, files, args.idle))
            finally:
                subprocess.run(["rm", "-rf", folder], check=True)  # however deep it is
            print(" | ".join(rows[-1].cells()), file=sys.stderr, flush=True)
    except (Failed, OSError) as error:
        print(f"bench.growth: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    for row in rows:
        print(f"| {' | '.join(row.cells())} |")
    print(f"\n{os.cpu_count()} processors; aging 1 s, with fsync.")
    return code


if __name__ == "__main__":
    sys.exit(main())
