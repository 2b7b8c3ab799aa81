"""Variants, and the rounds of each: users attack for some seconds while change orders arrive and are staged; then they
rest, the members have to become equal again on their own, and everything is looked at."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.invariant import unnoticed
from tests.race import judge, layout
from tests.race.driver import Driver, Operation
from tests.race.outside import Outside
from tests.race.safely import FOLDER, signature
from tests.race.site import Attack, Site
from tests.system.demo import ask

#: Seconds until members that nobody attacks any more must be equal: what failed often waits a minute between attempts,
#: and what goes into a folder waits for the folder.
PATIENCE = float(os.environ.get("FRS_RACE_PATIENCE", "600"))

#: Counters of the attacked members that say that something was done, or tried in vain, while they were attacked.
COUNTED = {
    "installed": "Files Installed",
    "retired": "Remote Change Orders Retired",
    "refused": "Change Orders Retried at Install",
    "failed": "Files Installed with Error",
    "issued": "Local Change Orders Issued",
    "staged": "Staging Files Generated",
    "torn": "Change Orders Retried at Generate",
    "fetched": "Staging Files Fetched",
}

#: What a member in its initial sync finds missing it makes again on the fifth attempt, after 15 seconds.
SIEGE_S = 18.0

#: An attack goes on until the members that are attacked have done so much, however slow this host is.
LEAST = {"installed": 5, "staged": 3, "swaps": 5000}

CHANGES_OF_FOLDERS = ("folder changed", "folder's owner")


@dataclass(frozen=True)
class Variant:
    """How members are set up. `seeding`: what is attacked is a member in its initial sync. `two`: its state and its
    tree are on two file systems. `root`: whose the tree's root is: "closed" (root's), "owned" (the attackers'),
    "sticky" (root's, but open to all, as /tmp is). All members but the first are attacked."""

    name: str
    seeding: bool = False
    two: bool = False
    root: str = "closed"
    members: str = "ab"


VARIANTS = {
    variant.name: variant
    for variant in (
        *(
            Variant(f"{phase}-{disks}-{root}", phase == "seeding", disks == "two", root)
            for phase, disks, root in itertools.product(
                ("seeding", "running"), ("one", "two"), ("closed", "owned", "sticky")
            )
        ),
        Variant("running-one-closed-both", members="abc"),
        Variant("running-two-owned-both", two=True, root="owned", members="abc"),
    )
}


@dataclass
class Findings:
    """What a run has done and found. `breaches`: effects where there may be none. `troubles`: members that stopped, or
    did not become equal. `effects`: operations that were found done when an attack ended."""

    rounds: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    breaches: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def swaps(self) -> int:
        return self.attacks["swaps"]

    def add(self, other: Findings) -> None:
        for one in dataclasses.fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def text(self) -> str:
        """All of it in a line."""
        return (
            f"{self.swaps} swaps in {self.rounds} rounds, {len(self.breaches)} breaches, {len(self.troubles)} troubles"
        )

    def details(self) -> list[str]:
        """What was done, a line each."""
        return [
            f"{what}: " + (", ".join(f"{name} {count:.0f}" for name, count in sorted(counts.items())) or "nothing")
            for what, counts in (
                ("attacks", self.attacks),
                ("agents under attack", self.work),
                ("seconds", self.seconds),
                ("operations done", self.done),
                ("operations that took effect under attack", self.effects),
            )
        ]


class Run:
    """One variant, running."""

    def __init__(
        self,
        folder: Path,
        variant: Variant,
        *,
        seed: int,
        seconds: float,
        durable: bool = False,
        turn: threading.Lock | None = None,
    ) -> None:
        """An attack lasts so many `seconds`, one on an initial sync longer. `turn`: of several runs at once only one
        attacks, while the members of the others become equal."""
        self.variant = variant
        self.findings = Findings()
        self.first_breach_s: float | None = None  # seconds of attack
        self._folder = folder
        self._random = random.Random(f"{seed} {variant.name}")
        self._seconds = seconds
        self._durable = durable
        self._turn = turn or threading.Lock()
        self._since: float | None = None
        self._known: set[str] = set()
        self._attacks: dict[str, Attack] = {}
        self._guards: dict[str, judge.Guard] = {}

    def go(self, enough: Callable[[], bool]) -> None:
        """Rounds until `enough` says so, or something is found that keeps the members from going on."""
        variant = self.variant
        with Site(
            self._folder, members=variant.members, two=variant.two, root=variant.root, durable=self._durable
        ) as self._site:
            self._outside = Outside(self._folder)
            root_fd = os.open(self._site.root("a"), FOLDER)
            self._driver = Driver(root_fd, self._random.getrandbits(32))
            try:
                for member in variant.members[1:]:
                    self._attacks[member] = Attack(
                        self._folder / member,
                        seed=self._random.getrandbits(32),
                        owns_root=variant.root == "owned",
                        seeding=variant.seeding,
                    )
                self._driver.fill(4)
                self._converge()
                while not self.findings.troubles and not enough():
                    (self._seed_again if variant.seeding else self._work)()
                    self.findings.rounds += 1
            finally:
                for one in (*self._attacks.values(), *self._guards.values()):
                    one.close()
                os.close(root_fd)
            self._found(self._outside.close())
            for member in variant.members:
                self._found(judge.traces(self._site.root(member), self._outside.mark))
                self._found(judge.traces(self._site.state(member), self._outside.mark))

    # ------------------------------------------------------------ the two kinds of rounds

    def _work(self) -> None:
        """A round in normal running: change orders of every kind, some names at a time."""
        self._driver.repair()
        self._converge()
        self._guard()
        before = self._counters()
        operations: list[Operation] = []
        with self._attack():
            begin = spell = time.monotonic()
            restart = begin + self._seconds / 2 if self._random.random() < 0.4 else None
            only: tuple[str, ...] = ()
            while (now := time.monotonic()) < begin + self._seconds or not self._has_shown(before, now - begin):
                if now >= spell:
                    spell = now + self._random.choice((1, 2, 3))
                    if self._random.random() < 0.3:
                        self._restore()
                    only = CHANGES_OF_FOLDERS if self._random.random() < 0.4 else ()
                    self._point_at(self._driver.settle(one_folder=bool(only)), alone=bool(only))
                operations += self._one_more(self._random.choice((0.05, 0.1, 0.2) if only else (0.02, 0.05, 0.1)), only)
                if restart is not None and now > restart:
                    restart = None
                    before = self._restart(before)
        self._end_of_attack(operations, before)
        self._converge()

    def _seed_again(self) -> None:
        """A round of an initial sync: the attacked member has lost its memory, and has things in the way or nothing at
        all. What the attackers keep out is made again after a quarter of a minute, see Attacker.besiege."""
        (member,) = self.variant.members[1:]
        self._site.stop(member, self._random)
        self._site.forget(member)
        crowded = self.findings.rounds % 2
        operations = self._driver.fill(4 if crowded else 24)
        if crowded:
            self._in_the_way(member)
            self._guard()
        self._point_at(self._driver.settle(one_folder=True))
        with self._attack():
            self._site.start(member)
            self._until(lambda: bool(self._site.counters(member)), PATIENCE)
            begin = time.monotonic()
            while not self._site.online(member) and not self._is_fallen(time.monotonic() - begin):
                if self._random.random() < 0.1:
                    self._point_at(self._driver.settle())
                    operations += self._one_more(0)
                self._tick(0.1)
        self._end_of_attack(operations, Counter())
        # What has failed for long waits long, but for a member that starts.
        self._site.stop(member, self._random)
        self._site.start(member)
        self._converge()

    # ------------------------------------------------------------ parts of a round

    def _in_the_way(self, member: str) -> None:
        """Fills the tree of a new member: the users' own things, and root's, at the names that are to come."""
        fd = os.open(self._site.root(member), FOLDER)
        try:
            driver = Driver(fd, self._random.getrandbits(32))
            driver.repair()
            for _ in range(40):
                driver.step(but=("root's folder",))  # to merge that with somebody's is what the primary member says
        finally:
            os.close(fd)

    def _guard(self) -> None:
        """The folders of root in the trees are held on to."""
        for member, attack in self._attacks.items():
            if member in self._guards:
                self._guards.pop(member).close()
            self._guards[member] = judge.Guard(attack.root_fd, member)

    @contextlib.contextmanager
    def _attack(self) -> Iterator[None]:
        """The attackers attack."""
        with self._turn:
            self._since = time.monotonic()
            try:
                for attack in self._attacks.values():
                    attack.go()
                yield
            finally:
                for attack in self._attacks.values():
                    attack.rest()
                self.findings.seconds["attack"] += time.monotonic() - self._since
                self._since = None

    def _end_of_attack(self, operations: list[Operation], before: Counter[str]) -> None:
        """What has taken effect by now did so under attack."""
        latest = {operation.path: operation for operation in operations}
        for operation in operations:
            self.findings.done[operation.kind] += 1
        for attack in self._attacks.values():
            for operation in latest.values():
                if signature(attack.root_fd, operation.path) == operation.result:
                    self.findings.effects[operation.kind] += 1
            attack.clean()
        self._add_work(before)
        self.findings.attacks = sum((attack.counts() for attack in self._attacks.values()), Counter())

    def _is_fallen(self, seconds: float) -> bool:
        """Whether an initial sync has been attacked for long enough: until folders that were kept out were made again
        some times, which comes late on a slow host, and not at all where nothing waits for it."""
        refilled = sum((attack.counts() for attack in self._attacks.values()), Counter())["refilled"]
        shown = refilled - self.findings.attacks["refilled"] >= 16
        return seconds > max(self._seconds, SIEGE_S) and (shown or seconds > 4 * SIEGE_S)

    def _has_shown(self, before: Counter[str], seconds: float) -> bool:
        """Whether enough was done since the attack began; or never will be, for a member does not go on."""
        if seconds > PATIENCE or self._site.trouble():
            return True
        now = self._counters() - before
        swaps = sum((attack.counts() for attack in self._attacks.values()), Counter())["swaps"]
        done = {what: sum(count for name, count in now.items() if name.endswith(f" {what}")) for what in COUNTED}
        done["swaps"] = swaps - self.findings.swaps
        return all(done[what] >= least for what, least in LEAST.items())

    def _point_at(self, paths: list[str], *, alone: bool = False) -> None:
        """The attackers hear where to attack."""
        for attack in self._attacks.values():
            attack.board.point_at((layout.INDEX[path] for path in paths), alone=alone)

    def _one_more(self, pause: float, only: tuple[str, ...] = ()) -> list[Operation]:
        operation = self._driver.step(only=only)
        self._tick(pause)
        return [operation] if operation is not None else []

    def _restore(self) -> None:
        """An administrator gives back what is kept, into a folder that may have to be made."""
        state = self._site.state(self._random.choice(self.variant.members[1:]))
        path = f"{self._random.choice(layout.HOMES)}/{self._random.choice(layout.FOLDERS)}"
        self._point_at([path], alone=True)
        listed = ask(state, "conflicts", action="list") or {}
        for item in listed.get("items", ())[:8]:
            answer = ask(state, "conflicts", action="restore", id=item["id"], to=f"{path}/{item['id'][-8:]}")
            self.findings.work["restored"] += answer is not None and "refused" not in answer
            self._tick(0.05)

    def _restart(self, before: Counter[str]) -> Counter[str]:
        """An attacked member ends and starts again; returns what its counters begin with now."""
        member = self._random.choice(self.variant.members[1:])
        self._add_work(before, only=member)
        self._site.stop(member, self._random)
        self._tick(self._random.random())
        self._site.start(member)
        self.findings.work["restarts"] += 1
        return Counter({name: value for name, value in before.items() if not name.startswith(f"{member} ")})

    def _counters(self) -> Counter[str]:
        found = {member: self._site.counters(member) for member in self._attacks}
        return Counter(
            {f"{member} {what}": found[member].get(name, 0) for member in found for what, name in COUNTED.items()}
        )

    def _add_work(self, before: Counter[str], only: str | None = None) -> None:
        for name, value in self._counters().items():
            member, _, what = name.partition(" ")
            if only in (None, member):
                self.findings.work[what] += max(0, value - before.get(name, 0))

    # ------------------------------------------------------------ looking

    def _tick(self, pause: float = 0.0) -> None:
        """The witnesses look while time passes."""
        end = time.monotonic() + pause
        while True:
            self._found(self._outside.breaches(self._site.pids()))
            for guard in self._guards.values():
                self._found(guard.breaches())
            for attack in self._attacks.values():
                attack.alive()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.05))

    def _until(self, condition: Callable[[], bool], patience: float) -> None:
        """Waits, but not for ever, and not for a member that has stopped."""
        end = time.monotonic() + patience
        while not condition() and time.monotonic() < end and not self._site.trouble():
            self._tick(0.1)

    def _converge(self) -> None:
        """All members become equal, and everything is where it belongs."""
        begin = time.monotonic()
        pending = self._site.converge(PATIENCE, self._tick)
        self.findings.seconds["becoming equal"] += time.monotonic() - begin
        self.findings.troubles += pending
        fds = {member: os.open(self._site.root(member), FOLDER) for member in self.variant.members}
        try:
            for member, fd in fds.items():
                if not pending and member != "a":
                    different = judge.differences(fds["a"], fd)
                    self.findings.troubles += [f"different at a and {member}: {line}" for line in different[:10]]
                if not pending:
                    overlooked = unnoticed(self._site.config(member))
                    self.findings.troubles += [f"{member} has not noticed {line}" for line in overlooked[:10]]
                self._found(judge.misplaced(fd, f"{member}: tree"))
            for guard in self._guards.values():
                self._found(guard.intruders())
        finally:
            for fd in fds.values():
                os.close(fd)

    def _found(self, breaches: list[str]) -> None:
        new = [line for line in dict.fromkeys(breaches) if line not in self._known]
        if new and self.first_breach_s is None:
            now = time.monotonic()
            self.first_breach_s = self.findings.seconds["attack"] + (now - self._since if self._since else 0)
        self._known.update(new)
        self.findings.breaches += new
