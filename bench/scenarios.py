"""The measured situations. Each yields `Result`s; a result without equal trees carries no seconds.

cold     B runs and is idle, A has the tree and starts: from A's start (batch: the command's) until B is equal
join     A runs and knows its tree, B has nothing and starts for the first time: from then until B is equal
drop     both run, idle; the tree's folders are renamed into A: from the first rename until B is equal
latency  one new file of 4 KiB at A: from before its write until B has it whole
idle     both ends have the tree and nothing happens: processor time of so many seconds, and memory
renames  a burst of renames at A: from the first one until B is equal
big      as cold, with one large file
patch    4 KiB inside that file are written anew at A: from then until B has them, and the file whole
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.peers import Frs, Peer, Syncthing
from bench.processes import Failed, Meter
from bench.trees import (
    BLOCK,
    SEED,
    Corpora,
    NotEqualInTime,
    Sizes,
    equal,
    rename_burst,
    wait_file_alike,
    wait_listed_alike,
)

SCENARIOS = ("cold", "join", "drop", "latency", "idle", "renames", "big", "patch")


@dataclass
class Result:
    """One measured figure. ``outcome`` is "equal" when it counts, else what was wrong."""

    peer: str
    scenario: str
    outcome: str
    seconds: float | None = None
    peak_mib: float | None = None
    cpu_s: float | None = None
    extra: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Run:
    """One peer on fresh trees below ``base``; the methods are the scenarios."""

    peer: Peer
    base: Path
    corpora: Corpora
    sizes: Sizes
    timeout: float

    def _result(self, scenario: str, seconds: float, meter: Meter, **extra: float) -> Result:
        good = all(equal(self.peer.near, far) for far in self.peer.fars)
        crossed = self.peer.crossed() if len(self.peer.fars) > 1 and scenario in ("cold", "drop") else None
        if crossed is not None:
            extra["fetches_a_file"] = round(crossed, 3)
        return Result(
            self.peer.label,
            scenario,
            "equal" if good else "DIFFERENT",
            round(seconds, 4) if good else None,
            meter.peak_mib,
            meter.cpu_s,
            extra,
        )

    def _listed(self) -> float:
        return max(wait_listed_alike(self.peer.near, far, self.timeout) for far in self.peer.fars)

    def _carry(self, scenario: str, change: Callable[[], object], seen: Callable[[], float] | None = None) -> Result:
        """Measure one change of A, made by ``change``, with both ends running; ``seen`` tells when B has it."""
        with Meter(self.peer.pids()) as meter:
            began = time.perf_counter()
            change()
            if not self.peer.live:
                self.peer.push(meter)
            seconds = (seen or self._listed)() - began
        return self._result(scenario, seconds, meter)

    def cold(self, scenario: str, corpus: str) -> Result:
        """See the module's text; leaves both ends running."""
        self.peer.lay(self.base)
        self.corpora.copy(corpus, self.peer.near)
        self.peer.start_far()
        with Meter(self.peer.pids()) as meter:
            began = time.perf_counter()
            if self.peer.live:
                self.peer.start_near()
                meter.roots |= self.peer.pids()
            else:
                self.peer.push(meter)
            if corpus == "big":
                name = "big.bin"
                near = self.peer.near / name
                seconds = max(wait_file_alike(near, far / name, self.timeout) for far in self.peer.fars) - began
            else:
                seconds = self._listed() - began
        return self._result(scenario, seconds, meter)

    def join(self) -> Result:
        """See the module's text; only for live peers."""
        peer = self.peer
        assert isinstance(peer, Frs | Syncthing)
        peer.lay(self.base)
        if isinstance(peer, Frs):
            peer.forget_far()
        self.corpora.copy("small", peer.near)
        peer.start_near()
        peer.settle_near()
        with Meter(peer.pids()) as meter:
            began = time.perf_counter()
            if isinstance(peer, Frs):
                for member in peer.members[1:]:
                    peer.start(member)
            else:
                peer._start("B")
            meter.roots |= peer.pids()
            seconds = self._listed() - began
        return self._result("join", seconds, meter)

    def drop(self) -> Result:
        """See the module's text."""
        self.peer.lay(self.base)
        hold = self.base / "hold"
        self.corpora.copy("small", hold)
        self._start_both()
        folders = sorted(hold.iterdir())

        def move_in() -> None:
            for folder in folders:
                folder.rename(self.peer.near / folder.name)

        return self._carry("drop", move_in)

    def _start_both(self) -> None:
        if isinstance(self.peer, Frs):
            self.peer.start_both()
        else:
            self.peer.start_far()
            self.peer.start_near()
        self.peer.settle()

    def latency(self) -> Result:
        """New files one by one; the median is the figure. Both ends run and have the tree."""
        rng = random.Random(SEED + 2)
        times: list[float] = []
        for number in range(self.sizes.latency_rounds):
            self.peer.settle()
            body = rng.randbytes(4096)
            name = f"dir{number % self.sizes.folders:03d}/probe{number:02d}.bin"
            fars = [root / name for root in self.peer.fars]
            pushed = threading.Thread(target=self.peer.push) if not self.peer.live else None
            began = time.perf_counter()
            (self.peer.near / name).write_bytes(body)
            if pushed:
                pushed.start()
            while True:
                try:
                    if all(far.read_bytes() == body for far in fars):
                        break
                except FileNotFoundError:
                    pass
                if time.perf_counter() - began > self.timeout:
                    raise NotEqualInTime(f"{name} is not at B after {self.timeout:.0f} s")
                time.sleep(0.001)
            times.append(time.perf_counter() - began)
            if pushed:
                pushed.join()
            # Not synchronisation: a change that follows another at once would find watchers half awake.
            time.sleep(1)
        good = all(equal(self.peer.near, far) for far in self.peer.fars)
        return Result(
            self.peer.label,
            "latency",
            "equal" if good else "DIFFERENT",
            round(statistics.median(times), 4) if good else None,
            extra={
                "min_s": round(min(times), 4),
                "max_s": round(max(times), 4),
                "p95_s": round(sorted(times)[-(-len(times) * 19 // 20) - 1], 4),
            },
        )

    def idle(self) -> Result:
        """See the module's text; both ends run and have the tree."""
        self.peer.settle()
        with Meter(self.peer.pids(), interval=1.0) as meter:
            time.sleep(self.sizes.idle_s)
        return self._result("idle", self.sizes.idle_s, meter)

    def renames(self) -> Result:
        """See the module's text; both ends run and have the tree."""
        self.peer.settle()
        return self._carry("renames", lambda: rename_burst(self.peer.near, self.sizes))

    def patch(self) -> Result:
        """See the module's text; both ends run and have the large file."""
        self.peer.settle()
        near, *fars = (root / "big.bin" for root in (self.peer.near, *self.peer.fars))
        where = near.stat().st_size // BLOCK // 3 * BLOCK
        block = random.Random(SEED + 3).randbytes(BLOCK)

        def write() -> None:
            with open(near, "r+b") as stream:
                stream.seek(where)
                stream.write(block)

        def seen() -> float:
            return max(wait_file_alike(near, far, self.timeout, also=where) for far in fars)

        return self._carry("patch", write, seen)


def measure(
    peer: Peer, wanted: set[str], fresh: Callable[[], Path], corpora: Corpora, timeout: float
) -> Iterator[Result]:
    """Run the wanted scenarios of one peer once; a failure costs its own scenario, not the others.

    ``fresh`` gives a new empty folder for each set-up.
    """
    sizes = corpora.sizes

    def run() -> Run:
        return Run(peer, fresh(), corpora, sizes, timeout)

    def guarded(scenario: str, step: Callable[[], Result]) -> Result:
        try:
            return step()
        except (Failed, NotEqualInTime, OSError) as error:
            return Result(peer.label, scenario, f"failed: {error}")

    try:
        if wanted & {"cold", "latency", "idle", "renames"}:
            one = run()
            first = guarded("cold", lambda: one.cold("cold", "small"))
            if "cold" in wanted or first.outcome != "equal":
                yield first
            if first.outcome == "equal":
                if "latency" in wanted:
                    yield guarded("latency", one.latency)
                if "idle" in wanted and peer.live:
                    yield guarded("idle", one.idle)
                if "renames" in wanted:
                    yield guarded("renames", one.renames)
            peer.stop()
        if "join" in wanted and isinstance(peer, Frs | Syncthing):
            yield guarded("join", run().join)
            peer.stop()
        if "drop" in wanted:
            yield guarded("drop", run().drop)
            peer.stop()
        if wanted & {"big", "patch"}:
            two = run()
            first = guarded("big", lambda: two.cold("big", "big"))
            if "big" in wanted or first.outcome != "equal":
                yield first
            if first.outcome == "equal" and "patch" in wanted:
                yield guarded("patch", two.patch)
            peer.stop()
    finally:
        peer.stop()
