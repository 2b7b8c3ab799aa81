"""How many change orders of one upstream partner may be in the inbound log ([MS-FRS1] 3.1.1.6).

Our own agents have at most 256 in flight on a connection, and as many in a VVJoin (and 2048 with what waits for
something: see flow); others fewer. Those that are not finished yet are bounded by a multiple of that. Those that wait
for a file of this host (see held), and those that are finished and wait for one that is not before the version vector
may follow, are as many as there are files and changes: they are bounded by what is in the tree. When a partner has
sent more, nothing more of that session is taken, for its change orders must not be passed over: what it sent before is
fetched and installed, the rest waits in its outbound log, and when half of it is done the session ends, so that the
next one sends the rest.
"""

from __future__ import annotations

from agent.engine.context import Context
from agent.engine.entry import Stage
from agent.engine.inbound import Inbound
from agent.engine.session import Session
from agent.reporting.causes import Cause
from agent.reporting.events import led


class InboundWindow:
    """Counts the entries of each inbound connection. The numbers are taken anew only when a bound seems to be reached,
    so that a change order costs the same however many there are."""

    def __init__(self, ctx: Context, inbound: Inbound) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self._held: dict[bytes, tuple[int, int]] = {}  # by connection: not finished, and all; or fewer
        self._full: dict[bytes, bytes] = {}  # connection -> the session of which nothing more is taken

    @property
    def any_full(self) -> bool:
        """Whether of some session nothing more is taken."""
        return bool(self._full)

    def full(self, session: Session) -> bool:
        """Whether of this one nothing more is taken."""
        return self._full.get(session.cxtion.guid) == session.join_guid

    def refuses(self, session: Session) -> bool:
        """No more change orders are taken in this session."""
        guid = session.cxtion.guid
        if self.full(session):
            return True
        limits = self.ctx.limits
        unfinished, held = self._held.get(guid, (0, 0))
        if unfinished < limits.inbound_window and (held < limits.inbound_log or held < self._most()):
            return False
        unfinished, held = self._count(guid)
        if unfinished < limits.inbound_window and held < self._most():
            return False
        self._full[guid] = session.join_guid
        name = session.cxtion.partner.name
        behind = held - unfinished
        session.last_error = f"20339 {unfinished} change orders of {name} are not finished, and {behind} wait for them"
        text = f"{session.last_error}{self._oldest(guid)}; no more are taken until half of them are"
        self.ctx.incident(Cause.FLOOD, name, led(f"{session.cxtion.key}: ", text))
        return True

    def took(self, session: Session) -> None:
        """A change order of the session came into the inbound log."""
        unfinished, held = self._held.get(session.cxtion.guid, (0, 0))
        self._held[session.cxtion.guid] = unfinished + 1, held + 1

    def _most(self) -> int:
        return self.ctx.limits.inbound_log + 2 * sum(self.ctx.store.counts()[:2])

    def _count(self, guid: bytes) -> tuple[int, int]:
        mine = [entry for entry in self.inbound.entries.values() if entry.came_by(guid)]
        unfinished = sum(entry.stage < Stage.FINISHED and entry not in self.inbound.held for entry in mine)
        self._held[guid] = unfinished, len(mine)
        return self._held[guid]

    def _oldest(self, guid: bytes) -> str:
        waits = (e for e in self.inbound.entries.values() if e.came_by(guid) and e.stage < Stage.FINISHED)
        oldest = min(waits, key=lambda entry: entry.arrival, default=None)
        if oldest is None:
            return ""
        why = f" ({oldest.waits_for.value})" if oldest.waits_for is not None else ""
        return f", the oldest of them for {self.ctx.path(oldest.co)}{why}"

    def reopened(self, session: Session) -> bool:
        """Half of what filled the window is done: the session may end, for the next one."""
        guid = session.cxtion.guid
        if not self.full(session) or not session.joined:
            self._full.pop(guid, None)
            return False
        unfinished, held = self._count(guid)
        if unfinished > self.ctx.limits.inbound_window // 2 or held > self._most() // 2:
            return False
        del self._full[guid]
        return True
