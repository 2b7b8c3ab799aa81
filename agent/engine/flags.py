"""Flags, commands and states of change orders on their way ([MS-FRS1] 3.3.4.1.x, 3.3.4.4.6.1, 3.3.4.4.6.2).

Each function is one table of the specification; none has state.
"""

from __future__ import annotations

from agent.wire import constants as c


def location(command: int, is_dir: bool) -> int:
    """LocationCmd of 2.2.3.2: bit 0 folder or file, bits 1-4 the command."""
    return (command << 1) | int(is_dir)


NO_COMMAND_FILE = location(c.CO_LOCATION_NO_CMD, False)
NO_COMMAND_FOLDER = location(c.CO_LOCATION_NO_CMD, True)

_COMPRESSED = c.CO_FLAG_COMPRESSED_STAGE


def local_created(*, is_dir: bool, has_content: bool, compressed: bool) -> int:
    """Flags of a created file (3.3.4.1.1) or folder (3.3.4.1.4) on its originator."""
    flags = c.CO_FLAG_LOCALCO | c.CO_FLAG_LOCATION_CMD | (_COMPRESSED if compressed else 0)
    if has_content and not is_dir:
        flags |= c.CO_FLAG_CONTENT_CMD
    return flags


def local_updated(*, compressed: bool) -> int:
    """Flags of an updated file (3.3.4.1.1, with a content command) or folder (3.3.4.1.4)."""
    return c.CO_FLAG_LOCALCO | c.CO_FLAG_CONTENT_CMD | (_COMPRESSED if compressed else 0)


def local_renamed(*, compressed: bool, moved: bool) -> int:
    """Flags of a rename (3.3.4.1.3, 3.3.4.1.6); a move to another folder carries its location too."""
    flags = c.CO_FLAG_LOCALCO | c.CO_FLAG_CONTENT_CMD | (_COMPRESSED if compressed else 0)
    return flags | (c.CO_FLAG_LOCATION_CMD if moved else 0)


#: Flags of a removed file or folder (3.3.4.1.2, 3.3.4.1.5).
LOCAL_REMOVED = c.CO_FLAG_LOCALCO | c.CO_FLAG_LOCATION_CMD

#: Flags of a change order made for a VVJoin (3.3.4.4.4.1.2, 3.3.4.4.4.1.3).
VVJOIN = c.CO_FLAG_VVJOIN_TO_ORIG | c.CO_FLAG_LOCALCO | c.CO_FLAG_LOCATION_CMD


def request(*, initial: bool, is_dir: bool, rename: bool, new: bool, compressed: bool) -> int:
    """CO_OUT.Flags of CMD_SEND_STAGE (3.3.4.4.6.1)."""
    flags = _COMPRESSED if compressed else 0
    if rename:
        return flags | c.CO_FLAG_CONTENT_CMD
    flags |= c.CO_FLAG_LOCATION_CMD
    if initial:
        flags |= c.CO_FLAG_VVJOIN_TO_ORIG | c.CO_FLAG_NEW_FILE
        if is_dir:
            flags &= ~_COMPRESSED  # the table has one row for folders, and ruling 15 shows 0x40408
    elif new:
        flags |= c.CO_FLAG_NEW_FILE
    if not is_dir:
        flags |= c.CO_FLAG_CONTENT_CMD
    return flags


def done(*, initial: bool, is_dir: bool, rename: bool, delete: bool, new: bool, compressed: bool) -> int:
    """CO_OUT.Flags of CMD_REMOTE_CO_DONE for a change order that was carried out (3.3.4.4.6.2)."""
    if delete:
        return c.CO_FLAG_LOCATION_CMD | c.CO_FLAG_VV_ACTIVATED
    flags = c.CO_FLAG_VV_ACTIVATED | (_COMPRESSED if compressed else 0)
    if rename:
        return flags | (c.CO_FLAG_CONTENT_CMD if compressed else c.CO_FLAG_LOCATION_CMD)
    flags |= c.CO_FLAG_LOCATION_CMD
    if initial:
        flags |= c.CO_FLAG_VVJOIN_TO_ORIG | c.CO_FLAG_NEW_FILE
    elif new:
        flags |= c.CO_FLAG_NEW_FILE
    if not is_dir:
        flags |= c.CO_FLAG_CONTENT_CMD
    return flags


