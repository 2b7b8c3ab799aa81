"""On which line a key of a TOML file stands. `tomllib` gives values without places; this gives places only.

The text must already have been accepted by `tomllib`, so nothing here checks the grammar.
"""

from __future__ import annotations

import re
import tomllib

KeyPath = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_PLAIN_VALUE = re.compile(r"[^,\]}\n#]*")
_STRINGS = (
    re.compile(r'"""(?:\\.|(?!""").)*"{3,5}', re.DOTALL),
    re.compile(r"'''(?:(?!''').)*'{3,5}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, counted from 1, of every key, table and array element of the TOML document `text`.

    An element of an array, or of an array of tables, has its index (from 0) in the path.
    """
    return _Scanner(text).document()


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """The line of `path` or, where the key itself is not written down, of the nearest table around it."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def dotted(path: KeyPath) -> str:
    """`path` as people write it: `set[0].member[1].guid`. A key that cannot be printed as it is gets escapes, so that
    all of it stays on one line."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE_KEY.fullmatch(part) else f'"{part}"' if part.isprintable() else repr(part)
            text += f".{name}" if text else name
    return text


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.lines: dict[KeyPath, int] = {}
        self._array_lengths: dict[KeyPath, int] = {}
        self._line = 1
        self._counted = 0

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(_BLANK):
            if self.text.startswith("[[", self.pos):
                table = self._header(2)
            elif self.text.startswith("[", self.pos):
                table = self._header(1)
            else:
                self._key_value(table)
        return self.lines

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Passes over `pattern`; False at the end of the text."""
        if match := pattern.match(self.text, self.pos):
            self.pos = match.end()
        return self.pos < len(self.text)

    def _mark(self, path: KeyPath) -> None:
        self._line += self.text.count("\n", self._counted, self.pos)
        self._counted = self.pos
        self.lines.setdefault(path, self._line)

    def _header(self, brackets: int) -> KeyPath:
        self.pos += brackets
        *outer, last = self._key()
        path: KeyPath = ()
        for part in outer:
            path = self._newest((*path, part))
            self._mark(path)
        path += (last,)
        self._mark(path)
        if brackets == 2:
            index = self._array_lengths.get(path, 0)
            self._array_lengths[path] = index + 1
            path += (index,)
            self._mark(path)
        self.pos += brackets
        return path

    def _newest(self, path: KeyPath) -> KeyPath:
        """`path`, or its last element where it is an array of tables."""
        return (*path, self._array_lengths[path] - 1) if path in self._array_lengths else path

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            if self.text[self.pos] in "\"'":
                start = self.pos
                self._string()
                parts.append(str(tomllib.loads("k = " + self.text[start : self.pos])["k"]))
            else:
                match = _BARE_KEY.match(self.text, self.pos)
                if match is None:
                    raise ValueError(f"no key at offset {self.pos}")
                parts.append(match.group())
                self.pos = match.end()
            self._skip(_SPACE)
            if not self.text.startswith(".", self.pos):
                return parts
            self.pos += 1

    def _key_value(self, table: KeyPath) -> None:
        path = table
        for part in self._key():
            path += (part,)
            self._mark(path)
        self.pos += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        first = self.text[self.pos]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._list(path, "]")
        elif first == "{":
            self._list(path, "}")
        else:
            self._skip(_PLAIN_VALUE)

    def _string(self) -> None:
        for pattern in _STRINGS:
            if match := pattern.match(self.text, self.pos):
                self.pos = match.end()
                return
        raise ValueError(f"no string at offset {self.pos}")

    def _list(self, path: KeyPath, closing: str) -> None:
        self.pos += 1
        index = 0
        while self._skip(_BLANK):
            if self.text[self.pos] == closing:
                self.pos += 1
                return
            if self.text[self.pos] == ",":
                self.pos += 1
                continue
            if closing == "]":
                self._mark((*path, index))
                self._value((*path, index))
                index += 1
            else:
                self._key_value(path)
