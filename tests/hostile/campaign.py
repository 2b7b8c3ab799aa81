"""Has a hostile partner attack two honest members, one attack after the other, and judges what that costs them.

For each attack two members a and b are started and replicate with each other; the hostile partner holds the place of
the third, c, and has its key. First it is quiet, then it attacks (`--seconds`), then it leaves without a word.
Files are written on a and awaited on b and the other way round all the time. In the end both members must have finished
what is between them, with equal trees, without anybody's help, and an honest member takes c's place.

A row is printed for each attack; the exit status is 1 if a bound was passed or an attack could not be carried out.
Where there are two processors or more, the members run on all but the last, and the hostile partner on that one: it has
a host of its own. Ctrl-C ends with the rows so far, and with status 130 if nothing was wrong in them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.hostile.attack import Attack
from tests.hostile.attacks import ALL, by_name
from tests.hostile.fleet import HONEST, MIB, Sizes
from tests.hostile.judge import Bounds
from tests.hostile.report import LEGEND, head, line
from tests.hostile.trial import NotCarriedOut, Settings, trial


def options() -> argparse.Namespace:
    """The command line, checked."""
    bounds, parser = (
        Bounds(),
        argparse.ArgumentParser(
            prog="script/hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        ),
    )
    add = parser.add_argument
    add("--list", action="store_true", help="print the attacks and end")
    add("--attack", action="append", metavar="NAME", help="this attack; again for more; all (the default)")
    add("--seconds", type=float, default=600, metavar="S", help="of each attack (600)")
    add("--baseline", type=float, metavar="S", help="without attack, before and after it (60, or --seconds if less)")
    add("--patience", type=float, default=300, metavar="S", help="for what is to happen afterwards (300)")
    add("--rate", type=float, default=0, metavar="N", help="packets a second; 0: as fast as possible (0)")
    add("--targets", default=HONEST[0], metavar="A[,B]", help=f"the members that are attacked ({HONEST[0]})")
    add("--quota", type=int, default=256, metavar="MIB", help="staging quota of the members (256)")
    add("--disk", type=int, default=2048, metavar="MIB", help="disk of each member (2048)")
    add("--aging", type=float, default=Sizes().aging, metavar="S", help="aging time of the members (%(default)s)")
    add("--latency", type=float, default=bounds.latency, metavar="N", help="bound: times that without (%(default)s)")
    add("--memory", type=float, default=bounds.memory_mib, metavar="MIB", help="bound: above idle (%(default)s)")
    add("--no-return", action="store_true", help="no honest member takes the place of the hostile one in the end")
    add("--json", type=Path, metavar="FILE", help="write all rows there, after each attack")
    add("--dir", type=Path, metavar="DIR", help="work in this folder (a new one in /var/tmp)")
    add("--keep", action="store_true", help="keep configurations and logs of the members there")
    args = parser.parse_args()
    names = [attack.name for attack in ALL]
    args.attacks = []
    for name in args.attack or ["all"]:
        if name != "all" and name not in names:
            parser.error(f"there is no attack {name!r}; --list names them")
        args.attacks += ALL if name == "all" else [by_name(name)]
    args.targets = tuple(args.targets.split(","))
    if not set(args.targets) <= set(HONEST):
        parser.error(f"--targets must be of {', '.join(HONEST)}")
    for name in ("seconds", "patience", "quota", "disk", "aging"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name} must be above 0")
    if args.baseline is None:
        args.baseline = min(60.0, args.seconds)
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    """What the command line asks for. This process and the hostile partner go to the last processor."""
    *others, last = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, {last})
    sizes = Sizes(
        disk=args.disk * MIB,
        quota=args.quota * MIB,
        aging=args.aging,
        give_up=max(120.0, min(300.0, args.seconds)),
        processors=frozenset(others),
    )
    return Settings(
        seconds=args.seconds,
        baseline=args.baseline,
        patience=args.patience,
        rate=args.rate,
        targets=args.targets,
        returns=not args.no_return,
        sizes=sizes,
        bounds=Bounds(latency=args.latency, memory_mib=args.memory),
        tell=lambda text: print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True),
    )


def one(attack: type[Attack], work: Path, settings: Settings, keep: bool) -> dict[str, Any]:
    """The row of one attack."""
    folder = work / attack.name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return trial(attack, folder, settings)
    except NotCarriedOut as error:
        return {"attack": attack.name, "not_carried_out": str(error)}
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def save(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Write the rows as JSON; what was not measured is null."""
    if path is not None:
        plain = [{key: _finite(value) for key, value in row.items()} for row in rows]
        path.write_text(json.dumps(plain, indent=2) + "\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> int:
    args = options()
    if args.list:
        for attack in ALL:
            print(f"{attack.name:<17} {attack.text}")
        return 0
    settings = settings_of(args)
    work = args.dir or Path(tempfile.mkdtemp(prefix="frs-hostile.", dir="/var/tmp"))
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for number, attack in enumerate(args.attacks, 1):
            print(f"{attack.name} ({number} of {len(args.attacks)}): {attack.text}", file=sys.stderr, flush=True)
            rows.append(one(attack, work, settings, args.keep))
            print(line(rows[-1]), file=sys.stderr, flush=True)
            save(args.json, rows)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if args.keep:
            print(f"kept in {work}", file=sys.stderr)
        elif args.dir is None:
            shutil.rmtree(work, ignore_errors=True)
    print(head())
    for row in rows:
        print(line(row))
    print(LEGEND)
    bad = sum(1 for row in rows if row.get("faults") or "not_carried_out" in row)
    print(f"{len(rows)} of {len(args.attacks)} attacks, {bad} with faults")
    return 1 if bad else 130 if interrupted else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
