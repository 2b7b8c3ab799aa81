"""The causes of incidents, each with what it means to an administrator, and the number of its event."""

from __future__ import annotations

from agent.reporting.events import Numbered


class Cause(Numbered):
    """Why something was refused, or which bound was reached. The value is the name in `frs status` and the metrics."""

    # from the network, before or without authentication
    CONNECTIONS = "too many connections", 20331
    AUTHENTICATION = "authentication failed", 20332
    PROTOCOL = "not DCE/RPC as it should be", 20333
    # from a partner that has authenticated
    SENDER = "packet that is not its caller's to send", 20334
    PACKET = "packet that does not parse", 20335
    IMPLAUSIBLE = "implausible number", 20336
    NAME = "name that is not taken", 20337
    IDENTITY = "identity that is not the sender's", 20338
    FLOOD = "more than the window allows", 20339
    STAGING_SHARE = "share of the staging area used up", 20340
    STAGING_FILE = "staging file that cannot be right", 20341
    ORIGINATORS = "too many originators", 20342
    RESTORED = "database older than what partners know", 20343
    DIRECTORY = "directory that cannot be used, or is disputed", 20347
    ACTIVE_DIRECTORY = "Active Directory that cannot be used, or is not believed", 20359
    CLOCK = "numbers ahead of the clock mended", 20344
    MASS_DELETION = "mass deletion", 20345
    SET_ID = "set-id bits that are not taken", 20346
    # from users of the tree
    OBJECT_ID = "object ID that this agent did not issue", 20421
    RESERVED_NAME = "entry at a name of the agent's own", 20422
    ROOT_LOCK = "lock of somebody else on the root", 20423
    SWAPPED = "entry exchanged while it was worked on", 20424
    IN_USE = "change order that waits for a file in use", 13573
    # from the host
    FAULT = "fault of this program", 13506
    WAITING = "change order that waits for room, or for a failure to end", 20408
    GIVEN_UP = "change order given up", 20425
    DESCRIPTORS = "file descriptors running out", 20111
    SIGNAL = "signal that does nothing", 20112
