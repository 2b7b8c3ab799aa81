"""Two members on two file systems, objects of every kind on both, and what other programs say of the difference.

For each pair of file systems: half of the objects are made on the one member, half on the other; when both are quiet,
rsync, getfattr and getfacl must find no difference between the trees but the ones that docs/filesystems.md tells of.
Then some of what the one has made is changed on the other, and the trees are compared again. At last nothing may happen
any more: no counter of change orders, installs and staging moves, and hardly any processor time goes by.

The pairs are numbered. Ctrl-C (or --seconds) ends it with the sum of those that were done, and it says with which pair
the same can go on. The exit status is 1 if anything differs, or a pair never became quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from tests.fidelity.compare import LACKS, by_attributes, by_lists, by_rsync
from tests.fidelity.objects import Common, Maker, edit
from tests.filesystems import mounted
from tests.interrupts import interrupt_once
from tests.ports import port_base
from tests.system.demo import Demo, ask

MIB = 1 << 20
MEMBERS = ("a", "b")
PROGRAMS = ("rsync", "getfattr", "getfacl")
#: Processor time that a member which has nothing to do may take, in parts of the time.
IDLE = 0.02
#: Bytes, where not 255 (see Common).
LONGEST_NAME = {"ntfs": 200}
_STILL = ("Change Orders", "Files Installed", "Staging", "Files Conflicts")


Pair = tuple[str, str]


@dataclass
class Result:
    """What came of one pair."""

    kinds: Pair
    objects: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=dict)  # processor time, in parts of the time, by member
    skipped: str = ""

    def text(self) -> str:
        pair = " and ".join(self.kinds)
        if self.skipped:
            return f"{pair}: left out: {self.skipped}"
        idle = ", ".join(f"{name} {share:.2%}" for name, share in self.idle.items())
        lines = [f"{pair}: {self.objects} objects in {self.seconds:.0f} s, {len(self.differences)} differences; {idle}"]
        return "\n    ".join([*lines, *(ascii(line) for line in self.differences[:20])])


def run(kinds: Pair, *, objects: int, seed: int, idle_s: float) -> Result:
    """One pair."""
    result = Result(kinds)
    try:
        with _members(kinds, size=max(64 * MIB, objects * (32 << 10))) as (demo, common):
            began = time.monotonic()
            for name in MEMBERS:
                top = demo.members[name].root / f"from {name}"
                top.mkdir()
                Maker(top, f"{seed} {name}", common).make(objects // 2)
            demo.wait_converged()
            result.objects = objects
            result.differences = _differences(demo, kinds)
            for name, other in zip(MEMBERS, reversed(MEMBERS)):
                edit(demo.members[other].root / f"from {name}", f"{seed} {other}", objects // 20)
            demo.wait_converged()
            result.seconds = time.monotonic() - began
            result.differences += [f"after changes: {line}" for line in _differences(demo, kinds)]
            _idle(demo, result, idle_s)
    except pytest.skip.Exception as why:
        result.skipped = str(why)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        result.differences.append(f"not carried out to its end: {str(error).partition(chr(10))[0]}")
    return result


@contextlib.contextmanager
def _members(kinds: Pair, size: int) -> Iterator[tuple[Demo, Common]]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="frs-fidelity.") as folder, contextlib.ExitStack() as stack:
        base = Path(folder) / "demo"
        prepare(DemoOptions(base, members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.5))
        for name, kind in zip(MEMBERS, kinds):
            stack.enter_context(mounted(kind, base / name / "root", Path(folder) / f"image {name}", size=size))
        longest = min(LONGEST_NAME.get(kind, 255) for kind in kinds)
        common = Common(*(base / name / "root" for name in MEMBERS), longest=longest)
        yield stack.enter_context(Demo(base)), common


def _differences(demo: Demo, kinds: Pair) -> list[str]:
    lacking = LACKS[kinds[0]] | LACKS[kinds[1]]
    a, b = (demo.members[name].root for name in MEMBERS)
    found = by_rsync(a, b, lacking)
    if "x" not in lacking:
        found += by_attributes(a, b)
    if not lacking & set("apog"):
        found += by_lists(a, b)
    return found


def _idle(demo: Demo, result: Result, seconds: float) -> None:
    """Nothing happens any more."""
    before, used = _counters(demo), {name: _processor_s(demo, name) for name in MEMBERS}
    began = time.monotonic()
    time.sleep(seconds)  # what is looked at is that nothing happens meanwhile
    passed = time.monotonic() - began
    after = _counters(demo)
    result.differences += [
        f"{key}: {before[key]} -> {after[key]} while idle" for key in before if before[key] != after[key]
    ]
    for name in MEMBERS:
        result.idle[name] = (_processor_s(demo, name) - used[name]) / passed
        if result.idle[name] > IDLE:
            result.differences.append(f"{name} took {result.idle[name]:.1%} of a processor while idle")


def _counters(demo: Demo) -> dict[str, int]:
    found = {}
    for member in MEMBERS:
        answer = ask(demo.members[member].state, "counters")
        assert answer is not None, demo.report()
        for kind, instances in answer.items():
            for instance, values in instances.items():
                for name, value in values.items():
                    if name.startswith(_STILL) or "Change Orders" in name:
                        found[f"{member}: {kind} {instance} {name}"] = value
    return found


def _processor_s(demo: Demo, member: str) -> float:
    fields = Path(f"/proc/{demo.pid(member)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def options() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="script/fidelity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=5000, metavar="N", help="in each pair (5000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--idle", type=float, default=300, metavar="T", help="seconds in which nothing may happen (300)"
    )
    parser.add_argument("--filesystem", nargs="+", choices=sorted(LACKS), default=sorted(LACKS), metavar="KIND",
                        help="all pairs of these: " + ", ".join(sorted(LACKS)))  # fmt: skip
    parser.add_argument("--begin", type=int, default=1, metavar="N", help="with the pair of that number (1)")
    parser.add_argument("--pairs", type=int, metavar="N", help="at most so many (all)")
    parser.add_argument("--seconds", type=float, metavar="T", help="no pair is begun after so long (no bound)")
    parser.add_argument("--list", action="store_true", help="print the pairs with their numbers and end")
    args = parser.parse_args()
    if args.objects < 2 or args.idle < 0 or args.begin < 1 or (args.seconds or 0) < 0:
        parser.error("--objects must be at least 2, --begin 1, --idle and --seconds not below 0")
    return args


def carry_out(pairs: list[Pair], results: list[Result], args: argparse.Namespace) -> None:
    """One pair after the other, into the results."""
    began, last = time.monotonic(), len(pairs) if args.pairs is None else args.begin - 1 + args.pairs
    for number, kinds in enumerate(pairs, 1):
        if number < args.begin or number > last:
            continue
        if args.seconds is not None and time.monotonic() > began + args.seconds:
            break
        what = " and ".join(kinds)
        print(f"{time.strftime('%X')} pair {number} of {len(pairs)}: {what}", file=sys.stderr, flush=True)
        results.append(run(kinds, objects=args.objects, seed=args.seed, idle_s=args.idle))
        print(results[-1].text(), flush=True)


def main() -> int:
    args = options()
    if os.geteuid():
        print("script/fidelity: only root can mount file systems and give files away", file=sys.stderr)
        return 2
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        print(f"script/fidelity: not installed: {', '.join(absent)} (script/bootstrap installs them)", file=sys.stderr)
        return 2
    pairs = list(itertools.combinations_with_replacement(args.filesystem, 2))
    if args.list:
        for number, kinds in enumerate(pairs, 1):
            print(f"{number:>3} {' and '.join(kinds)}")
        return 0
    results: list[Result] = []
    interrupted = False
    interrupt_once()
    try:
        carry_out(pairs, results, args)
    except KeyboardInterrupt:
        interrupted = True
    if (following := args.begin + len(results)) <= len(pairs):
        print(f"to go on: --begin {following}", file=sys.stderr)
    done = [one for one in results if not one.skipped]
    bad = sum(1 for one in done if one.differences)
    print(f"{len(done)} pairs, {bad} with differences, {len(results) - len(done)} left out", flush=True)
    return 1 if bad else 130 if interrupted else 0 if done else 2
