"""The last error of a set: until what it was about is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent.engine.context import Context
from agent.replica.telling import Telling
from agent.reporting.causes import Cause


class Set(Telling):
    """A set of which only that is there which says whether it has something to do."""

    error = None
    _started = True

    def __init__(self) -> None:
        self.rest = True
        self.scanning = False
        self.here = self.aging = 0
        self.ctx = SimpleNamespace(online=True, last_error=None, error_lasts=False, now=7, out=[])
        journal = SimpleNamespace(pending=lambda: self.aging)
        looks: Any = SimpleNamespace(pending=lambda: self.here, journal=journal)
        self._watch = looks
        engine: Any = SimpleNamespace(ctx=self.ctx, is_at_rest=lambda: self.rest)
        self.engine = engine

    def went_wrong(self, **more: Any) -> None:
        Context.report(self.ctx, "error", "it cannot be staged", **more)  # type: ignore[arg-type]

    def told(self) -> tuple[int, str] | None:
        self._watch.scanning = self.scanning  # type: ignore[union-attr]
        self._forget_what_is_over()
        error: tuple[int, str] | None = self.ctx.last_error
        return error


@pytest.mark.parametrize("what", [{"rest": False}, {"scanning": True}, {"here": 1}, {"aging": 1}, {"_started": False}])
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
    assert one.told() == (7, "it cannot be staged")
    one.went_wrong()
    assert one.told() is None
