"""The aging cache (3.1.5.1): all that happens to a path within a few seconds is one record."""

from __future__ import annotations

import heapq
import itertools
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from idtable.reserved import preinstall, reserved

from .changes import Aged, Excluded, Noted, join, split
from .log import JournalLog, Row
from .reasons import FILE_CREATE, RENAME_NEW_NAME, RENAME_OLD_NAME
from .system import LINUX, System
from .watches import LIMBO, MOVE_WAIT_S, Node

logger = logging.getLogger(__name__)

_FILETIME_EPOCH: Final = 116444736000000000
LONGEST_AGING: Final = 10  # times the aging that was asked for, counted from the first event
_RENAME_S: Final = 0.05  # how long a file ages of which only the name changed, and both names are known
_RENAMED: Final = RENAME_OLD_NAME | RENAME_NEW_NAME
_GATHER_S: Final = 0.05  # what ages so soon after others did is handed out together
_FEW: Final = 1000  # of those handed out, which go out in about the order in which they came
_GATHER: Final = 0.1  # but for no longer than this part of the aging


_Key = tuple[Node, str]
"""A folder and a name in it."""


class Entry:
    """A record in the aging cache. Keyed by its folder and name, so a renamed folder takes it along."""

    __slots__ = (
        "came", "deep", "event_time", "first", "first_usn", "is_dir", "last", "linked", "moved_to", "name", "node",
        "paired", "reason", "usn", "waits_for",
    )  # fmt: skip

    def __init__(self, node: Node, name: str, first_usn: int, now: float) -> None:
        self.node = node
        self.name = name
        self.first_usn = first_usn
        self.usn = first_usn
        self.first = now
        self.last = now
        self.reason = 0
        self.is_dir = False
        self.deep = False
        self.came = False  # what stands here may have been elsewhere in the tree
        self.event_time = 0
        self.moved_to: tuple[Node, str] | None = None
        self.linked: set[tuple[Node, str]] = set()  # where what was here went, and where what is here came from
        self.waits_for: set[tuple[Node, str]] = set()  # where what was here may have gone, unseen
        self.paired = False  # one of the two names of a rename that was seen whole

    @property
    def path(self) -> str:
        return join(self.node.path, self.name)


