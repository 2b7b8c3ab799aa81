"""The requests of `frs conflicts` that are about what was deleted elsewhere. A group has an id of its own, `ID`, and a
file of it `ID.NUMBER`."""

from __future__ import annotations

import itertools
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.deletedgroup import DeletedFile
from agent.conflicts.deletedrestore import restore_file, restore_group
from agent.conflicts.kept import UnknownItem
from agent.conflicts.keptindex import ITEM_ID
from agent.wire.filetime import filetime
from agent.work.clock import iso_time

if TYPE_CHECKING:
    from agent.conflicts.keptcontrol import KeptOf

REASON: Final = "deleted elsewhere"
PAGE: Final = 2000
_ID: Final = re.compile(rf"({ITEM_ID.pattern})(?:\.([1-9]\d{{0,17}}))?")


def parsed(item_id: str) -> tuple[str, int | None] | None:
    """The group and the number that an id names; None for what can be no such id."""
    match = _ID.fullmatch(item_id)
    return None if match is None else (match[1], None if match[2] is None else int(match[2]))


def groups_of(one: KeptOf) -> list[dict[str, object]]:
    """The groups of a set, the newest first, as `frs conflicts list --deleted` shows them."""
    return [] if one.deleted is None else [_shown(one, group.as_json()) for group in one.deleted.groups()]


def _shown(one: KeptOf, group: dict[str, object]) -> dict[str, object]:
    return group | {"set": one.name, "by": one.names.get(str(group["originator"]))}


def show(one: KeptOf, store: DeletedStore, group_id: str, number: int | None, after: int) -> dict[str, Any]:
    """A group with its files from the one after number `after` on, at most PAGE (`more`: there are others), or all that
    is known of one file. Raises UnknownItem, OSError."""
    files = (line for line in store.lines(group_id) if isinstance(line, DeletedFile))
    if number is not None:
        file = next((file for file in files if file.number == number), None)
        if file is None:
            raise UnknownItem(f"nothing with the id {group_id}.{number} is kept")
        place = store.place(group_id, file)
        st = os.lstat(place)
        shown = _file(group_id, file) | {
            "set": one.name,
            "time": iso_time(file.time),
            "kind": file.kind,
            "md5": None,
            "winner": None,
            "loser": None,
            "reason": REASON,
            "place": place,
            "error": None,
            "mode": stat.filemode(st.st_mode),
            "mtime": iso_time(filetime(st.st_mtime_ns)),
        }
        return {"item": shown}
    page = list(itertools.islice((file for file in files if file.number > after), PAGE + 1))
    return {
        "group": _shown(one, store.get(group_id).as_json()),
        "files": [_file(group_id, file) | {"number": file.number} for file in page[:PAGE]],
        "more": len(page) > PAGE,
    }


def _file(group_id: str, file: DeletedFile) -> dict[str, object]:
    return {"id": f"{group_id}.{file.number}", "path": file.path, "size": file.size}


def restore(one: KeptOf, store: DeletedStore, group_id: str, number: int | None, to: str | None) -> dict[str, Any]:
    """Gives a group, or one file of it, back. Raises KeptError, OSError."""
    if number is not None:
        path = restore_file(store, group_id, number, one.root, to, one.root_key)
        return {"set": one.name, "root": one.root, "path": path, "excluded": one.stays_here(path)}
    if to is not None:
        return {"refused": f"{group_id} is a group of files, which go back to their old places; leave out --to"}
    done = restore_group(store, group_id, one.root, one.root_key)
    return {"set": one.name, "root": one.root, "files": done.files, "beside": done.beside, "failed": done.failed}
