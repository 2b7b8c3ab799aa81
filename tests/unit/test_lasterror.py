"""The last error of a set: until what it was about is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent.engine.context import Context
from agent.engine.engine import Engine
from agent.replica.replicastatus import ReplicaStatus
from agent.reporting.causes import Cause


class Set:
    """A set of which only that is there which says whether it has something to do."""

    def __init__(self) -> None:
        self.rest = self.started = True
        self.scanning = False
        self.here = self.aging = 0
        self.ctx = SimpleNamespace(online=True, last_error=None, error_lasts=False, now=7, out=[])
        journal = SimpleNamespace(pending=lambda: self.aging)
        looks: Any = SimpleNamespace(pending=lambda: self.here, journal=journal)
        self.watch = looks
        engine: Any = SimpleNamespace(ctx=self.ctx, is_at_rest=lambda: self.rest, is_online=True)
        engine.forget_error = lambda: Engine.forget_error(engine)
        self.running: Any = SimpleNamespace(error=None)
        watching: Any = SimpleNamespace(watch=looks)
        none: Any = None
        self.status = ReplicaStatus(
            none, none, none, none, none, none, self.running, watching, local=none, engine=lambda: engine
        )

    def went_wrong(self, **more: Any) -> None:
        Context.report(self.ctx, "error", "it cannot be staged", **more)  # type: ignore[arg-type]

    def told(self) -> tuple[int, str] | None:
        self.watch.scanning, self.running.started = self.scanning, self.started
        self.status._forget_what_is_over()
        error: tuple[int, str] | None = self.ctx.last_error
        return error


@pytest.mark.parametrize("what", [{"rest": False}, {"scanning": True}, {"here": 1}, {"aging": 1}, {"started": False}])
def test_it_is_there_while_something_is_to_be_done(what: dict[str, Any]) -> None:
    one = Set()
    one.went_wrong()
    before = {name: getattr(one, name) for name in what}
    for name, value in what.items():
        setattr(one, name, value)
    assert one.told() == (7, "it cannot be staged")
    for name, value in before.items():
        setattr(one, name, value)
    assert one.told() is None
    for name, value in what.items():
        setattr(one, name, value)
    assert one.told() is None, "it does not come back with the next change"


def test_a_change_order_that_was_given_up_stays() -> None:
    one = Set()
    one.went_wrong(cause=Cause.GIVEN_UP, lasts=True)
    assert one.told() == (7, f"{Cause.GIVEN_UP.event} it cannot be staged")
    one.went_wrong()
    assert one.told() is None
