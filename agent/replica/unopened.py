"""A replica set that cannot be opened, because its disk is full or its database damaged: what is said of it."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from typing import Any, Final

from agent.replica.setstatus import set_status
from agent.reporting.events import led, numbered
from agent.tree.identity import ReplicaError
from agent.work.supervise import failure
from config.model import LocalSet
from idtable.errors import StoreDamaged, StoreError, StoreFull
from staging.errors import NoSpace
from staging.space import is_full

log = logging.getLogger("frs")

RETRY_S: Final = 3.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def disk_is_full(error: BaseException, *folders: str | os.PathLike[str]) -> bool:
    """Whether it is for want of room that something failed which needs the disks of these folders."""
    if isinstance(error, NoSpace | StoreFull):
        return True
    if isinstance(error, OSError):
        return error.errno in _FULL
    # SQLite does not say why it cannot make a file.
    silent = type(error) is StoreError or isinstance(error, sqlite3.OperationalError)
    return silent and any(_has_no_room(folder) for folder in folders)


def _has_no_room(folder: str | os.PathLike[str]) -> bool:
    try:
        return is_full(folder)
    except OSError:
        return False


class UnopenedSet:
    """A replica set of this member of which nothing runs yet, or can. It is shown as a stopped one is. `again` tells
    whether it is to be tried again: not so with a damaged database, about which somebody has to do something."""

    def __init__(self, local: LocalSet, error: Exception) -> None:
        self.local = local
        self.name = local.name
        self.failed(error)

    @classmethod
    def stopped(cls, local: LocalSet, text: str) -> UnopenedSet:
        """One that does not run until somebody changes something."""
        unopened = cls(local, ReplicaError(text))
        unopened.again, unopened.error = False, text
        return unopened

    def failed(self, error: Exception) -> None:
        """It was tried again in vain."""
        self.again = not isinstance(error, StoreDamaged)
        if not self.again:
            self.error = str(error)
            return
        full = disk_is_full(error, self.local.state_dir, self.local.root)
        why = led("the disk is full: " * full, numbered(str(error), 13511 if full else 13552))
        self.error = f"{why}; trying again every {RETRY_S:.0f} seconds"

    def part_failed(self, what: str, error: BaseException) -> None:
        """It is not tried again."""
        self.error = failure(what, error)
        log.error("%s", led(f"set {self.name}: ", self.error), exc_info=error)

    def pending(self) -> list[str]:
        """What is unfinished, for people."""
        return [f"{self.name}: {self.error}"]

    def status(self) -> dict[str, Any]:
        """The set's part of `frs status`."""
        return set_status(self.local, "stopped", self.error)
