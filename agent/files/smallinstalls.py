"""New small files of a batch of installs: built together, compared with what was announced, put in their folders.

What is out of the ordinary, and whatever fails before it is in the tree, is left to `installing`, which begins anew
with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agent.engine import events as ev
from agent.files.displaced import Displaced
from agent.files.facts import facts_of
from agent.files.lookups import to_be_durable
from agent.files.underway import Key
from staging import install, smallfiles
from staging.area import StagingArea
from staging.beneath import Entry, remove_tree, unchanged
from staging.errors import StagingError
from staging.fsops import Fingerprint
from staging.preinstall import Preinstall
from staging.rootdir import RootDir, check_name
from staging.smallfiles import Built, Plain
from staging.space import room

if TYPE_CHECKING:
    from agent.files.installing import ResolvedInstall, ResolvedStep


class SmallInstalls:
    """In one replica tree. Methods may be called from several threads, one at a time per change order."""

    def __init__(
        self,
        root: RootDir,
        area: StagingArea,
        preinstall: Preinstall,
        displaced: Displaced,
        *,
        durable: bool,
        made: Callable[[bytes, Key], None],
    ) -> None:
        """`made` as in Installer."""
        self._root = root
        self._area = area
        self._preinstall = preinstall
        self._displaced = displaced
        self._durable = durable
        self._made = made

    def install(
        self, items: Sequence[ResolvedInstall], folders: dict[tuple[int, int], int]
    ) -> dict[bytes, ev.Installed]:
        """By change order what became of those that are done. `folders`: see to_be_durable."""
        new = [] if smallfiles.native is None else [item for item in items if _is_new_file(item)]
        if not new:
            return {}
        done: dict[bytes, ev.Installed] = {}
        built: list[Built] = []
        left: set[bytes] = set()  # names of what is in the folder of unfinished installs still
        try:
            self._displaced.check()
            stages = self._area.read_plain([item.action.co_guid for item in new])
            ready = [(item, one) for item, one in zip(new, stages) if one is not None and _is_announced(item, one)]
            if sum(one.size for _, one in ready) > room(self._preinstall.fd):
                return {}
            names = [os.fsencode(item.action.co_guid.hex()) for item, _ in ready]
            files = smallfiles.build_all(
                self._preinstall.fd, [(name, one) for name, (_, one) in zip(names, ready)], durable=self._durable
            )
            built = [one for one in files if one is not None]
            left = {one.name for one in built}
            groups: dict[tuple[str, object], list[tuple[ResolvedInstall, Plain, Built]]] = {}
            for (item, stage), one in zip(ready, files):
                if one is not None:
                    self._made(item.action.co_guid, one.fingerprint[:3])
                    step = _only_step(item)
                    groups.setdefault((step.path.rpartition("/")[0], step.folder), []).append((item, stage, one))
            for group in groups.values():
                with contextlib.suppress(StagingError, OSError):
                    self._place(group, done, left, folders)
        except (StagingError, OSError):
            pass  # who does them one by one finds out what it was, and says so
        finally:
            for name in left:
                with contextlib.suppress(OSError):
                    remove_tree(self._preinstall.fd, os.fsdecode(name))
            if built:
                smallfiles.close_all(built)
        return done

    def _place(
        self,
        group: list[tuple[ResolvedInstall, Plain, Built]],
        done: dict[bytes, ev.Installed],
        left: set[bytes],
        folders: dict[tuple[int, int], int],
    ) -> None:
        """Puts what was built for one folder into it, at names that are free. Raises StagingError, OSError."""
        steps = [_only_step(item) for item, _, _ in group]
        with self._root.parent(steps[0].path, steps[0].folder) as first:
            at = [Entry(first.fd, step.path.rpartition("/")[2], step.path) for step in steps]
            for entry in at:
                check_name(entry.name)
            if self._durable:
                to_be_durable(folders, first.fd)
            with self._root.changing(first):
                wanted = [(built, os.fsencode(entry.name)) for (_, _, built), entry in zip(group, at)]
                placed = smallfiles.place_all(self._preinstall.fd, first.fd, wanted)
                inside = install.in_tree(self._root, first)
                for (item, stage, built), entry, found in zip(group, at, placed):
                    if found is None:
                        continue
                    if inside:
                        left.discard(built.name)
                        done[item.action.co_guid] = _installed(item, stage, built.fingerprint, found)
                    else:
                        done[item.action.co_guid] = self._taken_back(item, built, entry)

    def _taken_back(self, item: ResolvedInstall, built: Built, at: Entry) -> ev.Installed:
        """Its folder left the tree at the last moment."""
        changed = install.Outcome.TARGET_CHANGED
        temp = self._preinstall.entry(os.fsdecode(built.name))
        result = install.take_back(temp, at, built.fd, changed)
        self._displaced.looked_after(item.action, _only_step(item).step, at, result)
        return ev.Installed(item.action.co_guid, ev.Outcome.TARGET_CHANGED)


def _only_step(item: ResolvedInstall) -> ResolvedStep:
    assert item.steps is not None
    return item.steps[0]


def _is_new_file(item: ResolvedInstall) -> bool:
    """Whether it is nothing but a file where nothing is."""
    if item.action.is_dir or item.steps is None or len(item.steps) != 1:
        return False
    step = item.steps[0].step
    return step.step is ev.InstallStep.CONTENT and step.expected is None


def _is_announced(item: ResolvedInstall, stage: Plain) -> bool:
    action = item.action
    return stage.object_id == action.file_guid and action.md5 in (bytes(16), stage.md5)


def _installed(item: ResolvedInstall, stage: Plain, before: Fingerprint, found: Fingerprint) -> ev.Installed:
    # The rename moves the ctime. Where more differs somebody changed the file, and what was built goes on to say so.
    facts = facts_of(found if unchanged(found, before) else before)
    attributes = stage.info.file_attributes
    return ev.Installed(item.action.co_guid, ev.Outcome.DONE, facts, stage.md5, attributes, "file")
