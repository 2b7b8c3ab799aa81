"""Random schedules: who does what when, and what goes wrong meanwhile. A schedule is a list of small tuples, so that
one that fails can be made smaller and printed.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agent.engine.context import Limits
from agent.wire.filetime import SECOND
from tests.simulation.journalmember import JournalMember
from tests.simulation.realmember import RealMember
from tests.simulation.simmember import Member
from tests.simulation.simworld import MANY_NAMES, Step, World, distances

OPERATIONS = (
    "create", "create", "create", "mkdir", "mkdir", "write", "write", "append", "truncate", "chmod", "move", "move",
    "rename", "rename", "case", "swap", "delete", "rmdir", "save", "save", "backup", "copy", "busy",
)  # fmt: skip


def mesh(names: str) -> list[tuple[str, str]]:
    return [(a, b) for a in names for b in names if a != b]


def ring(names: str) -> list[tuple[str, str]]:
    pairs = [(names[i], names[(i + 1) % len(names)]) for i in range(len(names))]
    return list(dict.fromkeys(pairs + [(b, a) for a, b in pairs]))


def chain(names: str) -> list[tuple[str, str]]:
    pairs = list(itertools.pairwise(names))
    return pairs + [(b, a) for a, b in pairs]


def star(names: str) -> list[tuple[str, str]]:
    pairs = [(names[0], n) for n in names[1:]]
    return pairs + [(b, a) for a, b in pairs]


TOPOLOGIES: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    "mesh": mesh, "ring": ring, "chain": chain, "star": star,
}  # fmt: skip


def oneway(names: str) -> list[tuple[str, str]]:
    """A ring in which everybody has one upstream and one downstream partner."""
    return [(names[i], names[(i + 1) % len(names)]) for i in range(len(names))]


#: Seeds below are the schedules they were before this was drawn, so that a found one stays what it is.
DRAWN_FROM = 10_000_000
#: From this seed on schedules are busy ones.
BUSY_FROM = 100_000_000
#: From this seed on local changes are found by the real journal; what is left of a seed is a schedule as above.
JOURNAL_FROM = 1_000_000_000
#: From this seed on the topology changes meanwhile; what is left of a seed is a schedule as above, without the journal.
TOPOLOGY_FROM = 2_000_000_000
#: From this seed on commits fail and engines fail on packets, too; what is left of a seed is a schedule as above.
FAILING_FROM = 4_000_000_000
#: From this seed on members are removed and added again, and connections disabled, while they run; what is left of a
#: seed is a schedule as above, without the journal and without failures.
MEMBERS_FROM = 8_000_000_000
#: From this seed on installs are real ones, on folders of this host's; what is left of a seed is a schedule as above,
#: without the journal.
INSTALLER_FROM = 16_000_000_000
#: Graphs that a schedule draws for itself: at random, and always so that everybody's changes reach everybody.
DRAWN = ("digraph", "graph", "oneway")


def drawn(rng: random.Random, kind: str, names: str) -> list[tuple[str, str]]:
    """The connections of a drawn topology: a ring or a tree in random order, and some more."""
    order = "".join(rng.sample(names, len(names)))
    if kind == "oneway":
        return oneway(order)
    share = rng.choice((0.1, 0.3, 0.6))
    more = [(a, b) for a, b in itertools.permutations(names, 2) if rng.random() < share]
    if kind == "digraph":
        return list(dict.fromkeys(oneway(order) + more))
    tree = [(name, rng.choice(order[:at])) for at, name in enumerate(order) if at]
    return list(dict.fromkeys(pair for a, b in tree + more for pair in ((a, b), (b, a))))


def priorities(rng: random.Random, names: str, edges: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Priority classes. Those that must be waited for (1 to 4) only lead away from the primary member: two that must
    wait for each other's initial sync would do so for ever, by 3.1.5.1."""
    distance = distances(names, edges)
    return {
        (up, down): rng.randrange(8) if distance[up] < distance[down] else rng.choice((5, 6, 7, 0))
        for up, down in edges
    }


