"""One attack on two honest members, from their start to what is left when it is over."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.attack import Attack
from tests.hostile.fleet import HONEST, HOSTILE, MIB, Fleet, Sizes, tail
from tests.hostile.judge import Bounds, Costs, Watch, judge
from tests.hostile.probe import Phase, Probe, percentile
from tests.system.demo import compare_trees, environment

READY_S = 180.0
PAUSE_S = 0.1
WAIT_S = 5.0
DATED_AHEAD = re.compile(rf"^shared: (\d+) change orders of {HOSTILE} are dated ahead of the clock")
RESERVED_NAME = ".frs-preinstall"  # in a root, where the state is on another file system


class Failed(Exception):
    """The trial cannot go on: the text says what a bound was passed by."""


class NotCarriedOut(Exception):
    """The trial says nothing of the members: something is wrong with the trial itself."""


@dataclass(frozen=True)
class Settings:
    """How a trial is carried out; times in seconds. `baseline` before and after the attack; `patience` for what is to
    happen afterwards. With `returns` an honest member takes the hostile one's place in the end. With `until_told` an
    attack that is told at once is carried out again until it was: on a busy host little comes of one that is short."""

    seconds: float = 600.0
    baseline: float = 60.0
    patience: float = 300.0
    rate: float = 0.0
    targets: tuple[str, ...] = ("a",)
    returns: bool = True
    until_told: bool = False
    timing: bool = True  # whether latencies are measured and judged
    sizes: Sizes = field(default_factory=Sizes)
    bounds: Bounds = field(default_factory=Bounds)
    tell: Callable[[str], None] = lambda _: None


class Hostile:
    """The process of the hostile partner."""

    def __init__(self, fleet: Fleet, attack: type[Attack], settings: Settings) -> None:
        extra = {
            "dashboards": {name: fleet.places[name].dashboard_port for name in HONEST},
            "outside": os.fspath(fleet.outside),
        }
        program = [sys.executable, "-m", "tests.hostile.attacker"]
        program += [os.fspath(fleet.topology_file), os.fspath(fleet.places[HOSTILE].key_file)]
        program += [attack.name, str(settings.rate), ",".join(settings.targets), json.dumps(extra)]
        self.log = fleet.work / "attacker.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment()
            )
        self.state = ""
        self.failed = ""
        self.tally: dict[str, Any] = {"sent": 0, "sent_bytes": 0, "answers": {}}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.tally = told.get("tally", self.tally)
            self.failed = told.get("failed", self.failed)
            self.state = told.get("state", self.state)

    def attack(self, seconds: float) -> None:
        """Begin."""
        assert self.process.stdin is not None
        self.state = ""
        self.process.stdin.write(f"attack {seconds}\n".encode())
        self.process.stdin.flush()

    def leave(self) -> None:
        """It is gone, from one moment to the next."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


@dataclass
class Course:
    """What happened in a trial."""

    before: Phase = field(default_factory=lambda: Phase("before"))
    attack: Phase = field(default_factory=lambda: Phase("attack"))
    after: Phase = field(default_factory=lambda: Phase("after"))
    quiet: Costs = field(default_factory=Costs)
    costs: Costs = field(default_factory=Costs)
    attacked_s: float = 0.0
    recovered_s: float = math.nan
    settled_s: float = math.nan
    returned_s: float = math.nan
    faults: list[str] = field(default_factory=list)
    incidents: dict[str, int] = field(default_factory=dict)
    ahead: int = 0  # those of them that `frs wait` tells of, because they are dated ahead of the clock
    left: int = 0  # change orders of the hostile partner that are unfinished when all else is done


def trial(attack: type[Attack], work: Path, settings: Settings) -> dict[str, Any]:
    """Carry out one attack; returns its row. Raises NotCarriedOut."""
    fleet = Fleet(work, settings.sizes)
    course = Course()
    with fleet, contextlib.ExitStack() as stack:
        if attack.fills and not fleet.limited:
            raise NotCarriedOut("it would fill the disk of this host: only as root, who may mount smaller ones")
        fleet.fill()
        for name in HONEST:
            fleet.start(name)
        hostile = Hostile(fleet, attack, settings)
        stack.callback(hostile.leave)
        watch = Watch(fleet)
        stack.callback(watch.stop)
        probe = Probe(*(fleet.places[name] for name in HONEST), fleet.set, fleet.keys)
        stack.callback(probe.stop)
        _ready(fleet, hostile)
        if settings.timing:
            probe.start()
        watch.start()
        try:
            _phases(attack, fleet, hostile, watch, probe, course, settings)
            probe.stop()
            _afterwards(fleet, course, settings)
        except Failed as error:
            course.faults.append(str(error))
        if watch.ended is not None:
            course.faults.insert(0, watch.ended)
        return _row(attack, fleet, hostile, course, settings)


