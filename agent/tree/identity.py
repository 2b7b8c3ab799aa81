"""Who this member is in a replica set, and which folder is its root: made once, and held against what is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.counters.registry import Counters
from agent.engine.originator import ORIGINATOR
from agent.tree.mark import Mark, RootFacts, is_alive, look_at_root, read_mark, surely_same, write_mark
from agent.wire.guid import guid_text, new_guid
from config.model import LocalSet
from idtable.peek import peek_meta
from idtable.records import IDRecord
from idtable.store import Store

RootKey = tuple[int, int]
"""The device and the inode of a root."""


class ReplicaError(Exception):
    """The replica set cannot run here; the text says why and what to do."""


class RootOfAnotherSet(ReplicaError):
    """The root is that of another set of this member, which has not left it."""


class Identity(NamedTuple):
    """What a member is known by, and what its root is."""

    originator_guid: bytes
    root_guid: bytes
    root_key: RootKey


def root_key(root: str | os.PathLike[str]) -> RootKey | None:
    """What is at the path of the root now; None when nothing can be seen there."""
    try:
        found = os.stat(root)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identify(
    store: Store, local: LocalSet, root_fd: int, state_dir: str, counters: Counters, told: Callable[[], None]
) -> Identity:
    """The identity that the store has, which gets one when the replica set is first seen here (3.1.5.1).

    `root_fd` is open on the root, `state_dir` is that of the agent. Nothing is written to the root, see `mark_root`.
    `told` is called for a mark that somebody removed or changed. Raises ReplicaError when store, root and set do not
    belong together, RootOfAnotherSet while the state of another set says that the root is its own, StoreError, OSError.
    """
    set_guid = store.meta_get("set_guid")
    if set_guid is not None and set_guid != local.set.guid:
        raise ReplicaError(
            f"{local.state_dir} holds the state of another replica set ({guid_text(set_guid)}); "
            f"name another state directory, or remove that one to start anew"
        )
    now, mark = look_at_root(root_fd), read_mark(root_fd)
    other = _another_set(local, now, mark) if set_guid is None else None
    if other is not None:
        raise RootOfAnotherSet(
            f"20108 the root {local.root} is that of another set of this member, whose state is in {other}, so that "
            f"the set {local.name} does not begin there. Give that root to the former set again (its [[set]] may have "
            f"got another name or root by mistake); or, if this member is to leave that one, `frs leave` does so, and "
            f"this set begins then"
        )
    with store.transaction():
        if set_guid is None:
            store.meta_set("set_guid", local.set.guid)
            store.meta_set(ORIGINATOR, new_guid())
            store.meta_set("root_guid", new_guid())
            counters.add_set(local.name)
            counters.inc_set(local.name, "Replica Sets Created")
        originator_guid, root_guid = store.meta_get(ORIGINATOR), store.meta_get("root_guid")
        if originator_guid is None or root_guid is None:
            raise ReplicaError(f"{local.state_dir} is damaged: the member has no identity; restore a backup of it")
        if store.get(root_guid) is None:
            store.put(IDRecord(root_guid, bytes(16), "", True, kind="folder"))
        if mark is not None and mark.guid != root_guid and is_alive(mark, state_dir):
            raise ReplicaError(_belongs_to_another(local, mark))
        if not _is_the_root(store, now, mark, root_guid):
            raise ReplicaError(
                f"the root {local.root} is not the folder it was when replication began (is its file system "
                f"mounted?); mount it, or remove {local.state_dir} to start anew from the other members"
            )
        if store.meta_get("root_marked") is not None and (mark is None or mark.guid != root_guid):
            told()
        _remember(store, now)
    return Identity(originator_guid, root_guid, (now.dev, now.ino))


def mark_root(store: Store, local: LocalSet, root_fd: int, state_dir: str, root_guid: bytes) -> None:
    """Give the root its mark, unless it has it. To be called once nothing can keep the agent from running any more.
    Raises ReplicaError when another agent has marked the root meanwhile, StoreError."""
    mark = read_mark(root_fd)
    if mark == Mark(root_guid, True, state_dir):
        return
    if mark is not None and mark.guid != root_guid and is_alive(mark, state_dir):
        raise ReplicaError(_belongs_to_another(local, mark))
    try:
        marked = write_mark(root_fd, root_guid, state_dir)
    except FileExistsError:
        raise ReplicaError(f"another agent begins to replicate {local.root} at this moment; stop one of them") from None
    if marked and store.meta_get("root_marked") is None:
        with store.transaction():
            store.meta_set("root_marked", b"1")


def _belongs_to_another(local: LocalSet, mark: Mark) -> str:
    return (
        f"the root {local.root} belongs to the agent with the state directory {mark.state}, which is there still, "
        f"though it may not run at the moment; one agent replicates a root: give this one another root, or remove "
        f"{mark.state} if that agent is not to run again"
    )


def _is_the_root(store: Store, now: RootFacts, mark: Mark | None, root_guid: bytes) -> bool:
    """Whether the folder is the one that replication began with. Its owner may have removed or changed a mark that is
    not trusted: it is asked only where nothing else tells."""
    ino = store.meta_get("root_ino")
    if ino is None:
        return True
    then = RootFacts(0, int(ino), *(int(store.meta_get(key) or b"0") for key in ("root_btime", "root_fsid")))
    same = surely_same(then, now)
    if same is not None:
        return same
    marked = store.meta_get("root_marked") is not None
    return not marked or (mark is not None and mark.guid == root_guid)


def _another_set(local: LocalSet, now: RootFacts, mark: Mark | None) -> Path | None:
    """The folder of the state of another set that has this root. One that runs has a lock on its root: it is not asked
    here. What a member has left has no database any more."""
    for folder in sorted(local.state_dir.parent.iterdir()):
        database = folder / "frs.db"
        if folder == local.state_dir or (ino := peek_meta(database, "root_ino")) is None:
            continue
        rest = (int(peek_meta(database, key) or b"0") for key in ("root_btime", "root_fsid"))
        same = surely_same(RootFacts(0, int(ino), *rest), now)
        if same or (same is None and mark is not None and mark.guid == peek_meta(database, "root_guid")):
            return folder
    return None


def _remember(store: Store, now: RootFacts) -> None:
    """Keep what tells the root, in the open transaction. A device number may be another one after every start of the
    host, or after every mount: then the records get it, too, for by it they are known."""
    found = {"root_ino": now.ino, "root_btime": now.btime_ns, "root_fsid": now.fsid, "root_dev": now.dev}
    if store.meta_get("root_dev") != str(now.dev).encode():
        store.move_to_device(now.dev)
    for key, number in found.items():
        value = str(number).encode()
        if store.meta_get(key) != value:
            store.meta_set(key, value)
