"""What becomes of a set when its engine fails on an event: a fault of this program, which somebody may have found on
purpose, and which is to cost its finder more than the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from agent.engine import events as ev
from agent.wire.packet import Packet, describe

FIRST_BAR_S: Final = 10.0
LONGEST_BAR_S: Final = 3600.0
#: So many faults with other events than packets, in that time, end the set: it would not come back by itself.
FAULTS_MOST: Final = 5
FAULTS_IN_S: Final = 3600.0


class Faults:
    """Keeps the partners whose packets the engine failed on away for a while that doubles each time, from 10 s to an
    hour, and counts the other faults. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bars: dict[bytes, tuple[float, float]] = {}  # partner -> barred until, for how long
        self._times: deque[float] = deque(maxlen=FAULTS_MOST)

    def bar(self, partner: bytes) -> float:
        """Keep the partner (a member GUID) away; returns for how many seconds."""
        now = self._clock()
        until, last = self._bars.get(partner, (now, 0.0))
        grown = FIRST_BAR_S if not last or now - until > LONGEST_BAR_S else min(2 * last, LONGEST_BAR_S)
        self._bars[partner] = (now + grown, grown)
        return grown

    def barred(self, partner: bytes) -> bool:
        """Nothing is taken from the partner now."""
        bar = self._bars.get(partner)
        return bar is not None and self._clock() < bar[0]

    def too_many(self) -> bool:
        """Count a fault that no packet caused; True when the set had better stop."""
        now = self._clock()
        self._times.append(now)
        return len(self._times) == FAULTS_MOST and now - self._times[0] < FAULTS_IN_S


def survives(event: ev.Event) -> bool:
    """The event means the same to an engine that was made anew: it is no answer to an action of the one before."""
    return isinstance(event, ev.PacketReceived | ev.LocalChange | ev.PartnerUnreachable | ev.ForceReplication)


def told(event: ev.Event) -> str:
    """An event, for a log."""
    if isinstance(event, ev.PacketReceived):
        return _described(event.packet)
    if isinstance(event, ev.LocalChange):
        return f"the local change ({event.kind.value}) of {event.name!r}"
    return type(event).__name__


def _described(packet: Packet) -> str:
    try:
        return describe(packet)
    except Exception:  # it is about a packet that something failed on already
        return packet.command_name


def answer_to(action: ev.Action, error: Exception) -> ev.Event | None:
    """What to tell the engine of an action that could not even be begun. What was to be sent and cannot ends the
    session: the partner must not take a later packet for the next one."""
    why = f"{type(error).__name__}: {error}"
    match action:
        case ev.Send():
            return ev.PartnerUnreachable(action.partner, f"13506 {action.packet.command_name} cannot be sent: {why}")
        case ev.StoreBlock():
            return ev.FetchFailed(action.co_guid, ev.Outcome.FAILED, why)
        case ev.ReadStage():
            return ev.StageRefused(action, True, why)
        case ev.Install():
            return ev.Installed(action.co_guid, ev.Outcome.FAILED, detail=why)
    return None