def _ready(fleet: Fleet, hostile: Hostile) -> None:
    """Both members replicate with each other, and the hostile one has its place."""
    until = time.monotonic() + READY_S
    while True:
        if hostile.process.poll() is not None or hostile.state == "not joined":
            raise NotCarriedOut(f"the hostile partner has no place: {' '.join(tail(hostile.log, 8))}")
        if fleet.ended() is not None:
            raise NotCarriedOut(f"{fleet.ended()} before the attack: {' '.join(complaints(fleet))}")
        if hostile.state == "joined" and unfinished(fleet) is None and not different(fleet, *HONEST):
            return
        if time.monotonic() > until:
            raise NotCarriedOut(f"not ready within {READY_S:g} s: {unfinished(fleet)}")
        time.sleep(PAUSE_S)


def _phases(
    attack: type[Attack],
    fleet: Fleet,
    hostile: Hostile,
    watch: Watch,
    probe: Probe,
    course: Course,
    settings: Settings,
) -> None:
    """Quiet, attack, and quiet again. Raises Failed, NotCarriedOut."""
    tell = settings.tell
    tell(f"quiet for {settings.baseline:g} s")
    course.quiet, course.before = watch.begin(), probe.begin("before")
    _pass(fleet, watch, settings.baseline)
    tell(f"attack for {settings.seconds:g} s")
    course.costs, course.attack = watch.begin(), probe.begin("attack")
    began = time.monotonic()
    again = settings.until_told and attack.told and not attack.told_after
    try:
        _attack(fleet, hostile, watch, settings)
        while again and not any(_incidents(fleet, name) for name in HONEST):
            if time.monotonic() > began + settings.patience:
                raise Failed(f"no incident was told within {settings.patience:g} s")
            _attack(fleet, hostile, watch, settings)
    finally:
        course.attacked_s = time.monotonic() - began
        probe.begin("recovering")
    tell("the hostile partner leaves")
    hostile.leave()
    if settings.timing:
        began = time.monotonic()
        recovering = probe.begin("recovering")
        while len(recovering.latencies) < 2 * len(HONEST):
            if time.monotonic() > began + settings.patience:
                raise Failed(f"nothing was replicated within {settings.patience:g} s after it left")
            _pass(fleet, watch, PAUSE_S)
        course.recovered_s = time.monotonic() - began
        tell(f"quiet for {settings.baseline:g} s")
        course.after = probe.begin("after")
        _pass(fleet, watch, settings.baseline)


def _attack(fleet: Fleet, hostile: Hostile, watch: Watch, settings: Settings) -> None:
    """Attack once. Raises Failed, NotCarriedOut."""
    hostile.attack(settings.seconds)
    while hostile.state != "done":
        if hostile.process.poll() is not None:
            raise NotCarriedOut(f"the hostile partner ended: {' '.join(tail(hostile.log, 8))}")
        _pass(fleet, watch, PAUSE_S)
    if hostile.failed:
        raise NotCarriedOut(f"the attack itself failed: {hostile.failed}")


def _pass(fleet: Fleet, watch: Watch, seconds: float) -> None:
    """Let time pass while both members live. Raises Failed."""
    until = time.monotonic() + seconds
    while True:
        if watch.ended is not None or (ended := fleet.ended()) is not None:
            raise Failed(watch.ended or ended or "")
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, PAUSE_S))


