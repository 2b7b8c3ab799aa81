"""The requests of `frs conflicts`: answered by a running agent, or by the command itself when none runs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from agent.conflicts import deletedcontrol
from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptError, KeptItem, KeptStore, UnknownItem
from agent.wire.guid import guid_text
from config.model import AgentConfig, LocalSet
from journal.changes import Excluded, nothing_excluded
from staging.rootdir import RootKey

KEPT_NAME: Final = "kept"  # in the state folder of a set
DELETED_NAME: Final = "deleted"  # likewise
PAGE: Final = 1000


class KeptOf(NamedTuple):
    """What is kept of the set `name`, whose tree is at `root`, the folder of the `root_key`. `refusal` says why nothing
    may be put there now; `originators` are the originator GUIDs that this member has, or had, in the set, none where
    they are not known; `excluded` tells what is not replicated. `deleted`: what was deleted elsewhere; `names`: members
    by the text of their originator GUIDs, as far as they are known."""

    name: str
    root: str
    store: KeptStore
    refusal: str = ""
    originators: frozenset[bytes] = frozenset()
    excluded: Excluded = nothing_excluded
    root_key: RootKey | None = None
    deleted: DeletedStore | None = None
    names: Mapping[str, str] = {}

    def stays_here(self, path: str) -> bool:
        """Whether what was put at this path of the tree is not replicated. What is gone again counts as replicated."""
        try:
            st = os.lstat(os.path.join(self.root, path))
        except OSError:
            return False
        return self.excluded(path, stat.S_ISDIR(st.st_mode))


def deleted_store(config: AgentConfig, local: LocalSet, *, read_only: bool = False) -> DeletedStore:
    """The store of what was deleted elsewhere from a set. Raises OSError."""
    return DeletedStore(
        os.path.join(local.state_dir, DELETED_NAME),
        config.deleted_quota_bytes,
        config.keep_deleted_days,
        pause_s=config.mass_deletion_window_s,
        durable=config.fsync,
        read_only=read_only,
    )


def conflicts(sets: Sequence[KeptOf], arguments: dict[str, Any]) -> dict[str, Any]:
    """The answer to `{"action": "list"}`, at most PAGE items, with `next` if there are more, which is what the request
    has as "after" to go on, and how many are `left`; or to "list-deleted"; or to "show", "restore" and "discard" with
    an "id"; "restore" may have a "to", a path in the tree. `{"refused": TEXT}` when it is the request that is wrong.
    Raises OSError."""
    action = arguments.get("action")
    if action == "list":
        page, more = _page([(one, item) for one in sets for item in one.store.list()], arguments.get("after"))
        stores = [one.deleted for one in sets if one.deleted is not None]
        deleted = {"groups": sum(len(store.groups()) for store in stores), "files": sum(s.count() for s in stores)}
        return {"items": [_shown(one, item.as_json()) for one, item in page], "deleted": deleted} | more
    if action == "list-deleted":
        groups = [group for one in sets for group in deletedcontrol.groups_of(one)]
        return {"groups": sorted(groups, key=lambda group: str(group["began"]), reverse=True)}
    item_id, to = arguments.get("id"), arguments.get("to")
    if not isinstance(item_id, str) or not (to is None or isinstance(to, str)):
        return {"refused": "an id is needed"}
    try:
        if (group := _group(sets, item_id)) is not None:
            return _deleted(*group, action, to, arguments.get("after"))
        one = _holder(sets, item_id)
        match action:
            case "show":
                return {"item": _shown(one, one.store.show(item_id))}
            case "restore" if one.refusal:
                return {"refused": one.refusal}
            case "restore":
                target = None if to is None else _in_tree(one.root, to)
                path = one.store.restore(item_id, one.root, target, one.root_key)
                return {"set": one.name, "root": one.root, "path": path, "excluded": one.stays_here(path)}
            case "discard":
                one.store.discard(item_id)
                return {"set": one.name}
    except KeptError as error:
        return {"refused": str(error)}
    return {"refused": f"unknown action {action!r}"}


def _page(found: list[tuple[KeptOf, KeptItem]], after: object) -> tuple[list[tuple[KeptOf, KeptItem]], dict[str, Any]]:
    """The items behind the one that `after` names, by its time and id; it may be gone by now."""
    found.sort(key=lambda pair: pair[1].time, reverse=True)
    begin = 0
    match after:
        case [int(when), str(item_id)]:
            at = [number for number, (_, item) in enumerate(found) if item.id == item_id]
            older = (number for number, (_, item) in enumerate(found) if item.time < when)
            begin = at[0] + 1 if at else next(older, len(found))
    page, left = found[begin : begin + PAGE], len(found) - begin - PAGE
    return page, {"next": [page[-1][1].time, page[-1][1].id], "left": left} if left > 0 else {}


def _group(sets: Sequence[KeptOf], item_id: str) -> tuple[KeptOf, DeletedStore, str, int | None] | None:
    """The set and the group that an id is of, and the number of the file if it is of one; None when it is of none."""
    named = deletedcontrol.parsed(item_id)
    if named is None:
        return None
    for one in sets:
        if one.deleted is not None:
            with contextlib.suppress(UnknownItem):
                return one, one.deleted, one.deleted.get(named[0]).id, named[1]
    return None


def _deleted(
    one: KeptOf, store: DeletedStore, group_id: str, number: int | None, action: object, to: str | None, after: object
) -> dict[str, Any]:
    """Raises KeptError, OSError."""
    match action:
        case "show":
            return deletedcontrol.show(one, store, group_id, number, after if isinstance(after, int) else 0)
        case "restore" if one.refusal:
            return {"refused": one.refusal}
        case "restore":
            return deletedcontrol.restore(one, store, group_id, number, None if to is None else _in_tree(one.root, to))
        case "discard":
            store.discard(group_id, number)
            return {"set": one.name}
    return {"refused": f"unknown action {action!r}"}


def _shown(one: KeptOf, item: dict[str, object]) -> dict[str, object]:
    """The item with its set, and whether it was this member that made each of the two versions."""
    item = item | {"set": one.name}
    for which in ("winner", "loser"):
        edition = item[which]
        if isinstance(edition, dict) and "originator" in edition and one.originators:
            ours = {guid_text(guid) for guid in one.originators}
            item[which] = edition | {"this_member": edition["originator"] in ours}
    return item


def _holder(sets: Sequence[KeptOf], item_id: str) -> KeptOf:
    """The set that has the item. Raises UnknownItem."""
    for one in sets:
        try:
            one.store.get(item_id)
        except UnknownItem:
            continue
        return one
    raise UnknownItem(f"nothing with the id {item_id!r} is kept; `frs conflicts list` shows what is")


def _in_tree(root: str, path: str) -> str:
    """The path relative to the root. Raises KeptError for an absolute one that is not below it."""
    if not path.startswith("/"):
        return os.path.normpath(path) if path else path
    below = os.path.relpath(os.path.normpath(path), os.path.normpath(root))
    if below.split("/")[0] in (os.pardir, os.curdir):
        raise KeptError(f"{path!r} is not in the tree, {root}")
    return below
