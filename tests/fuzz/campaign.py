"""Gives the parsers inputs by number, each target in a process of its own, and says what was found.

An input of a target is a finding when the parser raises something that its callers do not expect, is not done after
`HANG_S` seconds of processor time, wants more memory than `ROOM` bytes, or ends the process. It is written to a file
there, TARGET/NUMBER.bin, and TARGET NUMBER gives it again. How far it is it says once a minute: one that was ended goes
on from there with --begin. Exits 1 if anything was found.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.inputs import made
from tests.fuzz.seeds import frozen
from tests.fuzz.targets import TARGETS, Target

HANG_S = 10.0
#: Bytes of address space beyond what the process has when it begins.
ROOM = 512 << 20
_MOST = 20  # findings of one target
#: Seconds between two lines that say how far it is, which are looked for at every so many inputs.
_TELL_S, _LOOK = 60.0, 1024


class Hang(BaseException):
    """An input takes too long."""


def _hangs(number: int, frame: object) -> None:
    raise Hang


def run(target: Target, numbers: range, seed: int, folder: Path, progress: mmap.mmap) -> int:
    """How many findings."""
    found: dict[str, int] = {}
    seeds = target.seeds()
    told = time.monotonic()
    signal.signal(signal.SIGVTALRM, _hangs)
    with frozen(), target.begin() as parse:
        for number in numbers:
            progress[:8] = number.to_bytes(8, "little")
            if number % _LOOK == 0 and time.monotonic() >= told + _TELL_S:
                told = time.monotonic()
                print(f"{target.name}: all below {number}, in {time.process_time():.0f} s of a processor", flush=True)
            data = made(seed, number, seeds)
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
            try:
                parse(data)
            except target.refusals:
                pass
            except (Exception, Hang) as error:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__} at {where.filename}:{where.lineno}"
                if what not in found:
                    traceback.print_exception(error)
                    keep(folder, target, number, data, what)
                found[what] = found.get(what, 0) + 1
                if len(found) >= _MOST:
                    break
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    for what, times in found.items():
        print(f"{target.name}: {times} times {what}", flush=True)
    return len(found)


def keep(folder: Path, target: Target, number: int, data: bytes, what: str) -> None:
    """Write a finding down."""
    path = folder / target.name / f"{number}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    print(f"{target.name} {number}: {what}; the input is in {path}", flush=True)


def apart(target: Target, numbers: range, seed: int, folder: Path) -> tuple[bool, float]:
    """Run a target in a process of its own; whether nothing was found, and the seconds of a processor that it took."""
    progress = mmap.mmap(-1, 8)
    child = os.fork()
    if not child:
        code = 1
        try:
            if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which takes terabytes of address space
                have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (have + ROOM, have + ROOM))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
            code = 1 if run(target, numbers, seed, folder, progress) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        number = int.from_bytes(progress[:8], "little")
        keep(folder, target, number, made(seed, number, target.seeds()), f"the process ended with {code}")
    return code == 0, used.ru_utime + used.ru_stime


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="script/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("target", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (all)")
    add("--count", type=int, default=1_000_000, metavar="N", help="inputs of each target (%(default)s)")
    add("--begin", type=int, default=0, metavar="NUMBER", help="the first of them, to go on (%(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="other inputs (%(default)s)")
    add("--only", type=int, metavar="NUMBER", help="the input of this number alone")
    add("--findings", type=Path, default=Path("findings"), metavar="DIR", help="where findings go (%(default)s)")
    args = parser.parse_args()
    if unknown := set(args.target) - set(TARGETS):
        parser.error(f"no target {', '.join(unknown)}")
    numbers = range(args.begin, args.count) if args.only is None else range(args.only, args.only + 1)
    good = True
    for name in args.target or TARGETS:
        begun = time.monotonic()
        one, used = apart(TARGETS[name], numbers, args.seed, args.findings)
        good &= one
        took = f"{time.monotonic() - begun:.0f} s, {used:.0f} s of a processor"
        print(f"{name}: {len(numbers)} inputs in {took}{'' if one else ', with findings'}", flush=True)
    return 0 if good else 1
