"""Which connections count as pending though nothing waits in them."""

from __future__ import annotations

import pytest

from agent.engine.context import Cxtion
from agent.engine.session import NEVER, JoinState, Session
from agent.service.unjoined import lines_of
from agent.wire.packet import NamedGuid

NOW = 134_000_000_000_000_000
CLOSED = bytes(84)


def session(
    state: JoinState, *, joined_time: int = NEVER, last_join_time: int = NEVER, schedule: bytes | None = None
) -> Session:
    cxtion = Cxtion(bytes(16), "a->b", "", NamedGuid(bytes(16), "b"), inbound=False, schedule=schedule)
    return Session(cxtion, state, joined_time=joined_time, last_join_time=last_join_time)


@pytest.mark.parametrize("state", [JoinState.UNJOINED, JoinState.NEED_JOIN, JoinState.START_JOIN, JoinState.JOINING])
def test_never_joined(state: JoinState) -> None:
    one = session(state)
    assert list(lines_of([one], NOW)) == [f"a->b was never joined ({state.value})"]
    one.last_error = "nobody is there"
    assert list(lines_of([one], NOW)) == [f"a->b was never joined ({state.value}): nobody is there"]


def test_a_first_join_that_was_cut_short() -> None:
    one = session(JoinState.UNJOINED, joined_time=NOW)
    assert list(lines_of([one], NOW)) == ["a->b was not joined to the end of its first join (unjoined)"]


@pytest.mark.parametrize(
    "one",
    [
        session(JoinState.JOINED, joined_time=NOW),
        session(JoinState.VVJOIN, joined_time=NOW),
        session(JoinState.UNJOINED, last_join_time=NOW - 1),
        session(JoinState.UNJOINED, schedule=CLOSED),
    ],
)
def test_what_is_not_pending_for_that_alone(one: Session) -> None:
    assert list(lines_of([one], NOW)) == []
    one.state, one.last_join_time = JoinState.UNJOINED, NEVER
    one.force(NOW)
    assert len(list(lines_of([one], NOW))) == 1
