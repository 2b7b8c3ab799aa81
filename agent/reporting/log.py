"""Logging: one line per event on stderr, with the set, connection and change order it belongs to."""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TextIO

from agent.reporting.events import LIBRARY, numbered
from agent.reporting.shown import shown
from agent.work.rates import Rate

#: Lines that one place of the program writes at once, and in a second from then on.
AT_ONCE: Final = 50
PER_SECOND: Final = 0.5
#: A warning that comes again word for word is told again after so many seconds, then after twice as many, and so on;
FIRST_S: Final = 60.0
#: after so many seconds without it, it is another event;
QUIET_S: Final = 600.0
#: so many are told apart.
MOST_EVENTS: Final = 1024
#: Characters of a line. Names in a packet may have a hundred thousand each.
LONGEST: Final = 16_384

_QUIET = ("asyncio", "aiohttp.access", "spnego")


class ContextAdapter(logging.LoggerAdapter[logging.Logger]):
    """A logger that says where a line belongs: `[set] [a->b] [co 3f2504e0]`, whichever of them are known."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{_prefix(dict(self.extra or {}))}{msg}", kwargs

    def bind(self, **context: str) -> ContextAdapter:
        """The same logger with more context."""
        return ContextAdapter(self.logger, {**(self.extra or {}), **context})


def get_logger(
    name: str, *, set_name: str | None = None, connection: str | None = None, change_order: str | None = None
) -> ContextAdapter:
    """A logger named `name` whose lines carry the given context."""
    context = {"set_name": set_name, "connection": connection, "change_order": change_order}
    return ContextAdapter(logging.getLogger(name), {k: v for k, v in context.items() if v is not None})


class _Formatter(logging.Formatter):
    """One line per event, with its number from warnings on: names in it may hold anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.WARNING:
            record.message = numbered(record.message, LIBRARY)
        line = super().formatMessage(record)
        more = len(line) - LONGEST
        return shown(line) if more <= 0 else f"{shown(line[:LONGEST])}... ({more} characters more)"

    def formatException(self, ei: Any) -> str:
        return shown(super().formatException(ei), keep="\n")


def setup_logging(level: str, stream: TextIO | None = None) -> None:
    """Sends all log lines of `level` ("debug", "info", "warning", "error") and above to `stream` (stderr)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    formatter = _Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(BoundedLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


_Key = tuple[str, int, str, str]  # the place in the program, the words, the error


@dataclass(slots=True)
class _Event:
    """A warning, and how often it came: times of the filter's clock, but `since`."""

    since: float
    last: float
    told: float
    pause: float = FIRST_S
    count: int = 1


class BoundedLines(logging.Filter):
    """Lets no place of the program fill the log, whoever makes it write there: above a rate its lines are left out,
    and its next one says how many were. A warning that is repeated, as with each attempt at the same thing, is one
    event: it is told ever more seldom, and says how often it came since when. Not so what is bounded already
    (`extra={"bounded": True}`), nor debugging."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], tuple[Rate, int]] = {}  # with how many lines were left out
        self._events: OrderedDict[_Key, _Event] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by a logging.Handler, under its lock."""
        if record.levelno <= logging.DEBUG or getattr(record, "bounded", False):
            return True
        event = _key(record) if record.levelno >= logging.WARNING else None
        if event is not None and not self._is_due(event):
            return False
        place = record.pathname, record.lineno
        rate, left_out = self._places.get(place) or (Rate(PER_SECOND, AT_ONCE, self._clock), 0)
        shown = rate.take()
        self._places[place] = rate, 0 if shown else left_out + 1
        more = self._told(event, record.created) if shown and event is not None else ""
        if shown and left_out:
            more += f" (and {left_out} lines like this one were left out)"
        if more:
            record.msg, record.args = f"{record.getMessage()}{more}", None
        return shown

    def _is_due(self, key: _Key) -> bool:
        """Whether the warning is to be told, as another event or once more. Counts it."""
        event, now = self._events.get(key), self._clock()
        if event is None or now - event.last > QUIET_S:
            self._events.pop(key, None)
            return True
        event.last, event.count = now, event.count + 1
        return now - event.told >= event.pause

    def _told(self, key: _Key, created: float) -> str:
        """What to add to the line, which is written now."""
        event, now = self._events.pop(key, None), self._clock()
        if event is None:
            self._events[key] = _Event(created, now, now)
            if len(self._events) > MOST_EVENTS:
                self._events.popitem(last=False)
            return ""
        event.told, event.pause = now, event.pause * 2
        self._events[key] = event
        return f" ({event.count} times since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(event.since))})"


def _key(record: logging.LogRecord) -> _Key:
    error = record.exc_info[1] if record.exc_info else None
    return record.pathname, record.lineno, record.getMessage(), repr(error)


def _prefix(context: dict[str, Any]) -> str:
    """The context as it stands before a message; no name of a set or a member can hold a percent sign."""
    parts = [
        str(context[key]) if key != "change_order" else f"co {context[key]}"
        for key in ("set_name", "connection", "change_order")
        if key in context
    ]
    return "".join(f"[{part}] " for part in parts)
