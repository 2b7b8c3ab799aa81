"""Deliberate faults in the engine, one at a time: each must be caught by the simulator or a test.

`python -m tests.simulation.mutants [NUMBER...]` works on a copy of the project, prints what caught each fault, and
exits 1 if one was not caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE = ("agent", "config", "idtable", "journal", "staging")
PARTS = (*CODE, "tests/__init__.py", "tests/simulation", "tests/unit/engine")


class Fault(NamedTuple):
    what: str
    file: str
    old: str
    new: str


FAULTS = (
    Fault(
        "dampening compares with > instead of >=",
        "arrival.py",
        "ctx.vv.get(co.originator_guid, 0) >= co.frs_vsn and not own",
        "ctx.vv.get(co.originator_guid, 0) > co.frs_vsn and not own",
    ),
    Fault(
        "a VVJoin forgets tombstones",
        "vvjoin.py",
        "if record is None or guid == ctx.config.root_guid",
        "if record is None or record.deleted or guid == ctx.config.root_guid",
    ),
    Fault(
        "the version vector moves before an earlier change is finished",
        "order.py",
        "while queue and queue[0] in self._done:",
        "while queue and (queue.sort(key=lambda k: k not in self._done) or queue[0] in self._done):",
    ),
    Fault(
        "a change order is acknowledged when its staging file is complete, before it is installed",
        "fetching.py",
        "        entry.staged = True\n",
        "        entry.staged = True\n"
        "        self.inbound.answers.done(self.inbound.sessions[entry.cxtion], entry.co)\n"
        "        self.inbound.order.finish(entry.key)\n"
        "        self.ctx.set_vv(entry.key[1], entry.key[2])\n",
    ),
    Fault(
        "what won by time against the version numbers is not announced anew",
        "reconcile.py",
        "return change_order_wins(co, other) != (co.rank >= other.rank)",
        "return False",
    ),
    Fault(
        "the event times always decide",
        "reconcile.py",
        "EVENT_TIME_WINDOW = 30 * 60 * 10_000_000",
        "EVENT_TIME_WINDOW = 0",
    ),
    Fault(
        "the loser of an update conflict is not kept",
        "losers.py",
        "        return Keep(reason, edition_of(live), edition_in(entry.co, entry.checksum))",
        "        return None",
    ),
    Fault(
        "every version that is replaced is kept, also by who knew it",
        "losers.py",
        "if self.inbound.descent.descends(entry.co, live):",
        "if False:",
    ),
    Fault(
        "what is deleted elsewhere is kept nowhere",
        "losers.py",
        "        if keep is None:\n            keep = Keep(KeepReason.ELSEWHERE",
        "        if False:\n            keep = Keep(KeepReason.ELSEWHERE",
    ),
    Fault(
        "deletions count once only, however many they are",
        "massdeletion.py",
        "        times.append(ctx.now)\n",
        "        times = deque([ctx.now])\n",
    ),
    Fault(
        "folders may be moved into each other",
        "names.py",
        "return self._circle(entry, above)",
        "return Verdict(Place.TAKE, parent, name)",
    ),
    Fault(
        "the loser of a name is not announced as removed",
        "installs.py",
        "self.retire.finish(entry, None, lost=True, then=lambda: self.local.issue_removal(after))",
        "self.retire.finish(entry, None, lost=True)",
    ),
    Fault(
        "a folder that holds something new is given up with its deletion",
        "aftermath.py",
        "if record is None or not self._holds_news(entry):",
        "if True:",
    ),
    Fault(
        "what is finished behind a slow change order is passed on as if nothing were missing",
        "retire.py",
        "self._pass_on(done, extra=c.CO_FLAG_SKIP_VV_UPDATE)",
        "self._pass_on(done, extra=0)",
    ),
    Fault(
        "the trailing index jumps to the number that was acknowledged",
        "outbound.py",
        "trailing = next(iter(flow.unacked)) - 1 if flow.unacked else flow.leading",
        "trailing = flow.leading",
    ),
    Fault(
        "VSNs start again at the version vector, not above what a partner knows",
        "vsn.py",
        "self._last = max(self._last, number, now)",
        "self._last = max(self._last, 1)",
    ),
    Fault(
        "a member that was away too long is not seeded again",
        "reseed.py",
        "return self.ctx.online and self._contact > 0 and away > self.ctx.limits.tombstone_lifetime",
        "return False",
    ),
)


def catch(fault: Fault | None) -> str | None:
    """The first test that fails; None when nothing does."""
    with tempfile.TemporaryDirectory(prefix="frs-mutant-") as folder:
        for part in PARTS:
            source, target = ROOT / part, Path(folder) / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        shutil.copy(ROOT / "pyproject.toml", folder)
        if fault is not None:
            path = Path(folder) / "agent" / "engine" / fault.file
            text = path.read_text()
            if text.count(fault.old) != 1:
                raise SystemExit(f"{fault.file}: {fault.old!r} is there {text.count(fault.old)} times; mend the list")
            path.write_text(text.replace(fault.old, fault.new))
        tests = ["tests/unit/engine", "tests/simulation"]
        environment = dict(os.environ, PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1", FRS_SHRINK="0")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode == 0:
            return None
        if broken := re.search(r"^E +((?:Attribute|Import|Name|Syntax|Type)Error.*)", done.stdout, re.M):
            raise SystemExit(f"{fault.what if fault else 'no fault'}: not a fault but nonsense: {broken[1]}")
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
        seed = re.search(r"^seed (\d+)", done.stdout, re.M)
        name = found[1] if found else done.stdout[-400:] + done.stderr[-400:]
        return f"{name}{f', seed {seed[1]}' if seed else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/mutants",
        description="Puts deliberate faults into copies of the engine: each must be caught. About five minutes.",
    )
    parser.add_argument("number", type=int, nargs="*", metavar="NUMBER", help="of a fault; without any, all")
    chosen = parser.parse_args().number or range(1, len(FAULTS) + 1)
    if wrong := [number for number in chosen if not 1 <= number <= len(FAULTS)]:
        parser.error(f"there is no fault {wrong[0]}; they are numbered from 1 to {len(FAULTS)}")
    survived = 0
    if broken := catch(None):
        raise SystemExit(f"without any fault {broken} fails: what follows would tell nothing")
    for number in chosen:
        fault = FAULTS[number - 1]
        caught = catch(fault)
        survived += caught is None
        print(f"{number}. {fault.what}: {'NOT CAUGHT' if caught is None else f'caught by {caught}'}", flush=True)
    print(f"{len(chosen)} faults, {survived} not caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
