"""Text that may hold names from a tree, or from a partner, as it is shown to people."""

from __future__ import annotations


def shown(text: str, encoding: str = "utf-8", *, keep: str = "") -> str:
    """The text with each character that is not printable, or not in the encoding, written as in a Python string: `\\n`,
    `\\x1b`, `\\u202e`, and `\\udc80` to `\\udcff` for bytes of names that are no UTF-8. Those of `keep` stay."""
    if text.isprintable() and encodes(text, encoding):
        return text
    return "".join(
        char if char in keep or (char.isprintable() and encodes(char, encoding)) else ascii(char)[1:-1] for char in text
    )


def encodes(text: str, encoding: str) -> bool:
    """Whether an encoding has all characters of the text."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
