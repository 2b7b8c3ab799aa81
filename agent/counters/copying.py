"""Copies the archive of samples to a shared or object-store place, in a process of its own that ends when that is done.

    python -m agent.counters.copying FOLDER --to URL

- Each archived file becomes ``URL/FLEET/MEMBER/date=YYYY-MM-DD/STEM-HASH.parquet``, of which HASH are eight digits of
  the SHA-256 of its content: the same file again is the same name, and another one never takes its place.
- ``FOLDER/.copied`` has a line for each file that is there. One that was thinned is not copied when it was before; all
  of a day by the hour is, for it may have what was never copied.
- A file that cannot be written is tried again twice; then the process ends with 1, and stderr says why. It is bounded
  in time; the next one goes on from there.

Nothing is ever removed there: how long samples are kept is a matter of that place.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from agent.counters import parquet
from agent.counters.room import DATE
from agent.counters.store import Store, StoreError, told

COPIED: Final = ".copied"
_HOURS: Final = f".hours{parquet.SUFFIX}"
_PAUSES_S: Final = (1.0, 5.0)
#: Seconds after which no other file is begun.
_MOST_S: Final = 900.0


def copy(
    folder: Path,
    url: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Copy what is not there yet; returns how many files. Raises ``StoreError``, ``OSError``."""
    begun, store, count = clock(), Store(url), 0
    files = [path for path in sorted(folder.glob(f"date=*/*{parquet.SUFFIX}")) if DATE.fullmatch(path.parent.name)]
    known = _known(folder, url, files)
    with (folder / COPIED).open("a", encoding="utf-8") as copied:
        for path in files:
            if clock() - begun > _MOST_S:
                break
            try:
                data = path.read_bytes()
                key = _key(path, len(data))
                if key in known or (not path.name.endswith(_HOURS) and _key(_as_taken(path), 0) in known):
                    continue
                name = _name(path, data)
            except (FileNotFoundError, parquet.NoSampleFile):
                continue  # thinned or removed meanwhile; or damaged, as whoever reads it here is told
            _put(store, name, data, sleep)
            copied.write(f"{key}\n")
            copied.flush()
            count += 1
    return count


def _known(folder: Path, url: str, files: list[Path]) -> set[str]:
    """Which files were copied to that place; of others nothing is kept in the list."""
    path, known = folder / COPIED, set[str]()
    if path.exists():
        first, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        there = {_stem(path) for path in files}
        known = {line for line in lines if line.partition(".")[0] in there} if first == url else known
    beside = folder / f"{COPIED}.tmp"
    beside.write_text("\n".join((url, *sorted(known), "")), encoding="utf-8")
    beside.replace(path)
    return known


def _stem(path: Path) -> str:
    return f"{path.parent.name}/{path.name.partition('.')[0]}"


def _key(path: Path, size: int) -> str:
    """What stands for a file in the list. One of a day by the hour is another file when more has come into it."""
    return f"{_stem(path)}{path.name[len(path.name.partition('.')[0]) :]}" + (
        f" {size}" if path.name.endswith(_HOURS) else ""
    )


def _as_taken(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}{parquet.SUFFIX}")


def _name(path: Path, data: bytes) -> str:
    first = parquet.look(path)[0]
    stem, _, rest = path.name.partition(".")
    whose = "/".join(quote(name, safe=" ") or "-" for name in (first.life.fleet, first.member))
    return f"{whose}/{path.parent.name}/{stem}-{hashlib.sha256(data).hexdigest()[:8]}.{rest}"


def _put(store: Store, name: str, data: bytes, sleep: Callable[[float], None]) -> None:
    for pause in _PAUSES_S:
        try:
            return store.put(name, data)
        except StoreError:
            sleep(pause)
    return store.put(name, data)


def main() -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m agent.counters.copying")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", required=True)
    given = parser.parse_args()
    os.nice(19)
    try:
        count = copy(given.folder, given.to)
    except (StoreError, OSError) as error:
        print(told(error), file=sys.stderr)
        return 1
    print(count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
