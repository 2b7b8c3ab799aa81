"""What is under way to one downstream partner ([MS-FRS1] 3.1.1.8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from agent.engine.backlog import Tally, Waits
from agent.engine.order import Key
from agent.engine.session import Session
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.filetime import SECOND

#: What was not acknowledged for so long takes no place in the window any more, until so many windows are in flight: it
#: waits there for something, and nothing else is to wait for it.
OVERDUE: Final = 2 * SECOND
MOST_WINDOWS: Final = 8


class InFlight(dict[int, bytes]):
    """Change orders that were sent and not acknowledged, in the order of sending: sequence numbers and the GUIDs of the
    change orders."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[int, int] = {}  # of those that take a place in the window, when they were sent
        self._numbers: dict[bytes, list[int]] = {}  # of each change order, which may be sent twice
        self._passed_on: set[int] = set()  # those of other members' changes
        self._sizes: dict[int, tuple[int, int]] = {}  # bytes of content, and since when they wait
        self._bytes = 0

    def send(
        self, number: int, co_guid: bytes, now: int, *, passed_on: bool = False, size: int = 0, since: int = 0
    ) -> None:
        """The change order is sent now (FILETIME). `passed_on`: it came from another member. `size`: bytes of content;
        `since`: it was logged then, where that is known."""
        if passed_on:
            self._passed_on.add(number)
        self[number] = co_guid
        self._bytes += size - self._sizes.pop(number, (0, 0))[0]
        self._sizes[number] = size, since or now
        self._sent[number] = now
        self._numbers.setdefault(co_guid, []).append(number)

    def has(self, co_guid: bytes) -> bool:
        """Whether the change order is in flight."""
        return co_guid in self._numbers

    def numbers(self, co_guid: bytes) -> list[int]:
        """The sequence numbers that the change order is in flight with, in the order of sending."""
        return list(self._numbers.get(co_guid, ()))

    def acknowledge(self, number: int) -> None:
        """The change order is in flight no more, if it was."""
        co_guid = self.pop(number, None)
        self._sent.pop(number, None)
        self._bytes -= self._sizes.pop(number, (0, 0))[0]
        self._passed_on.discard(number)
        if co_guid is not None:
            numbers = self._numbers[co_guid]
            numbers.remove(number)
            if not numbers:
                del self._numbers[co_guid]

    def end(self) -> None:
        """Nothing is in flight."""
        self.clear()
        self._sent.clear()
        self._sizes.clear()
        self._bytes = 0
        self._passed_on.clear()
        self._numbers.clear()

    @property
    def waits(self) -> Waits:
        """All that is in flight."""
        return Waits(len(self), self._bytes, next(iter(self._sizes.values()))[1] if self._sizes else 0)

    @property
    def mostly_passed_on(self) -> bool:
        """Whether more than half of them are other members' changes."""
        return 2 * len(self._passed_on) > len(self)

    def room(self, window: int, now: int) -> int:
        """How many more may be sent now, where a window has `window` places; 0 or less for none."""
        while self._sent:
            number, when = next(iter(self._sent.items()))
            if 0 <= now - when < OVERDUE:
                break
            del self._sent[number]
        return min(window - len(self._sent), MOST_WINDOWS * window - len(self))

    def more_room_at(self, window: int) -> int | None:
        """When there will be room because of the time that has passed (FILETIME); None when there is, or never will
        be."""
        if len(self._sent) < window or len(self) >= MOST_WINDOWS * window:
            return None
        return next(iter(self._sent.values())) + OVERDUE


@dataclass(slots=True)
class Flow:
    """What one outbound connection has in flight."""

    session: Session
    leading: int = 0
    trailing: int = 0
    unacked: InFlight = field(default_factory=InFlight)
    vvjoin: Iterator[tuple[ChangeOrder, CoExtension2]] | None = None
    upcoming: deque[tuple[ChangeOrder, CoExtension2]] = field(default_factory=deque)  # next of those
    vvjoin_unacked: InFlight = field(default_factory=InFlight)
    offered: dict[bytes, Key] = field(default_factory=dict)  # change order -> the change, of those in vvjoin_unacked
    resume_at: int = 0
    moved_at: int = 0  # when the last change order was acknowledged, or sent after that (see stuck)
    tally: Tally = field(default_factory=Tally)  # of the log behind `leading`
    ahead: set[tuple[bytes, int]] = field(default_factory=set)  # originators and VSNs sent out of order (see stuck)

    @property
    def reach(self) -> int:
        """Up to this number of the outbound log the session has sent all, or is about to in its VVJoin."""
        return self.leading if self.vvjoin is None else self.resume_at
