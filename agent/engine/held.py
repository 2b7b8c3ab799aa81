"""Change orders that wait for a file of this host, which somebody has open for writing or changes all the time.

The users of the tree decide how many there are, and nothing else is to wait for them. So on each connection a few are
left without an answer, that the upstream partner can say what is not everywhere yet; all beyond are acknowledged as if
they were carried out, so that they take no place in its window. They are in the inbound log and stay there, with their
places in the version vector's order, and are tried again the less often the more there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from agent.engine.answers import Answers
from agent.engine.context import Context
from agent.engine.entry import Entry
from agent.engine.events import Outcome
from agent.engine.order import Key
from agent.engine.session import Session
from agent.wire.filetime import SECOND

#: What only the users of this host can make a change order wait for.
CAUSES: Final = frozenset((Outcome.SHARING_VIOLATION, Outcome.TARGET_CHANGED))
#: So many of one connection are tried in a second.
TRIED: Final = 100


class Held:
    """The entries of the inbound log that are held up like that, by connection."""

    def __init__(self, ctx: Context, sessions: Mapping[bytes, Session], answers: Answers) -> None:
        self.ctx = ctx
        self.sessions = sessions
        self.answers = answers
        self._entries: dict[bytes, dict[Key, bool]] = {}  # whether they were acknowledged
        self._unanswered: Counter[bytes] = Counter()

    def __contains__(self, entry: Entry) -> bool:
        return entry.key in self._entries.get(entry.cxtion, ())

    def put_aside(self, entry: Entry, why: Outcome) -> int:
        """The entry waits to be tried again, and why. Returns how long it is to wait at least."""
        if why not in CAUSES:
            self.let_go(entry)
            return 0
        mine = self._entries.setdefault(entry.cxtion, {})
        if entry.key not in mine:
            mine[entry.key] = self._unanswered[entry.cxtion] >= self.ctx.limits.held_unanswered
            self._unanswered[entry.cxtion] += not mine[entry.key]
            self.answer(entry)
        return len(mine) * SECOND // TRIED

    def answer(self, entry: Entry) -> None:
        """The change order has come, perhaps once more."""
        if self._entries.get(entry.cxtion, {}).get(entry.key):
            session = self.sessions[entry.cxtion]
            more = entry.extension(bytes(16))
            self.answers.done(
                session, entry.co, new=entry.is_new, compressed=entry.compressed_after_all, extension=more
            )

    def let_go(self, entry: Entry) -> None:
        """The entry waits for something else, or its connection does, or it has come to its end."""
        mine = self._entries.get(entry.cxtion, {})
        answered = mine.pop(entry.key, None)
        if answered is False:
            self._unanswered[entry.cxtion] -= 1
        if answered is not None and not mine:
            del self._entries[entry.cxtion], self._unanswered[entry.cxtion]
