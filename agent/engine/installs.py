"""Judging and installing change orders ([MS-FRS1] 3.3.4.4.6, 3.3.4.4.8).

A change order names the whole state that its file or folder is to have: parent, name, content. Installing means to
make the tree so, in steps that may be repeated after a crash. See names for conflicts with other files, retire for
the end.
"""

from __future__ import annotations

from agent.engine import flags as fl
from agent.engine.aftermath import Aftermath, InstallUnderWay, identity
from agent.engine.context import Context, facts_of, with_facts
from agent.engine.entry import Entry, Stage
from agent.engine.events import Examine, Install, Installed, InstallStep, Keep, KeepReason, Outcome, Step
from agent.engine.fetching import Fetching
from agent.engine.inbound import Inbound
from agent.engine.local import LocalChanges
from agent.engine.losers import Losers
from agent.engine.names import Names, Place, Verdict
from agent.engine.plausible import hopeless
from agent.engine.reconcile import against_version, change_order_wins, morphed_name
from agent.engine.records import (
    MARKS,
    PASSING,
    edition_in,
    edition_of,
    forgotten,
    mark_of,
    offered,
    record_after,
    tombstone_after,
    version_of,
)
from agent.engine.retire import Retire
from agent.wire import constants as c
from idtable.records import IDRecord


