"""Five directory servers and eight replica hosts, and what happens to such a fleet: members come and go, schedules
change, servers and hosts are killed, sites are cut off, databases come back out of a backup, the owner is lost.

In the end of each scenario all servers have the same objects, tombstones and numbers, all members the newest topology,
and all trees the same files, which are those that were written.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.directory.fleet import HOSTS, SITES, Fault, Fleet
from tests.directory.network import MISSING, Network
from tests.directory.scenarios import SCENARIOS


@dataclass(frozen=True)
class Size:
    """Of the fleet, and how often each scenario does what it does."""

    servers: Sequence[str] = tuple(SITES)
    hosts: Sequence[str] = tuple(HOSTS)
    rounds: int = 3
    patience_s: float = 300


def run(name: str, folder: Path, size: Size, seed: int, done: Counter[str]) -> str:
    """One scenario in a new folder; gives what did not hold, or nothing. What was done is added to `done`."""
    scenario = SCENARIOS[name]
    chance = random.Random(f"{name} {seed}")
    with contextlib.ExitStack() as stack:
        network = None
        if not MISSING:
            network = Network(sorted(set(SITES.values())))
            stack.callback(network.close)
        fleet = Fleet(
            folder, servers=size.servers, hosts=size.hosts, network=network, patience_s=size.patience_s,
            seed=f"{name} {seed}",
        )  # fmt: skip
        stack.callback(fleet.close)
        try:
            fleet.start(size.hosts[: len(size.hosts) - scenario.newcomers])
            scenario.play(fleet, chance, size.rounds)
            fleet.settle()
            fleet.look_back()
        except (Fault, AssertionError) as error:
            lines = [one for one in traceback.extract_tb(error.__traceback__) if "scenarios" in one.filename]
            return f"{error}" + (f" (line {lines[-1].lineno}: {lines[-1].line})" if lines else "")
        finally:
            done.update(fleet.done)
            done.update({f"files {what}": count for what, count in fleet.ledger.written.items()})
    return ""


def summary(results: dict[str, str], done: Counter[str], seconds: float) -> str:
    """The last line."""
    failed = [name for name, fault in results.items() if fault]
    what = ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
    told = f"{len(results)} scenarios, {len(failed)} failed" + (f" ({', '.join(failed)})" if failed else "")
    return f"{told}; {what or 'nothing was done'}; {seconds:.0f} s"


@contextlib.contextmanager
def work_folder(keep: bool) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder of its own for each run, which goes in the end, unless it is to be kept: by the option, or the call."""
    folder = Path(tempfile.mkdtemp(prefix="frs-servers.", dir="/var/tmp"))
    kept = [keep]
    try:
        yield folder, lambda: kept.append(True)
    finally:
        if not any(kept):
            shutil.rmtree(folder, ignore_errors=True)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="script/servers",
        description=__doc__,
        epilog="scenarios:\n" + "\n".join(f"  {name:10} {one.told}" for name, one in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenario", action="append", choices=[*SCENARIOS, "all"], metavar="NAME", help="once for each; all (default)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each scenario (3)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of what is left to chance (0)")
    parser.add_argument("--patience", type=float, default=300, metavar="T", help="seconds that a wait may take (300)")
    parser.add_argument("--bound", type=float, default=7200, metavar="T", help="no scenario begins later (7200 s)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs; a fault keeps it anyhow")
    args = parser.parse_args(arguments)
    if min(args.rounds, args.patience, args.bound) <= 0:
        parser.error("--rounds, --patience and --bound must be above 0")
    return args


def main() -> int:
    args = options()
    names = args.scenario or ["all"]
    chosen = [name for name in SCENARIOS if name in names or "all" in names]
    needing = [name for name in chosen if SCENARIOS[name].network]
    if MISSING and needing:
        print(f"script/servers: {', '.join(needing)}: {MISSING}", file=sys.stderr)
        return 2
    size = Size(rounds=args.rounds, patience_s=args.patience)
    results: dict[str, str] = {}
    done = Counter[str]()
    began = time.monotonic()
    try:
        for name in chosen:
            if time.monotonic() - began > args.bound:
                results[name] = "was not run: the time is over"
                continue
            with work_folder(args.keep) as (folder, keep):
                results[name] = "was not finished"
                started = time.monotonic()
                results[name] = run(name, folder, size, args.seed, done)
                print(f"{name}: {results[name] or 'holds'} ({time.monotonic() - started:.0f} s)", flush=True)
                if results[name]:
                    keep()
                    print(f"{name}: the logs are in {folder}", flush=True)
    except KeyboardInterrupt:
        pass
    print(summary(results, done, time.monotonic() - began))
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