@dataclass(frozen=True)
class Schedule:
    seed: int
    names: str
    topology: str
    steps: tuple[Step, ...]
    minor: int = 9
    history: int = 0  # seconds the outbound log is kept for; 0: the default
    window: int = 0  # change orders in flight; 0: the default
    lifetime: int = 0  # seconds tombstones are kept for; 0: the default
    priorities: bool = False  # of 3.1.5.1, drawn for every connection
    journal: bool = False  # the real one, with the tree's events late or lost now and then
    installer: bool = False  # the real one, on a folder of this host's
    sole: bool = False  # only the first member has users
    busy: bool = False  # hundreds of changes, more names, looked at after 0.3 s
    edges: tuple[tuple[str, str], ...] = ()  # instead of those of the topology
    classes: tuple[tuple[tuple[str, str], int], ...] = ()  # instead of drawn priorities

    def world(self) -> World:
        """The world in which the steps are taken."""
        limits = Limits(max_join_interval=60 * SECOND)
        if self.history:
            limits = replace(limits, outlog_history=self.history * SECOND)
        if self.window:
            limits = replace(limits, window=self.window, fetch_window=1)
        if self.lifetime:
            limits = replace(limits, tombstone_lifetime=self.lifetime * SECOND, outlog_most=self.lifetime * SECOND)
        rng = random.Random(self.seed)
        if self.edges:
            edges = list(self.edges)
        elif self.topology in DRAWN:
            edges = drawn(rng, self.topology, self.names)
        else:
            edges = TOPOLOGIES[self.topology](self.names)
        member = JournalMember if self.journal else RealMember if self.installer else Member
        world = World(self.names, edges, self.seed, limits=limits, minor=self.minor, member=member)
        if self.priorities:
            world.priorities = priorities(rng, self.names, edges)
        world.priorities |= dict(self.classes)
        world.sole = self.sole
        world.brings, world.forgetful = self.seed % 2 == 0, self.seed % 4 == 0
        if self.busy:
            world.aging, world.file_names = 3 * SECOND // 10, MANY_NAMES
        return world

    def run(self) -> list[str]:
        """The violations found."""
        world = self.world()
        try:
            for step in self.steps:
                world.step(step)
                if world.violations:
                    break
            world.check()
        except Exception as error:
            world.violation(f"{type(error).__name__}: {error}")
        finally:
            for member in world.members.values():
                member.close()
        return world.violations


