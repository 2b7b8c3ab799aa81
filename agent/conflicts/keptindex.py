"""The index of what is kept: a file of JSON lines, one for each item and one for each that left."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.work.clock import iso_time
from staging import fsops

ITEM_ID: Final = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptItem:
    """Something that is kept. `path`: where it was in the tree, as os.fsdecode gives it. `time`: when it was kept, a
    FILETIME. `size`: bytes of content. `md5`: the checksum of the staging file (over its streams), if known.
    `place`: where it is now, an absolute path. `error`: why it could not be moved into the store, and is still where
    it was. `charge`: what it counts against the quota, in bytes."""

    id: str
    path: str
    time: int
    size: int
    md5: bytes | None
    winner: Mapping[str, object] | None
    loser: Mapping[str, object] | None
    reason: str
    kind: str
    place: str
    charge: int
    error: str | None = None
    origin: str = ""  # where it was when it was given to the store
    inode: tuple[int, int] = (0, 0)  # number and birth time, to know it again there

    def as_json(self) -> dict[str, object]:
        """As `frs conflicts list --json` shows it, without the set."""
        return {
            "id": self.id,
            "path": self.path,
            "time": iso_time(self.time),
            "size": self.size,
            "md5": None if self.md5 is None else self.md5.hex(),
            "winner": None if self.winner is None else dict(self.winner),
            "loser": None if self.loser is None else dict(self.loser),
            "reason": self.reason,
        }


class Index:
    """The file. Not to be used by two threads at once."""

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self.path = path
        self.durable = durable
        self.size = 0  # bytes, with what has left; as far as could be seen

    def add(self, item: KeptItem) -> None:
        """Adds or replaces an item: durably, or not at all. Raises OSError."""
        self._append(_as_line(item))

    def drop(self, item_id: str) -> None:
        """Says that an item has left. Raises OSError."""
        self._append({"drop": item_id})

    def _append(self, entry: dict[str, object]) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            first = append_line(fd, entry, durable=self.durable)
        finally:
            self.size = os.fstat(fd).st_size
            os.close(fd)
        if first and self.durable:
            fsops.fsync_dir(os.path.dirname(self.path))

    def read(self) -> tuple[dict[str, KeptItem], bool]:
        """The items (without their place), the oldest first, and whether the file should be written anew: it holds
        what is of no use any more, or lines that are damaged and passed over. Raises OSError."""
        try:
            with open(self.path, "rb") as stream:
                data = stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return {}, False
        self.size, lines = len(data), data.split(b"\n")
        unclean = bool(lines.pop())  # the beginning of a line
        found: dict[str, KeptItem] = {}
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if "drop" in entry:
                    found.pop(entry["drop"], None)
                    unclean = True
                    continue
                item = _from_line(entry)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                log.error("20508 %s:%d: not a line of this index", self.path, number)
                unclean = True
                continue
            unclean |= item.id in found
            found[item.id] = item
        return found, unclean

    def rewrite(self, items: Iterable[KeptItem]) -> None:
        """Replaces the file. Raises OSError, and the old one stays."""
        new = f"{self.path}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.writelines(_encoded(_as_line(item)) for item in items)
            stream.flush()
            os.fsync(stream.fileno())
            size = os.fstat(stream.fileno()).st_size
        os.rename(new, self.path)
        self.size = size
        fsops.fsync_dir(os.path.dirname(self.path))


def cost(item: KeptItem) -> int:
    """The bytes of its line."""
    return len(_encoded(_as_line(item)))


def append_line(fd: int, entry: dict[str, object], *, durable: bool) -> bool:
    """Adds a line to an open file of JSON lines: whole, or not at all; True when it is the first. Raises OSError."""
    data = _encoded(entry)
    end = os.fstat(fd).st_size
    try:
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, end)
        raise
    return end == 0


def plain(values: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """The mapping as it will be after JSON; what JSON does not know becomes text. Raises nothing."""
    if values is None:
        return None
    try:
        found = json.loads(json.dumps(values, default=_as_text))
    except (ValueError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"text": repr(values)}


def _as_text(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _encoded(entry: dict[str, object]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n"


def _as_line(item: KeptItem) -> dict[str, object]:
    return {
        "id": item.id,
        "path": item.path,
        "time": item.time,
        "size": item.size,
        "md5": None if item.md5 is None else item.md5.hex(),
        "winner": item.winner,
        "loser": item.loser,
        "reason": item.reason,
        "kind": item.kind,
        "charge": item.charge,
        "error": item.error,
        "origin": item.origin,
        "inode": item.inode,
    }


def _from_line(line: dict[str, Any]) -> KeptItem:
    """Raises KeyError, TypeError, ValueError, AttributeError, OverflowError for what is no line of an index."""
    if not ITEM_ID.fullmatch(line["id"]):
        raise ValueError(line["id"])
    inode, birth = line["inode"]
    if not all(0 <= int(line[name]) < 1 << 63 for name in ("time", "size", "charge")):
        raise ValueError("a number that cannot be true")
    return KeptItem(
        id=line["id"],
        path=str(line["path"]),
        time=int(line["time"]),
        size=int(line["size"]),
        md5=None if line["md5"] is None else bytes.fromhex(line["md5"]),
        winner=plain(line["winner"]),
        loser=plain(line["loser"]),
        reason=str(line["reason"]),
        kind=str(line["kind"]),
        place="",
        charge=int(line["charge"]),
        error=None if line["error"] is None else str(line["error"]),
        origin=str(line["origin"]),
        inode=(int(inode), int(birth)),
    )
