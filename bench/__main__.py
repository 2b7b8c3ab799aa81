"""The command line: ``python -m bench``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from bench import report
from bench.filesystem import FreshFolders
from bench.peers import Peer, make_peer
from bench.scenarios import SCENARIOS, Result, measure
from bench.trees import QUICK, Corpora, Sizes

DEFAULT_PEERS = "frs:3,frs:1,rsync,unison,syncthing:1"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure frs beside rsync, Unison and Syncthing on the same trees in one run.",
    )
    parser.add_argument(
        "--peers",
        default=DEFAULT_PEERS,
        help="comma separated: frs:AGING[:nofsync|:mesh], rsync, rsync:fsync, unison, syncthing:DELAY "
        "(default: %(default)s); what is not installed is left out",
    )
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=1, help="runs of everything; the median is shown")
    parser.add_argument("--quick", action="store_true", help="tiny trees, frs with aging 0.3, rsync")
    parser.add_argument("--files", type=int, help="number of small files, in folders of 50 (default: 10000)")
    parser.add_argument("--big", type=int, metavar="MIB", help="size of the large file (default: 1024)")
    parser.add_argument("--rounds", type=int, help="changes measured for latency (default: 20)")
    parser.add_argument("--renames", type=int, help="renames in the burst (default: 1000)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds until a scenario is given up")
    parser.add_argument("--dir", type=Path, help="work below this folder (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    parser.add_argument("--keep", action="store_true", help="keep trees and logs")
    return parser.parse_args(argv)


def sizes_of(options: argparse.Namespace) -> Sizes:
    """What the options say about sizes."""
    sizes = QUICK if options.quick else Sizes()
    if options.files:
        folders = max(1, options.files // sizes.files_per_folder)
        sizes = replace(sizes, folders=folders, renames=min(sizes.renames, options.files))
    if options.big:
        sizes = replace(sizes, big_bytes=options.big << 20)
    if options.rounds:
        sizes = replace(sizes, latency_rounds=options.rounds)
    if options.renames:
        sizes = replace(sizes, renames=options.renames)
    return sizes


def peers_of(options: argparse.Namespace) -> list[Peer]:
    """The peers asked for that are installed; says which are left out and why."""
    asked = "frs:0.3,rsync" if options.quick and options.peers == DEFAULT_PEERS else options.peers
    chosen = []
    for spec in asked.split(","):
        peer = make_peer(spec.strip())
        absent = peer.missing()
        if absent:
            print(f"left out: {peer.label}: {absent}", file=sys.stderr)
        else:
            chosen.append(peer)
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every result was equal, 1 when not, 2 for a wrong command line."""
    options = arguments(argv)
    wanted = set(options.scenarios.split(","))
    if wanted - set(SCENARIOS):
        print(f"unknown scenarios: {', '.join(sorted(wanted - set(SCENARIOS)))}", file=sys.stderr)
        return 2
    try:
        peers = peers_of(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    sizes = sizes_of(options)
    base = Path(tempfile.mkdtemp(prefix="frs-bench-", dir=options.dir))
    results: list[Result] = []
    began = time.strftime("%Y-%m-%d %H:%M")
    try:
        corpora = Corpora(base / "corpus", sizes)
        with FreshFolders(base, sizes.room_mib(wanted), keep=options.keep) as fresh:
            for _ in range(options.repeats):
                for peer in peers:
                    for result in measure(peer, wanted, fresh, corpora, options.timeout):
                        results.append(result)
                        print(report.line(result), file=sys.stderr, flush=True)
            place = report.machine(base) | {"runs": fresh.note}
        versions = {peer.label: peer.version() for peer in peers}
    finally:
        if not options.keep:
            shutil.rmtree(base, ignore_errors=True)
        else:
            print(f"kept: {base}", file=sys.stderr)
    print(f"## Measured {began}\n")
    print(
        f"{place['processor']}, {place['cores']} cores, {place['memory_gib']} GiB, {place['file_system']} "
        f"({place['runs']}), Linux {place['kernel']}, Python {place['python']}; "
        + ", ".join(f"{label} {version}" for label, version in versions.items())
        + "\n"
    )
    print(report.tables(results, peers, sizes, options.repeats))
    if options.json:
        document = {
            "measured": began,
            "machine": place,
            "versions": versions,
            "sizes": asdict(sizes),
            "repeats": options.repeats,
            "results": [result.as_json() for result in results],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if results and all(result.seconds is not None for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
