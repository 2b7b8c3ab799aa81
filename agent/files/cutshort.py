"""What an install that was cut short by kill -9 or a power cut left behind, and nothing else puts right."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from agent.engine.stored import change_order_of
from idtable.records import IDRecord
from idtable.store import Store
from staging.fsops import fingerprint
from staging.openat2 import open_beneath
from staging.rootdir import RootDir


def folders_of_unfinished(store: Store) -> list[tuple[str, IDRecord]]:
    """The folders, each with its path, from which or to which the unfinished change orders of the inbound log move
    something. Raises StoreError, engine.stored.Unreadable."""
    guids: set[bytes] = set()
    for row in store.inlog_iter():
        co = change_order_of(row)
        record = store.get(co.file_guid)
        guids |= {co.new_parent_guid, co.old_parent_guid} | ({record.parent_guid} if record is not None else set())
    found = []
    for guid in guids:
        record, path = store.get(guid), store.path_of(guid)
        if record is not None and path and record.kind == "folder":
            found.append((path, record))
    return found


def give_times_back(root: RootDir, folders: Iterable[tuple[str, IDRecord]]) -> None:
    """Each of these folders gets the modification time back that the IDTable has, if an entry that came or went was
    the last that happened to it (then its two times are the same): the agent was killed before it did that itself, and
    the time would be taken for one that a user gave it. Where a user made or removed something there meanwhile it is
    given back likewise, as times of folders are replicated only when they are set."""
    for path, record in folders:
        with contextlib.suppress(OSError):
            fd = open_beneath(root.fd, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                found = fingerprint(fd)
                same = (record.dev, record.ino, record.btime_ns) == found[:3]
                if same and found.mtime_ns == found.ctime_ns and record.mtime_ns is not None:
                    os.utime(fd, ns=(os.fstat(fd).st_atime_ns, record.mtime_ns))
            finally:
                os.close(fd)
