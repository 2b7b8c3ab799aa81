"""What the engine tells people: what is unfinished, and how the connections are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from agent.engine.backlog import Waits, content_bytes
from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.events import Outcome
from agent.engine.inbound import Inbound
from agent.engine.joining import InboundSessions, OutboundSessions
from agent.engine.outbound import Outbound
from agent.engine.session import NEVER
from agent.wire.filetime import HOUR
from agent.wire.guid import ZERO_GUID, guid_text

#: Change orders that are named as unfinished.
_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """A change order that waits to be tried again: who sent it, for the file at `path`, since when and until when
    (FILETIMEs)."""

    co_guid: bytes
    sender: str
    path: str
    reason: Outcome
    detail: str
    attempts: int
    since: int
    retry_at: int


class Telling:
    """Reads the state of the others."""

    def __init__(
        self,
        ctx: Context,
        inbound: Inbound,
        outbound: Outbound,
        in_sessions: InboundSessions,
        out_sessions: OutboundSessions,
    ) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.outbound = outbound
        self.in_sessions = in_sessions
        self.out_sessions = out_sessions

    def pending(self) -> dict[str, int]:
        """What is unfinished: change orders in (`inbound`) and out (`outbound`)."""
        return {
            "inbound": sum(1 for e in self.inbound.entries.values() if e.stage < Stage.FINISHED),
            "outbound": sum(self.outbound.backlog(f) for f in self.outbound.flows.values()),
        }

    def is_at_rest(self) -> bool:
        """Nothing is unfinished, and all is joined that should be."""
        sessions = [*self.in_sessions.sessions.values(), *self.out_sessions.sessions.values()]
        joined = all(session.joined or not session.is_open(self.ctx.now) for session in sessions)
        return joined and self.ctx.online and not any(self.pending().values())

    def waiting(self, most: int) -> list[Waiting]:
        """What waits to be tried again, at most so many; the oldest first, where they are that many."""
        entries = (self.inbound.entries.get(key) for key in self.inbound.waiting)
        waiting = [e for e in entries if e is not None and e.waits_for is not None and e.stage < Stage.FINISHED]
        return [
            Waiting(
                e.guid,
                self.inbound.sender(e),
                self._path(e),
                e.waits_for,
                e.detail,
                e.all_attempts,
                e.first_try,
                e.retry_at,
            )
            for e in islice(sorted(waiting, key=lambda e: e.arrival), most)
            if e.waits_for is not None
        ]

    def transfers(self, most: int) -> list[dict[str, Any]]:
        """Staging files that are being fetched, and how many bytes of them are there; their size where it is known."""
        fetched = (e for e in self.inbound.entries.values() if e.stage is Stage.FETCHING)
        return [
            {
                "id": guid_text(e.co.change_order_guid),
                "partner": self.inbound.sessions[e.cxtion].cxtion.partner.name,
                "path": self._path(e),
                "received": e.received,
                "size": e.stage_size or None,
            }
            for e in islice(fetched, most)
        ]

    def _path(self, entry: Entry) -> str:
        """Where the file is; where it is to be, if it is not here."""
        there = self.ctx.store.path_of(entry.co.file_guid)
        if there is not None:
            return there
        folder = self.ctx.store.path_of(entry.co.new_parent_guid, through_tombstones=True)
        return f"{folder}/{entry.co.file_name}" if folder else entry.co.file_name

    def pending_text(self) -> list[str]:
        """What is unfinished, for people."""
        unfinished: list[Entry] = []
        ahead: dict[str, list[int]] = {}
        for entry in self.inbound.entries.values():
            if entry.stage >= Stage.FINISHED:
                continue
            if self.inbound.ahead.waits(entry.key):
                ahead.setdefault(self.inbound.sender(entry), []).append(entry.co.event_time - self.ctx.now)
            else:
                unfinished.append(entry)
        lines = [
            f"change order {guid_text(e.co.change_order_guid)} of {self.inbound.sender(e)} for {self.ctx.path(e.co)}: "
            + (e.stage.name.lower() if e.key not in self.inbound.waiting else self._waits(e))
            for e in unfinished[:_TOLD]
        ]
        if len(unfinished) > _TOLD:
            lines.append(f"and {len(unfinished) - _TOLD} more change orders")
        lines += [
            f"{len(by)} change orders of {sender} are dated ahead of the clock, by up to {max(by) / HOUR:.1f} hours: "
            f"each is looked at when the clock comes to it; compare the clocks of {sender} and of this host"
            for sender, by in sorted(ahead.items())
        ]
        for flow in self.outbound.flows.values():
            backlog = self.outbound.backlog(flow)
            if backlog:
                lines.append(f"{flow.session.cxtion.key}: {backlog} change orders not acknowledged")
        if not self.ctx.online:
            lines.append("initial sync is not finished")
            lines += [
                s.last_error
                for s in self.in_sessions.sessions.values()
                if s.unanswered and not s.joined and s.last_error
            ]
        return lines

    @staticmethod
    def _waits(entry: Entry) -> str:
        why = f": {entry.waits_for.value}" if entry.waits_for is not None else ""
        return f"waits{why}{f' ({entry.detail})' if entry.detail else ''}"

    def connections(self) -> list[dict[str, Any]]:
        """The connections' states; times as FILETIMEs, None for none. `since`: it was first told to be joined, or not
        joined, as it is; it is told of with each sample. `oldest`: since when the first of the backlog waits."""
        found = []
        to_come = self._to_come()
        for inbound, sessions in ((True, self.in_sessions.sessions), (False, self.out_sessions.sessions)):
            for session in sessions.values():
                if inbound:
                    waits = to_come.get(session.cxtion.guid, Waits())
                else:
                    waits = self.outbound.waits(self.outbound.flows[session.cxtion.guid])
                if self.ctx.now and session.told_joined is not session.joined:
                    session.told_joined, session.told_since = session.joined, self.ctx.now
                found.append(
                    {
                        "name": session.cxtion.key,
                        "guid": guid_text(session.cxtion.guid),
                        "direction": "inbound" if inbound else "outbound",
                        "partner": session.cxtion.partner.name,
                        "state": session.state.value,
                        "scheduled": session.is_open(self.ctx.now),
                        "since": session.told_since or None,
                        "backlog": waits.many,
                        "backlog_bytes": waits.size,
                        "oldest": waits.oldest or None,
                        "last_join_time": None if session.joined_time == NEVER else session.joined_time,
                        "last_error": session.last_error,
                        "deadline": session.deadline if not session.joined and session.deadline else None,
                        "join_guid": None if session.join_guid == ZERO_GUID else guid_text(session.join_guid),
                    }
                )
        return found

    def _to_come(self) -> dict[bytes, Waits]:
        """What is unfinished, by the connection that it came by."""
        found: dict[bytes, list[Entry]] = {}
        for entry in self.inbound.entries.values():
            if entry.stage < Stage.FINISHED and entry.came_by(entry.cxtion):
                found.setdefault(entry.cxtion, []).append(entry)
        return {
            guid: Waits(
                len(entries),
                sum(content_bytes(entry.co) for entry in entries),
                min((entry.first_try for entry in entries if entry.first_try), default=0),
            )
            for guid, entries in found.items()
        }
