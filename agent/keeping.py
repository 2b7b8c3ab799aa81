"""What came out of the tree and is not to be lost goes to the store of `frs conflicts`."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime

from agent.deleted import DeletedStore
from agent.engine import events as ev
from agent.kept import KeptStore
from agent.wire.guid import guid_text

log = logging.getLogger(__name__)


def keep_displaced(
    kept: KeptStore, path: str, tree_path: str, keep: ev.Keep | None, reason: str = "changed while it was replaced"
) -> None:
    """Hand over what is at `path` and was at `tree_path` of the tree; it stays where it is when it cannot be kept."""
    loser = keep.loser if keep is not None else None
    try:
        found = kept.keep(
            path,
            tree_path=tree_path,
            reason=keep.reason.value if keep is not None else reason,
            md5=loser.md5 if loser is not None else None,
            winner=_edition(keep.winner) if keep is not None else None,
            loser=_edition(loser) if loser is not None else None,
        )
    except OSError as error:
        log.error("%s cannot be kept where `frs conflicts` finds it, and stays: %s", path, error)
    else:
        log.warning("%r: %s; kept as %s, see `frs conflicts`", tree_path, keep.reason.value if keep else reason, found)


def keep_deleted(kept: KeptStore, deleted: DeletedStore, path: str, tree_path: str, by: bytes) -> None:
    """Hand over what is at `path` and was at `tree_path` of the tree until the member with the originator GUID `by`
    deleted it, for a while; where that cannot be done, like a conflict's loser."""
    try:
        fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            deleted.keep(os.path.basename(path), fd, path, tree_path=tree_path, by=by)
        finally:
            os.close(fd)
    except OSError as error:
        log.error("%r was deleted elsewhere and cannot be kept with the like: %s", tree_path, error)
        keep_displaced(kept, path, tree_path, None, ev.KeepReason.ELSEWHERE.value)


def _edition(edition: ev.Edition) -> dict[str, object]:
    """A version as `frs conflicts` shows it."""
    return {
        "file": guid_text(edition.file_guid),
        "name": edition.name,
        "originator": guid_text(edition.originator_guid),
        "vsn": edition.originator_vsn,
        "version": edition.version,
        "event_time": _iso(edition.event_time),
        "size": edition.size,
        "deleted": edition.deleted,
    }


def _iso(filetime: int) -> str:
    seconds = max(filetime - 116_444_736_000_000_000, 0) / 10_000_000
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).isoformat(timespec="milliseconds")
