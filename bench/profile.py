"""Where the time of one small file goes: ``python -m bench.profile``.

Two members run with ``frs run``; folders with small files are renamed into A, and until B is equal both processes
are sampled from outside by py-spy (100 times a second, only threads that run on a processor). Each sample is
given to the project's innermost function on its stack, and to that function's room; what runs below it (SQLite,
cryptography, system calls, the interpreter) counts for it. Samples without a function of the project are
asyncio's or the interpreter's. Shares times the process's own processor seconds give milliseconds per file.

Beside it: what the counters say per file, and with ``--syscalls`` a second run under ``strace -c`` that counts
system calls per file (its times are distorted, its counts are not).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers import Frs
from bench.processes import Daemon, Failed, Meter
from bench.trees import Sizes, equal, wait_listed_alike, write_small

#: Path of a source file -> what the table calls it; the first that fits.
ROOMS = (
    ("agent/rpc/", "rpc: PDUs, NTLM, sealing"),
    ("agent/wire/", "wire: encoding and decoding packets"),
    ("agent/engine/", "engine: the rules"),
    ("agent/counters/", "counters"),
    ("agent/dashboard/", "dashboard"),
    ("agent/", "service: wiring, workers, logging"),
    ("idtable/", "idtable: SQLite"),
    ("journal/", "journal: events, aging, comparing"),
    ("staging/generate", "staging: generating"),
    ("staging/restore", "staging: installing"),
    ("staging/", "staging: the area, streams, compression"),
    ("config/", "config"),
)
ELSEWHERE = "asyncio, the interpreter"
FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
PROJECT = Path(__file__).parents[1]

PER_FILE = (
    ("FileReplicaSet", "Packets Sent"),
    ("FileReplicaSet", "Packets Sent in Bytes"),
    ("FileReplicaSet", "Packets Received"),
    ("FileReplicaSet", "Fetch Requests Sent"),
    ("FileReplicaSet", "Fetch Blocks Received"),
    ("FileReplicaSet", "Bytes of Staging Generated"),
    ("FileReplicaSet", "Bytes of Staging Fetched"),
    ("FileReplicaSet", "Local Change Orders Issued"),
    ("FileReplicaSet", "Files Installed"),
    ("FileReplicaSet", "USN Records Examined"),
)


@dataclass
class Profile:
    """The samples of one member, by room and by function, and its processor seconds."""

    cpu_s: float
    rooms: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(self.rooms.values())


def place(frame: str) -> tuple[str, str] | None:
    """(room, function) of a frame of the project; None for anybody else's."""
    found = FRAME.match(frame.strip())
    if not found:
        return None
    path = found["file"]
    for prefix, room in ROOMS:
        at = path.rfind("/" + prefix)
        if at >= 0 and "/lib/python" not in path[at:]:
            return room, f"{path[at + 1 :]} {found['function']}"
    return None


def read_samples(path: Path, cpu_s: float) -> Profile:
    """Add up a file of py-spy's format ``raw``: stacks from the outermost frame on, then a count."""
    profile = Profile(cpu_s)
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        for frame in reversed(stack.split(";")):
            where = place(frame)
            if where:
                profile.rooms[where[0]] += int(count)
                profile.functions[where[1]] += int(count)
                break
        else:
            profile.rooms[ELSEWHERE] += int(count)
            profile.functions[ELSEWHERE] += int(count)
    return profile


