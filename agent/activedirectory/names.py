"""Distinguished names (RFC 4514): compared, taken apart, made. No I/O.

A name that is asked for is always one that the directory gave, as it gave it. What is here compares names, and makes
those of new objects.
"""

from __future__ import annotations

import functools
import re
from typing import Final

_HEX: Final = re.compile(r"\\([0-9A-Fa-f]{2})")
_SPECIAL: Final = re.compile(r'[,+"\\<>;=\0\r\n]')


def parts(dn: str) -> tuple[str, ...]:
    """The relative names of a DN, from its own on, as they stand there."""
    found, start, at, quoted = [], 0, 0, False
    while at < len(dn):
        char = dn[at]
        if char == "\\":
            at += 1
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            found.append(dn[start:at])
            start = at + 1
        at += 1
    found.append(dn[start:])
    return tuple(found)


def parent(dn: str) -> str:
    """The DN of the object above."""
    return ",".join(parts(dn)[1:])


def above(dn: str, levels: int) -> str:
    """The DN of the object so many levels above."""
    return ",".join(parts(dn)[levels:])


def common_name(dn: str) -> str:
    """The value of its own relative name, without escapes."""
    return _unescaped(parts(dn)[0].partition("=")[2])


@functools.lru_cache(maxsize=1 << 16)
def normal(dn: str) -> str:
    """The same for all ways to write one name: upper and lower case, escapes, spaces around what is not escaped."""
    found = []
    for part in parts(dn):
        kind, _, value = part.partition("=")
        found.append(f"{kind.strip().casefold()}={_escaped(_unescaped(value).casefold())}")
    return ",".join(found)


def is_below(dn: str, base: str) -> bool:
    """Whether it is that object, or below it."""
    one, other = normal(dn), normal(base)
    return one == other or one.endswith("," + other)


def child(name: str, base: str, kind: str = "CN") -> str:
    """The DN of an object of that name directly below `base`."""
    return f"{kind}={_escaped(name)},{base}"


def dns_domain(naming_context: str) -> str:
    """The DNS name of a domain by the DN of its head: "frs.test" of DC=frs,DC=test."""
    kinds = (part.partition("=") for part in parts(naming_context))
    return ".".join(_unescaped(value) for kind, _, value in kinds if kind.strip().casefold() == "dc").casefold()


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(lambda found: f"\\{ord(found[0]):02X}", value)
    if text[:1] in (" ", "#"):
        text = f"\\{ord(text[0]):02X}{text[1:]}"
    if text[-1:] == " " and len(value) > 1:
        text = text[:-1] + "\\20"
    return text


def _unescaped(value: str) -> str:
    """A value as it is meant: without its escapes, quotes, and the spaces around it."""
    text = value.lstrip(" ")
    while text.endswith(" ") and not _escapes_last(text):
        text = text[:-1]
    if len(text) > 1 and text[0] == '"' and text[-1] == '"':
        text = text[1:-1]
    found, at = bytearray(), 0
    while at < len(text):
        code = _HEX.match(text, at)
        if code is not None:
            found.append(int(code[1], 16))
            at += 3
            continue
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
        found += text[at].encode("utf-8", "surrogatepass")
        at += 1
    return found.decode("utf-8", "replace")


def _escapes_last(text: str) -> bool:
    """Whether the last character stands behind a backslash that escapes it."""
    before = text[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1
