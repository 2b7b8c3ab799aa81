"""The requests of `frs conflicts`: answered by a running agent, or by the command itself when none runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from agent.kept import KeptError, KeptStore, UnknownItem
from agent.wire.guid import guid_text
from staging.rootdir import RootKey

KEPT_NAME: Final = "kept"  # in the state folder of a set


class KeptOf(NamedTuple):
    """What is kept of the set `name`, whose tree is at `root`, the folder of the `root_key`. `refusal` says why nothing
    may be put there now; `originator` is the originator GUID of this member in the set, None where it is not known;
    `excluded` tells of a path in the tree whether it is not replicated."""

    name: str
    root: str
    store: KeptStore
    refusal: str = ""
    originator: bytes | None = None
    excluded: Callable[[str], bool] = lambda path: False
    root_key: RootKey | None = None


def conflicts(sets: Sequence[KeptOf], arguments: dict[str, Any]) -> dict[str, Any]:
    """The answer to `{"action": "list"}`, or "show", "restore" and "discard" with an "id"; "restore" may have a "to",
    a path in the tree. `{"refused": TEXT}` when it is the request that is wrong. Raises OSError."""
    action = arguments.get("action")
    if action == "list":
        found = [(item.time, _shown(one, item.as_json())) for one in sets for item in one.store.list()]
        if len(sets) > 1:
            found.sort(key=lambda pair: pair[0], reverse=True)
        return {"items": [shown for _, shown in found]}
    item_id, to = arguments.get("id"), arguments.get("to")
    if not isinstance(item_id, str) or not (to is None or isinstance(to, str)):
        return {"refused": "an id is needed"}
    try:
        one = _holder(sets, item_id)
        match action:
            case "show":
                return {"item": _shown(one, one.store.show(item_id))}
            case "restore" if one.refusal:
                return {"refused": one.refusal}
            case "restore":
                target = None if to is None else _in_tree(one.root, to)
                path = one.store.restore(item_id, one.root, target, one.root_key)
                return {"set": one.name, "root": one.root, "path": path, "excluded": one.excluded(path)}
            case "discard":
                one.store.discard(item_id)
                return {"set": one.name}
    except KeptError as error:
        return {"refused": str(error)}
    return {"refused": f"unknown action {action!r}"}


def _shown(one: KeptOf, item: dict[str, object]) -> dict[str, object]:
    """The item with its set, and whether it was this member that made each of the two versions."""
    item = item | {"set": one.name}
    for which in ("winner", "loser"):
        edition = item[which]
        if isinstance(edition, dict) and "originator" in edition and one.originator is not None:
            item[which] = edition | {"this_member": edition["originator"] == guid_text(one.originator)}
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