class Sampler:
    """py-spy on one process, from now until `stop`."""

    def __init__(self, pid: int, output: Path, rate: int, *, gil: bool) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        program = str(beside) if beside.exists() else shutil.which("py-spy")
        if not program:
            raise Failed("py-spy is not installed: pip install py-spy")
        self.output = output
        command = [program, "record", "--pid", str(pid), "--rate", str(rate), "--format", "raw"]
        command += ["--gil"] if gil else []
        command += ["--full-filenames", "--threads", "--duration", "unlimited", "--output", str(output)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "Sampling" in line:
                return
        raise Failed("py-spy cannot look at the process; it needs root or kernel.yama.ptrace_scope=0")

    def stop(self) -> None:
        """End sampling and wait until the samples are written."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=120)


def moved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """What was added to the counters of `PER_FILE`."""
    total: dict[str, int] = {}
    for kind, name in PER_FILE:
        total[name] = sum(values[name] - before[kind].get(one, {}).get(name, 0) for one, values in after[kind].items())
    return total


def drop_files(peer: Frs, hold: Path, timeout: float) -> float:
    """Rename the folders of ``hold`` into A; returns the seconds until B is equal."""
    began = time.perf_counter()
    for folder in sorted(hold.iterdir()):
        folder.rename(peer.near / folder.name)
    took = wait_listed_alike(peer.near, peer.far, timeout, poll=0.2) - began
    peer.settle()
    if not equal(peer.near, peer.far):
        raise Failed("the trees differ")
    return took


def started(base: Path, aging: float) -> Frs:
    """Two joined members with nothing to do."""
    peer = Frs(aging)
    try:
        peer.lay(base)
        peer.start_far()
        peer.start_near()
        peer.settle()
    except BaseException:
        peer.stop()
        raise
    return peer


def profiled(base: Path, sizes: Sizes, options: argparse.Namespace) -> dict[str, Any]:
    """One run under py-spy; returns all that the report needs."""
    hold = base / "hold"
    write_small(hold, sizes)
    peer = started(base / "run", options.aging)
    try:
        before = {member: peer.counters(member) for member in "ab"}
        samplers = {
            m: Sampler(d.pid, base / f"{m}.raw", options.rate, gil=options.gil) for m, d in peer.daemons.items()
        }
        meters = {m: Meter([d.pid]) for m, d in peer.daemons.items()}
        with meters["a"], meters["b"]:
            seconds = drop_files(peer, hold, options.timeout)
        for sampler in samplers.values():
            sampler.stop()
        after = {member: peer.counters(member) for member in "ab"}
        return {
            "seconds": seconds,
            "profiles": {m: read_samples(base / f"{m}.raw", meters[m].cpu_s) for m in "ab"},
            "counters": {m: moved(before[m], after[m]) for m in "ab"},
        }
    finally:
        peer.stop()


def count_calls(base: Path, sizes: Sizes, options: argparse.Namespace) -> dict[str, Counter[str]]:
    """One run under strace; returns the number of system calls by name for each member."""
    if not shutil.which("strace"):
        raise Failed("strace is not installed")
    hold = base / "hold"
    write_small(hold, sizes)
    peer = started(base / "run", options.aging)
    counts: dict[str, Counter[str]] = {}
    try:
        tracers = {}
        for member, daemon in peer.daemons.items():
            target = str(base / f"{member}.calls")
            command = ["strace", "-f", "-c", "-U", "name,calls", "-o", target, "-p", str(daemon.pid)]
            tracers[member] = Daemon(command, base / f"{member}.strace")
            deadline = time.monotonic() + 60
            while "attached" not in tracers[member].tail():
                tracers[member].check()
                if time.monotonic() > deadline:
                    raise Failed("strace does not attach")
                time.sleep(0.05)
        drop_files(peer, hold, options.timeout)
        for member, tracer in tracers.items():
            tracer.process.send_signal(signal.SIGINT)
            tracer.process.wait(60)
            counts[member] = Counter()
            for line in (base / f"{member}.calls").read_text().splitlines():
                fields = line.split()
                if len(fields) == 2 and fields[1].isdigit() and fields[0] != "total":
                    counts[member][fields[0]] += int(fields[1])
    finally:
        peer.stop()
    return counts


def report(found: dict[str, Any], calls: dict[str, Counter[str]], files: int, options: argparse.Namespace) -> str:
    """The Markdown."""
    seconds = found["seconds"]
    profiles: dict[str, Profile] = found["profiles"]
    lines = [
        f"{files:,} small files dropped into running A, aging {options.aging:g} s: {seconds:.1f} s until B is equal "
        f"({1000 * seconds / files:.2f} ms a file) while sampled {options.rate} times a second. "
        f"Processor seconds: A {profiles['a'].cpu_s:.1f}, B {profiles['b'].cpu_s:.1f}.",
        "",
        "| room | A, ms a file | A, share | B, ms a file | B, share |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]

    def cells(counter: str, name: str) -> list[str]:
        texts = []
        for profile in profiles.values():
            share = getattr(profile, counter)[name] / max(1, profile.samples)
            texts += [f"{1000 * share * profile.cpu_s / files:.2f}", f"{100 * share:.0f} %"]
        return texts

    both = sum((profile.rooms for profile in profiles.values()), Counter())
    lines += [f"| {room} | " + " | ".join(cells("rooms", room)) + " |" for room, _ in both.most_common()]
    lines += [
        "",
        "| function | A, ms a file | A, share | B, ms a file | B, share |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    both = sum((profile.functions for profile in profiles.values()), Counter())
    lines += [
        f"| `{name}` | " + " | ".join(cells("functions", name)) + " |" for name, _ in both.most_common(options.top)
    ]
    lines += ["", "| counter, per file | A | B |", "| --- | ---: | ---: |"]
    counters = found["counters"]
    lines += [
        f"| {name} | {counters['a'][name] / files:.2f} | {counters['b'][name] / files:.2f} |"
        for _, name in PER_FILE
        if counters["a"][name] or counters["b"][name]
    ]
    if calls:
        lines += ["", "| system call, per file | A | B |", "| --- | ---: | ---: |"]
        most = sum(calls.values(), Counter()).most_common(options.top)
        lines += [f"| {name} | {calls['a'][name] / files:.2f} | {calls['b'][name] / files:.2f} |" for name, _ in most]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description="Where a small file's time goes.")
    parser.add_argument("--files", type=int, default=2000, help="in folders of 50 (default: 2000)")
    parser.add_argument("--aging", type=float, default=1, help="seconds (default: 1)")
    parser.add_argument("--rate", type=int, default=100, help="samples a second (default: 100)")
    parser.add_argument(
        "--gil",
        action="store_true",
        help="sample only who holds the interpreter's lock: on a busy machine waiting threads look as if they ran",
    )
    parser.add_argument("--top", type=int, default=20, help="how many functions and system calls to show")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds until a run is given up")
    parser.add_argument("--syscalls", action="store_true", help="count system calls in a second run")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--dir", type=Path, help="work below this folder (default: the temporary folder)")
    options = parser.parse_args(argv)
    sizes = Sizes(folders=max(1, options.files // 50))
    calls: dict[str, Counter[str]] = {}
    base = Path(tempfile.mkdtemp(prefix="frs-profile-", dir=options.dir))
    try:
        (base / "sampled").mkdir()
        found = profiled(base / "sampled", sizes, options)
        if options.syscalls:
            (base / "traced").mkdir()
            calls = count_calls(base / "traced", sizes, options)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(report(found, calls, sizes.files, options))
    if options.json:
        document = {
            "files": sizes.files,
            "seconds": found["seconds"],
            "counters": found["counters"],
            "calls": calls,
            "profiles": {
                member: {"cpu_s": one.cpu_s, "rooms": one.rooms, "functions": one.functions}
                for member, one in found["profiles"].items()
            },
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
