"""What is missing in a replica tree: deleted, or not there for now.

A disk that was not mounted, a backup that was not put back, a mistyped `rm`: all of them look like deletions. So a set
whose root has lost a given share of what is known of it waits, with nothing sent, installed or deleted. It goes on when
all that was missing is back, or when an administrator takes the deletions for what they are (`frs accept-deletions`).
Both survive the process: what is waited for, and what was accepted, are in the store, by the file GUIDs of the topmost
records that are missing. So whatever goes missing later is judged by itself.
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from agent.localchanges.lookup import LockedLookup
from idtable.errors import StoreError
from idtable.store import Store
from journal.changes import Missing
from journal.examine import Examiner

_WAITED_FOR: Final = "missing"
_ACCEPTED: Final = "accepted_deletions"
_GUID: Final = 16
_SHOWN: Final = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """Files and folders that are missing, how many known ones are still there, the paths of some of those that are
    missing (of a folder with all that was in it only its own), and how many such paths there are besides."""

    files: int
    folders: int
    found: int
    paths: tuple[str, ...]
    more: int

    def as_json(self) -> dict[str, object]:
        """As `frs status --json` shows it."""
        return asdict(self)


class TooMuchMissing(Exception):
    """So much is missing that the set waits; the text says what and what to do."""

    def __init__(self, text: str, loss: Loss) -> None:
        super().__init__(text)
        self.loss = loss


class MissingFiles:
    """Decides, for one replica set, whether what is missing in its tree counts as deleted. `examiner` makes an examiner
    of the tree. `limit` is the share, in percent, of known files and folders whose loss the set waits for. Methods may
    be called from any thread, but not by two at once."""

    def __init__(
        self,
        store: Store,
        lock: threading.RLock,
        examiner: Callable[[], Examiner],
        *,
        root: str,
        set_name: str,
        config_path: str,
        limit: float,
    ) -> None:
        self._store = store
        self._lock = lock
        self._lookup = LockedLookup(store, lock)
        self.examiner = examiner
        self._root = root
        self._limit = limit
        self._command = f"frs accept-deletions --config {shlex.quote(config_path)} --set {shlex.quote(set_name)}"

    # -- looking --

    def before_start(self) -> None:
        """To be called before anything of the set runs: no partner is to add to a tree that is not whole, so that it
        would look less empty. A quick look suffices where enough is there. Raises as `look`."""
        with self._lock:
            files, folders, _ = self._store.counts()
            known = files + folders - 1  # without the root
            settled = not self._get(_WAITED_FOR) and not self._get(_ACCEPTED)
        enough = int((100 - self._limit) * known / 100) + 1
        if known > 0 and not (settled and self.examiner().holds(enough)):
            self.look()

    def look(self) -> None:
        """Look at the whole tree. Raises TooMuchMissing when the set is to wait, RootGone, StoreError."""
        self.judge(self.examiner().missing())

    def judge(self, missing: Missing) -> None:
        """What a scan found missing. Raises TooMuchMissing when none of it is to be reported as deleted."""
        with self._lock:
            waited_for, accepted = self._get(_WAITED_FOR), self._get(_ACCEPTED)
        taken = {guid for guid in missing.tops if accepted and self._within(guid, accepted)}
        rest = [guid for guid in missing.tops if guid not in taken]
        too_much = self.is_too_much(missing, rest)
        if too_much or any(self._within(guid, waited_for) for guid in rest if waited_for):
            loss = self._loss(missing, rest)
            if too_much and not waited_for.issuperset(rest):
                self._note({_WAITED_FOR: waited_for.union(rest)})
            raise TooMuchMissing(self._text(loss), loss)
        if waited_for or taken != accepted:
            self._note({_WAITED_FOR: frozenset(), _ACCEPTED: frozenset(taken)})

    def is_too_much(self, missing: Missing, tops: Sequence[bytes]) -> bool:
        """Whether the share of what is missing, of some of `missing.tops`, reaches the limit."""
        lost = sum(missing.count(tops))
        return lost > 0 and lost * 100 >= self._limit * (missing.found + lost)

    # -- accepting --

    def accept(self, *, dry_run: bool) -> Loss:
        """Take what is missing now for deleted, durably; tells what that is. Not so with `dry_run`. Raises RootGone,
        StoreError."""
        missing = self.examiner().missing()
        if not dry_run:
            self._set({_WAITED_FOR: frozenset(), _ACCEPTED: frozenset(missing.tops)})
        return self._loss(missing, missing.tops)

    def scanned(self) -> None:
        """A scan of the whole tree has reported all deletions: what was accepted has been dealt with."""
        with self._lock:
            left = self._get(_ACCEPTED)
        if left:
            self._note({_ACCEPTED: frozenset()})

    # -- inside --

    def _within(self, guid: bytes, tops: frozenset[bytes]) -> bool:
        """Whether a record is one of `tops`, or in a folder that is."""
        seen: set[bytes] = set()
        while guid not in tops:
            record = self._lookup.get(guid)
            if record is None or guid in seen:
                return False
            seen.add(guid)
            guid = record.parent_guid
        return True

    def _loss(self, missing: Missing, tops: Sequence[bytes]) -> Loss:
        files, folders = missing.count(tops)
        paths = sorted(path for guid in tops[:_SHOWN] if (path := self._lookup.path_of(guid)) is not None)
        return Loss(files, folders, missing.found, tuple(paths), len(tops) - len(paths))

    def _text(self, loss: Loss) -> str:
        what = counted(loss.files, loss.folders)
        verb = "is" if loss.files + loss.folders == 1 else "are"
        among = ", ".join(map(repr, loss.paths[:3]))
        more = ", ..." if len(loss.paths) + loss.more > 3 else ""
        all_of = "everything that is known to be in it: " if not loss.found else ""
        return (
            f"20204 {all_of}{what} {verb} missing in the root {self._root} ({among}{more}), {loss.found:,} known ones "
            f"are there; nothing is deleted on other members, and this set waits. Put all of it back (mount its file "
            f"system, restore a backup), and the set goes on by itself; or, if it was deleted on purpose: "
            f"{self._command}"
        )

    def _note(self, values: dict[str, frozenset[bytes]]) -> None:
        """Write down where that can be done: what is decided holds all the same as long as this process runs."""
        try:
            self._set(values)
        except StoreError as error:
            log.error("20207 what is missing in %s cannot be written down: %s", self._root, error)

    def _get(self, key: str) -> frozenset[bytes]:
        raw = self._store.meta_get(key) or b""
        return frozenset(raw[at : at + _GUID] for at in range(0, len(raw), _GUID))

    def _set(self, values: dict[str, frozenset[bytes]]) -> None:
        with self._lock, self._store.transaction():
            for key, guids in values.items():
                self._store.meta_set(key, b"".join(sorted(guids)))


def counted(files: int, folders: int) -> str:
    """A number of files and folders, for people."""
    both = [(files, "file"), (folders, "folder")]
    parts = [f"{number:,} {noun}{'' if number == 1 else 's'}" for number, noun in both if number]
    return " and ".join(parts) or "no file"
