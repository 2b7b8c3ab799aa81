"""The one error of this room: a configuration that cannot be used, said so that it can be mended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class ConfigError(Exception):
    """A configuration that cannot be used.

    `file` is where it stands, `line` its line counted from 1 (None where no line can be named, as for a
    file that does not exist), `key` the dotted key ("" for the file as a whole), `message` what is wrong
    and what to do. `others` are further faults found in the same reading, in the order of their lines.
    """

    def __init__(
        self, file: Path, line: int | None, key: str, message: str, others: Sequence[ConfigError] = ()
    ) -> None:
        self.file = file
        self.line = line
        self.key = key
        self.message = message
        self.others = tuple(others)
        super().__init__(file, line, key, message)

    def one_line(self) -> str:
        """This fault alone: `FILE:LINE: KEY: MESSAGE`, on one line whatever names stand in it."""
        place = f"{self.file}:{self.line}" if self.line is not None else str(self.file)
        return _printable(f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}")

    def __str__(self) -> str:
        return "\n".join([self.one_line(), *(other.one_line() for other in self.others)])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def joined(errors: Sequence[ConfigError]) -> ConfigError:
    """One error out of several: the first by line carries the rest. `errors` must not be empty."""
    first, *rest = sorted(errors, key=lambda e: (str(e.file), e.line or 0))
    return ConfigError(first.file, first.line, first.key, first.message, rest)
