"""Change orders that are dated ahead of the clock: they are in the inbound log, and hold nothing before their time."""

from __future__ import annotations

from collections.abc import Mapping

from agent.engine.answers import Answers
from agent.engine.context import Context
from agent.engine.entry import Entry
from agent.engine.events import Outcome
from agent.engine.order import Key
from agent.engine.records import MARKS, mark, offered
from agent.engine.session import Session
from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import DAY


class Ahead:
    """Of the `entries` of the inbound log, of which those `waiting` are tried again later."""

    def __init__(self, ctx: Context, entries: Mapping[Key, Entry], waiting: set[Key], answers: Answers) -> None:
        self._ctx = ctx
        self._entries = entries
        self._waiting = waiting
        self._answers = answers
        self._by_file: dict[bytes, dict[Key, None]] = {}

    def is_ahead(self, co: ChangeOrder) -> bool:
        """The numbers of the change order will be plausible, and are not yet (see plausible)."""
        return self._ctx.due(offered(co)) > self._ctx.now

    def add(self, entry: Entry) -> None:
        """The entry is dated ahead of the clock."""
        self._by_file.setdefault(entry.co.file_guid, {})[entry.key] = None

    def waits(self, key: Key) -> bool:
        """Whether the entry waits for its time."""
        return key in self._by_file.get(key[0], ())

    def drop(self, key: Key) -> None:
        """The entry waits for its time no more."""
        waiting = self._by_file.get(key[0], {})
        waiting.pop(key, None)
        if not waiting:
            self._by_file.pop(key[0], None)

    def answer(self, session: Session, entry: Entry, co: ChangeOrder) -> None:
        """What waits for the clock is in the inbound log, and is answered at once: what its sender has behind it, which
        may be the end of a VVJoin, is not to wait for the clock, too."""
        if self.is_ahead(co) and self.waits(entry.key):
            self._answers.done(session, co, dampened=True)

    def has_come(self, entry: Entry) -> bool:
        """Whether the time of an entry that waits for it has come; it waits no more then."""
        due = self._ctx.due(offered(entry.co))
        if due > self._ctx.now:
            entry.retry_at = min(due, self._ctx.now + DAY)
            entry.waits_for = Outcome.AHEAD
            self._waiting.add(entry.key)
            return False
        self.drop(entry.key)
        entry.retry_at, entry.waits_for = 0, None
        self._waiting.discard(entry.key)
        return True

    def replaced_by(self, entry: Entry) -> list[Entry]:
        """What is dated ahead of the clock, and was the base of this entry's change, or an earlier change of its file
        by the same originator."""
        co, found = entry.co, []
        for key in self._by_file.get(co.file_guid, ()):
            if key != entry.key:
                earlier = key[1] == co.originator_guid and key[2] < co.frs_vsn
                if earlier or co.ack_version & MARKS == mark(key[1], key[2]):
                    found.append(self._entries[key])
        return found
