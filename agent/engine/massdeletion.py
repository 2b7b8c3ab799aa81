"""Mass deletions: one member deletes many files within a short time, by intent or by mistake. They are carried out like
all others; an administrator is told of them, while what was deleted can still be had back (see
agent.conflicts.deleted).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from agent.engine.context import Context
from agent.engine.session import Session
from agent.reporting.causes import Cause
from agent.wire.filetime import MINUTE, SECOND
from agent.wire.guid import ZERO_GUID, guid_text

FEWEST: Final = 10  # so many files are no mass, whatever share of all they are
_REMEMBERED: Final = 16
_REMEMBERED_BY: Final = 128


@dataclass(slots=True)
class MassDeletion:
    """`files` deleted by the member with the originator GUID `originator` (`name` where it is known, "" for this one)
    between two FILETIMEs; the zero GUID: by several, all by change orders from `partner`."""

    originator: bytes
    name: str | None
    files: int
    began: int
    last: int
    partner: str = ""


class MassDeletions:
    """Counts deletions by originator and by partner. `sessions` gives those in which a partner told its originator."""

    def __init__(self, ctx: Context, sessions: Callable[[], Iterable[Session]]) -> None:
        self.ctx = ctx
        self._sessions = sessions
        self._recent: dict[bytes | str, deque[int]] = {}  # originator or partner -> when; who was last at the end
        self._found: deque[MassDeletion] = deque(maxlen=_REMEMBERED)

    def deleted(self, originator: bytes, partner: str) -> None:
        """A file was deleted, here or by a change order that came from `partner`. It counts for the originator and for
        the partner, who may say of each that it is another originator's."""
        ctx, limits = self.ctx, self.ctx.limits
        times = self._count(originator)
        through = self._count(partner) if partner else times
        share = (ctx.store.counts()[0] + len(through)) * limits.mass_deletion_percent / 100
        most = min(limits.mass_deletion_count, max(FEWEST, share))
        many = len(times) > most
        going_on = self._going_on(lambda m: m.originator == originator)
        if going_on is None and not many and partner:
            going_on = self._going_on(lambda m: m.partner == partner)
        if going_on is not None:
            if going_on.originator in (originator, ZERO_GUID):
                going_on.files += 1
                going_on.last = ctx.now
        elif many:
            mass = MassDeletion(originator, self._name(originator), len(times), times[0], ctx.now, partner)
            self._report(mass, partner)
        elif len(through) > most:
            self._report(MassDeletion(ZERO_GUID, partner, len(through), through[0], ctx.now, partner), partner)

    def _count(self, whose: bytes | str) -> deque[int]:
        """When the last deletions were, this one included."""
        ctx, limits = self.ctx, self.ctx.limits
        times = self._recent.pop(whose, None) or deque()
        self._recent[whose] = times
        if len(self._recent) > _REMEMBERED_BY:
            del self._recent[next(iter(self._recent))]
        if times and ctx.now < times[-1] - MINUTE:  # the clock was set back
            times.clear()
        times.append(ctx.now)
        while ctx.now - times[0] > limits.mass_deletion_window or len(times) > limits.mass_deletion_count + 1:
            times.popleft()
        return times

    def _going_on(self, is_it: Callable[[MassDeletion], bool]) -> MassDeletion | None:
        found = next((m for m in reversed(self._found) if is_it(m)), None)
        goes_on = found is not None and found.last <= self.ctx.now <= found.last + self.ctx.limits.mass_deletion_window
        return found if goes_on else None

    def told(self) -> list[dict[str, Any]]:
        """The last mass deletions since the start, the newest first; times as FILETIMEs."""
        own = self.ctx.own_originators
        return [
            {
                "by": m.name or None,
                "originator_guid": guid_text(m.originator),
                "this_member": m.originator in own,
                "files": m.files,
                "began": m.began,
                "last": m.last,
            }
            for m in reversed(self._found)
        ]

    def _report(self, mass: MassDeletion, partner: str) -> None:
        ctx = self.ctx
        self._found.append(mass)
        within = f"within {ctx.limits.mass_deletion_window / SECOND:g} seconds"
        much = f"{mass.files} files and more were deleted"
        if mass.name == "":
            ctx.incident(
                Cause.MASS_DELETION,
                ctx.config.member.name,
                f"{much} in this tree {within}, and so they are on the other members; what those keep of them, for a "
                "while, `frs conflicts list --deleted` shows there",
            )
            return
        who = mass.name or f"the member with the originator GUID {guid_text(mass.originator)}"
        if mass.originator == ZERO_GUID:
            who = f"changes that {partner} sent, of several members, as it says"
        via = f" (received from {partner})" if partner != mass.name else ""
        ctx.incident(
            Cause.MASS_DELETION,
            mass.name or partner,
            f"{much} {within} by {who}{via}; what is kept of them here, for a while, `frs conflicts list --deleted` "
            "shows, and `frs conflicts restore` gives it back",
        )

    def _name(self, originator: bytes) -> str | None:
        if originator in self.ctx.own_originators:
            return ""
        found = (s.cxtion.partner.name for s in self._sessions() if s.partner_originator == originator)
        return next(found, None)
