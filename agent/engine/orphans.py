"""Change orders whose folder is not here ([MS-FRS1] 3.1.1.10.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.events import Outcome
from agent.engine.order import Key
from agent.engine.session import JoinState, Session
from agent.wire import constants as c


class Orphans:
    """The entries of the inbound log that wait for a folder. `waiting` are those that wait for anything; `pending_for`
    says whether a change order of that file is in the log and not finished."""

    def __init__(
        self,
        ctx: Context,
        sessions: Mapping[bytes, Session],
        entries: Mapping[Key, Entry],
        waiting: set[Key],
        pending_for: Callable[[bytes], bool],
    ) -> None:
        self.ctx = ctx
        self._sessions = sessions
        self._entries = entries
        self._waiting = waiting
        self._pending_for = pending_for
        self._of: dict[bytes, dict[Key, None]] = {}  # folder that is missing -> what waits for it

    def __iter__(self) -> Iterator[Entry]:
        for key in self._waiting:
            entry = self._entries.get(key)
            if entry is not None and entry.waits_for is Outcome.PARENT_MISSING:
                yield entry

    def add(self, entry: Entry, parent: bytes) -> None:
        """The entry waits for that folder."""
        self._of.setdefault(parent, {})[entry.key] = None

    def let_go(self, entry: Entry) -> None:
        """The entry is finished."""
        mine = self._of.get(entry.co.new_parent_guid, {})
        mine.pop(entry.key, None)
        if not mine:
            self._of.pop(entry.co.new_parent_guid, None)

    def wake(self, parent: bytes) -> list[Entry]:
        """What waited for that folder, in order of arrival."""
        woken = []
        for key in self._of.pop(parent, ()):
            entry = self._entries.get(key)
            if entry is not None and entry.stage in (Stage.QUEUED, Stage.FETCHED):
                entry.retry_at = 0
                self._waiting.discard(key)
                woken.append(entry)
        return woken

    def await_folder(self, folder: bytes) -> bool:
        """Something that came waits for this folder, which is not here, or for one that was in it."""
        for entry in self:
            above, seen = entry.co.new_parent_guid, set[bytes]()
            while above not in seen:
                if above == folder:
                    return True
                seen.add(above)
                record = self.ctx.store.get(above)
                above = record.parent_guid if record is not None else above
        return False

    def left_alone(self, entry: Entry) -> bool:
        """The entry has waited for long, with all upstream partners joined all the time: nobody will bring its folder
        back. (Whoever made it may have been restored from a backup since, and know nothing of it.)"""
        since = self.ctx.now - self.ctx.limits.orphan_patience
        return entry.first_try < since and all(s.joined and s.since < since for s in self._sessions.values())

    def wait_in_vain(self, entry: Entry) -> bool:
        """The entry waits for a folder that is not here and that nobody who is a partner will send."""
        tried = entry.has_tried(self.ctx.limits.name_grace, self.ctx.now, self.ctx.limits)
        if entry.waits_for is not Outcome.PARENT_MISSING or entry.is_delete or not tried:
            return False
        missing = self._missing_above(entry)
        if missing is None or self._pending_for(missing):
            return False
        if entry.co.flags & c.CO_FLAG_RETRY and entry.tries > self.ctx.limits.max_retries:
            return True  # those before this member have tried, too (3.1.1.10.2, note 35)
        removed = self.ctx.store.get(missing) is not None  # then it goes to the root (see names), if it can be had
        if entry.former_cxtion and not entry.alternates and not (removed and entry.staged):
            return all(s.state is JoinState.JOINED and not s.everything for s in self._sessions.values())
        return not removed and self.left_alone(entry)

    def _missing_above(self, entry: Entry) -> bytes | None:
        """The GUID of the nearest folder above the entry's file that is not here; None where all of them are."""
        guid, seen = entry.co.new_parent_guid, set[bytes]()
        while guid != self.ctx.config.root_guid and guid not in seen:
            seen.add(guid)
            folder = self.ctx.store.get(guid)
            if folder is None or folder.deleted or not folder.is_dir:
                return guid
            guid = folder.parent_guid
        return None
