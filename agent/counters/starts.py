"""The start number: which life of the agent a sample is of, whatever the clock shows.

It is kept beside the samples, one higher with each start, and in the names of the sample files: where the file is lost
they tell it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

START_FILE: Final = "start"
#: Names of the files of one start, in the order in which they were begun.
NAME: Final = "{start:08d}-{number:06d}"
_NAME: Final = re.compile(r"(\d{8})-\d{6}")


def next_start(folder: Path) -> int:
    """The number of this start, kept in ``folder`` so that none has it again. Where it cannot be kept, one that no
    start before this had that could write samples."""
    number = max((*_kept(folder), *_of_files(folder)), default=0) + 1
    with suppress(OSError):  # what becomes of the samples is told by whoever writes them
        folder.mkdir(exist_ok=True)  # the state directory is not ours to make
        beside = folder / f".{START_FILE}.tmp"
        with beside.open("w", encoding="ascii") as file:
            file.write(f"{number}\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / START_FILE)
    return number


def _kept(folder: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        yield max(int((folder / START_FILE).read_text(encoding="ascii")), 0)


def _of_files(folder: Path) -> Iterator[int]:
    with suppress(OSError):
        for path in folder.rglob("*"):
            if match := _NAME.match(path.name):
                yield int(match[1])
