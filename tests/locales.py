"""Locales whose encoding is not UTF-8, for processes that tests start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: What may say otherwise.
_NAMES = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOCPATH", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "PYTHONIOENCODING")
_LATIN1 = "en_US.ISO-8859-1"
KINDS = ("C", "POSIX", "ISO-8859-1", "UTF-8")


def locale_environment(kind: str, folder: Path) -> dict[str, str]:
    """The environment of this process, but with a locale of KINDS, in which Python does not choose UTF-8 by itself.
    One that has to be made is made in `folder`; the test is skipped where it cannot be."""
    settings = {"LC_ALL": "C.UTF-8"} if kind == "UTF-8" else {"LC_ALL": kind}
    settings |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    if kind == "ISO-8859-1":
        settings |= {"LC_ALL": _LATIN1, "LOCPATH": os.fspath(folder)}
        if not (folder / _LATIN1).is_dir():
            if shutil.which("localedef") is None:
                pytest.skip("localedef, which makes a locale with ISO-8859-1, is not there")
            made = subprocess.run(
                ["localedef", "-i", "en_US", "-f", "ISO-8859-1", os.fspath(folder / _LATIN1)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if not (folder / _LATIN1).is_dir():
                pytest.skip(f"localedef makes no locale with ISO-8859-1: {made.stderr.strip()}")
    return {name: value for name, value in os.environ.items() if name not in _NAMES} | settings
