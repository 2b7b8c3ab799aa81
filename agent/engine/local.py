"""Local change orders ([MS-FRS1] 3.1.1.10.1, 3.3.4.1): what changed in the replica tree here."""

from __future__ import annotations

from agent.engine import flags as fl
from agent.engine.context import Context, facts_of, with_facts
from agent.engine.events import ChangeKind, DropStage, Examine, LocalChange
from agent.engine.outbound import Outbound
from agent.engine.plausible import hopeless
from agent.engine.records import (
    PASSING,
    RESOLVED,
    UNSTORED,
    WRITTEN,
    changed_here,
    checksum_of,
    mark_of,
    same_content,
    version_of,
    with_base,
)
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from idtable.records import ZERO_GUID, IDRecord
from idtable.reserved import SWAP_PREFIX

_CONTENT_REASONS = ~(c.REASON_RENAME_OLD_NAME | c.REASON_RENAME_NEW_NAME | c.REASON_FILE_DELETE)
#: What 3.3.4.1.1 lets ContentCmd say of a new file.
_NEW_FILE_REASONS = c.REASON_BASIC_INFO_CHANGE | c.REASON_DATA_EXTEND | c.REASON_DATA_OVERWRITE


def _after(record: IDRecord, event_time: int) -> tuple[int, int]:
    """Version number and event time of the change that follows a record's version, and was made at that time."""
    if hopeless(version_of(record)):
        return 0, event_time
    return record.version + 1, max(event_time, record.event_time + 1)


