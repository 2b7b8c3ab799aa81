"""Whether a small file costs no more than it did: ``script/bench-check``, or ``python -m bench.check``.

What is counted is compared with `figures.json`: for the rules and the database alone (see `rules`) statements, packets
and events a file, which are the same on every machine; for two real members, into one of which small files are renamed,
packets, requests for staging files and processor milliseconds a file. Each may be more than its figure by the part of
it that stands below (`SLACK`), and by `ROUNDING`; what is less is told, so that the figure is made smaller
(``--update`` writes what was measured).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench import rules
from bench.processes import Failed, Meter
from bench.profile import drop_files, moved, started
from bench.trees import Sizes, write_small

FIGURES: Final = Path(__file__).with_name("figures.json")
#: Packets of two members depend a little on who has something to say first; processor time on the processor.
SLACK: Final = {"rules": 0.01, "members": 0.25, "processor": 1.0}
ROUNDING: Final = 0.05
RULES_FILES: Final = 640
BATCH: Final = 64

Figures = dict[str, dict[str, float]]


def of_rules(folder: Path | None = None) -> dict[str, float]:
    """What the rules and the database take for a file, by member and what it is."""
    found: dict[str, float] = {}
    pair = rules.run(RULES_FILES, BATCH, folder)
    for name, end in pair.ends.items():
        times = dict(end.costs.times)
        packets = times.pop("encoding", 0)
        events = sum(n for what, n in times.items() if what not in ("begin", "commit", "decoding"))
        counted = {"packets sent": packets, "events": events, "statements": end.costs.statements.total()}
        found |= {f"{name}: {what}": round(n / RULES_FILES, 3) for what, n in counted.items()}
    return found


def of_members(base: Path, files: int) -> Figures:
    """What two real members take for a file."""
    sizes = Sizes(folders=max(1, files // 50))
    write_small(base / "hold", sizes)
    peer = started(base / "run", 1)
    try:
        before = {member: peer.counters(member) for member in "ab"}
        with Meter([daemon.pid for daemon in peer.daemons.values()]) as meter:
            drop_files(peer, base / "hold", 1800)
        after = {member: moved(before[member], peer.counters(member)) for member in "ab"}
    finally:
        peer.stop()
    counted = {
        f"{member}: {what}": round(after[member][what] / sizes.files, 3)
        for member in "ab"
        for what in ("Packets Sent", "Fetch Requests Sent")
    }
    return {"members": counted, "processor": {"both: ms": round(1000 * meter.cpu_s / sizes.files, 2)}}


def compare(found: Figures, figures: Figures) -> tuple[list[str], list[str]]:
    """What is more than it may be, and what is less than it has to be told as."""
    more, less = [], []
    for kind, counted in found.items():
        for what, value in counted.items():
            figure = figures.get(kind, {}).get(what, 0.0)
            line = f"{kind}, {what}: {value:g} a file, and {figure:g} is in {FIGURES.name}"
            if value > figure * (1 + SLACK[kind]) + ROUNDING:
                more.append(line)
            elif value < figure * (1 - SLACK[kind]) - ROUNDING:
                less.append(line)
    return more, less


def main(argv: list[str] | None = None) -> int:
    """Measure and compare; 1 where something costs more than it did."""
    parser = argparse.ArgumentParser(prog="script/bench-check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--files", type=int, default=250, help="that two members replicate, fewer than a window; 0: rules only (250)"
    )
    parser.add_argument("--update", action="store_true", help="write the figures anew")
    parser.add_argument("--dir", type=Path, help="work below this folder (default: the temporary folder)")
    options = parser.parse_args(argv)
    base = Path(tempfile.mkdtemp(prefix="frs-check-", dir=options.dir))
    try:
        found: Figures = {"rules": of_rules(base)}
        if options.files:
            found |= of_members(base, options.files)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    figures: Figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if options.update:
        FIGURES.write_text(json.dumps(figures | found, indent=2) + "\n")
        return 0
    more, less = compare(found, figures)
    for line in more:
        print(f"costs more than it did: {line}", file=sys.stderr)
    for line in less:
        print(f"costs less than it did (script/bench-check --update): {line}")
    print(json.dumps(found, indent=2))
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
