"""Connections over which nothing has passed yet: what they mean for `frs wait`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.engine.session import NEVER, Session
from agent.replica.replica import Replica
from agent.work.clock import filetime_now


def never_joined(replica: Replica) -> list[str]:
    """One line for each connection of which nobody can say that the partner has it all: it was never joined, or not
    to the end of the first Join. One whose schedule is closed is not counted."""
    with replica.lock:
        engine = replica.engine
        sessions = [*engine.in_sessions.sessions.values(), *engine.out_sessions.sessions.values()]
        return [f"{replica.name}: {line}" for line in lines_of(sessions, filetime_now())]


def lines_of(sessions: Iterable[Session], now: int) -> Iterator[str]:
    """The lines of these sessions at the time `now`, a FILETIME."""
    for session in sessions:
        if session.joined or session.last_join_time != NEVER or not session.is_open(now):
            continue
        what = "was never joined" if session.joined_time == NEVER else "was not joined to the end of its first join"
        why = f": {session.last_error}" if session.last_error else ""
        yield f"{session.cxtion.key} {what} ({session.state.value}){why}"
