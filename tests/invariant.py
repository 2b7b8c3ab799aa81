"""The invariant: once a member is quiet, comparing its trees with its IDTables finds nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from agent.tree.excluded import Excluded
from config.load import load_agent_config
from config.model import LocalSet
from idtable.store import Store
from journal.changes import Change, Kind
from journal.examine import Examiner


def unnoticed(config: Path) -> list[str]:
    """What the member of that agent.toml, which is quiet but may be running, has not noticed in its trees, one line for
    each."""
    before, owner = os.geteuid(), config.stat().st_uid
    os.seteuid(owner)  # nobody else's secret is believed
    try:
        sets = load_agent_config(config).sets
    finally:
        os.seteuid(before)
    return [f"{local.name}: {line}" for local in sets for line in _unnoticed(local)]


def _unnoticed(local: LocalSet) -> list[str]:
    database = local.state_dir / "frs.db"
    if not database.exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        for name in (database.name, f"{database.name}-wal"):  # the agent has the database for itself
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(database.with_name(name), os.path.join(folder, name))
        store = Store(os.path.join(folder, database.name))
        try:
            root_guid = store.meta_get("root_guid")
            assert root_guid is not None, f"{database}: no identity"
            excluded = Excluded(local.set.file_filter, local.set.directory_filter)
            examiner = Examiner(str(local.root), store, excluded, root_guid=root_guid)
            try:
                found = [change for batch in examiner.scan() for change in batch]
            finally:
                examiner.close()
        finally:
            store.close()
    return [f"{change.kind.name} {change.path!r}" for change in found if _is_news(change)]


def _is_news(change: Change) -> bool:
    """A scan also tells of what has to be looked at more closely: of times that installs of our own have moved."""
    return change.kind is not Kind.UPDATE or change.content_changed
