"""What came out of the tree and is not to be lost goes to the store of `frs conflicts`."""

from __future__ import annotations

import errno
import logging
import os
from datetime import UTC, datetime
from typing import Final

from agent.conflicts.deleted import DeletedStore, Noted
from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.wire.filetime import SECOND, UNIX_EPOCH
from agent.wire.guid import guid_text
from staging.beneath import Entry
from staging.fsops import Fingerprint

log = logging.getLogger(__name__)

REPLACED: Final = "changed while it was replaced"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


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


class Deletions:
    """What others delete, of one batch of installs: written down before any of it leaves the tree, and kept for a
    while; where that cannot be done, like a conflict's loser."""

    def __init__(self, kept: KeptStore, deleted: DeletedStore | None) -> None:
        self._kept = kept
        self._deleted = deleted if deleted is not None and deleted.keeps else None
        self._noted: dict[bytes, tuple[Entry, Noted | OSError]] = {}  # by the GUID of the change order

    def note(self, action: ev.Install, keep: ev.Keep, path: str, expected: Fingerprint, aside: Entry) -> None:
        """What is `expected` at that path is to be moved `aside`, and then kept."""
        if self._deleted is None:
            return
        try:
            noted = self._deleted.note(path, expected, aside.path, by=keep.winner.originator_guid, via=action.partner)
            self._noted[action.co_guid] = aside, noted
        except OSError as error:
            self._noted[action.co_guid] = aside, error

    def note_all(self) -> None:
        """Makes durable what was noted."""
        if self._deleted is not None and self._noted:
            try:
                self._deleted.flush()
            except OSError as error:
                self._noted = {co_guid: (aside, error) for co_guid, (aside, _) in self._noted.items()}

    def aside(self, action: ev.Install) -> Entry | None:
        """Where to move what is noted of that change order, if it is. Raises OSError where there is no room to note it:
        then it is to stay where it is."""
        aside, noted = self._noted.get(action.co_guid, (None, None))
        if isinstance(noted, OSError) and noted.errno in _FULL:
            raise OSError(noted.errno, f"no room to keep what is deleted elsewhere: {os.strerror(noted.errno)}")
        return aside

    def keep(self, action: ev.Install, entry: Entry, path: str) -> None:
        """Hand over what was at that path of the tree."""
        try:
            _, noted = self._noted.pop(action.co_guid)
            if self._deleted is None or isinstance(noted, OSError):
                raise noted if isinstance(noted, OSError) else OSError(errno.EINVAL, "nothing is kept")
            self._deleted.keep(entry.name, entry.fd, noted)
        except OSError as error:
            log.error("20513 %r was deleted elsewhere and cannot be kept with the like: %s", path, error)
            keep_displaced(self._kept, entry, path, None, ev.KeepReason.ELSEWHERE.value)

    def keep_folder(self, action: ev.Install, keep: ev.Keep, path: str, found: Fingerprint) -> None:
        """A folder was removed."""
        if self._deleted is not None:
            self._deleted.keep_folder(path, found, by=keep.winner.originator_guid, via=action.partner)

    def end(self) -> None:
        """Makes durable what was kept."""
        if self._deleted is not None:
            try:
                self._deleted.flush()
            except OSError as error:
                log.error("20501 what was deleted elsewhere is kept, but may not outlast a power cut: %s", error)


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
