"""Logging: one line per event on stderr, with the set, connection and change order it belongs to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, TextIO

from agent.shown import shown

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
    """One line per event: names in it may hold anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:
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
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _prefix(context: dict[str, Any]) -> str:
    """The context as it stands before a message; no name of a set or a member can hold a percent sign."""
    parts = [
        str(context[key]) if key != "change_order" else f"co {context[key]}"
        for key in ("set_name", "connection", "change_order")
        if key in context
    ]
    return "".join(f"[{part}] " for part in parts)
