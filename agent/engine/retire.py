"""The end of a change order: record, version vector, logs, acknowledgement ([MS-FRS1] 3.1.1.11, 3.3.4.4.6).

In one transaction go the IDTable record, the version vector, the outbound log and the inbound log; the acknowledgement
is an action and follows the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.events import DropStage
from agent.engine.inbound import Inbound
from agent.engine.local import LocalChanges
from agent.engine.order import Key
from agent.engine.outbound import Outbound
from agent.engine.records import ASIDE, UNSTORED, checksum_of, mark_of
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from idtable.records import IDRecord

_T = TypeVar("_T")
#: What a change order keeps of its flags when it is passed on.
PASSED_ON_FLAGS = (
    c.CO_FLAG_CONTENT_CMD
    | c.CO_FLAG_LOCATION_CMD
    | c.CO_FLAG_COMPRESSED_STAGE
    | c.CO_FLAG_JUST_OID_RESET
    | c.CO_FLAG_OUT_OF_ORDER
    | c.CO_FLAG_SKIP_VV_UPDATE
)


def onward(entry: Entry, extra: int = 0) -> ChangeOrder:
    """The change order for the other partners."""
    flags = (entry.co.flags & PASSED_ON_FLAGS) | extra
    return entry.co.replace(change_order_guid=entry.guid, flags=flags, iflags=0)


class Retire:
    """Ends entries of the inbound log; what may go on because of it goes to the worklist (Inbound.unblocked)."""

    def __init__(self, ctx: Context, inbound: Inbound, outbound: Outbound, local: LocalChanges) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.outbound = outbound
        self.local = local
        self._behind: dict[Key, int] = {}  # finished, and since when each waits for its turn
        self._aside: dict[bytes, int] = {}  # files that stand where nobody else knows of, and since when
        inbound.on_finished = self.retire

    def finish(
        self,
        entry: Entry,
        record: IDRecord | None,
        *,
        dampened: bool = False,
        lost: bool = False,
        aborted: bool = False,
        unstored: bytes = b"",
        then: Callable[[], None] | None = None,
    ) -> None:
        """End the entry. `record` is what the IDTable says from now on of its file; None: nothing new. `unstored` is
        what it remembers of what was fetched. `then` comes before anything that waited for the entry."""
        ctx, inbound = self.ctx, self.inbound
        co = entry.co
        old = ctx.store.get(co.file_guid)
        if record is not None:
            ctx.store.put(record)
            had = old is not None and old.flags & UNSTORED
            if unstored or (had and not record.flags & UNSTORED):
                ctx.store.put_unstored(record.file_guid, unstored)
        elif aborted or lost:
            inbound.descent.passed_over(co, old)
        session = inbound.sessions[entry.cxtion]
        if aborted or lost:
            ctx.count_co("Aborted", False)
        if not (aborted and not lost):
            if dampened:
                inbound.answers.dampen(session, co)
            else:
                inbound.answers.done(
                    session,
                    co,
                    lost=lost,
                    new=entry.is_new,
                    compressed=entry.compressed_after_all,
                    extension=entry.extension(bytes(16)),
                )
        for guid, other in entry.alternates:
            inbound.answers.dampen(inbound.sessions[guid], other)
        ctx.count_co("Retired", False)
        entry.stage = Stage.FINISHED if record is not None else Stage.PASSED_ON
        inbound.let_go(entry)
        if (record is None) if entry.staged else entry.begun:
            ctx.out.append(DropStage(entry.guid))
        self.retire(entry)
        if then is not None:
            then()
        self.announce_aside(entry.key)
        inbound.release(entry)
        if record is not None and old is not None and not old.deleted:
            inbound.free_name(old.parent_guid, old.name)

    def aside(self, record: IDRecord) -> None:
        """Where the file stands now is told to nobody: its own change order, which is on its way, says more."""
        record.flags |= ASIDE
        self._aside.setdefault(record.file_guid, self.ctx.now)

    def announce_aside(self, ended: Key) -> None:
        """That change order has come to nothing: where its file stands now is news to everybody."""
        if not self.inbound.pending_for(ended[0], but=ended):
            self._announce(ended[0])

    def _announce(self, file_guid: bytes) -> None:
        record = self.ctx.store.get(file_guid)
        if record is not None and not record.deleted and record.flags & ASIDE:
            self.local.issue_resolution(record, base=mark_of(record))

    # -- the version vector --

    def retire(self, entry: Entry) -> None:
        """Let the version vector follow, and pass on what has had its turn."""
        inbound = self.inbound
        if not inbound.order.waits(entry.key):
            self._pass_on(entry, extra=0)
            self._forget(entry)
            return
        self._passed(entry.key)
        if entry.key in inbound.entries:
            inbound.save(entry)  # finished, but an earlier change is not: keep it until that one is
            self._behind.setdefault(entry.key, self.ctx.now)

    def _passed(self, key: Key) -> None:
        for item in self.inbound.order.finish(key):
            done = self.inbound.entries.get(item.key)
            self.ctx.set_vv(item.originator, item.vsn)
            if done is not None and done.stage is Stage.PASSED_ON:
                self._tell_its_maker(done)
            if done is not None:
                self._pass_on(done, extra=0)
                self._forget(done)

    def _tell_its_maker(self, entry: Entry) -> None:
        """A change that came to nothing here is passed on to nobody. But what its originator has numbered below counts
        as known here now, and somebody else may have made it up: the originator hears of it, if it is a partner, and
        knows (see restored). Not of what it has sent here itself, or numbered below that."""
        co, inbound = entry.co, self.inbound
        knows = {inbound.sessions[g].cxtion.partner.guid for g in (entry.cxtion, *(g for g, _ in entry.alternates))}
        for flow in self.outbound.flows.values():
            session, partner = flow.session, flow.session.cxtion.partner.guid
            maker = session.joined and session.partner_originator == co.originator_guid
            if maker and partner not in knows and co.frs_vsn > inbound.heard.get(partner, 0):
                told = onward(entry, c.CO_FLAG_OUT_OF_ORDER)
                self.outbound.send_directed(flow, told, entry.extension(entry.checksum))

    def tick(self) -> None:
        """What is finished and has waited long for its turn, whatever it is that takes so long, is passed on now,
        marked so that nobody's version vector moves past the one that is missing (3.1.1.10.5), and once more when its
        turn has come. Likewise, where a file stands is told now if its change order only waits to be tried again."""
        for key in self._late(self._behind):
            done = self.inbound.entries.get(key)
            if done is not None and done.stage is Stage.FINISHED:
                self._pass_on(done, extra=c.CO_FLAG_SKIP_VV_UPDATE)
                self.inbound.save(done)
        for file_guid in self._late(self._aside):
            if self.inbound.moving(file_guid):
                self._aside[file_guid] = self.ctx.now
            else:
                self._announce(file_guid)

    def _late(self, since: dict[_T, int]) -> Iterator[_T]:
        """Take out, one by one, what has waited for long."""
        while since:
            first, when = next(iter(since.items()))
            if 0 <= self.ctx.now - when < self.ctx.limits.turn_patience:
                return
            del since[first]
            yield first

    def deadlines(self) -> list[int]:
        """When the first of those will have waited for long."""
        firsts = (*islice(self._behind.values(), 1), *islice(self._aside.values(), 1))
        return [since + self.ctx.limits.turn_patience for since in firsts]

    def restored(self, entry: Entry) -> None:
        """The entry was in the inbound log at start."""
        record = self.ctx.store.get(entry.co.file_guid)
        if record is not None and record.flags & ASIDE:
            self.aside(record)
        if entry.stage >= Stage.FINISHED:
            self.retire(entry)

    def _pass_on(self, entry: Entry, extra: int) -> None:
        """Put a finished change order into the outbound log for the other partners."""
        if entry.stage is Stage.PASSED_ON:
            return
        entry.stage = Stage.PASSED_EARLY if extra else Stage.PASSED_ON
        sources = [guid for guid, _ in entry.alternates] + ([] if entry.former_cxtion else [entry.cxtion])
        if not extra and self._ordered(entry):
            # Who offered it out of its order has it, but waits for it in its order, as everybody does.
            sources = [guid for guid in sources if guid not in entry.out_of_order_by]
        partners = [self.inbound.sessions[g].cxtion.partner.guid for g in sources]
        # Who sent it has it, unless its database has been restored from a backup since.
        forgot = [p for p in partners if self.ctx.older_databases.get(p, 0) >= entry.arrival]
        members = b"".join(p for p in partners if p not in forgot)
        record = self.ctx.store.get(entry.co.file_guid)
        checksum = entry.checksum
        if record is not None and record.originator_vsn == entry.co.frs_vsn and not record.deleted:
            checksum = checksum_of(record, self.ctx.store)
        extension = entry.extension(checksum)
        if not extra:
            self._remind(entry, extension)
        if entry.co.originator_guid == self.ctx.config.originator_guid:
            # Own changes that a restored database has lost: what was made since may have gone to those who lack them,
            # so they go out of order; and in their order, so that the version vectors of the others may follow.
            self.outbound.append(onward(entry, c.CO_FLAG_OUT_OF_ORDER), extension, members, staged=False)
        self.outbound.append(onward(entry, extra), extension, members, staged=entry.staged)

    def _remind(self, entry: Entry, extension: CoExtension2) -> None:
        """Whoever made the change, and was compared with this member since it came, seems to know it by its version
        vector: it may have forgotten it, or removed the file because nobody seemed to have it (see reseed). So it is
        sent out of order."""
        sessions = [flow.session for flow in self.outbound.flows.values()]
        to = [
            s.cxtion.partner.guid
            for s in sessions
            if s.partner_originator == entry.co.originator_guid
            and self.ctx.older_databases.get(s.cxtion.partner.guid, 0) >= entry.arrival
        ]
        if to:
            others = b"".join(s.cxtion.partner.guid for s in sessions if s.cxtion.partner.guid not in to)
            self.outbound.append(onward(entry, c.CO_FLAG_OUT_OF_ORDER), extension, others, staged=False)

    @staticmethod
    def _ordered(entry: Entry) -> bool:
        return not entry.co.flags & (c.CO_FLAG_OUT_OF_ORDER | c.CO_FLAG_SKIP_VV_UPDATE)

    def _forget(self, entry: Entry) -> None:
        self.inbound.entries.pop(entry.key, None)
        self._behind.pop(entry.key, None)
        self.inbound.leave(entry)
        if self.inbound.numbered.get(entry.key[1:]) == entry.key[0]:
            del self.inbound.numbered[entry.key[1:]]

    def take_over_abandoned(self) -> bool:
        """A partner is no partner any more, and change orders of it were not at their end. What was finished here and
        not passed on is news of this member's; in place of the others, what they beat is asked for again. Whether
        there were such others."""
        unfinished = False
        for key, finished in self.inbound.abandoned:
            record = self.ctx.store.get(key[0])
            if not finished:
                unfinished = True
                if key not in self.inbound.entries:
                    self.announce_aside(key)
            elif record is not None and (record.originator_guid, record.originator_vsn) == key[1:]:
                self.local.reannounce(record, above=record.version)
        self.inbound.abandoned.clear()
        return unfinished
