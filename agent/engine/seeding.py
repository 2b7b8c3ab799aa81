"""Initial sync: from which upstream partner, and when it is over ([MS-FRS1] 3.1.5.1).

A new member performs its VVJoins with one upstream partner at a time, by priority class:

    1, 2        the next class only after every partner of the class
    3, 4        the next class only after at least one partner of the class
    5, 6, 7, 0  the next class also when a partner of the class did not answer

It is online once it has had a VVJoin with every upstream partner. Of classes 5 to 0, those do not count that were
asked after the last VVJoin and did not answer: a partner that is in initial sync itself must not (3.3.4.4.4), so that
two new members, each other's partners, would wait for ever, as would anyone with a partner that is gone. A VVJoin with
whoever answers later follows then, as with any partner that was never joined.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.engine.session import NEVER, JoinState, Session

#: The order of 3.1.5.1, highest first.
ORDER = (1, 2, 3, 4, 5, 6, 7, 0)
_ALL = (1, 2)
_ONE = (3, 4)
#: How often a partner of classes 5 to 0 is asked before those of the next class are asked too.
_PATIENCE = 2
#: How often a partner must have left CMD_JOINING unanswered before it counts as one in initial sync.
_ROUNDS = 3


def _done(session: Session) -> bool:
    return session.last_join_time != NEVER


def _satisfied(priority: int, members: list[Session]) -> bool:
    """The class lets the next one begin, for good."""
    if priority in _ALL:
        return all(map(_done, members))
    if priority in _ONE:
        return not members or any(map(_done, members))
    return True


def may_join(sessions: Iterable[Session], wanted: Session) -> bool:
    """Whether a member in initial sync may join this upstream partner now."""
    everybody = list(sessions)
    if any(s is not wanted and s.state is JoinState.VVJOIN for s in everybody):
        return False
    for priority in ORDER:
        members = [s for s in everybody if s.cxtion.priority == priority]
        if wanted in members:
            return True
        if not _satisfied(priority, members):
            return False
        waiting = [s for s in members if not _done(s)]
        if priority not in _ALL + _ONE and any(s.asked < _PATIENCE for s in waiting):
            return False
    return True


def nobody_has_all(sessions: Iterable[Session]) -> bool:
    """Every upstream partner that may be asked is alive, and in initial sync as this member is."""
    everybody = list(sessions)
    asked = [s for s in everybody if may_join(everybody, s)]
    return bool(asked) and all(s.unanswered >= _ROUNDS for s in asked)


def is_over(sessions: Iterable[Session]) -> bool:
    """Whether initial sync is over."""
    everybody = list(sessions)
    if not any(map(_done, everybody)) or not all(_done(s) or s.silent for s in everybody):
        return False
    return all(_satisfied(p, [s for s in everybody if s.cxtion.priority == p]) for p in ORDER)
