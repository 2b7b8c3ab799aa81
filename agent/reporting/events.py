"""Event numbers: what an administrator is told of begins with one, in the log and in `frs status`, and docs/events.md
has cause and remedy of each. Those of the File Replication Service (13500 to 13599) mean what they mean
there; ours begin with 20000. The packages below agent write theirs at the beginning of what they log.
"""

from __future__ import annotations

import enum
import re
from typing import Final

#: What another library logs: it knows nothing of numbers.
LIBRARY: Final = 20000

_NUMBERED: Final = re.compile(r"(?:\[[^\]]*\] )*(\d{5}) ")


class Numbered(enum.Enum):
    """Members that are told of: each has a value, a text, and the number of its event (0: it is never told of)."""

    event: int

    def __new__(cls, value: str, event: int = 0) -> Numbered:
        """As enum asks for it."""
        member = object.__new__(cls)
        member._value_ = value
        member.event = event
        return member


def number_of(text: str | None) -> int | None:
    """The number that a text begins with, after any `[set]`; None where it has none."""
    found = _NUMBERED.match(text) if text else None
    return int(found[1]) if found else None


def numbered(text: str, event: int) -> str:
    """The text with the number of that event, unless it has one already."""
    return text if number_of(text) is not None else f"{event} {text}"


def led(words: str, text: str) -> str:
    """`words`, then the text: behind its number, where it has one."""
    number = number_of(text)
    return f"{words}{text}" if number is None else f"{number} {words}{text.partition(' ')[2]}"
