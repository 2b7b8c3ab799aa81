"""docs/events.md as a page: what each event number means, and what to do. A number is its anchor: /events#13508."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final

_ROW: Final = re.compile(r"\| (\d{5}) \| (.*?) \| (.*?) \|")
_CODE: Final = re.compile(r"`([^`]*)`")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_HEAD: Final = """\
<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>Events - frs</title>
  <link rel="icon" href="/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="/dashboard.css">
</head>
<body>
  <header class="top"><div class="wrap"><h1>Events</h1><p><a href="/">Back to this member</a></p></div></header>
  <main class="wrap events">
"""


@cache
def remedies() -> dict[int, tuple[str, str]]:
    """Of each event what has happened, and its cause and what to do, as docs/events.md has it."""
    return {int(row[1]): (row[2], row[3]) for row in map(_ROW.match, _lines()) if row is not None}


def page() -> str:
    """The page."""
    return _HEAD + "".join(_parts()) + "</main></body></html>"


def _lines() -> list[str]:
    return resources.files(__package__).joinpath("static", "events.md").read_text(encoding="utf-8").splitlines()


def _parts() -> Iterator[str]:
    inside = False
    for line in _lines():
        row = _ROW.match(line)
        if inside and row is None:
            inside = False
            yield "</dl>"
        if line.startswith("## "):
            yield f"<h2>{_text(line[3:])}</h2>"
        elif row is not None:
            if not inside:
                inside = True
                yield "<dl>"
            yield f'<div id="{row[1]}"><dt>{row[1]} {_text(row[2])}</dt><dd>{_text(row[3])}</dd></div>'
    if inside:
        yield "</dl>"


def _text(markdown: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(_LINK.sub(r"\1", markdown)))