def generate(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(seed * 7919 + 1)
    if seed >= INSTALLER_FROM:
        return with_installer(rng, generate(seed - INSTALLER_FROM))
    if seed >= MEMBERS_FROM:
        return with_members(rng, generate(seed - MEMBERS_FROM))
    if seed >= FAILING_FROM:
        return with_failures(rng, generate(seed - FAILING_FROM))
    if seed >= TOPOLOGY_FROM:
        return with_topology(rng, generate(seed - TOPOLOGY_FROM))
    if seed >= JOURNAL_FROM:
        return with_journal(rng, generate(seed - JOURNAL_FROM))
    if seed >= BUSY_FROM:
        return busy(rng, seed)
    names = "abcdefgh"[: rng.choice((2, 2, 2, 3, 3, 3, 3, 4, 4, 5) if rng.random() < 0.97 else (6, 7, 8))]
    topology = rng.choice(sorted(TOPOLOGIES)) if len(names) > 2 else "mesh"
    more: dict[str, Any] = {}
    if seed >= DRAWN_FROM:
        if len(names) > 2 and rng.random() < 0.4:
            topology = rng.choice(DRAWN)
        if rng.random() < 0.2:
            more["minor"] = rng.randrange(3, 9)
        if rng.random() < 0.2:
            more["history"] = rng.choice((1, 60, 600))
        if rng.random() < 0.2:
            more["window"] = rng.choice((1, 2, 5))
        if rng.random() < 0.1:
            more["lifetime"] = rng.choice((900, 3000))
        more["priorities"] = rng.random() < 0.2
    late = [i for i in range(1, len(names)) if rng.random() < 0.2]
    steps: list[Step] = [("start", i) for i in range(len(names)) if i not in late]
    steps.append(("run", rng.choice((5, 60, 120))))
    faulty = rng.random() < 0.8
    for _ in range(rng.randrange(3, 26)):
        steps.append(("op", rng.randrange(len(names)), rng.choice(OPERATIONS), *(rng.randrange(60) for _ in range(3))))
        if late and rng.random() < 0.1:
            steps.append(("start", late.pop()))
        if faulty and rng.random() < 0.3:
            steps += fault(rng, len(names))
        if rng.random() < 0.5:
            longest = rng.choice((1, 1, 4, 4, 20, 20, 100, 2500))
            steps.append(("run", round(rng.random() * longest, 2)))
    return Schedule(seed, names, topology, tuple(steps), **more)


def with_topology(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same, while connections come and go, and close and open."""
    steps: list[Step] = []
    count = len(schedule.names)
    for step in schedule.steps:
        steps.append(step)
        if step[0] in ("op", "run") and rng.random() < 0.3:
            kind = rng.choice(("disconnect", "disconnect", "connect", "connect", "close", "open"))
            steps.append((kind, rng.randrange(count), rng.randrange(count)))
            if rng.random() < 0.5:
                steps.append(("run", round(rng.random() * rng.choice((0.1, 1, 10)), 2)))
    return replace(schedule, seed=schedule.seed + TOPOLOGY_FROM, steps=tuple(steps))


def with_members(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same, while members are removed, work on alone, and are added again, and connections are disabled."""
    steps: list[Step] = []
    for step in schedule.steps:
        steps.append(step)
        if step[0] in ("op", "run") and rng.random() < 0.3:
            count = len(schedule.names)
            kind = rng.choice(("remove", "remove", "add", "add", "add", "disable", "enable"))
            steps.append((kind, rng.randrange(count), rng.randrange(count)))
            if rng.random() < 0.5:
                steps.append(("run", round(rng.random() * rng.choice((0.1, 1, 10, 100)), 2)))
    return replace(schedule, seed=schedule.seed + MEMBERS_FROM, steps=tuple(steps))


def with_failures(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same, while databases cannot be written, and engines fail on packets, now and then."""
    steps: list[Step] = []
    for step in schedule.steps:
        steps.append(step)
        if step[0] in ("op", "while", "run") and rng.random() < 0.15:
            one = rng.randrange(len(schedule.names))
            steps.append(("unwritable", one, rng.choice((1, 1, 2, 5))) if rng.random() < 0.7 else ("stumble", one))
            if rng.random() < 0.5:
                steps.append(("run", round(rng.random() * rng.choice((1, 10)), 2)))
    return replace(schedule, seed=schedule.seed + FAILING_FROM, steps=tuple(steps))


def with_journal(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same, with the real journal on all members, whose events are late or lost now and then."""
    steps: list[Step] = []
    sole = rng.random() < 0.5
    for step in schedule.steps:
        if step[0] == "op" and sole:
            step = ("op", 0, *step[2:])
        if step[0] == "op" and rng.random() < 0.06:
            late = round(rng.random() * rng.choice((0.1, 1, 5)), 2)
            steps.append((rng.choice(("late", "late", "deaf")), step[1], late))
        if step[0] == "op" and rng.random() < 0.3:
            step = ("while", *step[1:])
        steps.append(step)
    return replace(schedule, seed=schedule.seed + JOURNAL_FROM, steps=tuple(steps), journal=True, sole=sole)


def with_installer(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same, with installs on real trees, between whose system calls users do something, and processes end."""
    steps: list[Step] = []
    count = len(schedule.names)
    for step in schedule.steps:
        if step[0] == "op" and rng.random() < 0.2:
            step = ("while", *step[1:])
        while step[0] == "op" and rng.random() < 0.6:
            what = rng.choice((*OPERATIONS, "link", "out"))
            more = (rng.randrange(60) for _ in range(3))
            steps.append(("between", rng.randrange(count), rng.randrange(1, rng.choice((10, 40))), what, *more))
        if step[0] in ("op", "while") and rng.random() < 0.1:
            one = rng.randrange(count)
            steps += [("crash_soon", one, 1000), step, ("run", round(rng.random() * 10, 2)), ("start", one)]
        else:
            steps.append(step)
    return replace(schedule, seed=schedule.seed + INSTALLER_FROM, steps=tuple(steps), installer=True)


def busy(rng: random.Random, seed: int) -> Schedule:
    """Hundreds of changes on two to four members, which are killed and started again in the middle of them."""
    names = "abcd"[: rng.choice((2, 3, 3, 3, 4))]
    steps: list[Step] = [*(("start", i) for i in range(len(names))), ("run", 10)]
    for _ in range(rng.randrange(30, 120)):
        for _ in range(rng.randrange(1, 8)):
            which = rng.choice(OPERATIONS)
            steps.append(("op", rng.randrange(len(names)), which, *(rng.randrange(1000) for _ in range(3))))
        draw, one = rng.random(), rng.randrange(len(names))
        if draw < 0.06:
            steps.append(("crash", one))
        elif draw < 0.1:
            steps.append(("crash_soon", one, rng.randrange(1, 20)))
        elif draw < 0.25:
            steps.append(("start", one))
        elif draw < 0.28:
            steps.append(("flap", one, rng.randrange(len(names))))
        steps.append(("run", rng.choice((0, 0.05, 0.3, 0.3, 1, 5))))
    window = rng.choice((0, 0, 20))
    return Schedule(
        seed,
        names,
        rng.choice(sorted(TOPOLOGIES)) if len(names) > 2 else "mesh",
        tuple(steps),
        window=window,
        busy=True,
    )


def fault(rng: random.Random, count: int) -> list[Step]:
    one, other = rng.randrange(count), rng.randrange(count)
    pause: Step = ("run", round(rng.random() * rng.choice((1, 10, 100)), 2))
    match rng.randrange(16):
        case 0 | 1 | 2:
            return [("cut", one, other)]
        case 3 | 4:
            return [("heal", one, other)]
        case 5:
            return [("flap", one, other)]
        case 6 | 7:
            return [("crash", one), pause, ("start", one)]
        case 8 | 9:
            return [("crash_soon", one, rng.randrange(1, 20)), pause, ("start", one)]
        case 10:
            return [("slow", one, other, rng.choice((1, 20, 600)))]
        case 11:
            return [("skew", one, rng.choice((-4000, -1000, -100, 100, 1000, 1700, 4000, 90000)))]
        case 12:
            return [("full", one, rng.random() < 0.6)]
        case 13:
            return [("save_backup", one)]
        case 14:
            return [("restore", one)]
        case _:
            return [("leave", one)] if rng.random() < 0.3 else [("flap", one, other)]


def shrink(schedule: Schedule, tries: int = 400, seconds: float = math.inf) -> Schedule:
    """A smaller schedule that fails too: steps are taken away, many at once, then one by one; at most so many tries,
    and none begun after so many seconds."""
    size, end = max(len(schedule.steps) // 2, 1), time.monotonic() + seconds
    while size and tries > 0:
        at, smaller = 0, False
        while at < len(schedule.steps) and tries > 0 and time.monotonic() < end:
            fewer = replace(schedule, steps=schedule.steps[:at] + schedule.steps[at + size :])
            tries -= 1
            if fewer.steps and fewer.run():
                schedule, smaller = fewer, True
            else:
                at += size
        if not smaller or size > 1 or time.monotonic() >= end:
            size //= 2
    return schedule


def text_of(schedule: Schedule, violations: list[str]) -> str:
    more = f"minor version {schedule.minor}, history {schedule.history}, window {schedule.window}, "
    more += f"tombstones {schedule.lifetime}"
    more += ", priorities" * schedule.priorities
    lines = [f"seed {schedule.seed}: members {schedule.names}, {schedule.topology}, {more}"]
    lines += [f"    {step!r}," for step in schedule.steps]
    return "\n".join(lines + [f"  {v}" for v in violations])
