"""What members write down of their counters, read while they do, line by line, with the time at which the kernel says
it was written: so what a summary makes of it can be held against what was."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

#: Seconds between two looks.
_PAUSE_S: Final = 0.05


@dataclass
class Start:
    """One start of a member: the newest line of each instance, which is a set where the connection is empty, and by
    which clock it was taken and written."""

    newest: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    samples: int = 0
    labels: set[str] = field(default_factory=set)
    _written: list[tuple[float, float]] = field(default_factory=list)  # seconds since the start, by whom

    def take(self, row: dict[str, Any]) -> None:
        """A line."""
        place = row["set"], row["connection"]
        before = self.newest.get(place, {"mono_us": -1})
        if row["mono_us"] > before["mono_us"]:
            self.newest[place] = row
        self.samples = max(self.samples, row["seq"])
        self.labels.add(row["time"])

    def written(self, when: float) -> None:
        """What was taken is in the file since then, in seconds of the kernel's clock."""
        self._written.append((self.seconds, when))

    @property
    def seconds(self) -> float:
        """How long it has run, as it says itself."""
        return max(row["mono_us"] for row in self.newest.values()) / 1e6

    def really(self) -> float:
        """How long it has run by the kernel's clock. A line is written a little later than it was taken, and more than
        that where the host is busy: so what counts is the least that any was late, in the first half and in the second.
        """
        middle = len(self._written) // 2
        early, late = (
            min(when - taken for taken, when in part) for part in (self._written[:middle], self._written[middle:])
        )
        return self.seconds + late - early

    def totals(self, connection: str = "") -> dict[str, int]:
        """What was counted, of the one set or of a connection of it."""
        found = [row["counters"] for (_, name), row in self.newest.items() if name == connection]
        assert len(found) <= 1
        return found[0] if found else {}


class Journals(threading.Thread):
    """Reads those in these folders, by member, until it is closed. A file that is removed is read to its end."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        super().__init__(name="journals")
        self.starts: dict[str, dict[int, Start]] = {name: {} for name in folders}
        self._folders = folders
        self._files: dict[Path, IO[bytes]] = {}
        self._rest: dict[Path, bytes] = {}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failed: BaseException | None = None

    def run(self) -> None:
        """Look again and again."""
        while not self._closing.wait(_PAUSE_S):
            try:
                self.look()
            except BaseException as error:
                self._failed = error
                return

    def close(self) -> None:
        """Look once more, and end."""
        self._closing.set()
        self.join()
        if self._failed is not None:
            raise self._failed
        self.look()
        for file in self._files.values():
            file.close()

    def look(self) -> None:
        """Take in what is new."""
        with self._lock:
            for member, folder in self._folders.items():
                for path in sorted(folder.glob("*.jsonl")):
                    if path not in self._files:
                        self._files[path] = path.open("rb", buffering=0)
                for path in sorted(one for one in self._files if one.parent == folder):
                    self._take(member, path)

    def _take(self, member: str, path: Path) -> None:
        file = self._files[path]
        status = os.fstat(file.fileno())
        new = file.read(status.st_size - file.tell()) or b""
        if not new:
            return
        *lines, self._rest[path] = (self._rest.get(path, b"") + new).split(b"\n")
        for line in lines:
            row = json.loads(line)
            start = self.starts[member].setdefault(row["start"], Start())
            start.take(row)
        if lines:
            boot = status.st_mtime_ns - time.time_ns() + time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            start.written(boot / 1e9)
