"""What users of a tree did that an administrator should know of, in the words of one replica set."""

from __future__ import annotations

from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from idtable.reserved import PREINSTALL, SWAP_PREFIX
from staging.fsops import OBJECT_ID_XATTR


class TreeIncidents:
    """Passes incidents in the tree of a set on, of which `incidents` are. Methods may be called from any thread."""

    def __init__(self, incidents: Incidents) -> None:
        self._report = incidents.report

    def object_id(self, path: str, owner: str) -> None:
        """An entry of the tree bears an object ID that is not its own."""
        self._report(
            Cause.OBJECT_ID,
            path,
            f"{path!r} bears the object ID of {owner} in its attribute {OBJECT_ID_XATTR}; that "
            f"is not believed, and nothing needs to be done (its owner may have tried to pass it off as that)",
        )

    def taken_for_a_member(self, path: str) -> None:
        """An entry has the GUID of a member in the IDTable, where an earlier version took it in."""
        self._report(
            Cause.OBJECT_ID,
            path,
            f"{path!r} passed itself off as a member when an earlier version ran here, and is "
            f"not replicated any more: look at who made it; copy it to another name, and remove it",
        )

    def root_mark(self, root: str) -> None:
        """The mark of the root is not the one that it was given."""
        self._report(
            Cause.OBJECT_ID,
            "the root",
            f"the mark of the root {root} was removed or changed; it is the folder it was, and is marked again",
        )

    def reserved_name(self, name: str) -> None:
        """An entry of the root that is not the agent's has a name of the agent's own."""
        self._report(
            Cause.RESERVED_NAME,
            name,
            f"{name!r} in the root is not replicated: names that begin with {PREINSTALL!r} or "
            f"{SWAP_PREFIX!r} are the agent's own there; give it another name",
        )

    def root_lock(self, text: str) -> None:
        """Somebody who is no agent has a lock on the root."""
        self._report(Cause.ROOT_LOCK, "the root", text)