class LocalChanges:
    """Turns local changes into change orders: next VSN, IDTable, version vector and outbound log, all in the
    transaction that is open."""

    def __init__(self, ctx: Context, outbound: Outbound) -> None:
        self.ctx = ctx
        self.outbound = outbound
        self._left: dict[bytes, tuple[bytes, str]] = {}  # file with a passing name -> the folder and name it had

    def change(self, event: LocalChange) -> None:
        """A change was found and, where it has content, staged."""
        if self._apply(event):
            return
        if not event.temporary:
            self.ctx.count("Change Orders Evaporated")
        if event.staged:
            self.ctx.out.append(DropStage(event.stage_guid))

    def _apply(self, event: LocalChange) -> bool:
        """True when a change order was issued."""
        ctx = self.ctx
        if event.staged:
            ctx.count("Staging Files Generated")
            ctx.count("Bytes of Staging Generated", event.stage_size)
        record = ctx.store.get(event.file_guid)
        live = record is not None and not record.deleted
        if event.kind is ChangeKind.DELETE:
            if record is None or not live:
                return False
            if record.is_dir and ctx.store.children(record.file_guid):
                ctx.out.append(Examine(record.parent_guid, record.name))  # something came into the folder meanwhile
                return False
            self._delete(record, event)
            return True
        parent = ctx.store.get(event.parent_guid)
        root = event.parent_guid == ctx.config.root_guid
        other = ctx.store.by_name(event.parent_guid, event.name)
        if not root and (parent is None or parent.deleted):
            ctx.out.append(Examine(event.parent_guid, event.name))
            return False
        if other is not None and other.file_guid != event.file_guid:
            ctx.out.append(Examine(event.parent_guid, event.name))
            return False
        stale = event.kind is ChangeKind.CREATE if live else event.kind is not ChangeKind.CREATE
        if stale or self._below(event.parent_guid, event.file_guid):
            # The IDTable has moved on since the tree was looked at: look again.
            ctx.out.append(Examine(event.parent_guid, event.name))
            return False
        if record is None or not live:
            self._create(event, record)
            return True
        if event.kind is ChangeKind.UPDATE and (record.parent_guid, record.name) != (event.parent_guid, event.name):
            # An install renamed it since: what was found at its old name is to be told of its new one.
            ctx.out.append(Examine(event.parent_guid, event.name))
            ctx.out.append(Examine(record.parent_guid, record.name))
            return False
        if event.temporary:
            self._let_pass(event, record)
            return False
        return self._update(event, record)

    def _let_pass(self, event: LocalChange, record: IDRecord) -> None:
        """One file of a circle of renames frees its name. Nobody is told: were the passing name a version of its own,
        a change made elsewhere at that moment could be the last word on it. A partner that gets the other renames
        lets their files step aside in the same way (see names)."""
        self._left.setdefault(record.file_guid, (record.parent_guid, record.name))
        record.parent_guid, record.name = event.parent_guid, event.name
        record.flags |= PASSING
        self.ctx.store.put(record)

    def _below(self, folder: bytes, guid: bytes) -> bool:
        """The folder is, as the IDTable has it, the one of that GUID or below it."""
        seen: set[bytes] = set()
        while folder != self.ctx.config.root_guid and folder not in seen:
            if folder == guid:
                return True
            seen.add(folder)
            record = self.ctx.store.get(folder)
            if record is None:
                return False
            folder = record.parent_guid
        return False

    def _create(self, event: LocalChange, tombstone: IDRecord | None) -> None:
        record = IDRecord(
            file_guid=event.file_guid,
            parent_guid=event.parent_guid,
            name=event.name,
            is_dir=event.is_dir,
            event_time=event.event_time,
            md5=event.md5,
            attributes=event.attributes,
            size=event.size,
            kind=event.file_kind,
            flags=WRITTEN,
        )
        if tombstone is not None:
            record.version, record.event_time = _after(tombstone, event.event_time)
        self._remember(record, event)
        if event.facts is not None:
            with_facts(record, event.facts)
        has_content = record.fsize is not None and record.fsize > 0
        self._issue(
            record,
            event,
            flags=fl.local_created(is_dir=event.is_dir, has_content=has_content, compressed=event.compressed),
            content_cmd=0 if event.is_dir else event.reasons & _NEW_FILE_REASONS,
            location_cmd=fl.location(c.CO_LOCATION_CREATE, event.is_dir),
            old_parent=event.parent_guid,
            base=mark_of(tombstone),
        )

    def _update(self, event: LocalChange, record: IDRecord) -> bool:
        old_parent, _ = self._known_place(record)
        moved = old_parent != event.parent_guid
        renamed = moved or record.name != event.name
        facts = event.facts
        plain_rename = event.kind is ChangeKind.RENAME and event.md5 == bytes(16)
        md5 = record.md5 if plain_rename else event.md5
        changed = md5 != record.md5 or (not plain_rename and event.attributes != record.attributes)
        if not changed and facts is not None and not plain_rename:
            old = facts_of(record)
            # Times are no part of the checksum: a file that was only touched is a change of its basic information.
            touched = old is None or old.mtime_ns != facts.mtime_ns
            changed = touched and (not event.is_dir or bool(event.reasons & c.REASON_BASIC_INFO_CHANGE))
        if not plain_rename:
            self._remember(record, event)
        if not renamed and not changed:
            if facts is not None:
                self.ctx.store.put(with_facts(record, facts))
            return False
        base = mark_of(record)
        if changed:
            record.flags |= WRITTEN
        record.parent_guid, record.name = event.parent_guid, event.name
        record.md5 = md5
        record.version, record.event_time = _after(record, event.event_time)
        if not plain_rename:
            record.attributes = event.attributes
            record.size = event.size
            record.kind = event.file_kind
        if facts is not None and (not plain_rename or same_content(record, facts)):
            with_facts(record, facts)
        reasons = (event.reasons & _CONTENT_REASONS & ~c.REASON_FILE_CREATE) if changed else 0
        if changed:
            reasons = reasons or (c.REASON_BASIC_INFO_CHANGE if event.is_dir else c.REASON_DATA_OVERWRITE)
        if renamed:
            reasons |= c.REASON_RENAME_NEW_NAME
            flags = fl.local_renamed(compressed=event.compressed, moved=moved)
        else:
            flags = fl.local_updated(compressed=event.compressed)
        command = c.CO_LOCATION_MOVEDIR if moved else c.CO_LOCATION_NO_CMD
        self._issue(
            record,
            event,
            flags=flags,
            content_cmd=reasons,
            location_cmd=fl.location(command, event.is_dir),
            old_parent=old_parent,
            base=base,
        )
        return True

    def _remember(self, record: IDRecord, event: LocalChange) -> None:
        """What of the version that was found cannot be kept in the tree here (see staging.unstored)."""
        if event.unstored or record.flags & UNSTORED:
            self.ctx.store.put_unstored(record.file_guid, event.unstored)
        record.flags = record.flags & ~UNSTORED | (UNSTORED if event.unstored else 0)

    def _delete(self, record: IDRecord, event: LocalChange) -> None:
        """The file or folder is gone: a tombstone and a change order (3.3.4.1.2, 3.3.4.1.5)."""
        base = mark_of(record)
        if not record.is_dir:
            self.ctx.on_deleted(self.ctx.config.originator_guid, "")
        self._bury(record, event.event_time)
        self._issue_delete(record, event, base=base)

    def _known_place(self, record: IDRecord) -> tuple[bytes, str]:
        """The folder and the name that others know of: not a passing one, which none of them would take."""
        left = self._left.pop(record.file_guid, None)
        if not record.flags & PASSING:
            return record.parent_guid, record.name
        return left or (record.parent_guid, record.name.removeprefix(SWAP_PREFIX))

    def _bury(self, record: IDRecord, event_time: int) -> None:
        record.parent_guid, record.name = self._known_place(record)
        self.ctx.store.put_unstored(record.file_guid, b"")
        record.flags &= ~UNSTORED
        record.deleted = True
        record.deleted_time = self.ctx.now
        record.version, record.event_time = _after(record, event_time)
        record.md5 = bytes(16)
        record.dev = record.ino = record.btime_ns = record.mtime_ns = record.ctime_ns = None
        record.fsize = record.mode = record.uid = record.gid = None

    def _issue_delete(self, record: IDRecord, event: LocalChange | None, *, base: int) -> None:
        self._issue(
            record,
            event,
            flags=fl.LOCAL_REMOVED,
            content_cmd=0,
            location_cmd=fl.location(c.CO_LOCATION_DELETE, record.is_dir),
            old_parent=record.parent_guid,
            base=base,
        )

    def issue_resolution(self, record: IDRecord, *, base: int) -> None:
        """Announce where a file or folder is now, after a conflict with another moved it: newer by the smallest step,
        so that the same decision made elsewhere is the same version, and any change of a user is newer."""
        record.version, record.event_time = _after(record, record.event_time)
        self._issue_place(record, base)

    def issue_removal(self, record: IDRecord) -> None:
        """Announce that a file lost its name to another. It bears no mark of descent, so whoever made its last
        version keeps it."""
        self._bury(record, record.event_time + 1)
        self._issue_delete(record, None, base=0)

    def forget(self, record: IDRecord) -> None:
        """A file that no partner has any more: a tombstone that is no news, sent to nobody, and gives way to any change
        order of the file that is still under way somewhere (see records)."""
        self._bury(record, record.event_time)
        record.originator_guid, record.originator_vsn, record.version, record.flags = ZERO_GUID, 0, 0, 0
        self.ctx.store.put(record)

    def reannounce(self, record: IDRecord, *, above: int) -> None:
        """Announce a version once more with a number above another one's, which it beat (see reconcile)."""
        base = mark_of(record)
        record.version = max(record.version, above) + 1
        self._issue_again(record, base)

    def date_back(self, record: IDRecord, event_time: int) -> None:
        """Announce a version whose numbers are ahead of the clock once more, with others (see mending)."""
        base = mark_of(record)
        record.event_time = min(record.event_time, event_time)
        record.version += 1
        if self.ctx.due(version_of(record)) > self.ctx.now:
            record.version = 0
        self._issue_again(record, base)

    def _issue_again(self, record: IDRecord, base: int) -> None:
        if record.deleted:
            self._issue_delete(record, None, base=base)
        else:
            self._issue_place(record, base)

    def _issue_place(self, record: IDRecord, base: int) -> None:
        """A renaming says where a file is, and its content need not be fetched by whoever has it."""
        self._issue(
            record,
            None,
            flags=fl.local_renamed(compressed=False, moved=False),
            content_cmd=c.REASON_RENAME_NEW_NAME,
            location_cmd=fl.location(c.CO_LOCATION_NO_CMD, record.is_dir),
            old_parent=record.parent_guid,
            base=base,
        )

    def _issue(
        self,
        record: IDRecord,
        event: LocalChange | None,
        *,
        flags: int,
        content_cmd: int,
        location_cmd: int,
        old_parent: bytes,
        base: int,
    ) -> None:
        ctx = self.ctx
        vsn = ctx.next_vsn()
        resolved = 0 if event is not None or changed_here(record, ctx.own_originators) else RESOLVED
        record.originator_guid, record.originator_vsn = ctx.config.originator_guid, vsn
        record.flags = with_base(record.flags & (WRITTEN | UNSTORED) | resolved, base)
        ctx.store.put(record)
        ctx.vector.issued(vsn)
        staged = event is not None and event.staged
        guid = event.stage_guid if event is not None and staged else ctx.new_guid()
        usn, first_usn = (event.usns[1], event.usns[0]) if event is not None else (0, 0)
        co = ChangeOrder(
            flags=flags,
            content_cmd=content_cmd,
            location_cmd=location_cmd,
            file_attributes=record.attributes,
            file_version_number=record.version,
            file_size=0 if record.is_dir else record.size,
            frs_vsn=vsn,
            file_usn=usn,
            jrnl_usn=usn,
            jrnl_first_usn=first_usn,
            change_order_guid=guid,
            originator_guid=ctx.config.originator_guid,
            file_guid=record.file_guid,
            ack_version=base,
            old_parent_guid=old_parent,
            new_parent_guid=record.parent_guid,
            event_time=record.event_time,
            file_name=record.name,
        )
        ctx.count_co("Issued", True)
        self.outbound.append(co, CoExtension2(checksum_of(record, ctx.store)), b"", staged=staged)
        ctx.count_co("Retired", True)
