"""The causes of incidents, each with what it means to an administrator."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """Why something was refused, or which bound was reached. The value is the name in `frs status` and the metrics."""

    # from the network, before or without authentication
    CONNECTIONS = "too many connections"
    AUTHENTICATION = "authentication failed"
    PROTOCOL = "not DCE/RPC as it should be"
    # from a partner that has authenticated
    SENDER = "packet that is not its caller's to send"
    PACKET = "packet that does not parse"
    IMPLAUSIBLE = "implausible number"
    NAME = "name that is not taken"
    IDENTITY = "identity that is not the sender's"
    FLOOD = "more than the window allows"
    STAGING_SHARE = "share of the staging area used up"
    STAGING_FILE = "staging file that cannot be right"
    ORIGINATORS = "too many originators"
    RESTORED = "database older than what partners know"
    DIRECTORY = "directory that cannot be used, or is disputed"
    CLOCK = "numbers ahead of the clock mended"
    MASS_DELETION = "mass deletion"
    SET_ID = "set-id bits that are not taken"
    # from users of the tree
    OBJECT_ID = "object ID that this agent did not issue"
    RESERVED_NAME = "entry at a name of the agent's own"
    ROOT_LOCK = "lock of somebody else on the root"
    SWAPPED = "entry exchanged while it was worked on"
    IN_USE = "change order that waits for a file in use"
    # from the host
    FAULT = "fault of this program"
    WAITING = "change order that waits for room, or for a failure to end"
    GIVEN_UP = "change order given up"
    DESCRIPTORS = "file descriptors running out"
    SIGNAL = "signal that does nothing"