def _afterwards(fleet: Fleet, course: Course, settings: Settings) -> None:
    """All is done and equal, nothing is where it may not be, and a new file goes both ways. Raises Failed."""
    tell, began = settings.tell, time.monotonic()
    tell("waiting for the honest members to be done")
    _until(fleet, settings.patience, lambda: unfinished(fleet))
    _until(fleet, settings.patience, lambda: different(fleet, *HONEST))
    course.settled_s = time.monotonic() - began
    for name, other in (HONEST, HONEST[::-1]):
        (fleet.places[name].root / f"fresh from {name}").write_text("fresh\n")
        path = fleet.places[other].root / f"fresh from {name}"
        _until(fleet, settings.patience, lambda path=path: None if path.exists() else f"{path} never came")
    for name in HONEST:
        status = fleet.places[name].status() or {}
        course.left += sum(one["backlog"] for one in _connections(status) if _inbound_of_hostile(one))
        for cause, count in _incidents(fleet, name).items():
            course.incidents[cause] = course.incidents.get(cause, 0) + count
    course.faults += forbidden(fleet)
    if settings.returns:
        began = time.monotonic()
        tell("an honest member takes the hostile one's place")
        fleet.start(HOSTILE)
        for name in (*HONEST, HOSTILE):
            course.ahead = max(course.ahead, _wait(fleet, name, settings))
        _until(fleet, settings.patience, lambda: different(fleet, *HONEST, HOSTILE))
        course.returned_s = time.monotonic() - began


def _until(fleet: Fleet, patience: float, lacking: Callable[[], str | None]) -> None:
    """Look until nothing is lacking. Raises Failed."""
    until = time.monotonic() + patience
    while (what := lacking()) is not None:
        if (ended := fleet.ended()) is not None:
            raise Failed(ended)
        if time.monotonic() > until:
            raise Failed(f"not within {patience:g} s after the attack: {what}")
        time.sleep(PAUSE_S)


