"""A full window, or a VVJoin, whose change orders all wait, on the partner, for what is behind them in the log.

Where a folder was announced anew, or what was in it removed, while the partner was away or a VVJoin went on, all that
is in flight may wait for what comes only after it. When none was acknowledged for a while, the present versions of
their files, and of the folders these are in, go out of order; in their turn they are dampened. And where something from
the partner waits here for a folder that was removed here, the partner cannot know that, for the removal is behind in
the log, too: it goes out of order, so that the partner has the folder stay for what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.engine.context import Context
from agent.engine.flow import Flow
from agent.engine.inbound import Inbound
from agent.engine.order import Key
from agent.engine.outbound import Outbound
from agent.engine.records import forgotten
from agent.engine.session import JoinState
from agent.wire.filetime import SECOND
from idtable.records import IDRecord

#: After so long without an acknowledgement a full window counts as stuck.
_PATIENCE = 30 * SECOND


class Stuck:
    """Looks after the windows of all outbound connections."""

    def __init__(self, ctx: Context, inbound: Inbound, outbound: Outbound) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.outbound = outbound

    def _held_up(self) -> Iterator[Flow]:
        """The connections that can send nothing more before something is acknowledged."""
        for flow in self.outbound.flows.values():
            state = flow.session.state
            full = state is JoinState.JOINED and flow.unacked.room(self.ctx.limits.window, self.ctx.now) <= 0
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
                for record in [*self._removed(flow), *self._later(flow)]:
                    version = (record.originator_guid, record.originator_vsn)
                    if version not in flow.ahead:  # each once in a session
                        flow.ahead.add(version)
                        self.outbound.send_present(flow, record)

    def _removed(self, flow: Flow) -> Iterator[IDRecord]:
        """The folders removed here for which something that the partner sent waits."""
        partner = flow.session.cxtion.partner.guid
        folders: dict[bytes, None] = {}
        for entry in self.inbound.orphans:
            offered = (entry.cxtion, *(guid for guid, _ in entry.alternates))
            if any(self.inbound.sessions[guid].cxtion.partner.guid == partner for guid in offered):
                folders[entry.co.new_parent_guid] = None
        for folder in sorted(folders):
            record = self.ctx.store.get(folder)
            if record is not None and record.deleted and not forgotten(record):
                yield record

    def _in_flight(self, flow: Flow) -> Iterator[Key]:
        for co_guid in dict.fromkeys(flow.unacked.values()):
            row = self.ctx.store.outlog_by_co(co_guid)
            if row is not None:
                yield row.file_guid, row.originator, row.vsn
        yield from list(flow.offered.values())

    def _later(self, flow: Flow) -> Iterator[IDRecord]:
        """The records of what is in flight that are newer than that, and the folders above, topmost first."""
        store = self.ctx.store
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
            yield from reversed(line)
