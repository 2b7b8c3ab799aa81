"""Four writers on two members, and a reader that looks at every version; members are killed, and their power is cut.

The writers rewrite, append, save by renaming, rename, delete, exchange, swap by hard links, and write through memory
maps. No reader may ever see a torn file. When they rest, the trees must become equal, and every version that no writer
gave up must be in them or be kept: listed by `frs conflicts list`. Prints the sum; the exit status is 1 if anything was
torn, lost or not listed, or if the members never became quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from tests.hostile.disks import CannotMount
from tests.interrupts import interrupt_once
from tests.ports import port_base
from tests.system.demo import Demo, compare_trees, listed
from tests.writers.disks import Disk
from tests.writers.versions import Ledger, version_of
from tests.writers.writer import Reader, Tree, Writer

MEMBERS = ("a", "b")
WRITERS = 4
DISK = 256 << 20
TOLD_EACH_S = 60.0


@dataclass
class Result:
    """What came of a run."""

    done: Counter[str] = field(default_factory=Counter)
    written: int = 0
    read: int = 0
    kills: int = 0
    cuts: int = 0
    kept: int = 0
    faults: list[str] = field(default_factory=list)
    logs: str = ""  # of the members, where there were faults

    def text(self) -> str:
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.done.items()))
        lines = [
            f"{self.written} versions written ({done}), {self.read} read; {self.kills} kills, {self.cuts} power cuts; "
            f"{self.kept} kept, {len(self.faults)} faults"
        ]
        return "\n    ".join([*lines, *self.faults[:40]])


def run(folder: Path, *, seconds: float, kills: int, cuts: int, seed: int, rest_s: float = 0.02) -> Result:
    """One run in a new folder. Raises CannotMount where there may be no disks of their own."""
    result, ledger, over = Result(), Ledger(), threading.Event()
    chance = random.Random(seed)
    with _members(folder, with_disks=cuts > 0) as (demo, disks):
        trees = [Tree(name, demo.members[name].root, demo.members[name].config.parent / "trash") for name in MEMBERS]
        trees[0].make_folders()
        demo.wait_converged()
        writers = [Writer(trees[n % 2], ledger, over, f"{seed} {n}", rest_s) for n in range(WRITERS)]
        reader = Reader(trees, over)
        threads = [threading.Thread(target=one.run, daemon=True) for one in (*writers, reader)]
        for thread in threads:
            thread.start()
        try:
            events = ["kill"] * kills + ["cut"] * cuts
            chance.shuffle(events)
            began = told = time.monotonic()
            for number, event in enumerate(events):
                due = began + seconds * (number + chance.random()) / (len(events) + 1)
                over.wait(max(0.0, due - time.monotonic()))
                _strike(event, demo, chance.choice(trees), disks, result)
                told = _tell(told, result, ledger, reader)
            over.wait(max(0.0, began + seconds - time.monotonic()))
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        try:
            demo.wait_converged()
        except AssertionError as error:
            result.faults.append(f"the members are never done: {str(error).splitlines()[0]}")
        result.written, result.read = ledger.written, reader.read
        result.done = sum((writer.done for writer in writers), Counter())
        result.faults += [f"torn: {line}" for line in reader.torn] + ledger.strange
        result.faults += [f"{one.name} ended: {one.failure!r}" for one in (*writers, reader) if one.failure is not None]
        result.faults += compare_trees(trees[0].root, trees[1].root)
        _look_for_losses(demo, trees, ledger, result)
        if result.faults:
            result.logs = demo.report()
    return result


def _tell(told: float, result: Result, ledger: Ledger, reader: Reader) -> float:
    """Once a minute, how far it is; returns when that was told."""
    if time.monotonic() < told + TOLD_EACH_S:
        return told
    torn = len(reader.torn) + len(ledger.strange)
    done = f"{ledger.written} versions, {reader.read} read, {result.kills} kills, {result.cuts} power cuts"
    print(f"{done}, {torn} torn so far", file=sys.stderr, flush=True)
    return time.monotonic()


@contextlib.contextmanager
def _members(folder: Path, *, with_disks: bool) -> Iterator[tuple[Demo, dict[str, Disk]]]:
    base = folder / "demo"
    prepare(DemoOptions(base, members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.4))
    disks: dict[str, Disk] = {}
    try:
        for name in MEMBERS:
            config = base / name / "agent.toml"
            config.write_text(_with_scans(config.read_text(), fsync=with_disks))
            if with_disks:
                disks[name] = Disk(base / name, DISK)
        with Demo(base) as demo:
            for name in MEMBERS if with_disks else ():
                demo.kill9(name)
                demo.restart(name)  # by hand, and known here: its file with the process number goes with the disk
            yield demo, disks
    finally:
        for disk in disks.values():
            disk.close()


def _with_scans(config: str, *, fsync: bool) -> str:
    """What is written through a memory map no event tells of: the periodic scan has to find it."""
    lines = [line for line in config.splitlines() if not line.startswith(("scan_interval", "fsync"))]
    at = lines.index("[replication]") + 1
    return "\n".join([*lines[:at], "scan_interval = 5.0", f"fsync = {str(fsync).lower()}", *lines[at:], ""])


def _strike(event: str, demo: Demo, tree: Tree, disks: dict[str, Disk], result: Result) -> None:
    if event == "kill":
        demo.kill9(tree.name)
        demo.restart(tree.name)
        result.kills += 1
        return
    with tree.lock:
        disks[tree.name].cut()
        demo.kill9(tree.name)
        disks[tree.name].restore()
        demo.restart(tree.name)
        result.cuts += 1


def _look_for_losses(demo: Demo, trees: list[Tree], ledger: Ledger, result: Result) -> None:
    there = {version_of(path.read_bytes()) for tree in trees for path in tree.root.rglob("*") if path.is_file()}
    kept: set[int] = set()
    for name in MEMBERS:
        items = {str(item["id"]) for item in listed(demo, name)}
        store = demo.members[name].state / "sets" / demo.description["set_guid"] / "kept"
        for path in store.rglob("*"):
            if path.is_file() and (serial := version_of(path.read_bytes())) is not None:
                if items.isdisjoint(path.relative_to(store).parts):
                    result.faults.append(f"version {serial} is kept on {name} and not listed: {path}")
                kept.add(serial)
    result.kept = len(kept)
    found = {serial for serial in there if serial is not None} | kept
    lost = ledger.lost(found)
    result.faults += [f"lost: version {serial}, {how}" for serial, how in sorted(lost.items())]
    if None in there:
        result.faults.append("torn at the end")


def options() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="script/writers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300, metavar="T", help="the writers go on so long (300)")
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="kill -9 of a member (100)")
    parser.add_argument("--cuts", type=int, default=50, metavar="N", help="power cuts of a member's disk (50)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--rest", type=float, default=0.02, metavar="T", help="of a writer, on average (0.02)")
    args = parser.parse_args()
    if args.seconds <= 0 or min(args.kills, args.cuts, args.rest) < 0:
        parser.error("--seconds must be above 0, the others not below")
    return args


def main() -> int:
    args = options()
    interrupt_once()
    with tempfile.TemporaryDirectory(prefix="frs-writers.", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        try:
            result = run(
                Path(folder), seconds=args.seconds, kills=args.kills, cuts=args.cuts, seed=args.seed, rest_s=args.rest
            )
        except (CannotMount, pytest.skip.Exception) as error:
            print(f"script/writers: {error} (--cuts 0 needs no disks of its own)", file=sys.stderr)
            return 2
        except AssertionError as error:
            print(f"{error}\nnot carried out to its end: a member did not do what was asked of it", flush=True)
            return 1
        except KeyboardInterrupt:
            print("interrupted: nothing can be said of what was lost", file=sys.stderr)
            return 130
    print(result.logs, end="", file=sys.stderr)
    print(result.text(), flush=True)
    return 1 if result.faults else 0
