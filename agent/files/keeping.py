"""What came out of the tree and is not to be lost goes to the store of `frs conflicts`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.wire.filetime import SECOND, UNIX_EPOCH
from agent.wire.guid import guid_text
from staging.beneath import Entry

log = logging.getLogger(__name__)

REPLACED: Final = "changed while it was replaced"


def keep_displaced(kept: KeptStore, entry: Entry, tree_path: str, keep: ev.Keep | None, reason: str = REPLACED) -> None:
    """Hand over an entry that was at `tree_path` of the tree; it stays where it is when it cannot be kept."""
    loser = keep.loser if keep is not None else None
    try:
        kept.keep(
            entry,
            tree_path=tree_path,
            reason=keep.reason.value if keep is not None else reason,
            md5=loser.md5 if loser is not None else None,
            winner=_edition(keep.winner) if keep is not None else None,
            loser=_edition(loser) if loser is not None else None,
        )
    except OSError as error:
        log.error("20503 %s cannot be kept where `frs conflicts` finds it, and stays: %s", entry.path, error)


def keep_deleted(kept: KeptStore, deleted: DeletedStore, entry: Entry, tree_path: str, by: bytes) -> None:
    """Hand over an entry that was at `tree_path` of the tree until the member with the originator GUID `by`
    deleted it, for a while; where that cannot be done, like a conflict's loser."""
    try:
        deleted.keep(entry.name, entry.fd, entry.path, tree_path=tree_path, by=by)
    except OSError as error:
        log.error("20513 %r was deleted elsewhere and cannot be kept with the like: %s", tree_path, error)
        keep_displaced(kept, entry, tree_path, None, ev.KeepReason.ELSEWHERE.value)


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


def _iso(when: int) -> str:
    seconds = max(when - UNIX_EPOCH, 0) / SECOND
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).isoformat(timespec="milliseconds")
