"""Long work on one file is given up when whoever it is for wants no more of it: when the program ends, for one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from staging.errors import Interrupted

_HERE: Final = threading.local()


@contextlib.contextmanager
def interruptible(*by: threading.Event) -> Iterator[None]:
    """What this thread does to files meanwhile is given up once one of the events is set."""
    before = getattr(_HERE, "events", ())
    _HERE.events = (*before, *by)
    try:
        yield
    finally:
        _HERE.events = before


def check() -> None:
    """To be called at least for each MiB that is read or written. Raises Interrupted when the work is given up."""
    for event in getattr(_HERE, "events", ()):
        if event.is_set():
            raise Interrupted("the work was given up")