def done_dampened(*, compressed: bool) -> int:
    """CO_OUT.Flags of CMD_REMOTE_CO_DONE for a dampened change order (3.3.4.4.6.2)."""
    return (
        c.CO_FLAG_SKIP_VV_UPDATE
        | c.CO_FLAG_DIRECTED_CO
        | c.CO_FLAG_RETRY
        | c.CO_FLAG_CONTENT_CMD
        | c.CO_FLAG_VV_ACTIVATED
        | c.CO_FLAG_ABORT_CO
        | (_COMPRESSED if compressed else 0)
    )


def done_lost(*, compressed: bool) -> int:
    """CO_OUT.Flags of CMD_REMOTE_CO_DONE for the loser of a conflict (3.3.4.4.6.2)."""
    flags = c.CO_FLAG_CONTENT_CMD | c.CO_FLAG_VV_ACTIVATED | c.CO_FLAG_ABORT_CO
    return flags | (_COMPRESSED if compressed else 0)


#: CO_OUT.State values (2.2.3.2, 3.3.4.4.6.1, 3.3.4.4.6.2).
STATE_OUTBOUND_REQUEST = 0x14
STATE_REQUEST_INITIAL = 5
STATE_REQUEST_NORMAL = 6
STATE_DONE_DAMPENED = 8
STATE_DONE_LOST = 0
STATE_DONE = 0x16


def is_delete(location_cmd: int, flags_: int) -> bool:
    """True when the change order removes its file or folder (3.3.4.4.6)."""
    if not flags_ & c.CO_FLAG_LOCATION_CMD:
        return False
    return (location_cmd >> 1) & 0xF in (c.CO_LOCATION_DELETE, c.CO_LOCATION_MOVEOUT)


def is_rename(location_cmd: int, flags_: int, content_cmd: int) -> bool:
    """True when the change order is a renaming and nothing else (3.3.4.4.6)."""
    return bool(
        not is_delete(location_cmd, flags_)
        and flags_ & c.CO_FLAG_CONTENT_CMD
        and content_cmd == c.REASON_RENAME_NEW_NAME
    )


def is_folder(location_cmd: int, flags_: int, attributes: int) -> bool:
    """True when the change order is about a folder (3.3.4.4.6)."""
    if flags_ & c.CO_FLAG_LOCATION_CMD:
        return bool(location_cmd & 1)
    return bool(attributes & c.FILE_ATTRIBUTE_DIRECTORY)


def brings_content(location_cmd: int, flags_: int, content_cmd: int) -> bool:
    """True when its receiver will most likely ask for the staging file: not for that of a renaming."""
    needed = needs_staging_file(location_cmd, flags_, content_cmd)
    return needed and not is_rename(location_cmd, flags_, content_cmd)


def needs_staging_file(location_cmd: int, flags_: int, content_cmd: int) -> bool:
    """True when the change order cannot be carried out without its staging file (3.3.4.4.6)."""
    if flags_ & c.CO_FLAG_LOCATION_CMD:
        command = (location_cmd >> 1) & 0xF
        if command in (c.CO_LOCATION_CREATE, c.CO_LOCATION_MOVEIN, c.CO_LOCATION_MOVEIN2):
            return True
        if command in (c.CO_LOCATION_DELETE, c.CO_LOCATION_MOVEOUT):
            return False
        if command in (c.CO_LOCATION_MOVERS, c.CO_LOCATION_MOVEDIR):
            return content_cmd != 0
    return bool(flags_ & c.CO_FLAG_CONTENT_CMD and content_cmd)
