"""Who gets a name, and where a folder may go ([MS-FRS1] 1.3, 3.3.4.4.6): conflicts between different files.

What is decided here is decided alike wherever the same two meet, and is announced as a change of the loser: its version
number and event time grow by one, so that the same decision made by several members is the same state, and whatever a
user does next is newer. Until then no two records of the IDTable share a name.

    file and file      the winner (see reconcile) keeps the name; the other is removed, and kept
    folder and folder  the winner gets the morphed name
    file and folder    the file gets the morphed name
    a circle           of the folders that would lie within each other, the one ranked lowest stays where it was
    a removed folder   that nobody brings back for what is to go into it: that goes to the root, under its morphed name
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from agent.engine.context import Context, facts_of
from agent.engine.entry import Entry
from agent.engine.events import Edition, InstallStep, Keep, KeepReason, Outcome, Step
from agent.engine.inbound import Inbound
from agent.engine.reconcile import change_order_wins, morphed_name
from agent.engine.records import edition_in, edition_of, offered, version_of
from idtable.records import IDRecord


class Place(enum.Enum):
    """What comes of an entry that wants a name."""

    TAKE = "take"  # it gets `parent` and `name`, once `steps` are done
    WAIT = "wait"
    LOSE = "lose"  # the name belongs to `winner`
    CLEAR = "clear"  # `steps` first, alone; then it is looked at again


@dataclass(slots=True)
class Verdict:
    """The place of an entry. `vacated` (file GUID, parent, name, announce), `removed` and `made` (file GUIDs) are what
    `steps` do to others."""

    place: Place
    parent: bytes = b""
    name: str = ""
    steps: list[Step] = field(default_factory=list)
    vacated: tuple[bytes, bytes, str, bool] | None = None
    removed: bytes | None = None
    made: bytes | None = None
    winner: Edition | None = None


class Names:
    """Settles places for entries that are about to be installed."""

    def __init__(self, ctx: Context, inbound: Inbound) -> None:
        self.ctx = ctx
        self.inbound = inbound

    def settle(self, entry: Entry) -> Verdict:
        """The place of the entry's file or folder."""
        verdict = self._folder(entry)
        if verdict.place is not Place.TAKE:
            return verdict
        return self._name(entry, verdict)

    # -- the folder --

    def _folder(self, entry: Entry) -> Verdict:
        """The parent folder must be installed first, and must not be below what is moved into it."""
        ctx, root = self.ctx, self.ctx.config.root_guid
        parent, name = entry.co.new_parent_guid, entry.co.file_name
        guid, above = parent, list[IDRecord]()
        while guid != root:
            folder = ctx.store.get(guid)
            if folder is None or folder.deleted or not folder.is_dir or len(above) > 10_000:
                if folder is not None and self.inbound.orphans.left_alone(entry):
                    return Verdict(Place.TAKE, root, morphed_name(name, entry.co.file_guid))
                self.inbound.orphaned(entry, parent)
                self.inbound.retry(entry, Outcome.PARENT_MISSING, self._without_folder(entry, guid, folder))
                return Verdict(Place.WAIT)
            if guid == entry.co.file_guid:
                return self._circle(entry, above)
            above.append(folder)
            guid = folder.parent_guid
        return Verdict(Place.TAKE, parent, name)

    def _without_folder(self, entry: Entry, guid: bytes, folder: IDRecord | None) -> str:
        """What to say of an entry when a folder above it is not here."""
        if self.inbound.pending_for(guid):
            return "its folder is on its way"
        if folder is not None:
            return "its folder was removed here, and nobody has brought it back yet"
        return f"{self.inbound.sender(entry)} sent it without its folder, which nobody has sent yet"

    def _circle(self, entry: Entry, above: list[IDRecord]) -> Verdict:
        """The folder would be moved below itself: another member moved one of `above` at the same time. The move that
        is ranked lowest is undone, where its change order is the one that would close the circle: there the folder
        still is where it was, which is the one place that it had by right. Elsewhere it is in the circle already, and
        what would close that waits to hear of it; should nobody be in the place to undo it, the last is undone."""
        ctx, inbound = self.ctx, self.inbound
        lowest = all(offered(entry.co).rank < version_of(folder).rank for folder in above)
        moving = any(inbound.pending_for(folder.file_guid, but=entry.key) for folder in above)
        grace = ctx.limits.name_grace if lowest and not moving else ctx.limits.unknown_grace
        if not entry.has_tried(grace, ctx.now, ctx.limits):
            inbound.orphaned(entry, entry.co.new_parent_guid)
            inbound.retry(entry, Outcome.PARENT_MISSING, "it would be moved into itself; one such move is undone")
            return Verdict(Place.WAIT)
        here = ctx.store.get(entry.co.file_guid)
        assert here is not None  # _folder() found it above the place that it wants
        return Verdict(Place.TAKE, here.parent_guid, here.name)

    # -- the name --

    def _name(self, entry: Entry, verdict: Verdict) -> Verdict:
        ctx, co = self.ctx, entry.co
        parent, name = verdict.parent, verdict.name
        other = ctx.store.by_name(parent, name)
        if other is None or other.file_guid == co.file_guid:
            return verdict
        if self.inbound.pending_for(other.file_guid, but=entry.key):
            # Its own change order, which waits behind this one, moves or removes it: let it step aside.
            return self._vacate(verdict, other, announce=False, entry=entry)
        if not entry.has_tried(ctx.limits.name_grace, ctx.now, ctx.limits):
            self.inbound.retry(entry, Outcome.NAME_TAKEN, "the name is still taken")
            return Verdict(Place.WAIT)
        wins = ctx.fault(version_of(other)) is not None or change_order_wins(offered(co), version_of(other))
        if other.is_dir and (wins or not entry.is_dir):
            return self._morph(entry, verdict)
        if entry.is_dir:
            return self._vacate(verdict, other, announce=True, entry=entry)
        if not wins:
            return Verdict(Place.LOSE, winner=edition_of(other))
        verdict.removed = other.file_guid
        keep = Keep(KeepReason.NAME, edition_of(other), edition_in(co, entry.checksum))
        step = Step(InstallStep.DELETE, parent, name, facts_of(other), file_guid=other.file_guid, keep=keep)
        verdict.steps.append(step)
        return verdict

    def _morph(self, entry: Entry, verdict: Verdict) -> Verdict:
        """The entry itself goes to its morphed name. Should even that be taken, its holder steps aside."""
        verdict.name = morphed_name(entry.co.file_name, entry.co.file_guid)
        other = self.ctx.store.by_name(verdict.parent, verdict.name)
        if other is not None and other.file_guid != entry.co.file_guid:
            return self._vacate(verdict, other, announce=True, entry=entry)
        return verdict

    def _vacate(self, verdict: Verdict, other: IDRecord, *, announce: bool, entry: Entry) -> Verdict:
        parent, aside = other.parent_guid, self._free_name(other)
        verdict.vacated = (other.file_guid, parent, aside, announce)
        ctx = self.ctx
        if entry.not_found == other.file_guid and entry.has_tried(ctx.limits.name_grace, ctx.now, ctx.limits):
            # It was deleted here, which is looked at only after the initial sync: it moves in the IDTable only.
            return verdict
        verdict.steps.append(
            Step(InstallStep.VACATE, parent, other.name, facts_of(other), parent, aside, file_guid=other.file_guid)
        )
        return verdict

    def _free_name(self, other: IDRecord) -> str:
        name = morphed_name(other.name, other.file_guid)
        while self.ctx.store.by_name(other.parent_guid, name) is not None:
            name = morphed_name(name, other.file_guid)
        return name
