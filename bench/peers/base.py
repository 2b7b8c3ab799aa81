"""What the scenarios ask of a measured program."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.processes import Failed, Meter


class Peer:
    """One program under measurement, replicating from a folder A ("near") to a folder B ("far").

    A *live* peer runs on both ends and notices changes itself. A *batch* peer is a command that someone runs
    after a change; its far end is a daemon. The life of a peer is: `lay`, then any of `start_far`,
    `start_near`, `settle`, `push`, then `stop`; `lay` may follow again.
    """

    key = ""
    live = True
    fsyncs = False
    seals = False

    def __init__(self) -> None:
        self.near = Path()
        self.far = Path()
        self.base = Path()

    @property
    def label(self) -> str:
        """The column's heading."""
        return self.key

    @property
    def fars(self) -> list[Path]:
        """All roots that replicate A: B, and those of further members."""
        return [self.far]

    def crossed(self) -> float | None:
        """How often each file was fetched, on average, to get to all of them; None where that is not counted."""
        return None

    def missing(self) -> str | None:
        """Why this peer cannot be measured here, or None."""
        return None if shutil.which(self.key) else f"{self.key} is not installed"

    def version(self) -> str:
        """The version the program itself gives."""
        raise NotImplementedError

    def lay(self, base: Path) -> None:
        """Make configuration and two empty roots below the new folder ``base``; sets `near` and `far`."""
        raise NotImplementedError

    def start_far(self) -> None:
        """Start the end that has B and return when it serves."""
        raise NotImplementedError

    def start_near(self) -> None:
        """Start the end that has A and return at once (a batch peer has nothing to start)."""

    def settle(self) -> None:
        """Return when both ends are connected and have nothing to do."""

    def push(self, meter: Meter | None = None) -> None:
        """Batch peers: run the command that carries A's changes to B."""
        raise NotImplementedError

    def pids(self) -> set[int]:
        """The processes of both ends (their descendants are found by the meter)."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all that was started; never raises for what has already ended."""
        raise NotImplementedError


def first_version(argv: list[str]) -> str:
    """The first dotted number a program prints."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
    return found.group() if found else "?"


def until(what: str, condition: Callable[[], bool], timeout: float = 600, poll: float = 0.05) -> None:
    """Poll ``condition`` until it is true; raises `Failed` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {timeout:.0f} s")
        time.sleep(poll)