class AgingCache:
    """The records that age, those handed out but not retired, and which of them are on disk.

    A path ages `aging_s` seconds after its last event, but at most ten times that after its first; with the folders
    above it, if those are aging. Where a file was renamed and nothing else happened at either name, there is nothing to
    wait for but the next rename of a chain or a circle. All methods belong to one thread; others may look at `pending`
    and `untold`.
    """

    def __init__(self, log: JournalLog, aging_s: float, excluded: Excluded, system: System = LINUX) -> None:
        self._system = system
        self._log = log
        self._aging = aging_s
        self._excluded = excluded
        self.pending: dict[tuple[Node, str], Entry] = {}
        self.accepted = 0
        self._due: list[tuple[float, int, Entry]] = []
        self._next = 0.0  # not before that, see next_due()
        self._order = 0
        self._groups = 0
        self._chains = 0
        self._dirty: dict[int, Entry] = {}
        self._stored: set[int] = set()
        self._forget: list[int] = []
        self._delivered: dict[int, list[Entry]] = {}  # by Aged.usn

    @property
    def unsaved(self) -> bool:
        """Whether commit() has something to do."""
        return bool(self._dirty or self._forget)

    @property
    def untold(self) -> int:
        """How many paths age, or were handed out and not retired: never less than that while one becomes the other."""
        aging, out = len(self.pending), len(self._delivered)
        return max(aging, len(self.pending)) + out

    def oldest(self) -> float | None:
        """When the first event was told, by System.monotonic(), of what ages, or of the first that were handed out and
        are not retired; None where there is nothing. For other threads, too."""
        out = itertools.islice(list(self._delivered.values()), _FEW)
        firsts = [entry.first for entries in out for entry in entries]
        firsts += [entry.first for entry in list(self.pending.values())[:1]]  # they come in this order
        return min(firsts, default=None)

    def paths(self) -> list[str]:
        """Those of all that ages, or was handed out and not retired. For other threads, too."""
        out = itertools.chain.from_iterable(list(self._delivered.values()))
        return [entry.path for entry in (*list(self.pending.values()), *out)]

    def next_due(self) -> float | None:
        """When, by System.monotonic(), it is worth while to call age(): when the next path has aged, or a little later
        where others have just been handed out, so that of many changes many are dealt with at once."""
        return max(self._due[0][0], self._next) if self._due else None

    def record(
        self,
        node: Node,
        name: str,
        reason: int,
        is_dir: bool | None,
        *,
        deep: bool = False,
        came: bool = False,
        event_time: int | None = None,
    ) -> bool:
        """Merge an event into the aging cache; False when what it is of is excluded. `is_dir` None: it is not known
        whether that is a folder. `came`: what stands there may have been elsewhere in the tree. `event_time` (FILETIME)
        None: it happens now; 0: that is not known."""
        now = self._system.monotonic()
        key = (node, name)
        entry = self.pending.get(key)
        if not name or ((entry is None or entry.is_dir != is_dir) and self._is_excluded(join(node.path, name), is_dir)):
            return False
        if entry is None:
            entry = Entry(node, name, self._log.take_usn(), now)
            self.pending[key] = entry
            self._push(entry, self._due_at(entry))
        else:
            entry.usn = self._log.take_usn()
            entry.last = now
        entry.reason |= reason
        if is_dir is not None:
            entry.is_dir = is_dir
        entry.deep |= deep
        entry.came |= came or deep
        if event_time is None:
            entry.event_time = self._system.time_ns() // 100 + _FILETIME_EPOCH
        else:
            entry.event_time = max(entry.event_time, event_time)
        self._dirty[entry.first_usn] = entry
        self.accepted += 1
        return True

    def _is_excluded(self, path: str, is_dir: bool | None) -> bool:
        """What happens to a name of the agent's own in the root is worth a look: it may be somebody else's."""
        if reserved(path) and "/" not in path:
            return False
        return preinstall(path) or self._excluded(path, is_dir)

    def noted(self, wanted: Callable[[Entry], bool]) -> list[Noted]:
        """The records that age, and those handed out and not retired."""
        out = ((usn, entry) for usn, entries in self._delivered.items() for entry in entries)
        both = itertools.chain(((entry.usn, entry) for entry in self.pending.values()), out)
        return [Noted(entry.path, usn, entry.deep) for usn, entry in both if wanted(entry)]

    def link(self, old: tuple[Node, str], new: tuple[Node, str]) -> None:
        """What was at `old` was renamed to `new`; a folder still to be examined whole is so at its new place."""
        entry, target = self.pending.get(old), self.pending.get(new)
        if entry is not None and old != new:
            entry.moved_to = new
            if target is not None:
                entry.linked.add(new)
                target.linked.add(old)
                for one in (entry, target):
                    one.paired = True
                    if self._only_renamed(one):
                        self._push(one, self._due_at(one))  # sooner than it was to be
            if target is not None and entry.deep and target.is_dir:
                target.deep = True

    def ages(self, key: _Key) -> bool:
        """Whether there is a record of this name."""
        return key in self.pending

    def made(self, key: _Key) -> bool:
        """Whether what is at this name was made there, by what is on record of it."""
        entry = self.pending.get(key)
        return entry is not None and bool(entry.reason & FILE_CREATE) and not entry.came

    def wait(self, key: _Key, other: _Key) -> None:
        """What is said of `key` can be understood only together with what is said of `other`, but not the other way
        round."""
        entry = self.pending.get(key)
        if entry is not None and other in self.pending:
            entry.waits_for.add(other)

    def bind(self, keys: Sequence[_Key]) -> None:
        """What is said of these names can be understood only together."""
        for key in keys:
            self.pending[key].linked.update(other for other in keys if other != key)

    def _due_at(self, entry: Entry) -> float:
        aging = min(self._aging, _RENAME_S) if self._only_renamed(entry) else self._aging
        return min(entry.last + aging, entry.first + LONGEST_AGING * self._aging)

    @staticmethod
    def _only_renamed(entry: Entry) -> bool:
        return entry.paired and not entry.is_dir and not entry.reason & ~_RENAMED

    def _push(self, entry: Entry, due: float) -> None:
        self._order += 1
        heapq.heappush(self._due, (due, self._order, entry))

    def _ripe(self, now: float, everything: bool, limbo: bool) -> list[Entry]:
        """The entries whose time has come. What happened in a folder waits for what happened to the folder, and the
        two names of a rename for each other: only together do they say what is what; and what is in a folder in limbo,
        until it is known where that is."""
        due: dict[_Key, Entry] = {}
        while self._due and (everything or self._due[0][0] <= now):
            _, _, entry = heapq.heappop(self._due)
            if self.pending.get((entry.node, entry.name)) is not entry:
                continue  # it was due sooner
            if self._due_at(entry) > now and not everything:
                self._push(entry, self._due_at(entry))
            elif limbo and LIMBO in entry.path and not everything:
                self._push(entry, now + MOVE_WAIT_S)
            else:
                due[entry.node, entry.name] = entry
        until = self._waits(due)
        ripe = []
        for key, entry in due.items():
            if key in until and entry.first + 2 * LONGEST_AGING * self._aging > now:
                self._push(entry, until[key])
            else:
                ripe.append(entry)
        return ripe

    def _waits(self, due: dict[_Key, Entry]) -> dict[_Key, float]:
        """Until when those of `due` wait that have to wait for others, each for all that the others wait for, too."""
        waiting_for: dict[_Key, list[_Key]] = {}
        todo = list(due)
        seen = set(due)
        while todo:
            key = todo.pop()
            for other in self._related(self.pending[key]):
                waiting_for.setdefault(other, []).append(key)
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        until: dict[_Key, float] = {}
        for when, key in sorted(((self._due_at(self.pending[k]), k) for k in seen - due.keys()), key=_latest_first):
            todo = [key]
            while todo:
                waiting = todo.pop()
                if waiting not in until:
                    until[waiting] = when
                    todo.extend(waiting_for.get(waiting, ()))
        return until

    def _related(self, entry: Entry) -> Iterator[_Key]:
        """What an entry waits for: the other names of renames, seen or not, and the nearest folder above that ages (the
        one above that waits for the next)."""
        yield from (key for key in entry.linked if key in self.pending)
        yield from (key for key in entry.waits_for if key in self.pending)
        node = entry.node
        while node.parent is not None:
            key = (node.parent, node.name)
            if key in self.pending:
                yield key
                return
            node = node.parent

    def put_back(self, batch: Iterable[Aged]) -> None:
        """What was handed out is to be looked at again, wherever it is now; it ages anew."""
        for aged in batch:
            for entry in aged.handle if isinstance(aged.handle, list) else ():
                if self.record(
                    entry.node, entry.name, entry.reason, None,
                    deep=entry.deep, came=entry.came, event_time=entry.event_time,
                ):  # fmt: skip
                    again = self.pending[entry.node, entry.name]
                    again.is_dir = entry.is_dir
                    again.moved_to = again.moved_to or entry.moved_to
                    again.linked |= entry.linked
                    again.waits_for |= entry.waits_for
        self.retire(aged.usn for aged in batch)

    def age(self, everything: bool = False, moves: int = 0, limbo: bool = False) -> list[Aged]:
        """What has aged by now (or everything), one record a path. `moves`: see Aged; `limbo`: there may be folders of
        which it is not known for the moment where they are."""
        now = self._system.monotonic()
        ripe = self._ripe(now, everything, limbo)
        if ripe:
            self._next = now + min(_GATHER_S, self._aging * _GATHER)
        batch: dict[str, Aged] = {}
        linked = any(entry.linked or entry.waits_for for entry in ripe)
        self._groups += linked
        chains = self._chains_of(ripe) if linked else {}
        for entry in ripe:
            moved_to = self._destination(entry)
            path = entry.path
            if LIMBO in path:  # below a folder that left the tree
                self._delivered[entry.usn] = [entry]
                self.retire([entry.usn])
                continue
            aged = batch.get(path)
            if aged is None:
                self._delivered[entry.usn] = [entry]
                batch[path] = Aged(
                    path, entry.reason, entry.is_dir, entry.usn, entry.first_usn, entry.event_time, moved_to,
                    entry.deep, moves, self._groups if linked else 0, chains.get((entry.node, entry.name), 0),
                    self._delivered[entry.usn],
                )  # fmt: skip
                continue
            entries = self._delivered.pop(aged.usn)
            entries.append(entry)
            if entry.usn > aged.usn:
                aged.usn, aged.is_dir, aged.event_time = entry.usn, entry.is_dir, entry.event_time or aged.event_time
                aged.moved_to = moved_to or aged.moved_to
            aged.first_usn = min(aged.first_usn, entry.first_usn)
            aged.reason |= entry.reason
            aged.deep |= entry.deep
            self._delivered[aged.usn] = entries
        for entry in ripe:
            del self.pending[entry.node, entry.name]
        return sorted(batch.values(), key=lambda aged: aged.path.count("/"))  # folders before what is in them

    def _chains_of(self, ripe: Sequence[Entry]) -> dict[_Key, int]:
        """Numbers for those that are names of chains of renames; those of one path are in one chain."""
        others: dict[_Key, list[_Key]] = {}
        by_path: dict[str, _Key] = {}
        keys = {(entry.node, entry.name) for entry in ripe}
        for entry in ripe:
            key = (entry.node, entry.name)
            same = by_path.setdefault(entry.path, key)
            for other in (*(entry.linked & keys), *((same,) if same != key else ())):
                others.setdefault(key, []).append(other)
                others.setdefault(other, []).append(key)
        chains: dict[_Key, int] = {}
        for key in others:
            if key in chains:
                continue
            self._chains += 1
            todo = [key]
            while todo:
                each = todo.pop()
                if each not in chains:
                    chains[each] = self._chains
                    todo.extend(others[each])
        return chains

    def _destination(self, entry: Entry) -> str | None:
        """Where the object went that left `entry`, along all renames still in the cache."""
        place = entry.moved_to
        if place is None:
            return None
        seen = {(entry.node, entry.name)}
        while place not in seen:
            seen.add(place)
            further = self.pending.get(place)
            if further is None or further.moved_to is None:
                break
            place = further.moved_to
        path = join(place[0].path, place[1])
        return None if LIMBO in path else path

    def replay(self, node_for: Callable[[str], Node]) -> None:
        """Take in the records of a former run; they age anew."""
        for row in self._log.load():
            parent, name = split(row.path)
            node = node_for(parent)
            self._stored.add(row.first_usn)
            entry = self.pending.get((node, name))
            if entry is None:
                entry = Entry(node, name, row.first_usn, self._system.monotonic())
                self.pending[node, name] = entry
                self._push(entry, self._due_at(entry))
            else:
                self._forget.append(row.first_usn)
            entry.usn = max(entry.usn, row.usn)
            entry.reason |= row.reason
            entry.is_dir, entry.event_time = row.is_dir, row.event_time
            entry.deep |= row.deep
            entry.came |= row.deep or bool(row.reason & RENAME_NEW_NAME)
            if row.moved_to is not None:
                parent, name = split(row.moved_to)
                entry.moved_to = (node_for(parent), name)
            self._dirty[entry.first_usn] = entry

    def retire(self, usns: Iterable[int]) -> None:
        """Forget records that were handed out, by Aged.usn."""
        for usn in usns:
            for entry in self._delivered.pop(usn, ()):
                self._dirty.pop(entry.first_usn, None)
                if entry.first_usn in self._stored:
                    self._forget.append(entry.first_usn)

    def commit(self) -> bool:
        """Store what is new and remove what was retired; False when that failed and has to be tried again."""
        rows = [
            Row(
                first, e.usn, e.path, e.reason, e.is_dir, e.deep, e.event_time,
                None if e.moved_to is None else join(e.moved_to[0].path, e.moved_to[1]),
            )
            for first, e in self._dirty.items()
        ]  # fmt: skip
        try:
            self._log.commit(rows, self._forget)
        except sqlite3.Error as error:
            logger.warning("20601 USN records cannot be stored (%s), trying again", error)
            return False
        self._stored.update(self._dirty)
        self._stored.difference_update(self._forget)
        self._dirty.clear()
        self._forget.clear()
        return True


def _latest_first(waiting: tuple[float, _Key]) -> float:
    return -waiting[0]