class Installs:
    """Moves entries of the inbound log to their end."""

    def __init__(self, ctx: Context, inbound: Inbound, fetching: Fetching, local: LocalChanges, retire: Retire) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.fetching = fetching
        self.local = local
        self.retire = retire
        self.names = Names(ctx, inbound)
        self.losers = Losers(ctx, inbound)
        self.aftermath = Aftermath(ctx, inbound, local, retire)
        self._running: dict[bytes, InstallUnderWay] = {}
        self._touched: dict[bytes, list[Entry]] = {}  # file of an install under way -> what waits for its end

    # -- moving on --

    def advance(self, entry: Entry) -> None:
        """Do the next thing that can be done with the entry."""
        inbound, ctx = self.inbound, self.ctx
        if entry.key not in inbound.entries or entry.stage not in (Stage.QUEUED, Stage.FETCHED):
            return
        if entry.retry_at > ctx.now:
            inbound.waiting.add(entry.key)
            return
        if hopeless(offered(entry.co)):  # accepted by an earlier version of this program
            self.retire.finish(entry, None, lost=True)
            return
        if why := inbound.futile(entry):
            self.aftermath.give_up(entry, why)
            return
        if not inbound.comes_to_its_time(entry):
            return
        for other in inbound.ahead.replaced_by(entry):
            self.retire.finish(other, None, lost=True)
        if not inbound.claims.granted_on(entry.key, ("g", entry.co.file_guid)) and not self._overtake(entry):
            return
        if not self._judge(entry):
            return
        if entry.needs_stage and not entry.staged:
            if entry.stage is Stage.QUEUED:
                self.fetching.fetch(entry)
            return
        if inbound.claims.granted(entry.key):
            self._install(entry)

    def _overtake(self, entry: Entry) -> bool:
        """An earlier change order of the same file that waits for a retry is out of date once a newer one has come
        (3.1.1.10.4). One whose staging file nobody sends lets past what somebody else says that is older, but news
        here. Whether the entry is the first of its file now."""
        inbound = self.inbound
        while (key := inbound.head(entry.co.file_guid)) != entry.key:
            other = inbound.entries.get(key) if key is not None and key in inbound.waiting else None
            if other is None or other.stage not in (Stage.QUEUED, Stage.FETCHED):
                return False
            nobody_sends = other.waits_for is Outcome.STAGE_MISSING and other.cxtion != entry.cxtion
            if nobody_sends:
                inbound.let_past(entry, other.cxtion)
            if change_order_wins(offered(entry.co), offered(other.co)):
                if against_version(offered(entry.co), offered(other.co)):
                    entry.beaten_version = max(entry.beaten_version, other.co.file_version_number)
                entry.beaten_version = max(entry.beaten_version, other.beaten_version)
                self.retire.finish(other, None, lost=True)
            elif not nobody_sends:
                return False
        return True

    def _judge(self, entry: Entry) -> bool:
        """Compare with what the IDTable knows of the file; False when the change order ended here."""
        ctx, co = self.ctx, entry.co
        record = ctx.store.get(co.file_guid)
        entry.is_new = record is None or record.deleted
        if self.inbound.number_of_another(entry):
            self.aftermath.refuse(entry, record, "another file was changed with its originator and VSN")
            return False
        if record is not None and not forgotten(record):
            if identity(record) == entry.key[1:]:
                self.retire.finish(entry, None, dampened=True)
                return False
            here, coming = version_of(record), offered(co)
            against = against_version(coming, here)
            if ctx.fault(here) is not None:
                pass  # nobody takes over the numbers of what is here, so they are no reason to refuse what comes
            elif self._undoes(entry, record):
                entry.beaten_version, entry.not_before = max(entry.beaten_version, record.version), record.event_time
            elif not change_order_wins(coming, here):
                # An originator whose later change is older than its earlier one has lost its memory.
                amnesia = co.originator_guid == record.originator_guid and co.frs_vsn > record.originator_vsn
                again = against or amnesia or entry.beaten_version > record.version
                above = max(co.file_version_number, entry.beaten_version)
                then = (lambda: self.local.reannounce(record, above=above)) if again else None
                self.retire.finish(entry, None, lost=True, then=then)
                return False
            elif against:
                entry.beaten_version = max(entry.beaten_version, record.version)
        entry.needs_stage = fl.needs_staging_file(co.location_cmd, co.flags, co.content_cmd)
        if entry.needs_stage and record is not None and not record.deleted:
            # Only the name changed since the very version that is here (note 84), or only the object ID was set to
            # what the IDTable has anyway: no need to fetch it. Of a renaming the checksum alone does not say so: it
            # leaves times out.
            same = entry.checksum not in (bytes(16), b"") and entry.checksum == record.md5
            known = co.ack_version & MARKS == mark_of(record) and co.file_attributes == record.attributes
            if same and (co.flags & c.CO_FLAG_JUST_OID_RESET or (entry.is_rename and known)):
                entry.needs_stage = False
        return True

    def _undoes(self, entry: Entry, record: IDRecord) -> bool:
        """A folder that was removed here while this member was away too long, and that what it is sent now is to go
        into. The others cannot learn of the removal before this member has what waits for the folder."""
        if self.ctx.online or not record.deleted or not entry.is_dir or entry.is_delete:
            return False
        return self.inbound.orphans.await_folder(record.file_guid)

    # -- installing --

    def _install(self, entry: Entry) -> None:
        ctx, co = self.ctx, entry.co
        if ctx.frozen:
            return
        record = ctx.store.get(co.file_guid)
        live = record if record is not None and not record.deleted else None
        if live is not None and live.flags & PASSING:
            self.inbound.retry(entry, Outcome.TARGET_CHANGED, "it is being renamed here")
            return
        changed = entry.waits_for is Outcome.TARGET_CHANGED
        stuck = changed and entry.has_tried(ctx.limits.name_grace, ctx.now, ctx.limits)
        if stuck and not ctx.online and not (entry.is_delete and ctx.store.children(co.file_guid)):
            # Somebody changed it, or removed or moved the folder that it was in, while this member is seeded. Local
            # changes are looked at when that is over, and it cannot end without the file: what was changed is left
            # alone or kept, and is then news of its own.
            live = None
        no_folder = entry.is_delete or not entry.is_dir
        if live is not None and live.is_dir and no_folder and ctx.store.has_children(co.file_guid):
            self.aftermath.not_empty(entry, "")
            return
        if entry.is_delete:
            if live is None:
                self._end(entry, tombstone_after(co, record, ctx.now))
                return
            self._start(entry, record, Verdict(Place.TAKE, steps=[self.losers.removal(entry, live)]))
            return
        verdict = self.names.settle(entry)
        if verdict.place is Place.WAIT:
            return
        if entry.lost_folders and verdict.place is Place.TAKE:
            verdict = self._make_folder(entry.lost_folders.pop(0))
        if verdict.place is Place.LOSE:
            self._lose_name(entry, record, live, verdict)
            return
        if verdict.place is Place.CLEAR:
            self._start(entry, record, verdict)
            return
        expected = facts_of(live) if live is not None else None
        aside = not ctx.online and entry.waits_for in (Outcome.NAME_TAKEN, Outcome.TARGET_CHANGED)
        in_the_way = Keep(KeepReason.IN_THE_WAY, None, edition_in(co, entry.checksum))
        if live is not None and (live.parent_guid, live.name) != (verdict.parent, verdict.name):
            verdict.steps.append(
                Step(
                    InstallStep.RENAME,
                    verdict.parent,
                    verdict.name,
                    expected,
                    live.parent_guid,
                    live.name,
                    file_guid=co.file_guid,
                    keep=in_the_way if aside else None,
                    aside=aside,
                )
            )
        if live is None and not entry.needs_stage:
            entry.needs_stage = True  # judged by what is no longer to be found
            self._fetch_first(entry)
            return
        if entry.needs_stage:
            keep = in_the_way if aside else None
            if live is not None:
                keep = self.losers.keep(entry, live, KeepReason.UPDATED)
            step = Step(
                InstallStep.CONTENT,
                verdict.parent,
                verdict.name,
                expected,
                file_guid=co.file_guid,
                keep=keep,
                aside=aside and expected is None,
            )
            verdict.steps.append(step)
        if not verdict.steps:
            self._place(entry, record, None, verdict)
            return
        self._start(entry, record, verdict)

    def _fetch_first(self, entry: Entry) -> None:
        entry.stage = Stage.FETCHED if entry.staged else Stage.QUEUED
        if entry.staged:
            self._install(entry)
        else:
            self.fetching.fetch(entry)

    def _make_folder(self, guid: bytes) -> Verdict:
        """A folder that this member had in its initial sync, and that is gone. What became of it is a local change, but
        those are looked at only when the initial sync is over, which cannot end without the folder."""
        verdict = Verdict(Place.CLEAR, made=guid)
        folder = self.ctx.store.get(guid)
        if folder is not None and not folder.deleted:
            step = Step(InstallStep.FOLDER, folder.parent_guid, folder.name, facts_of(folder), file_guid=guid)
            verdict.steps.append(step)
        return verdict

    def _folders_above(self, guid: bytes) -> list[bytes]:
        """The folder and those above it, the topmost first, without the root."""
        found: list[bytes] = []
        while guid != self.ctx.config.root_guid and guid not in found:
            record = self.ctx.store.get(guid)
            if record is None:
                break
            found.insert(0, guid)
            guid = record.parent_guid
        return found

    def _start(self, entry: Entry, record: IDRecord | None, verdict: Verdict) -> None:
        co = entry.co
        others = (verdict.vacated[0] if verdict.vacated else None, verdict.removed, verdict.made)
        touched = frozenset((co.file_guid, *(guid for guid in others if guid is not None)))
        for guid in touched:
            if guid in self._touched:
                self._touched[guid].append(entry)  # else the two would pull one file in two directions
                return
        self._touched.update((guid, []) for guid in touched)
        entry.stage = Stage.INSTALLING
        self._running[entry.guid] = InstallUnderWay(identity(record), touched, verdict)
        steps = tuple(verdict.steps)
        partner = self.inbound.sessions[entry.cxtion].cxtion.partner.guid
        self.ctx.out.append(Install(entry.guid, co.file_guid, entry.is_dir, steps, entry.checksum, partner))

    def _lose_name(self, entry: Entry, record: IDRecord | None, live: IDRecord | None, verdict: Verdict) -> None:
        """The entry's file loses its name to another: it is removed, here and, by our announcement, everywhere."""
        if live is None:
            self._lost_name(entry, record)
            return
        assert verdict.winner is not None
        keep = Keep(KeepReason.NAME, edition_of(live), verdict.winner)
        step = Step(
            InstallStep.DELETE, live.parent_guid, live.name, facts_of(live), file_guid=live.file_guid, keep=keep
        )
        verdict.steps.append(step)
        self._start(entry, record, verdict)

    def _lost_name(self, entry: Entry, record: IDRecord | None) -> None:
        after = record_after(entry.co, entry.checksum, record, None, fetched=entry.needs_stage)
        after.version = max(after.version, entry.beaten_version)
        self.retire.finish(entry, None, lost=True, then=lambda: self.local.issue_removal(after))

    # -- the end of an install --

    def touched(self) -> set[bytes]:
        """The GUIDs of all files that installs under way may move or remove."""
        return set(self._touched)

    def installed(self, event: Installed) -> None:
        """An Install action has ended."""
        running = self._running.pop(event.co_guid, None)
        if running is None:
            return
        held_up = [entry for guid in running.touched for entry in self._touched.pop(guid)]
        entry = self.inbound.entry_of(event.co_guid)
        if entry is not None and entry.stage is Stage.INSTALLING:
            self._ended(entry, event, running)
        for other in held_up:
            self.advance(other)

    def _ended(self, entry: Entry, event: Installed, running: InstallUnderWay) -> None:
        ctx = self.ctx
        if event.outcome not in (Outcome.DONE, Outcome.ALREADY):
            self._failed(entry, event, running)
            return
        verdict = running.verdict
        if event.outcome is Outcome.ALREADY and verdict.place is Place.TAKE and not entry.is_delete:
            other = ctx.store.by_name(verdict.parent, verdict.name)
            if other is not None and other.file_guid not in (entry.co.file_guid, verdict.removed):
                # What is there is the same, but is another file that came there meanwhile.
                self.inbound.retry(entry, Outcome.NAME_TAKEN, "another file came there")
                return
        self.aftermath.side_effects(verdict)
        record = ctx.store.get(entry.co.file_guid)
        made = ctx.store.get(verdict.made) if verdict.made is not None else None
        if made is not None and event.facts is not None:
            known = facts_of(made)
            with_facts(made, event.facts)
            if known is not None:  # what was changed of it meanwhile is news
                made.mode, made.uid, made.gid = known.mode, known.uid, known.gid
            ctx.store.put(made)
        if verdict.place is Place.CLEAR:
            entry.stage = Stage.FETCHED if entry.staged else Stage.QUEUED
            self.advance(entry)
            return
        if identity(record) != running.base and record is not None:
            if self._overtaken(entry, record):
                return
            # It wins over a local change that came meanwhile, yet was carried out over what was there before.
            self.aftermath.moved(verdict, entry)
            entry.stage = Stage.FETCHED if entry.staged else Stage.QUEUED
            self.advance(entry)
            return
        if verdict.place is Place.LOSE:
            self._lost_name(entry, record)
        elif entry.is_delete and entry.is_dir and ctx.store.children(entry.co.file_guid):
            # Something came into the folder meanwhile, or the folder had been moved away and was not found.
            self.aftermath.look_again(entry, running)
            self.aftermath.not_empty(entry, "")
        elif entry.is_delete:
            if record is not None and not record.deleted and not record.is_dir:
                ctx.on_deleted(entry.co.originator_guid, self.inbound.sender(entry))
            self._end(entry, tombstone_after(entry.co, record, ctx.now))
        else:
            if entry.needs_stage:
                ctx.count("Files Installed")
                ctx.count("Bytes of Files Installed", event.facts.fsize if event.facts else 0)
            self._place(entry, record, event, verdict)

    def _overtaken(self, entry: Entry, record: IDRecord) -> bool:
        """A local change came while the install was under way. If it wins, what was installed is put right by the
        local change that the difference between tree and IDTable makes."""
        if change_order_wins(offered(entry.co), version_of(record)):
            return False
        self.ctx.out.append(Examine(entry.co.new_parent_guid, entry.co.file_name))
        self.ctx.out.append(Examine(record.parent_guid, record.name))
        self.retire.finish(entry, None, lost=True)
        return True

    def _place(self, entry: Entry, record: IDRecord | None, event: Installed | None, verdict: Verdict) -> None:
        """The file is where the verdict says: if that is not where its change order wanted it, that is announced."""
        co = entry.co
        new = record_after(co, entry.checksum, record, event, fetched=entry.needs_stage)
        new.parent_guid, new.name = verdict.parent, verdict.name
        elsewhere = (verdict.parent, verdict.name) != (co.new_parent_guid, co.file_name)
        if verdict.name == morphed_name(co.file_name, co.file_guid):
            self.ctx.count_co("Morphed", False)
        unstored = event.unstored if event is not None and entry.needs_stage else b""
        self._end(entry, new, announce=elsewhere, unstored=unstored)

    def _end(self, entry: Entry, new: IDRecord, *, announce: bool = False, unstored: bytes = b"") -> None:
        then = None
        if not entry.initial and not entry.former_cxtion:
            self.ctx.count_latency(self.inbound.sessions[entry.cxtion].cxtion, entry.co.event_time)
        new.event_time = max(new.event_time, entry.not_before)
        if entry.beaten_version >= new.version:
            then = lambda: self.local.reannounce(new, above=entry.beaten_version)  # noqa: E731
        elif announce and self.inbound.pending_for(entry.co.file_guid, but=entry.key):
            self.retire.aside(new)
        elif announce:
            then = lambda: self.local.issue_resolution(new, base=mark_of(new))  # noqa: E731
        self.retire.finish(entry, new, unstored=unstored, then=then)

    def _failed(self, entry: Entry, event: Installed, running: InstallUnderWay) -> None:
        self.aftermath.so_far(entry, event, running)
        if event.outcome is Outcome.UNSUPPORTED:
            self.ctx.count("Files Installed with Error")
            self.aftermath.unsupported(entry, event.detail)
            return
        if event.outcome is Outcome.STAGE_DAMAGED:
            self.aftermath.damaged(entry, event.detail)
        if event.outcome is Outcome.FAILED:
            self.ctx.count("Files Installed with Error")
        if event.outcome in (Outcome.STAGE_MISSING, Outcome.STAGE_DAMAGED):
            entry.staged = False
        if event.outcome in (
            Outcome.TARGET_CHANGED,
            Outcome.NAME_TAKEN,
            Outcome.NOT_EMPTY,
            Outcome.PARENT_MISSING,
            Outcome.FAILED,
        ):
            self.aftermath.look_again(entry, running)
        failed = running.verdict.steps[event.done : event.done + 1]
        if event.outcome is Outcome.TARGET_CHANGED and not self.ctx.online and failed:
            entry.not_found = failed[0].file_guid if failed[0].step is InstallStep.VACATE else b""
        limits = self.ctx.limits
        tried = entry.has_tried(limits.name_grace, self.ctx.now, limits)
        if event.outcome is Outcome.PARENT_MISSING and not self.ctx.online and tried:
            entry.lost_folders = self._folders_above(entry.co.new_parent_guid)
        if event.outcome is Outcome.NOT_EMPTY:
            self.aftermath.not_empty(entry, event.detail)
        else:
            renaming = bool(failed) and failed[0].step in (InstallStep.RENAME, InstallStep.VACATE)
            self.inbound.retry(entry, event.outcome, event.detail, renaming=renaming)
