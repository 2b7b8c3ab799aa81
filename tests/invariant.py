"""The invariant: once a member is quiet, comparing its trees with its IDTables finds nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import tomllib
from pathlib import Path

from agent.tree.excluded import Excluded
from agent.wire.guid import guid_text
from config.document import resolve
from config.model import ReplicaSet
from config.topologyfile import load_topology
from idtable.store import Store
from journal.changes import Change, Kind
from journal.examine import Examiner


def unnoticed(config: Path) -> list[str]:
    """What the member of that agent.toml, which is quiet but may be running, has not noticed in its trees, one line for
    each. (The file is read here: the member may be another user's, and its secret is nobody else's business.)"""
    agent = tomllib.loads(config.read_text())
    sets = {one.name: one for one in load_topology(resolve(config, agent["topology"]))}
    state = resolve(config, agent["state"])
    found = []
    for local in agent["set"]:
        one = sets[local["name"]]
        database = state / "sets" / guid_text(one.guid) / "frs.db"
        if database.exists():
            lines = _unnoticed(resolve(config, local["root"]), database, one)
            found += [f"{one.name}: {line}" for line in lines]
    return found


def _unnoticed(root: Path, database: Path, replica_set: ReplicaSet) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(os.fspath(_copied(database, Path(folder))))
        try:
            root_guid = store.meta_get("root_guid")
            assert root_guid is not None, f"{database}: no identity"
            excluded = Excluded(replica_set.file_filter, replica_set.directory_filter)
            examiner = Examiner(str(root), store, excluded, root_guid=root_guid)
            try:
                found = [change for batch in examiner.scan() for change in batch]
            finally:
                examiner.close()
        finally:
            store.close()
    return [f"{change.kind.name} {change.path!r}" for change in found if _is_news(change)]


def _copied(database: Path, folder: Path) -> Path:
    """A copy, made by hand, as the agent has the database for itself: what it moves meanwhile from the write-ahead log
    into the database would be in neither copy."""
    both = [database, database.with_name(f"{database.name}-wal")]
    for _ in range(100):
        before = _state(both)
        for one in both:
            (folder / one.name).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(one, folder / one.name)
        if _state(both) == before:
            return folder / database.name
    raise AssertionError(f"{database} is never still")


def _state(files: list[Path]) -> list[tuple[int, int, int] | None]:
    found = (one.stat() if one.exists() else None for one in files)
    return [None if one is None else (one.st_ino, one.st_size, one.st_mtime_ns) for one in found]


def _is_news(change: Change) -> bool:
    """A scan also tells of what has to be looked at more closely: of times that installs of our own have moved."""
    return change.kind is not Kind.UPDATE or change.content_changed
