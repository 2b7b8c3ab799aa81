"""How much room samples may take: the oldest make way for the newest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

#: A folder with the samples of one day.
DATE: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


def make_room(folder: Path, most: int) -> list[Path]:
    """Remove the oldest sample files of ``folder`` until what is left takes ``most`` bytes at most; returns those that
    are gone. Others than sample files count, and stay."""
    found = sorted(_files(folder))
    over = sum(size for *_, size in found) - most
    removed: list[Path] = []
    for day, _name, path, size in found:
        if over <= 0:
            break
        if not day:
            continue
        with suppress(OSError):
            path.unlink()
            removed.append(path)
            over -= size
            if path.parent != folder:
                path.parent.rmdir()  # the last of its day
    return removed


def _files(folder: Path) -> Iterator[tuple[str, str, Path, int]]:
    """Day (empty for what is no sample), name, path and size of each file."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            status = path.lstat()
            if not path.is_dir():
                yield _day(path, status), path.name, path, status.st_size


def _day(path: Path, status: os.stat_result) -> str:
    if path.suffix not in (".jsonl", ".parquet"):
        return ""
    of_folder = DATE.fullmatch(path.parent.name)
    return of_folder[1] if of_folder else f"{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%d}"
