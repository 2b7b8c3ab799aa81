"""Ports for what a test runs. A port that is free now is no port of the test yet: while a member that was killed is
down, somebody else's test could be given it, or the kernel could give it to an outgoing connection. So each process
takes a range for itself, below those of outgoing connections, for as long as it lives, and gives out its ports in turn.
"""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

_LOWEST = 10240
_SIZE = 400


class _Range:
    """The range of this process. An abstract socket is its mark: it goes with the process, however that ends."""

    def __init__(self) -> None:
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        bases = list(range(_LOWEST, highest - _SIZE, _SIZE))
        random.shuffle(bases)
        self._mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._base = next(base for base in bases if self._marks(base))
        self._next = 0

    def _marks(self, base: int) -> bool:
        """Takes a range that is nobody's."""
        try:
            self._mark.bind(f"\0frs-test-ports-{base}")
        except OSError:
            return False
        return True

    def take(self, count: int) -> int:
        """The first of `count` ports in a row that nobody listens on, next in turn."""
        for _ in range(_SIZE):
            if self._next + count > _SIZE:
                self._next = 0
            first = self._base + self._next
            used = [port for port in range(first, first + count) if _in_use(port)]
            self._next = (used[-1] + 1 if used else first + count) - self._base
            if not used:
                return first
        raise AssertionError(f"no {count} ports in a row are free from {self._base} on")


_ranges: list[_Range] = []
_lock = threading.Lock()  # campaigns run several demos in threads


def port_base(count: int = 10) -> int:
    """The first of `count` ports in a row, which are this test's: nobody listens there, and no other test will."""
    with _lock:
        if not _ranges:
            _ranges.append(_Range())
        return _ranges[0].take(count)


def free_ports(count: int = 2) -> list[int]:
    """Ports that are this test's, likewise."""
    first = port_base(count)
    return list(range(first, first + count))


def free_port() -> int:
    """A port that is this test's, likewise."""
    return port_base(1)


def _in_use(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))  # on any address
            one.listen(1)
        except OSError:
            return True
    return False
