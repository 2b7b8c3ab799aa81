"""Who this member is in a replica set, and which folder is its root: made once, and held against what is there."""

from __future__ import annotations

import os
from typing import NamedTuple

from agent.counters.registry import Counters
from agent.wire.guid import guid_text, new_guid
from config.model import LocalSet
from idtable.records import IDRecord
from idtable.store import Store
from staging import fsops

RootKey = tuple[int, int]
"""The device and the inode of a root."""


class ReplicaError(Exception):
    """The replica set cannot run here; the text says why and what to do."""


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


def identify(store: Store, local: LocalSet, counters: Counters) -> Identity:
    """The identity that the store has, which gets one when the replica set is first seen here (3.1.5.1).

    Raises ReplicaError when store, root and set do not belong together, StoreError, OSError.
    """
    set_guid = store.meta_get("set_guid")
    if set_guid is not None and set_guid != local.set.guid:
        raise ReplicaError(
            f"{local.state_dir} holds the state of another replica set ({guid_text(set_guid)}); "
            f"name another state directory, or remove that one to start anew"
        )
    root = os.stat(local.root)
    with store.transaction():
        if set_guid is None:
            store.meta_set("set_guid", local.set.guid)
            store.meta_set("originator_guid", new_guid())
            store.meta_set("root_guid", new_guid())
            store.meta_set("root_ino", str(root.st_ino).encode())
            counters.add_set(local.name)
            counters.inc_set(local.name, "Replica Sets Created")
        originator_guid, root_guid = store.meta_get("originator_guid"), store.meta_get("root_guid")
        if originator_guid is None or root_guid is None:
            raise ReplicaError(f"{local.state_dir} is damaged: the member has no identity; restore a backup of it")
        if store.get(root_guid) is None:
            store.put(IDRecord(root_guid, bytes(16), "", True, kind="folder"))
    known = store.meta_get("root_ino")
    if (known is not None and int(known) != root.st_ino) or not _marked(store, local, root_guid):
        raise ReplicaError(
            f"the root {local.root} is not the folder it was when replication began (is its file system "
            f"mounted?); mount it, or remove {local.state_dir} to start anew from the other members"
        )
    return Identity(originator_guid, root_guid, (root.st_dev, root.st_ino))


def _marked(store: Store, local: LocalSet, root_guid: bytes) -> bool:
    """The root bears its object ID; it is given one when it is first seen. Its inode alone does not tell it: the
    top folders of two file systems have the same, and all would be gone from all members with the wrong disk."""
    root = os.path.realpath(local.root)
    if store.meta_get("root_marked") is not None:
        return fsops.object_id_get(root) == root_guid
    if fsops.object_id_set(root, root_guid):
        with store.transaction():
            store.meta_set("root_marked", b"1")
    return True  # or its file system has no user attributes
