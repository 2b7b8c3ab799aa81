"""Change orders that nobody here carries out, whoever sends them: what they name is not theirs to name."""

from __future__ import annotations

from agent.engine.context import EngineConfig
from agent.reporting.causes import Cause
from agent.wire.change_order import ChangeOrder
from idtable.reserved import reserved


def refusal(co: ChangeOrder, config: EngineConfig) -> tuple[Cause, str] | None:
    """Why a received change order ends here, for people; None if it may go on. Its parents are named as the IDTable
    names them (see Context.local_parent).

    No file or folder has the GUID of a member or of the root: what lies in it would be taken for what lies in the root,
    here or on a member further on. Nor does anything have a name that is the agent's own.
    """
    root, name = config.root_guid, co.file_name
    if co.file_guid == bytes(16) or co.file_guid == root or co.file_guid in config.member_guids:
        return Cause.IDENTITY, f"{name!r} has a GUID that no file can have: that of a member or of the root, or none"
    if co.new_parent_guid == co.file_guid:
        return Cause.IDENTITY, f"{name!r} is to lie in itself"
    if co.new_parent_guid in config.member_guids or co.new_parent_guid == bytes(16):
        return Cause.IDENTITY, f"{name!r} is to lie in what is no folder: it names the GUID of another member, or none"
    if not usable_name(name):
        return Cause.NAME, f"{name!r} is no name for a file here"
    if co.new_parent_guid == root and reserved(name):
        return Cause.NAME, f"{name!r} in the root is a name of the agent's own"
    return None


def usable_name(name: str) -> bool:
    """True for a name that can stand in a folder of this file system, and reads back from there the same."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return len(raw) <= 255 and raw.decode("utf-8", "surrogateescape") == name
