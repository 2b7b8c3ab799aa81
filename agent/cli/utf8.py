"""Paths are the bytes of the file system, whatever the locale."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

_UTF8: Final = b"utf8=1"


def require_utf8() -> None:
    """Has this process go on in Python's UTF-8 mode, unless paths are UTF-8 with surrogate escapes already.

    Otherwise a name could not be read at all, or would be another text on members with another locale, and so another
    name on the wire. The mode can only be chosen when Python starts: the same command line is executed once more, in
    this process. Raises click.ClickException where that cannot be.
    """
    if sys.getfilesystemencoding() == "utf-8" and sys.getfilesystemencodeerrors() == "surrogateescape":
        return
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            program, *arguments = stream.read().split(b"\0")[:-1]
        if arguments[:2] != [b"-X", _UTF8]:
            environment = {**os.environb, b"PYTHONUTF8": b"1"}  # for the processes that this one starts
            os.execve(sys.executable, [program, b"-X", _UTF8, *arguments], environment)  # noqa: S606 - our own command line
    except (OSError, ValueError) as error:
        raise click.ClickException(f"Python cannot be started in UTF-8 mode ({error}); set PYTHONUTF8=1") from None
    raise click.ClickException(f"Python's file names are {sys.getfilesystemencoding()}, and it has no UTF-8 mode")
