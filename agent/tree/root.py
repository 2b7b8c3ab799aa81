"""The root of a replica set on this host: held open, locked against other agents, and marked as ours."""

from __future__ import annotations

import os
import threading

from agent.counters.registry import Counters
from agent.tree.identity import Identity, ReplicaError, RootKey, identify, mark_root, root_key
from agent.tree.incidents import TreeIncidents
from agent.tree.lock import RootInUse, RootLock
from agent.tree.mark import remove_mark
from config.model import LocalSet
from idtable.store import Store


class ReplicaRoot:
    """The root folder of `local`. `state_dir` is the state directory of the agent; `told` hears of what others do with
    lock and mark."""

    def __init__(self, local: LocalSet, state_dir: str, told: TreeIncidents) -> None:
        """Raises ReplicaError when another agent has the root, OSError when it cannot be opened."""
        self._local = local
        self._state_dir = state_dir
        self._told = told
        self._identity: Identity | None = None
        self._busy = threading.Lock()
        self._closed = False
        self._fd = os.open(local.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock = RootLock(str(local.root), self._fd, told.root_lock)
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, RootInUse):
                raise ReplicaError(str(error)) from error
            raise

    def close(self) -> None:
        """Leave the root to others."""
        with self._busy:
            if not self._closed:
                self._closed = True
                self._lock.close()
                os.close(self._fd)

    def identify(self, store: Store, counters: Counters) -> Identity:
        """See identity.identify()."""
        self._identity = identify(
            store,
            self._local,
            self._fd,
            self._state_dir,
            counters,
            lambda: self._told.root_mark(str(self._local.root)),
        )
        return self._identity

    def mark(self, store: Store) -> None:
        """Give the root its mark, once nothing can keep the agent from running any more. Raises ReplicaError,
        StoreError."""
        if self._identity is not None:
            mark_root(store, self._local, self._fd, self._state_dir, self._identity.root_guid)

    def unmark(self) -> None:
        """This member has left the set: the root is nobody's."""
        if self._identity is not None:
            remove_mark(self._fd, self._identity.root_guid)

    def taken(self) -> str:
        """Why the set cannot go on, as another agent may have the root; empty while it can. To be asked again and again
        where no lock was to be had."""
        with self._busy:
            if self._closed:
                return ""
            try:
                self._lock.try_again()
            except (RootInUse, OSError) as error:
                return f"20203 {error}"
        return ""

    def moved(self) -> str:
        """What to say when the folder at the path of the root is not the root now; empty while it is (the root is held
        open: no other folder can have its inode). To be asked again and again: whatever is mounted over a root, or
        moved away with it, tells nobody."""
        if self._identity is None:
            return ""
        now = root_key(self._local.root)
        if now != self._identity.root_key:
            return (
                f"the root {self._local.root} is not the folder it was when replication began (was something mounted "
                f"over it, or was it moved, or its file system taken away?): it was {_told(self._identity.root_key)}, "
                f"and is {_told(now)}"
            )
        if not os.access(self._local.root, os.R_OK | os.X_OK, effective_ids=True):
            return f"the root {self._local.root} cannot be read"
        return ""


def _told(key: RootKey | None) -> str:
    return "gone" if key is None else f"inode {key[1]} of the file system {os.major(key[0])}:{os.minor(key[0])}"
