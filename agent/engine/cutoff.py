"""What may not be sent any more to a partner that could not be reached ([MS-FRS1] 3.3.4.4.1).

A packet that was lost must not be followed by a later one of its session: the partner would take the later change for
the next one, and its version vector would pass over what it never saw. Whoever carries out the engine's actions learns
of the loss before the engine does, whose queue may be long: until the engine has heard of it too, and has ended the
sessions, nothing goes to that partner.
"""

from __future__ import annotations

from agent.engine.events import Action, Event, PartnerUnreachable, Send


class Cutoff:
    """Losses that the engine does not know of yet, per partner (member GUID)."""

    def __init__(self) -> None:
        self._lost: dict[bytes, int] = {}

    def lost(self, partner: bytes) -> None:
        """A packet was lost; a PartnerUnreachable is in the engine's queue, or will be."""
        self._lost[partner] = self._lost.get(partner, 0) + 1

    def handled(self, event: Event, actions: list[Action]) -> None:
        """The engine has handled the event; what it wanted to send before is taken out of `actions`."""
        if isinstance(event, PartnerUnreachable):
            left = self._lost.pop(event.partner, 1) - 1
            if left > 0:
                self._lost[event.partner] = left
            actions[:] = [a for a in actions if not (isinstance(a, Send) and a.partner == event.partner)]

    def stops(self, partner: bytes) -> bool:
        """Nothing may go to that partner now."""
        return partner in self._lost
