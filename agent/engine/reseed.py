"""A member that was out of touch for longer than tombstones are kept ([MS-FRS1] 3.1.5.1).

What was deleted meanwhile may have left no tombstone behind. So such a member is seeded anew: it asks for all there is,
as if it knew nothing, compares, and then removes, and keeps, what no upstream partner has any more. What was changed
here and never acknowledged by anybody is news: it stays, and is announced anew, for its acknowledgement may have been
lost, and with it the news that others had it and deleted it. Others may join this member when that is done.

When all members were out of touch, each of them would wait for somebody else to seed it. Then the primary member seeds
the others, as it once did.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.engine import seeding
from agent.engine.context import Context, facts_of
from agent.engine.events import Install, Installed, InstallStep, Keep, KeepReason, Outcome, Step
from agent.engine.local import LocalChanges
from agent.engine.outbound import Outbound
from agent.engine.records import ASIDE, PASSING, edition_of
from agent.engine.session import Session
from agent.wire.filetime import HOUR
from idtable.records import IDRecord

_CONTACT = "last_contact"
_RESEEDING = "reseeding"


class Reseed:
    """Notices that a member was away too long, and what is to go when it has been seeded again."""

    def __init__(self, ctx: Context, outbound: Outbound, local: LocalChanges) -> None:
        self.ctx = ctx
        self.outbound = outbound
        self.local = local
        self.active = ctx.store.meta_get(_RESEEDING) == b"1"
        self.confirmed: set[bytes] = set()
        self._saved = 0
        self._contact = int(ctx.store.meta_get(_CONTACT) or b"0")
        self._removing: dict[bytes, bytes] = {}  # GUID of the install -> file GUID
        self._left: list[bytes] = []
        self.removing = False
        self._since = 0  # when this member began to ask

    def in_touch(self, *, save: bool = False) -> None:
        """An upstream partner is joined now."""
        ctx = self.ctx
        ahead = self._contact > ctx.now + ctx.limits.max_clock_skew  # written when the clock was
        self._contact = ctx.now if ahead else max(self._contact, ctx.now)
        if save or ctx.now - self._saved > min(HOUR, ctx.limits.tombstone_lifetime // 10) or ctx.now < self._saved:
            self._saved = ctx.now
            ctx.store.meta_set(_CONTACT, str(self._contact).encode())

    def due(self) -> bool:
        """The member was out of touch for too long, and must be seeded again before it joins."""
        away = self.ctx.now - self._contact
        return self.ctx.online and self._contact > 0 and away > self.ctx.limits.tombstone_lifetime

    def begin(self) -> None:
        """Seed again."""
        ctx = self.ctx
        days = (ctx.now - self._contact) // (24 * HOUR)
        ctx.report(
            "warning",
            f"20205 no upstream partner was joined for {days} days, longer than deletions are "
            "remembered: this member is seeded again; what the others no longer have is moved to what `frs conflicts` "
            "lists",
        )
        self.active = True
        ctx.store.meta_set(_RESEEDING, b"1")
        self.in_touch(save=True)

    def seen(self, file_guid: bytes) -> None:
        """An upstream partner knows the file, or that it was deleted."""
        if self.active:
            self.confirmed.add(file_guid)

    def removes(self, file_guid: bytes) -> bool:
        """The file is just being removed here, because nobody seemed to have it."""
        return file_guid in self._removing.values()

    def goes_first(self, sessions: Iterable[Session]) -> bool:
        """This is the primary member, and has waited long enough for partners that wait, too."""
        ctx = self.ctx
        if not self.active or not ctx.config.primary or self.removing:
            return False
        self._since = self._since or ctx.now
        if ctx.now - self._since < ctx.limits.primary_patience or not seeding.nobody_has_all(sessions):
            return False
        ctx.report(
            "warning",
            "20206 all upstream partners are to be seeded, too: this member, the primary one, goes "
            "on with what it has and seeds the others",
        )
        self._over()
        self.in_touch(save=True)  # with itself, so to speak
        return True

    def _over(self) -> None:
        self.active = self.removing = False
        self._since = 0
        self.confirmed.clear()
        self.ctx.store.meta_set(_RESEEDING, b"0")

    def end(self) -> None:
        """All that the others have is here: announce what is new, and remove what nobody has, what is in folders
        first."""
        self.removing = True
        news = self._news()
        alone = [r for r in self.ctx.store.all_live() if r.file_guid not in self.confirmed and r.name]
        for record in sorted(alone, key=self._depth):
            if record.file_guid not in news:
                self._left.append(record.file_guid)
            elif not record.flags & (ASIDE | PASSING):
                self.local.reannounce(record, above=record.version)
        self._next()

    def _news(self) -> set[bytes]:
        """The files whose last change nobody acknowledged, and the folders they are in."""
        ctx = self.ctx
        news = self.outbound.retention.unheard()
        for guid in list(news):
            record = ctx.store.get(guid)
            while record is not None and record.parent_guid not in news and record.parent_guid != ctx.config.root_guid:
                news.add(record.parent_guid)
                record = ctx.store.get(record.parent_guid)
        return news

    def _depth(self, record: IDRecord) -> int:
        depth, at = 0, self.ctx.store.get(record.parent_guid)
        while at is not None and at.file_guid != self.ctx.config.root_guid and depth < 10_000:
            depth, at = depth + 1, self.ctx.store.get(at.parent_guid)
        return depth

    def _next(self) -> None:
        while self._left:
            record = self.ctx.store.get(self._left.pop())
            if record is None or record.deleted or record.file_guid in self.confirmed:
                continue
            guid = self.ctx.new_guid()
            self._removing[guid] = record.file_guid
            keep = None if record.is_dir else Keep(KeepReason.AWAY, edition_of(record), edition_of(record))
            step = Step(
                InstallStep.DELETE,
                record.parent_guid,
                record.name,
                facts_of(record),
                file_guid=record.file_guid,
                keep=keep,
            )
            self.ctx.out.append(Install(guid, record.file_guid, record.is_dir, (step,), record.md5))
            return
        self._over()

    def installed(self, event: Installed) -> bool:
        """True when the install was one of these."""
        guid = self._removing.pop(event.co_guid, None)
        if guid is None:
            return False
        record = self.ctx.store.get(guid)
        if record is not None and not record.deleted:
            if event.outcome in (Outcome.DONE, Outcome.ALREADY):
                self.local.forget(record)
            else:  # changed here meanwhile, or something new is in it: so it is news to the others
                self.local.reannounce(record, above=record.version)
        self._next()
        return True
