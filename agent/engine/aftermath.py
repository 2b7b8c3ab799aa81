"""What an install leaves to be recorded besides its own file, and what could not be done ([MS-FRS1] 3.3.4.4.8)."""

from __future__ import annotations

from dataclasses import dataclass

from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.events import Examine, FetchFailed, Installed, InstallStep, Outcome
from agent.engine.inbound import Inbound
from agent.engine.local import LocalChanges
from agent.engine.names import Verdict
from agent.engine.records import mark_of
from agent.engine.retire import Retire
from agent.reporting.causes import Cause
from agent.wire.filetime import SECOND
from agent.wire.guid import guid_text
from idtable.records import IDRecord

Identity = tuple[bytes, int] | None  # originator and VSN of the version an install was made for


@dataclass(slots=True)
class InstallUnderWay:
    """An Install action under way. `touched`: the files it may move or remove."""

    base: Identity
    touched: frozenset[bytes]
    verdict: Verdict


def identity(record: IDRecord | None) -> Identity:
    return None if record is None else (record.originator_guid, record.originator_vsn)


class Aftermath:
    """Makes the IDTable follow the tree where an install did more or less than what its change order says."""

    def __init__(self, ctx: Context, inbound: Inbound, local: LocalChanges, retire: Retire) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.local = local
        self.retire = retire

    def side_effects(self, verdict: Verdict) -> None:
        """What was moved aside or removed to make room."""
        ctx = self.ctx
        if verdict.vacated is not None:
            guid, parent, aside, announce = verdict.vacated
            other = ctx.store.get(guid)
            step = next((s for s in verdict.steps if s.step is InstallStep.VACATE), None)
            if other is None or other.deleted:
                pass
            elif step is not None and (other.parent_guid, other.name) != (step.parent_guid, step.name):
                # A local change moved it meanwhile: whichever came last on the disk is what is there now.
                ctx.out.append(Examine(other.parent_guid, other.name))
                ctx.out.append(Examine(parent, aside))
            else:
                other.parent_guid, other.name = parent, aside
                if announce or not self.inbound.pending_for(guid):
                    ctx.count_co("Morphed", True)
                    self.local.issue_resolution(other, base=mark_of(other))
                else:
                    self.retire.aside(other)
                    ctx.store.put(other)
        if verdict.removed is not None:
            other = ctx.store.get(verdict.removed)
            if other is not None and not other.deleted:
                self.local.issue_removal(other)

    def moved(self, verdict: Verdict, entry: Entry) -> None:
        """The file was renamed for a change order that is not at its end yet, and that may come to nothing."""
        record = self.ctx.store.get(entry.co.file_guid)
        for step in verdict.steps:
            if step.step is not InstallStep.RENAME or record is None or record.deleted:
                continue
            if (record.parent_guid, record.name) == (step.old_parent_guid, step.old_name):
                record.parent_guid, record.name = step.parent_guid, step.name
                self.retire.aside(record)
                self.ctx.store.put(record)

    def so_far(self, entry: Entry, event: Installed, running: InstallUnderWay) -> None:
        """Steps were carried out before the one that failed: the IDTable follows the tree."""
        verdict = running.verdict
        for step in verdict.steps[: event.done]:
            if step.step is not InstallStep.RENAME:
                self.side_effects(verdict)
                continue
            record = self.ctx.store.get(entry.co.file_guid)
            if record is not None and not record.deleted and identity(record) == running.base:
                record.parent_guid, record.name = verdict.parent, verdict.name
                self.retire.aside(record)
                self.ctx.store.put(record)

    def not_empty(self, entry: Entry, detail: str) -> None:
        """A folder that is to be removed holds something. What its remover did not know lives: then the folder stays,
        and is announced anew."""
        record = self.ctx.store.get(entry.co.file_guid)
        if record is None or not self._holds_news(entry):
            self.inbound.retry(entry, Outcome.NOT_EMPTY, detail)
        else:
            self.stays(entry, record)

    def stays(self, entry: Entry, record: IDRecord) -> None:
        """A removal is not carried out here: what stays is announced anew, so that it comes back elsewhere."""
        record.event_time = max(record.event_time, entry.co.event_time)
        above = max(entry.co.file_version_number, entry.beaten_version)
        self.retire.finish(entry, None, lost=True, then=lambda: self.local.reannounce(record, above=above))

    def refuse(self, entry: Entry, record: IDRecord | None, why: str) -> None:
        """The change order cannot be what it says. What is here of its file is announced anew, for others may have
        carried it out."""
        ctx, co, sender = self.ctx, entry.co, self.inbound.sender(entry)
        text = f"refused change order {guid_text(co.change_order_guid)} of {sender} for {ctx.path(co)}: {why}"
        ctx.incident(Cause.IMPLAUSIBLE, sender, text)
        above, live = max(co.file_version_number, entry.beaten_version), record is not None and not record.deleted
        then = (lambda: self.local.reannounce(record, above=above)) if record is not None and live else None
        self.retire.finish(entry, None, lost=True, then=then)

    def give_up(self, entry: Entry, why: str) -> None:
        """The change order is not tried again: this member may differ in its file until that is changed."""
        path = self.ctx.path(entry.co)
        self.ctx.report("error", f"{path}: {why}", Cause.GIVEN_UP, path, lasts=True)
        record = self.ctx.store.get(entry.co.file_guid)
        if entry.is_delete and record is not None and not record.deleted:
            self.stays(entry, record)
        else:
            self.retire.finish(
                entry, None, lost=not entry.former_cxtion, aborted=True
            )  # nobody waits for an answer then

    def unsupported(self, entry: Entry, why: str) -> None:
        """Trying again is of no use (see Outcome.UNSUPPORTED)."""
        self.give_up(entry, f"{Outcome.UNSUPPORTED.value}, and is given up until it is changed again: {why}")

    def damaged(self, entry: Entry, why: str) -> None:
        """The staging file is not what it should be."""
        partner = self.inbound.sessions[entry.cxtion].cxtion.partner.name
        self.ctx.incident(Cause.STAGING_FILE, partner, f"{self.ctx.path(entry.co)} from {partner}: {why}")

    def fetch_failed(self, event: FetchFailed) -> None:
        """A staging file could not be stored: it is fetched again later."""
        entry = self.inbound.entry_of(event.co_guid)
        if entry is None or entry.stage is not Stage.FETCHING:
            return
        if event.outcome is Outcome.UNSUPPORTED:
            self.unsupported(entry, event.error)
            return
        if event.cause is not None:
            partner = self.inbound.sessions[entry.cxtion].cxtion.partner.name
            text = f"{self.ctx.path(entry.co)} from {partner} is fetched again later: {event.error}"
            self.ctx.incident(event.cause, partner, text)
        self.inbound.retry(entry, event.outcome, event.error)

    def look_again(self, entry: Entry, running: InstallUnderWay) -> None:
        """The tree is not as the IDTable says: have the places compared."""
        places = {(step.parent_guid, step.name): None for step in running.verdict.steps}
        for step in running.verdict.steps:
            if step.old_name:
                places[(step.old_parent_guid, step.old_name)] = None
        self.ctx.out.extend(Examine(parent, name) for parent, name in places)

    def _holds_news(self, entry: Entry) -> bool:
        """The folder to be removed holds something live, and nothing is on its way that would remove that."""
        ctx, guid = self.ctx, entry.co.file_guid
        record = ctx.store.get(guid)
        if not entry.has_tried(ctx.limits.name_grace, ctx.now, ctx.limits) or record is None or record.deleted:
            return False
        if ctx.now - entry.first_try < 5 * SECOND:
            return False  # attempts follow each other quickly while the folder is being emptied
        if self.inbound.joining_anew(entry):
            return False
        late = entry.has_tried(ctx.limits.unknown_grace, ctx.now, ctx.limits)
        children = ctx.store.children(guid)
        if not children:  # it holds what is not in the IDTable: not yet, in initial sync; or never, what is excluded
            return not ctx.online or late
        # In the end what would move out of it may itself wait for a folder that is gone here, in a circle for ever; and
        # what is to be removed itself, and cannot be for now, will go, or stay by itself.
        coming = self._goes if late else self.inbound.pending_for
        return not any(coming(child.file_guid) for child in children)

    def _goes(self, file_guid: bytes) -> bool:
        return self.inbound.moving(file_guid) or self.inbound.being_removed(file_guid)
