"""What the journal's thread is given to do, one turn after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .aging import Entry
from .changes import Aged, Noted

STOP: Final = object()
FLUSH: Final = object()


@dataclass(frozen=True, slots=True)
class Heard:
    """Raw events, and when they were read."""

    at: float
    events: bytes


@dataclass(frozen=True, slots=True)
class Touched:
    """Paths that are to be looked at, with their reasons."""

    paths: Mapping[str, int]
    event_time: int


@dataclass(frozen=True, slots=True)
class Again:
    """What has aged and is to age once more."""

    batch: list[Aged]


@dataclass(frozen=True, slots=True)
class Barrier:
    """All that was told before is known then. `passed` gets the records that are `wanted` (see AgingCache.noted)."""

    passed: asyncio.Future[list[Noted]]
    wanted: Callable[[Entry], bool] | None


def resolve(future: asyncio.Future[list[Noted]], noted: list[Noted]) -> None:
    """The barrier is passed. In the event loop."""
    if not future.done():
        future.set_result(noted)


def abandon(future: asyncio.Future[list[Noted]]) -> None:
    """The barrier will not be passed. In the event loop."""
    if not future.done():
        future.set_exception(RuntimeError("the journal has stopped"))
