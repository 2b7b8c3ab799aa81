"""Judging, installing and retiring change orders ([MS-FRS1] 3.3.4.4.6, 3.3.4.4.8).

A change order names the whole state that its file or folder is to have: parent, name, content. Installing means to
make the tree so, in steps that may be repeated after a crash.
"""

from __future__ import annotations

from agent.engine import flags as fl
from agent.engine.context import Context, facts_of, with_facts
from agent.engine.events import DropStage, Examine, Facts, Install, Installed, InstallStep, Outcome, Step
from agent.engine.inbound import Entry, Inbound, Stage
from agent.engine.local import LocalChanges
from agent.engine.outbound import Outbound
from agent.engine.reconcile import Version, change_order_wins, morphed_name
from agent.wire import constants as c
from idtable.records import IDRecord


def version_of(record: IDRecord) -> Version:
    """What the conflict rule looks at in an IDTable record."""
    return Version(record.event_time, record.version, record.size, record.originator_guid)


class Installs:
    """Moves entries of the inbound log to their end."""

    def __init__(self, ctx: Context, inbound: Inbound, outbound: Outbound, local: LocalChanges) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.outbound = outbound
        self.local = local
        self._vacated: dict[bytes, tuple[bytes, str, bool]] = {}  # change order -> what it moves aside
        self._losers: dict[bytes, bytes] = {}  # change order -> file GUID that loses its name to it

    # -- moving on --

    def advance(self, entry: Entry) -> None:
        """Do the next thing that can be done with the entry."""
        inbound, ctx = self.inbound, self.ctx
        if entry.key not in inbound.entries or entry.stage not in (Stage.QUEUED, Stage.FETCHED):
            return
        if entry.retry_at > ctx.now:
            inbound.waiting.add(entry.key)
            return
        if inbound.exhausted(entry):
            ctx.report("error", f"{entry.co.file_name!r}: given up after {entry.attempts} attempts")
            self.finish(entry, None, lost=True, aborted=True)
            return
        if not inbound.claims.granted_on(entry.key, ("g", entry.co.file_guid)):
            return
        if not self._judge(entry):
            return
        if entry.needs_stage and not entry.staged:
            if entry.stage is Stage.QUEUED:
                inbound.fetch(entry)
            return
        if inbound.claims.granted(entry.key):
            self._install(entry)

    def _judge(self, entry: Entry) -> bool:
        """Compare with what the IDTable knows of the file; False when the change order ended here."""
        ctx, co = self.ctx, entry.co
        record = ctx.store.get(co.file_guid)
        entry.is_new = record is None or record.deleted
        if record is not None:
            if (record.originator_guid, record.originator_vsn) == entry.key[1:]:
                self.finish(entry, None, dampened=True)
                return False
            offered = Version(co.event_time, co.file_version_number, co.file_size, co.originator_guid)
            if not change_order_wins(offered, version_of(record)):
                self.finish(entry, None, lost=True)
                return False
        entry.needs_stage = fl.needs_staging_file(co.location_cmd, co.flags, co.content_cmd)
        if entry.needs_stage and record is not None and not record.deleted and entry.is_rename:
            # Only the name changed and the content is here already (note 84): no need to fetch it.
            same = entry.checksum not in (bytes(16), b"") and entry.checksum == record.md5
            if same and co.file_attributes == record.attributes:
                entry.needs_stage = False
        entry.judged = True
        return True

    # -- installing --

    def _install(self, entry: Entry) -> None:
        ctx, co = self.ctx, entry.co
        record = ctx.store.get(co.file_guid)
        live = record is not None and not record.deleted
        if entry.is_delete:
            if not live:
                self.finish(entry, self._tombstone(entry, record))
                return
            assert record is not None
            step = Step(InstallStep.DELETE, record.parent_guid, record.name, facts_of(record), file_guid=co.file_guid)
            self._start(entry, (step,))
            return
        parent, name = co.new_parent_guid, co.file_name
        if not self._parent_is_there(entry, parent):
            return
        steps: list[Step] = []
        chosen = self._make_room(entry, parent, name, steps)
        if chosen is None:
            return
        expected = facts_of(record) if record is not None and live else None
        if record is not None and live and (record.parent_guid, record.name) != (parent, chosen):
            steps.append(
                Step(
                    InstallStep.RENAME,
                    parent,
                    chosen,
                    expected,
                    record.parent_guid,
                    record.name,
                    file_guid=co.file_guid,
                )
            )
        if entry.needs_stage:
            steps.append(Step(InstallStep.CONTENT, parent, chosen, expected, file_guid=co.file_guid))
        if not steps:
            self.finish(entry, self._record(entry, record, None, chosen))
            return
        self._start(entry, tuple(steps))

    def _start(self, entry: Entry, steps: tuple[Step, ...]) -> None:
        entry.stage = Stage.INSTALLING
        self.ctx.out.append(
            Install(entry.co.change_order_guid, entry.co.file_guid, entry.is_dir, steps, entry.checksum)
        )

    def _parent_is_there(self, entry: Entry, parent: bytes) -> bool:
        """The parent folder must be installed first, and must not be below what is moved into it."""
        ctx = self.ctx
        guid, seen = parent, set()
        while guid != ctx.config.root_guid:
            folder = ctx.store.get(guid)
            if folder is None or folder.deleted or not folder.is_dir or guid in seen:
                self.inbound.retry(entry, Outcome.PARENT_MISSING, "its folder has not arrived")
                return False
            if guid == entry.co.file_guid:
                self.inbound.retry(entry, Outcome.PARENT_MISSING, "it would be moved into itself")
                return False
            seen.add(guid)
            guid = folder.parent_guid
        return True

    def _make_room(self, entry: Entry, parent: bytes, name: str, steps: list[Step]) -> str | None:
        """Settle who gets the name (3.3.4.4.6). Returns the name to install under, or None when the entry
        waits or has ended."""
        ctx, co = self.ctx, entry.co
        other = ctx.store.by_name(parent, name)
        if other is None or other.file_guid == co.file_guid:
            return name
        behind = [t for t in self.inbound.claims.waiting_on(("g", other.file_guid)) if t != entry.key]
        moving = any(e is not None and e.key[0] == other.file_guid for e in map(self.inbound.entries.get, behind))  # type: ignore[arg-type]
        if moving:
            # Its own change order, which waits behind this one, moves or removes it: let it step aside.
            self._vacate(entry, other, steps, issue=False)
            return name
        if entry.attempts < ctx.limits.name_grace:
            self.inbound.retry(entry, Outcome.NAME_TAKEN, "the name is still taken")
            return None
        offered = Version(co.event_time, co.file_version_number, co.file_size, co.originator_guid)
        wins = change_order_wins(offered, version_of(other))
        if entry.is_dir and other.is_dir:
            if wins:  # the folder created last gets the morphed name (1.3)
                ctx.count_co("Morphed", False)
                return morphed_name(name, co.file_guid)
            self._vacate(entry, other, steps, issue=True)
            return name
        if entry.is_dir:
            self._vacate(entry, other, steps, issue=True)
            return name
        if other.is_dir:
            ctx.count_co("Morphed", False)
            return morphed_name(name, co.file_guid)
        if not wins:
            self.finish(entry, None, lost=True)
            return None
        self._losers[co.change_order_guid] = other.file_guid
        steps.append(
            Step(
                InstallStep.DELETE,
                parent,
                name,
                facts_of(other),
                file_guid=other.file_guid,
                old_name="keep",
            )
        )
        return name

    def _vacate(self, entry: Entry, other: IDRecord, steps: list[Step], *, issue: bool) -> None:
        aside = morphed_name(other.name, other.file_guid)
        self._vacated[entry.co.change_order_guid] = (other.file_guid, aside, issue)
        steps.append(
            Step(
                InstallStep.VACATE,
                other.parent_guid,
                other.name,
                facts_of(other),
                other.parent_guid,
                aside,
                file_guid=other.file_guid,
            )
        )

    # -- the end of an install --

    def installed(self, event: Installed) -> None:
        """An Install action has ended."""
        ctx, inbound = self.ctx, self.inbound
        entry = inbound.entry_of(event.co_guid)
        if entry is None or entry.stage is not Stage.INSTALLING:
            return
        if event.outcome not in (Outcome.DONE, Outcome.ALREADY):
            self._failed(entry, event)
            return
        co = entry.co
        record = ctx.store.get(co.file_guid)
        if entry.is_delete:
            self.finish(entry, self._tombstone(entry, record))
            return
        self._side_effects(entry)
        chosen = self._chosen_name(entry)
        if entry.needs_stage:
            ctx.count("Files Installed")
            ctx.count("Bytes of Files Installed", event.facts.fsize if event.facts else 0)
        new = self._record(entry, record, event, chosen)
        self.finish(entry, new)
        if chosen != co.file_name:
            self.local.issue_rename(new, new.parent_guid, chosen)

    def _chosen_name(self, entry: Entry) -> str:
        """The name the entry was installed under: morphed if another holds its own name still."""
        co = entry.co
        other = self.ctx.store.by_name(co.new_parent_guid, co.file_name)
        if other is not None and other.file_guid != co.file_guid:
            return morphed_name(co.file_name, co.file_guid)
        return co.file_name

    def _side_effects(self, entry: Entry) -> None:
        """What was moved aside or removed to make room."""
        ctx = self.ctx
        vacated = self._vacated.pop(entry.co.change_order_guid, None)
        if vacated is not None:
            guid, aside, issue = vacated
            other = ctx.store.get(guid)
            if other is not None and not other.deleted:
                if issue:
                    ctx.count_co("Morphed", True)
                    self.local.issue_rename(other, other.parent_guid, aside)
                else:
                    other.name = aside
                    ctx.store.put(other)
        loser = self._losers.pop(entry.co.change_order_guid, None)
        if loser is not None:
            other = ctx.store.get(loser)
            if other is not None and not other.deleted:
                self.local.issue_delete(other)

    def _failed(self, entry: Entry, event: Installed) -> None:
        ctx, co = self.ctx, entry.co
        self._vacated.pop(co.change_order_guid, None)
        self._losers.pop(co.change_order_guid, None)
        if event.outcome is Outcome.FAILED:
            ctx.count("Files Installed with Error")
        if event.outcome in (Outcome.STAGE_MISSING, Outcome.STAGE_DAMAGED):
            entry.staged = False
        if event.outcome in (Outcome.TARGET_CHANGED, Outcome.NAME_TAKEN, Outcome.NOT_EMPTY):
            record = ctx.store.get(co.file_guid)
            if record is not None:
                ctx.out.append(Examine(record.parent_guid, record.name))
            if not entry.is_delete:
                ctx.out.append(Examine(co.new_parent_guid, co.file_name))
        if event.outcome is Outcome.NOT_EMPTY and entry.attempts >= ctx.limits.name_grace:
            record = ctx.store.get(co.file_guid)
            if record is not None and not record.deleted and ctx.store.children(co.file_guid):
                # Something lives in it that its remover did not know: the folder stays, and is announced anew.
                self.finish(entry, None, lost=True)
                self.local.reannounce(record, after=co.event_time, above=co.file_version_number)
                return
        self.inbound.retry(entry, event.outcome, event.detail)

    # -- records --

    def _record(self, entry: Entry, old: IDRecord | None, event: Installed | None, name: str) -> IDRecord:
        """The IDTable record after the change order."""
        co = entry.co
        new = IDRecord(
            file_guid=co.file_guid,
            parent_guid=co.new_parent_guid,
            name=name,
            is_dir=entry.is_dir,
            version=co.file_version_number,
            event_time=co.event_time,
            originator_guid=co.originator_guid,
            originator_vsn=co.frs_vsn,
            md5=entry.checksum,
            attributes=co.file_attributes,
            size=co.file_size,
            flags=co.flags & c.CO_FLAG_SKIP_VV_UPDATE,
            kind="folder" if entry.is_dir else "file",
        )
        if old is not None and not old.deleted:
            new.kind = old.kind
            facts = facts_of(old)
            if facts is not None:
                with_facts(new, facts)
            if not entry.needs_stage:
                new.md5 = old.md5
        if event is not None:
            facts = event.facts
            if isinstance(facts, Facts):
                with_facts(new, facts)
            if event.md5 is not None and entry.needs_stage:
                new.md5 = event.md5
            if event.file_kind is not None:
                new.kind = event.file_kind
        return new

    def _tombstone(self, entry: Entry, old: IDRecord | None) -> IDRecord:
        co = entry.co
        return IDRecord(
            file_guid=co.file_guid,
            parent_guid=old.parent_guid if old is not None else co.new_parent_guid,
            name=co.file_name,
            is_dir=entry.is_dir,
            version=co.file_version_number,
            event_time=co.event_time,
            originator_guid=co.originator_guid,
            originator_vsn=co.frs_vsn,
            attributes=co.file_attributes,
            deleted=True,
            deleted_time=self.ctx.now,
            flags=co.flags & c.CO_FLAG_SKIP_VV_UPDATE,
            kind="folder" if entry.is_dir else "file",
        )

    # -- retiring --

    def finish(
        self,
        entry: Entry,
        record: IDRecord | None,
        *,
        dampened: bool = False,
        lost: bool = False,
        aborted: bool = False,
    ) -> None:
        """End the entry: in this one transaction go the IDTable record, the version vector, the outbound log
        and the inbound log; the acknowledgement is an action and follows the commit."""
        ctx, inbound = self.ctx, self.inbound
        co = entry.co
        if record is not None:
            ctx.store.put(record)
        session = inbound.sessions[entry.cxtion]
        if aborted:
            ctx.count_co("Aborted", False)
        if not (aborted and not lost):
            if dampened:
                inbound.dampen(session, co)
            else:
                inbound.answer_done(session, co, lost=lost, new=entry.is_new)
        for guid, other in entry.alternates:
            inbound.dampen(inbound.sessions[guid], other)
        ctx.count_co("Retired", False)
        pass_on = record is not None
        entry.stage = Stage.FINISHED if pass_on else Stage.PASSED_ON
        if inbound.pending_names.get(co.file_guid) == (co.new_parent_guid, co.file_name):
            del inbound.pending_names[co.file_guid]
        inbound.waiting.discard(entry.key)
        if entry.staged and not pass_on:
            ctx.out.append(DropStage(co.change_order_guid))
        self.retire(entry)
        self._release(entry)

    def retire(self, entry: Entry) -> None:
        """Let the version vector follow, and pass on what has had its turn."""
        ctx, inbound = self.ctx, self.inbound
        if not inbound.order.waits(entry.key):
            self._pass_on(entry, extra=0)
            self._forget(entry)
            return
        passed = inbound.order.finish(entry.key)
        for item in passed:
            done = inbound.entries.get(item.key)
            ctx.set_vv(item.originator, item.vsn)
            if done is not None:
                self._pass_on(done, extra=0)
                self._forget(done)
        if entry.key in inbound.entries:
            inbound.save(entry)  # finished, but an earlier change is not: keep it until that one is

    def pass_on_behind(self, entry: Entry) -> None:
        """The entry will take long: what is finished behind it is passed on now, marked so that nobody's
        version vector moves past the one that is missing (3.1.1.10.5)."""
        for key in self.inbound.order.behind(entry.key):
            done = self.inbound.entries.get(key)
            if done is not None and done.stage is Stage.FINISHED:
                self._pass_on(done, extra=c.CO_FLAG_SKIP_VV_UPDATE)
                self.inbound.save(done)

    def _pass_on(self, entry: Entry, extra: int) -> None:
        """Put a finished change order into the outbound log for the other partners."""
        if entry.stage is Stage.PASSED_ON:
            return
        entry.stage = Stage.PASSED_ON
        sources = [entry.cxtion] + [guid for guid, _ in entry.alternates]
        members = b"".join(self.inbound.sessions[g].cxtion.partner.guid for g in sources)
        record = self.ctx.store.get(entry.co.file_guid)
        checksum = entry.checksum
        if record is not None and record.originator_vsn == entry.co.frs_vsn and not record.deleted:
            checksum = record.md5
        keep = c.CO_FLAG_CONTENT_CMD | c.CO_FLAG_LOCATION_CMD | c.CO_FLAG_COMPRESSED_STAGE
        keep |= c.CO_FLAG_OUT_OF_ORDER | c.CO_FLAG_SKIP_VV_UPDATE
        co = entry.co.replace(flags=(entry.co.flags & keep) | extra, iflags=0)
        self.outbound.append(co, checksum, members, staged=entry.staged)

    def _forget(self, entry: Entry) -> None:
        self.inbound.entries.pop(entry.key, None)
        self.inbound.by_co.pop(entry.co.change_order_guid, None)
        self.ctx.store.inlog_delete(entry.co.change_order_guid)

    def _release(self, entry: Entry) -> None:
        inbound = self.inbound
        if entry.key not in inbound.claims:
            return
        for token in inbound.claims.release(entry.key):
            other = inbound.entries.get(token)  # type: ignore[call-overload]
            if other is None:
                continue
            if other.waits_for in (Outcome.PARENT_MISSING, Outcome.NAME_TAKEN, Outcome.NOT_EMPTY):
                other.retry_at = 0
            self.advance(other)
