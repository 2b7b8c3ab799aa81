"""A full window, or a VVJoin, whose change orders all wait, on the partner, for what is behind them in the log.

Where a folder was announced anew, or what was in it removed, while the partner was away or a VVJoin went on, all that
is in flight may wait for what comes only after it. When none was acknowledged for a while, the present versions of
their files, and of the folders these are in, go out of order; in their turn they are dampened.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.engine.context import SECOND, Context
from agent.engine.flow import Flow
from agent.engine.order import Key
from agent.engine.outbound import Outbound
from agent.engine.session import JoinState
from idtable.records import IDRecord

#: After so long without an acknowledgement a full window counts as stuck.
_PATIENCE = 30 * SECOND


class Stuck:
    """Looks after the windows of all outbound connections."""

    def __init__(self, ctx: Context, outbound: Outbound) -> None:
        self.ctx = ctx
        self.outbound = outbound

    def _held_up(self) -> Iterator[Flow]:
        """The connections that can send nothing more before something is acknowledged."""
        for flow in self.outbound.flows.values():
            state = flow.session.state
            full = state is JoinState.JOINED and len(flow.unacked) >= self.ctx.limits.window
            if full or (state is JoinState.VVJOIN and flow.vvjoin_unacked):
                yield flow

    def deadlines(self) -> list[int]:
        """When to look next, as FILETIMEs."""
        return [flow.moved_at + _PATIENCE for flow in self._held_up()]

    def tick(self) -> None:
        """Send what the change orders of a stuck window may wait for."""
        for flow in self._held_up():
            if flow.moved_at + _PATIENCE <= self.ctx.now:
                flow.moved_at = self.ctx.now
                for record in list(self._later(flow)):
                    flow.ahead.add((record.originator_guid, record.originator_vsn))
                    self.outbound.send_present(flow, record)

    def _in_flight(self, flow: Flow) -> Iterator[Key]:
        for co_guid in dict.fromkeys(flow.unacked.values()):
            row = self.ctx.store.outlog_by_co(co_guid)
            if row is not None:
                yield row.file_guid, row.originator, row.vsn
        yield from list(flow.offered.values())

    def _later(self, flow: Flow) -> Iterator[IDRecord]:
        """The records of what is in flight that are newer than that, and the folders above, topmost first; each once
        in a session."""
        store = self.ctx.store
        found: dict[tuple[bytes, int], IDRecord] = {}
        for file_guid, *version in self._in_flight(flow):
            record = store.get(file_guid)
            line: list[IDRecord] = []
            if record is not None and [record.originator_guid, record.originator_vsn] != version:
                line.append(record)
            seen: set[bytes] = set()
            while record is not None and record.parent_guid != self.ctx.config.root_guid:
                record = None if record.parent_guid in seen else store.get(record.parent_guid)
                if record is not None:
                    seen.add(record.file_guid)
                    line.append(record)
            for item in reversed(line):
                found.setdefault((item.originator_guid, item.originator_vsn), item)
        return (record for key, record in found.items() if key not in flow.ahead)
