"""Logging: one line per event on stderr, with the set, connection and change order it belongs to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TextIO

from agent.reporting.events import LIBRARY, numbered
from agent.reporting.shown import shown
from agent.work.rates import Rate

#: Lines that one place of the program writes at once, and in a second from then on.
AT_ONCE: Final = 50
PER_SECOND: Final = 0.5

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
        return shown(super().formatMessage(record))

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


class BoundedLines(logging.Filter):
    """Lets no place of the program fill the log, whoever makes it write there: above a rate its lines are left out,
    and its next one says how many were. Not so what is bounded already (`extra={"bounded": True}`), nor debugging."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], tuple[Rate, int]] = {}  # with how many lines were left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by a logging.Handler, under its lock."""
        if record.levelno <= logging.DEBUG or getattr(record, "bounded", False):
            return True
        place = record.pathname, record.lineno
        rate, left_out = self._places.get(place) or (Rate(PER_SECOND, AT_ONCE, self._clock), 0)
        shown = rate.take()
        self._places[place] = rate, 0 if shown else left_out + 1
        if shown and left_out:
            record.msg = f"{record.getMessage()} (and {left_out} lines like this one were left out)"
            record.args = None
        return shown


def _prefix(context: dict[str, Any]) -> str:
    """The context as it stands before a message; no name of a set or a member can hold a percent sign."""
    parts = [
        str(context[key]) if key != "change_order" else f"co {context[key]}"
        for key in ("set_name", "connection", "change_order")
        if key in context
    ]
    return "".join(f"[{part}] " for part in parts)
