"""What an install replaces or removes: whether it lost a conflict and is to be kept, and against which version."""

from __future__ import annotations

from agent.engine.context import Context, facts_of
from agent.engine.entry import Entry
from agent.engine.events import Edition, InstallStep, Keep, KeepReason, Step
from agent.engine.inbound import Inbound
from agent.engine.records import MARKS, changed_here, edition_in, edition_of
from idtable.records import IDRecord


class Losers:
    """Of one replica set."""

    def __init__(self, ctx: Context, inbound: Inbound) -> None:
        self.ctx = ctx
        self.inbound = inbound

    def removal(self, entry: Entry, live: IDRecord) -> Step:
        """The step that removes what is here for a change order that deletes it."""
        keep = self.keep(entry, live, KeepReason.DELETED)
        if keep is None:
            keep = Keep(KeepReason.ELSEWHERE, edition_of(live), edition_in(entry.co, entry.checksum))
        return Step(
            InstallStep.DELETE, live.parent_guid, live.name, facts_of(live), file_guid=live.file_guid, keep=keep
        )

    def keep(self, entry: Entry, live: IDRecord, reason: KeepReason) -> Keep | None:
        """What was written or last changed here, and is replaced by a change that was not made from it, is kept.
        Elsewhere it need not be."""
        ours = changed_here(live, self.ctx.own_originators)
        if live.is_dir or not ours:
            return None
        if not entry.is_delete and entry.checksum == live.md5:
            return None
        if self.inbound.descent.descends(entry.co, live):
            return None
        winner = self._winner(entry) if entry.is_delete else None
        if winner is not None:
            return Keep(KeepReason.NAME, edition_of(live), winner)
        return Keep(reason, edition_of(live), edition_in(entry.co, entry.checksum))

    def _winner(self, entry: Entry) -> Edition | None:
        """The file that got the name, where a deletion bears no mark of descent: its file lost a conflict of names
        elsewhere (see LocalChanges.issue_removal)."""
        co = entry.co
        if co.ack_version & MARKS:
            return None
        coming = self.inbound.wanting(co.new_parent_guid, co.file_name, but=co.file_guid)
        if coming is not None:
            return edition_in(coming.co, coming.checksum)
        here = self.ctx.store.by_name(co.new_parent_guid, co.file_name)
        return edition_of(here) if here is not None and here.file_guid != co.file_guid else None
