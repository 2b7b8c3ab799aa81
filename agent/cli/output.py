"""What the commands print: names from trees and texts from partners, on terminals of any encoding."""

from __future__ import annotations

import io
import locale
import os
import sys
from typing import TextIO

import click

from agent.reporting.shown import encodes, shown


def open_output() -> None:
    """Has stdout and stderr encode as the locale says (or PYTHONIOENCODING), UTF-8 mode or not, and escape the
    characters that it lacks instead of failing."""
    encoding = None if os.environ.get("PYTHONIOENCODING", "").partition(":")[0] else locale.getencoding()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def say(text: str, *, err: bool = False) -> None:
    """Prints lines on stdout, or stderr; what a terminal cannot show is escaped, see shown()."""
    click.echo(shown(text, _encoding(sys.stderr if err else sys.stdout), keep="\n"), err=err)


def show(error: click.ClickException) -> None:
    """As error.show(), on stderr."""
    text = io.StringIO()
    error.show(text)
    say(text.getvalue().rstrip("\n"), err=True)


def printable(text: str) -> str:
    """The text as it is if a terminal can show it, else quoted as a shell understands it, `$'...'`."""
    encoding = _encoding(sys.stdout)
    if text.isprintable() and encodes(text, encoding):
        return text
    return "$'" + "".join(_escaped(char, encoding) for char in text) + "'"


def _escaped(char: str, encoding: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if short := {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char):
        return short
    if char.isprintable() and encodes(char, encoding):
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"
