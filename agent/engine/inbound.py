"""The inbound log: the change orders that were taken in (see arrival), and what each of them waits for ([MS-FRS1]
3.3.4.4.6).

An entry is moved on by `advance`: judged (is it still news? does it lose a conflict?), its staging file fetched (see
fetching), then, once nothing that arrived earlier stands in its way (see claims), installed (see installs) and retired.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile

from agent.engine.ahead import Ahead
from agent.engine.answers import Answers
from agent.engine.claims import Claims
from agent.engine.claims import Key as ClaimKey
from agent.engine.context import Context
from agent.engine.descent import Descent
from agent.engine.entry import Entry, Stage
from agent.engine.events import DropStage, Outcome
from agent.engine.held import Held
from agent.engine.order import Key, RetireOrder
from agent.engine.orphans import Orphans
from agent.engine.refusal import refusal
from agent.engine.session import JoinState, Session
from agent.engine.stored import change_order_of, extension_of
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.guid import guid_text
from idtable.records import InlogRow

_RESTORED = b""  # instead of a connection, in RetireOrder
_WAITS_FOR_CLAIMS = (Outcome.PARENT_MISSING, Outcome.NAME_TAKEN, Outcome.NOT_EMPTY)


class Inbound:
    """Owns the entries. The installer (installs.Installs) is told when an entry is ready for it."""

    def __init__(self, ctx: Context, sessions: dict[bytes, Session]) -> None:
        self.ctx = ctx
        self.sessions = sessions
        self.entries: dict[Key, Entry] = {}
        self.by_co: dict[bytes, Key] = {}  # by Entry.guid
        #: Connection and GUID of a change order -> Entry.guid, where that is another one.
        self._renamed: dict[tuple[bytes, bytes], bytes] = {}
        self.numbered: dict[tuple[bytes, int], bytes] = {}  # originator and VSN of the entries -> file GUID
        self.answers = Answers(ctx)
        self.held = Held(ctx, sessions, self.answers)
        self.claims: Claims[Key] = Claims()
        self.order = RetireOrder()
        self.pending_names: dict[bytes, tuple[bytes, str]] = {}
        self.wanted: dict[tuple[bytes, str], dict[Key, None]] = {}  # parent and name -> unfinished entries that want it
        self.waiting: set[Key] = set()
        self.orphans = Orphans(ctx, sessions, self.entries, self.waiting, self.pending_for)
        self.ahead = Ahead(ctx, self.entries, self.waiting, self.answers)
        self.descent = Descent()
        self.on_finished: Callable[[Entry], None] = lambda entry: None  # one that is finished has come in its order
        #: The worklist: what may go on now, in order. The engine works it off after every event, so that no end of a
        #: change order calls the next one's.
        self.unblocked: OrderedDict[Key, None] = OrderedDict()
        self.fetches_ended = 0  # counts up when one may have been given up
        self.heard: dict[bytes, int] = {}  # partner (member GUID) -> the last VSN of its own that it sent
        #: What the inbound log held of connections that are no more, and whether it was finished.
        self.abandoned: list[tuple[Key, bool]] = []
        self.former: set[bytes] = set()  # connections that are no more, with what was not finished

    def switch(self, entry: Entry) -> None:
        """Go on with the entry over another connection that offered it."""
        while entry.alternates:
            guid, co = entry.alternates.pop(0)
            if self.sessions[guid].joined:
                self.held.let_go(entry)
                self.leave(entry)
                if entry.begun:
                    self.ctx.out.append(DropStage(entry.guid))
                entry.early.clear()
                self.fetches_ended += 1
                if self.order.waits(entry.key):
                    co.flags &= ~c.CO_FLAG_SKIP_VV_UPDATE  # it came in its order, too
                entry.cxtion, entry.co, entry.former_cxtion = guid, co, b""
                entry.stage, entry.received, entry.requested = Stage.QUEUED, 0, 0
                entry.staged = entry.begun = False
                self.enter(entry)
                self.save(entry)
                return

    def discard(self, entry: Entry) -> None:
        """The fetch of the entry's staging file is over: what came of it gives its room back."""
        self.fetches_ended += 1
        entry.early.clear()
        if entry.begun and not entry.staged:
            entry.begun = False
            self.ctx.out.append(DropStage(entry.guid))

    def enter(self, entry: Entry, guid: bytes = b"") -> None:
        """The entry gets the GUID by which its staging file, its row of the log and its actions go: that of its change
        order; or another one where that is another entry's. A partner can give its own the GUIDs of others' change
        orders, and these are not to be lost for it. After a restart it is the `guid` that it had."""
        said, ctx = entry.co.change_order_guid, self.ctx
        entry.guid = guid or said
        if not guid and self.by_co.get(said, entry.key) != entry.key:
            entry.guid, partner = ctx.new_guid(), self.sender(entry)
            text = f"the change order {guid_text(said)} of {partner} for {ctx.path(entry.co)}"
            also = "one for another file has that GUID, too, so that one of the two partners made it up; both are taken"
            ctx.incident(Cause.IDENTITY, partner, f"{text}: {also}")
        if entry.guid != said:
            self._renamed[entry.cxtion, said] = entry.guid
        self.by_co[entry.guid] = entry.key

    def leave(self, entry: Entry) -> None:
        """The entry goes by that GUID no more."""
        self.by_co.pop(entry.guid, None)
        self._renamed.pop((entry.cxtion, entry.co.change_order_guid), None)
        self.ctx.store.inlog_delete(entry.guid)

    def take_in(self, entry: Entry, ordered: bool, place: bytes, guid: bytes = b"") -> None:
        """The entry is in the log from now on; with `ordered` it retires in the order of that `place`, a connection.
        `guid`: see enter()."""
        self.entries[entry.key] = entry
        self.enter(entry, guid)
        self.numbered.setdefault(entry.key[1:], entry.key[0])
        if ordered:
            self.order.arrive(place, entry.key)
        if self.ahead.is_ahead(entry.co):
            self.ahead.add(entry)
        else:
            self._claim(entry)

    def comes_to_its_time(self, entry: Entry) -> bool:
        """False while the entry waits for the clock. It holds nothing until then: it counts as if it came then."""
        if not self.ahead.waits(entry.key):
            return True
        if not self.ahead.has_come(entry):
            return False
        self._claim(entry)
        return True

    def _claim(self, entry: Entry) -> None:
        ctx, co = self.ctx, entry.co
        exclusive: list[ClaimKey] = [("g", co.file_guid)]
        shared: list[ClaimKey] = [("g", co.new_parent_guid)]
        record = ctx.store.get(co.file_guid)
        if record is not None and not record.deleted:
            exclusive.append(("n", record.parent_guid, record.name))
            shared.append(("g", record.parent_guid))
        pending = self.pending_names.get(co.file_guid)
        if pending is not None:
            exclusive.append(("n", *pending))
            shared.append(("g", pending[0]))
        if not entry.is_delete:
            exclusive.append(("n", co.new_parent_guid, co.file_name))
            self.pending_names[co.file_guid] = (co.new_parent_guid, co.file_name)
            self.wanted.setdefault((co.new_parent_guid, co.file_name), {})[entry.key] = None
        self.claims.add(entry.key, exclusive, shared)

    def restore(self) -> list[Entry]:
        """Load the inbound log at start, in order of arrival. What is not finished of a connection that is no more goes
        on with another one: what came after it may not have its turn before, and it may be fetched there."""
        for row in list(self.ctx.store.inlog_iter()):
            co = change_order_of(row)
            key: Key = (co.file_guid, co.originator_guid, co.frs_vsn)
            cxtion = row.cxtion_guid
            if cxtion not in self.sessions:
                finished = row.state >= Stage.FINISHED
                self.abandoned.append((key, finished))
                self.former.update(() if finished else (cxtion,))
                cxtion = b"" if finished else next(iter(self.sessions), b"")
            refused = row.state < Stage.FINISHED and refusal(co, self.ctx.config) is not None
            if not cxtion or key in self.entries or refused:
                self.ctx.store.inlog_delete(row.co_guid)
                continue
            extension = extension_of(row)
            entry = Entry(
                key,
                co,
                extension.checksum,
                cxtion,
                stage=Stage(row.state) if row.state >= Stage.FINISHED else Stage.QUEUED,
                attempts=row.retry_count,
                first_try=row.first_try_time,
                tries_before=extension.retry_count,
                tried_since=extension.first_try_time,
                arrival=row.arrival,
                former_cxtion=row.cxtion_guid if cxtion != row.cxtion_guid else b"",
            )
            self.ctx.arrival = max(self.ctx.arrival, row.arrival)
            ordered = not co.flags & (c.CO_FLAG_OUT_OF_ORDER | c.CO_FLAG_SKIP_VV_UPDATE)
            if not ordered:
                entry.out_of_order_by.add(entry.cxtion)
            self.take_in(entry, ordered, _RESTORED, row.co_guid)
            if entry.stage >= Stage.FINISHED:
                self.ahead.drop(key)
                if key in self.claims:
                    self.claims.release(key)
        return sorted(self.entries.values(), key=lambda e: e.arrival)

    def save(self, entry: Entry) -> None:
        """Write the entry to the inbound log."""
        ext = CoExtension2(entry.checksum, entry.tries_before, entry.tried_since)
        self.ctx.store.inlog_put(
            InlogRow(
                co_guid=entry.guid,
                cxtion_guid=entry.former_cxtion or entry.cxtion,
                co=entry.co.encode(),
                ext=ext.encode(),
                state=int(entry.stage),
                arrival=entry.arrival,
                retry_count=entry.attempts,
                first_try_time=entry.first_try,
            )
        )

    # -- finding --

    def number_of_another(self, entry: Entry) -> bool:
        """A member numbers each of its changes. Of two with one number, others would take the second for known once
        their version vector has come to the first."""
        number = entry.key[1:]
        return bool({self.numbered.get(number), self.ctx.store.changed_by(*number)} - {None, entry.key[0]})

    def entry_of(self, co_guid: bytes | None) -> Entry | None:
        """The entry that goes by this GUID."""
        key = self.by_co.get(co_guid or b"")
        return None if key is None else self.entries.get(key)

    def told_of(self, session: Session, co_guid: bytes | None) -> Entry | None:
        """The entry that the partner means by the GUID of a change order: one that it was asked for, not another
        partner's."""
        cxtion, said = session.cxtion.guid, co_guid or b""
        entry = self.entry_of(self._renamed.get((cxtion, said), said))
        return entry if entry is not None and entry.cxtion == cxtion else None

    def arrives(self, co: ChangeOrder) -> bool:
        """Whether what goes by the GUID of this change order is not done, and is another change or not whole: its
        staging file is what a partner says it is, and no more."""
        entry = self.entry_of(co.change_order_guid)
        if entry is None or entry.stage >= Stage.FINISHED:
            return False
        return not entry.staged or entry.key != (co.file_guid, co.originator_guid, co.frs_vsn)

    def of_file(self, file_guid: bytes) -> Iterator[Key]:
        """The change orders of that file which have not ended, in order of arrival."""
        return self.claims.exclusive_on(("g", file_guid))

    def unfinished(self, cxtion: bytes) -> bool:
        """A change order that came by this connection has not ended."""
        return any(e.came_by(cxtion) and e.stage < Stage.FINISHED for e in self.entries.values())

    def head(self, file_guid: bytes) -> Key | None:
        """The first of them. Only that one is ever begun, or waits to be tried again."""
        return next(self.of_file(file_guid), None)

    def pending_for(self, file_guid: bytes, but: Key | None = None) -> bool:
        """A change order of that file (other than `but`) is in the inbound log and not finished."""
        return any(key != but for key in self.of_file(file_guid))

    def moving(self, file_guid: bytes) -> bool:
        """As pending_for(), and it does not just wait to be tried again."""
        head = self.head(file_guid)
        entry = self.entries.get(head) if head is not None else None
        return entry is not None and self._moves(entry)

    def being_removed(self, file_guid: bytes) -> bool:
        """The first change order of that file which has not ended removes it."""
        head = self.head(file_guid)
        return head is not None and self.entries[head].is_delete

    def joining_anew(self, but: Entry) -> bool:
        """Some upstream partner is still sending all that it has, and does not just wait for what waits here."""
        joining = {guid for guid, s in self.sessions.items() if s.state is JoinState.VVJOIN}
        if not joining:
            return False
        return any(e.cxtion in joining and self._moves(e, but) for e in self.entries.values())

    def _moves(self, entry: Entry, but: Entry | None = None) -> bool:
        """The entry, or the one of its file that it stands behind, is under way: it is not `but`, not finished, and
        does not wait to be tried again (nor is just about to be)."""
        head = self.head(entry.co.file_guid) if entry.stage < Stage.FINISHED else None
        entry = self.entries.get(head, entry) if head is not None else entry
        if entry is but:
            return False
        tried_before = entry.waits_for is not None and entry.stage in (Stage.QUEUED, Stage.FETCHED)
        return entry.stage < Stage.FINISHED and entry.key not in self.waiting and not tried_before

    # -- retrying --

    def retry(self, entry: Entry, why: Outcome, detail: str, *, renaming: bool = False) -> None:
        """Put the entry aside for a while that doubles with every attempt (3.1.1.10.2); `renaming` is what has
        failed."""
        ctx = self.ctx
        fetching = entry.stage is Stage.FETCHING or (why is Outcome.STAGE_MISSING and entry.stage is Stage.QUEUED)
        ctx.count_retry("Fetch" if fetching else "Rename" if renaming else "Install")
        absent = why is Outcome.STAGE_MISSING and not self.sessions[entry.cxtion].joined
        if absent:  # which does not count: nothing is given up for it, and the next Join begins with all of them
            entry.first_try, delay = ctx.now, ctx.limits.max_retry
        else:
            if not entry.all_attempts:
                entry.first_failed = ctx.now
            entry.without_room += why is Outcome.NO_SPACE
            entry.attempts += why is not Outcome.NO_SPACE
            delay = min(ctx.limits.first_retry << min(entry.all_attempts - 1, 10), ctx.limits.max_retry)
        news = why is not entry.waits_for
        entry.damaged += why is Outcome.STAGE_DAMAGED
        entry.waits_for, entry.detail = why, detail
        entry.retry_at = ctx.now + max(delay, self.held.put_aside(entry, why))
        if entry.stage in (Stage.INSTALLING, Stage.FETCHING):
            if fetching:
                self.discard(entry)
            entry.stage = Stage.FETCHED if entry.staged and not fetching else Stage.QUEUED
        self.waiting.add(entry.key)
        self.hold_up_nobody(entry)
        serious = why in (Outcome.NO_SPACE, Outcome.FAILED)
        if (serious and news) or (entry.all_attempts in (3, 10, 100, 1000) and not absent):
            text = f"{why.event} {ctx.path(entry.co)}: {why.value}{': ' + detail if detail else ''}"
            if serious:
                text = f"{text}; tried again in {delay // 10_000_000} s"
                ctx.report("error", text, Cause.WAITING, ctx.path(entry.co))
            elif entry in self.held:
                ctx.report("warning", f"{text}; attempt {entry.all_attempts}", Cause.IN_USE, ctx.path(entry.co))
            else:
                ctx.report("warning", f"{text}; attempt {entry.all_attempts}")

    def hold_up_nobody(self, entry: Entry) -> None:
        """What the entry waits for may be among those that wait for it, or may never come: it keeps its turn for its
        own file only, and so do those of the same file behind it, which may be newer and end it."""
        line = list(self.of_file(entry.co.file_guid))
        for key in line:
            self._unblock(self.claims.keep_only(key, ("g", entry.co.file_guid)))
        self._unblock(key for key in line if key != entry.key)
        self._let_past(entry.co.file_guid)

    def let_past(self, entry: Entry, silent: bytes) -> None:
        """What came by that connection for the entry's file before it, and of which nothing is sent, goes behind it."""
        for key in list(takewhile(lambda key: key != entry.key, self.of_file(entry.co.file_guid))):
            if self.entries[key].cxtion == silent:
                self._unblock(self.claims.go_last(key))

    def futile(self, entry: Entry) -> str:
        """Why the entry is not tried again; empty while it is. The limits of notes 35 and 36 are passed, its staging
        file is damaged wherever it is fetched from (3.3.4.4.8), or its folder never comes. Of the time only that counts
        which its attempts can have taken: not while others had their turn, while this member was off, or by which its
        clock was set; but all of it where the clock is what it waits for. Attempts for which there was no room count
        neither."""
        limits, attempts = self.ctx.limits, entry.attempts + entry.retry_fetches
        tried = f"given up after {attempts} attempt{'s' if attempts > 1 else ''}" if attempts else "given up"
        if entry.damaged >= limits.damaged:
            return (
                f"given up, because the staging file that {self.sender(entry)} sends was damaged {entry.damaged} times "
                f"({entry.detail}): it is here again once the file is changed on any member"
            )
        waited = self.ctx.now - entry.first_try
        if not self.ahead.waits(entry.key):
            waited = min(waited, attempts * limits.max_retry)
        if entry.attempts > limits.max_retries or waited > limits.max_retry_time:
            return tried if entry.waits_for is not Outcome.NO_SPACE else ""
        if not self.orphans.wait_in_vain(entry):
            return ""
        return f"{tried}: {self.sender(entry)} sent it without the folder it is in, and no partner has that"

    def sender(self, entry: Entry) -> str:
        """Who sent the entry, for people."""
        if entry.former_cxtion:
            return "a member that is no partner any more"
        return self.sessions[entry.cxtion].cxtion.partner.name

    def orphaned(self, entry: Entry, parent: bytes) -> None:
        """The entry's folder is not here: nothing that goes there may hold up the change order that brings it."""
        self._let_past(parent)
        self.orphans.add(entry, parent)

    def _let_past(self, folder: bytes) -> None:
        """What goes into a folder or leaves it, and its own change orders, need not wait for each other."""
        for key in self.claims.waiting_on(("g", folder)):
            if key[0] != folder:
                self._unblock([key, *self.claims.drop(key, ("g", folder))])

    def _unblock(self, keys: Iterable[Key]) -> None:
        self.unblocked.update(dict.fromkeys(key for key in keys if key in self.entries))

    def next_unblocked(self) -> Entry | None:
        """Take the first entry off the worklist; None when nothing may go on."""
        while self.unblocked:
            key, _ = self.unblocked.popitem(last=False)
            if key in self.entries:
                return self.entries[key]
        return None

    def release(self, entry: Entry) -> None:
        """The entry is at its end: what waited for its claims or its folder may go on."""
        freed = self.claims.release(entry.key) if entry.key in self.claims else []
        for key in freed:
            other = self.entries.get(key)
            if other is not None and other.waits_for in _WAITS_FOR_CLAIMS:
                other.retry_at = 0
        self._unblock(freed)
        for file_guid in {key[0] for key in freed if key in self.waiting}:  # somebody behind may go past it
            self._unblock(islice((key for key in self.of_file(file_guid) if key not in self.waiting), 1))
        self._unblock(other.key for other in self.orphans.wake(entry.co.file_guid))

    def wanting(self, parent: bytes, name: str, but: bytes) -> Entry | None:
        """The last unfinished entry that wants this name for another file than `but`."""
        for key in reversed(self.wanted.get((parent, name), {})):
            if key[0] != but:
                return self.entries.get(key)
        return None

    def let_go(self, entry: Entry) -> None:
        """The entry is finished and wants its name no more."""
        self.fetches_ended += entry.begun and not entry.staged
        self.held.let_go(entry)
        place = (entry.co.new_parent_guid, entry.co.file_name)
        if self.pending_names.get(entry.co.file_guid) == place:
            del self.pending_names[entry.co.file_guid]
        wanted = self.wanted.get(place, {})
        wanted.pop(entry.key, None)
        if not wanted:
            self.wanted.pop(place, None)
        self.waiting.discard(entry.key)
        self.orphans.let_go(entry)
        self.ahead.drop(entry.key)

    def wake_for_name(self, parent: bytes, name: str) -> list[Entry]:
        """What waited for that name, which is free now, in order of arrival."""
        woken = []
        for key in self.wanted.get((parent, name), ()):
            entry = self.entries.get(key)
            if entry is not None and key in self.waiting and entry.waits_for is Outcome.NAME_TAKEN:
                entry.retry_at = 0
                self.waiting.discard(key)
                woken.append(entry)
        return woken

    def wake_emptied(self, folder: bytes) -> list[Entry]:
        """The removal of that folder, if it waited for the folder to be empty, and the IDTable has nothing in it any
        more. (Woken by each of many that leave it, it would have its attempts behind it before it can succeed.)"""
        head = self.head(folder)
        entry = self.entries.get(head) if head in self.waiting else None
        if entry is None or entry.waits_for is not Outcome.NOT_EMPTY or self.ctx.store.has_children(folder):
            return []
        entry.retry_at = 0
        self.waiting.discard(entry.key)
        return [entry]

    def free_name(self, parent: bytes, name: str) -> None:
        """A file has left that name: what waited for it, or for its folder to be empty, may go on."""
        self._unblock(other.key for other in [*self.wake_for_name(parent, name), *self.wake_emptied(parent)])

    def due(self) -> list[Entry]:
        """The waiting entries whose time has come, oldest first."""
        found = []
        for key in list(self.waiting):
            entry = self.entries.get(key)
            if entry is None or entry.stage >= Stage.FINISHED:
                self.waiting.discard(key)
            elif entry.retry_at <= self.ctx.now:
                self.waiting.discard(key)
                found.append(entry)
        return sorted(found, key=lambda e: e.arrival)

    def wake(self, claim: ClaimKey) -> list[Entry]:
        """The waiting entries that claim this key: what they wait for may have come."""
        woken = []
        for key in self.claims.waiting_on(claim):
            entry = self.entries.get(key)
            if entry is not None and entry.key in self.waiting and entry.waits_for is not Outcome.NO_SPACE:
                entry.retry_at = self.ctx.now
                self.waiting.discard(entry.key)
                woken.append(entry)
        return woken

    def unjoined(self, session: Session) -> list[Entry]:
        """The session is over. What was to be fetched goes on over another connection that offered it, or waits for the
        next session, and lets others past until then; returned is what is to be told of that, in order of arrival."""
        found = []
        for entry in self.entries.values():
            entry.alternates = [a for a in entry.alternates if a[0] != session.cxtion.guid]
            if entry.cxtion == session.cxtion.guid and entry.stage in (Stage.FETCHING, Stage.QUEUED):
                entry.stage = Stage.QUEUED
                self.discard(entry)
                if entry.alternates:
                    self.switch(entry)
                if entry.key not in self.waiting:
                    found.append(entry)
        return sorted(found, key=lambda entry: entry.arrival)