def _wait(fleet: Fleet, name: str, settings: Settings) -> int:
    """`frs wait`; returns how many changes it tells of that the hostile partner dated ahead of the clock. The member
    looks at those when the clock comes to them, within a day, and `frs wait` may not call it done before: what was
    announced may be true. Nothing else may be left. Raises Failed."""
    patience = settings.patience + settings.sizes.give_up
    program = [sys.executable, "-m", "agent.cli", "wait", "--config", os.fspath(fleet.places[name].config)]
    until = time.monotonic() + READY_S
    while fleet.places[name].status() is None and time.monotonic() < until:
        time.sleep(PAUSE_S)
    until = time.monotonic() + patience
    while True:
        done = subprocess.run(
            [*program, "--timeout", f"{WAIT_S:g}"], env=environment(), capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return 0
        said = (done.stdout + done.stderr).strip().splitlines()
        if done.returncode == 1 and len(said) == 1 and (ahead := DATED_AHEAD.search(said[0])):
            return int(ahead[1])
        if done.returncode != 1 or time.monotonic() > until:
            raise Failed(f"frs wait on {name} ends with {done.returncode}: {'; '.join(said[:3])} ({len(said)} lines)")


# -- looking --


def _incidents(fleet: Fleet, name: str) -> dict[str, int]:
    """What a member has told its administrator, by cause."""
    found: dict[str, int] = (fleet.places[name].status() or {}).get("incidents", {})
    return found


def _connections(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for found in status.get("sets", []) for one in found["connections"]]


def _inbound_of_hostile(connection: dict[str, Any]) -> bool:
    return bool(connection["partner"] == HOSTILE and connection["direction"] == "inbound")


def unfinished(fleet: Fleet) -> str | None:
    """What the honest members have to do with each other; None when nothing. What the hostile partner has announced
    and not brought is its own affair."""
    for name in HONEST:
        status = fleet.places[name].status()
        if status is None:
            return f"{name} does not answer"
        (one,) = status["sets"]
        if one["state"] != "online" or one["error"]:
            return f"{name} is {one['state']}: {one['error']}"
        pending, left = one["pending"], sum(c["backlog"] for c in one["connections"] if _inbound_of_hostile(c))
        if pending["aging"] or pending["local"] or pending["inbound"] > left:
            return f"{name} has pending: {pending}, of these from {HOSTILE}: {left}"
        for connection in one["connections"]:
            if connection["partner"] != HOSTILE and (connection["state"] != "joined" or connection["backlog"]):
                return f"{connection['name']} is {connection['state']}, backlog {connection['backlog']}"
    return None


def different(fleet: Fleet, first: str, *others: str) -> str | None:
    """How the trees differ; None when they are equal."""
    for other in others:
        try:
            found = compare_trees(fleet.places[first].root, fleet.places[other].root)
        except OSError as error:
            return str(error)
        if found:
            return f"{found[0]} ({len(found)} differences)"
    return None


def forbidden(fleet: Fleet) -> list[str]:
    """What no partner may bring about: anything outside of the roots, set-id bits, devices, names of the agent's."""
    found = []
    outside = sorted(os.listdir(fleet.outside))
    if outside != ["precious"] or (fleet.outside / "precious").read_bytes() != b"not to be touched\n":
        found.append(f"something outside of the roots was made or changed: {outside}")
    for name in HONEST:
        for path, status in _walk(fleet.places[name].root):
            mode = status.st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(f"set-id bits: {path} {stat.filemode(mode)} of {status.st_uid}")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                found.append(f"not a file: {path} {stat.filemode(mode)}")
            if Path(path) == fleet.places[name].root / RESERVED_NAME:
                found.append(f"a name of the agent's own: {path}")
    more = [f"and {len(found) - 5} more of this kind"] if len(found) > 5 else []
    return found[:5] + more


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                yield path, os.lstat(path)


def complaints(fleet: Fleet) -> list[str]:
    """The last warnings and errors in the logs of the honest members, each but once."""
    found = []
    for name in HONEST:
        lines = [line for line in tail(fleet.places[name].log, 200) if " WARNING " in line or " ERROR " in line]
        said = {line.split(None, 1)[-1]: None for line in lines}  # without the time
        found += [f"{name}: {line[:240]}" for line in list(said)[-3:]]
    return found


# -- the row --


def _row(attack: type[Attack], fleet: Fleet, hostile: Hostile, course: Course, settings: Settings) -> dict[str, Any]:
    row: dict[str, Any] = {"attack": attack.name, "text": attack.text, "seconds": round(course.attacked_s, 1)}
    row |= hostile.tally
    quiet = course.before.latencies + course.after.latencies
    for label, share in (("p50", 0.5), ("p95", 0.95)):
        without, during = percentile(quiet, share), percentile(course.attack.latencies, share)
        row |= {f"{label}_quiet_s": without, f"{label}_attack_s": during, f"{label}_ratio": during / without}
        for phase in (course.before, course.after):
            row[f"{label}_{phase.name}_s"] = percentile(phase.latencies, share)
    row["late"] = course.attack.late
    row["binds"], row["binds_failed"] = course.attack.binds, course.attack.binds_failed
    row["binds_share"] = 1 - row["binds_failed"] / max(row["binds"], 1)
    _costs(row, fleet, course)
    row |= {"recovered_s": course.recovered_s, "settled_s": course.settled_s, "returned_s": course.returned_s}
    row |= {
        "left_unfinished": course.left,
        "left_ahead": course.ahead,
        "incidents": course.incidents,
        "quota_mib": settings.sizes.quota / MIB,
    }
    verdict = list(course.faults)
    verdict += [fault for fault in judge(row, settings.bounds) if settings.timing or not fault.startswith("latency")]
    if attack.told and settings.seconds >= attack.told_after and not course.incidents and not course.faults:
        verdict.append("no incident was told")
    if not row["sent"]:
        raise NotCarriedOut("the attack sent nothing")
    row["faults"] = verdict
    row["log"] = complaints(fleet)
    return row


def _costs(row: dict[str, Any], fleet: Fleet, course: Course) -> None:
    """The worse of both members."""
    most = {name: course.costs.most(name) for name in HONEST}
    idle = {name: course.quiet.most(name) for name in HONEST}
    minutes = max(course.attacked_s, 1.0) / 60

    def worst(part: str, unit: float, *, above_idle: bool = True) -> float:
        return max(
            (getattr(most[name], part) - (getattr(idle[name], part) if above_idle else 0)) / unit for name in HONEST
        )

    row["memory_mib"] = max((most[n].memory - course.quiet.median_memory(n)) / MIB for n in HONEST)
    row["memory_idle_mib"] = max(course.quiet.median_memory(n) / MIB for n in HONEST)
    row["staging_mib"] = worst("staging", MIB, above_idle=False)
    row["state_mib"], row["kept_mib"] = worst("state", MIB), worst("kept", MIB)
    row["preinstall_mib"], row["disk_mib"] = worst("preinstall", MIB), worst("disk", MIB)
    row["descriptors"] = int(worst("descriptors", 1, above_idle=False))
    # A short attack may have the first lines of each cause, which come at once.
    row["log_kib_per_minute"] = worst("log", 1024) / max(minutes, 1.0)
    size = fleet.sizes.disk if fleet.limited else math.inf
    row["disk_free_mib"] = min((size - most[name].disk) / MIB for name in HONEST)
