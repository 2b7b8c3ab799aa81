"""What the engine takes (events) and what it asks for (actions).

The engine does no I/O and reads no clock: whoever drives it (agent.replica.replica on a host, a simulator in a test)
hands it events with the time, runs them inside a store transaction, commits, and only then carries out the
actions. So an acknowledgement, being an action, is sent only after its result is durable.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.reporting.causes import Cause
from agent.reporting.events import Numbered
from agent.wire.change_order import ChangeOrder
from agent.wire.constants import MAX_BLOCK
from agent.wire.packet import Packet

if TYPE_CHECKING:
    from agent.engine.context import Cxtion


class ChangeKind(enum.Enum):
    """What a local change did."""

    CREATE = "create"
    UPDATE = "update"
    RENAME = "rename"
    DELETE = "delete"


class Outcome(Numbered):
    """How an install ended, and the event that tells of one that waits for that."""

    DONE = "done"
    ALREADY = "already"  # the target held exactly this already
    TARGET_CHANGED = "target changed", 20401  # somebody edited it: a local change is on its way
    NAME_TAKEN = "name taken", 20402  # by something the IDTable does not know
    SHARING_VIOLATION = "sharing violation", 13573  # open for writing
    NO_SPACE = "no space", 13570
    PARENT_MISSING = "parent missing", 20403
    NOT_EMPTY = "folder not empty", 20404
    STAGE_MISSING = "staging file missing", 20405
    AHEAD = "dated ahead of the clock", 13549
    STAGE_DAMAGED = "staging file damaged", 20406
    UNSUPPORTED = "cannot be held here", 20407  # a kind of file, or a size, that this system lacks: waiting is no use
    FAILED = "failed", 20408


@dataclass(frozen=True, slots=True)
class Facts:
    """What the file system says of a file or folder, as the IDTable keeps it (see idtable.records.IDRecord)."""

    dev: int
    ino: int
    btime_ns: int
    mtime_ns: int
    ctime_ns: int
    fsize: int
    mode: int
    uid: int
    gid: int


# ---- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PacketReceived:
    """A COMM_PACKET from a partner; `minor` is its COMM_PACKET.Minor. `aside`: it is a change order, and came by
    another association than what the partner has to say itself."""

    packet: Packet
    minor: int
    aside: bool = False


@dataclass(frozen=True, slots=True)
class PartnerUnreachable:
    """A packet for the partner could not be delivered; all queued ones behind it are dropped."""

    partner: bytes
    error: str


@dataclass(frozen=True, slots=True)
class LocalChange:
    """A change found in the replica tree, staged (unless it is a delete or a plain rename).

    `temporary`: a rename to a passing name, in the IDTable only (see journal.changes).
    `stage_guid` names the staging file made for it and becomes the change order's GUID. `md5` is the checksum
    of 2.2.3.10. `event_time` is the FILETIME of the file system's event. `unstored`: what is to be remembered of it
    from now on, where there is content (see staging.unstored).
    """

    kind: ChangeKind
    file_guid: bytes
    parent_guid: bytes
    name: str
    is_dir: bool
    file_kind: str
    event_time: int
    reasons: int
    facts: Facts | None = None
    md5: bytes = bytes(16)
    attributes: int = 0
    size: int = 0
    stage_guid: bytes = bytes(16)
    staged: bool = False
    stage_size: int = 0
    compressed: bool = False
    usns: tuple[int, int] = (0, 0)
    temporary: bool = False
    unstored: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchStored:
    """A block of a staging file is on disk, and so are the first `upto` bytes; `complete` after the last."""

    co_guid: bytes
    complete: bool
    upto: int


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A fetched block could not be stored. `cause`: the partner is at a bound."""

    co_guid: bytes
    outcome: Outcome
    error: str
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Installed:
    """The end of an Install action. `md5`, `attributes` are those of the staging file; `unstored`: what is to be
    remembered of what is in it and could not be kept here (see staging.unstored). `done`: how many steps were carried
    out before the one that failed."""

    co_guid: bytes
    outcome: Outcome
    facts: Facts | None = None
    md5: bytes | None = None
    attributes: int | None = None
    file_kind: str | None = None
    detail: str = ""
    done: int = 0
    unstored: bytes = b""


@dataclass(frozen=True, slots=True)
class StageBlock:
    """A block of a staging file for a downstream partner, the answer to a ReadStage action."""

    request: ReadStage
    data: bytes
    file_size: int
    generated: int = 0  # size of the staging file if it had to be generated for this request, else 0


@dataclass(frozen=True, slots=True)
class StageRefused:
    """A ReadStage action failed: `retry` when it may work later (3.3.4.4.7). `no_room`: for want of room here.
    `generating`: the staging file could not be made from the tree."""

    request: ReadStage
    retry: bool
    error: str
    no_room: bool = False
    generating: bool = False


@dataclass(frozen=True, slots=True)
class ForceReplication:
    """Join now, whatever the schedule says: all connections, or one."""

    cxtion: bytes | None = None


@dataclass(frozen=True, slots=True)
class Freeze:
    """Whether installs wait from now on (3.2.4.5). All else goes on."""

    frozen: bool


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """What the connections of this member are from now on, whether it is the primary one, and the GUIDs of all members.
    `joins`: the driver has begun to join connections (Started)."""

    cxtions: tuple[Cxtion, ...]
    primary: bool
    others: frozenset[bytes]
    joins: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the engine's next_deadline() says when one is wanted."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a former run left unfinished goes on, as far as no partner is needed for it. `stages` are the change orders
    whose staging files are complete on disk."""

    stages: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Started:
    """The driver is ready, and the tree is known: connections are joined. What a former run left unfinished goes on, if
    that was not said before. `stages`: see Resumed."""

    stages: frozenset[bytes] = frozenset()


Event = (
    PacketReceived
    | PartnerUnreachable
    | LocalChange
    | FetchStored
    | FetchFailed
    | Installed
    | StageBlock
    | StageRefused
    | ForceReplication
    | Freeze
    | TopologyChanged
    | Tick
    | Resumed
    | Started
)


# ---- actions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver the packet to the partner, after those sent to it before. `passed_on`: the change order of another
    originator, which may come after what this member sends of its own. `shared`: the partner takes several in one
    call. `brings`: the staging file of the change order goes with it if it is one block and at hand, compressed in one
    of these ways; where it does not, the partner asks for it."""

    partner: bytes
    packet: Packet
    passed_on: bool = False
    shared: bool = False
    brings: frozenset[bytes] | None = None


@dataclass(frozen=True, slots=True)
class StoreBlock:
    """Append a fetched block to the staging file; answer with FetchStored or FetchFailed."""

    co_guid: bytes
    offset: int
    data: bytes | memoryview
    last: bool
    file_size: int
    checksum: bytes  # expected md5, zero when unknown
    is_dir: bool
    partner: bytes  # member GUID of whom it comes from


@dataclass(frozen=True, slots=True)
class ReadStage:
    """Read one block of a staging file, generating the file if need be; answer StageBlock or StageRefused.

    `change_order` and `coc_ext`, its extension for partners of minor version 3 and below, go into the stage header.
    With `regenerate` the file may be made anew from the tree, where the IDTable still holds the content `md5` that the
    change order announced. `partner` is the member GUID of whom it is for, who takes blocks of at most `most` bytes.
    Unless `at_hand`, what is in the area under
    the change order's GUID is what a partner has sent so far, and nobody's to have.
    """

    partner: bytes
    cxtion: bytes
    packet: Packet
    change_order: ChangeOrder
    file_guid: bytes
    md5: bytes
    offset: int
    compressions: frozenset[bytes]
    initial: bool
    regenerate: bool
    coc_ext: bytes = bytes(0x28)
    at_hand: bool = True
    most: int = MAX_BLOCK


@dataclass(frozen=True, slots=True)
class MakeStage:
    """Have the staging file of a change order at hand that will be sent soon, if that can be done: of the file as the
    IDTable has it (`expected`), where its content is `md5` still. Nothing is answered: who needs it asks for it."""

    partner: bytes
    co_guid: bytes
    file_guid: bytes
    md5: bytes
    expected: Facts
    compressions: frozenset[bytes]


class InstallStep(enum.Enum):
    """One step of an install."""

    RENAME = "rename"  # from (old_parent, old_name) to (parent, name)
    CONTENT = "content"  # put the staging file's content at (parent, name)
    DELETE = "delete"  # remove (parent, name)
    VACATE = "vacate"  # move what the IDTable knows at (parent, name) to (old_parent, old_name)
    FOLDER = "folder"  # a folder that the IDTable knows is to be at (parent, name), whatever happened to it


class KeepReason(enum.Enum):
    """Why something that leaves the tree has to be kept."""

    UPDATED = "updated elsewhere at the same time"
    DELETED = "deleted elsewhere while it was changed here"
    NAME = "another file of the same name was changed later"
    IN_THE_WAY = "in the way of the initial sync"
    AWAY = "deleted elsewhere while this member was away"
    ELSEWHERE = "deleted elsewhere"  # no conflict: kept for a while only (see agent.conflicts.deleted)


@dataclass(frozen=True, slots=True)
class Edition:
    """One version of a file, for people to tell apart: times are FILETIMEs, `size` bytes, `parent_guid` its folder."""

    file_guid: bytes
    parent_guid: bytes
    name: str
    version: int
    event_time: int
    size: int
    md5: bytes
    originator_guid: bytes
    originator_vsn: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """What a step takes out of the tree is to be kept: why, what it is (None when the IDTable does not know it), and
    what takes its place."""

    reason: KeepReason
    loser: Edition | None
    winner: Edition


@dataclass(frozen=True, slots=True)
class Step:
    """A step with everything resolved; `expected` is what the IDTable says is at the place it works on.

    With `keep`, what the step replaces or removes is not deleted but kept. With `aside` (only while this member is
    seeded) whatever else is at the name, a folder with all that is in it too, is first moved to what is kept.
    """

    step: InstallStep
    parent_guid: bytes
    name: str
    expected: Facts | None = None
    old_parent_guid: bytes = b""
    old_name: str = ""
    file_guid: bytes = b""
    keep: Keep | None = None
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Install:
    """Carry out the steps in order; answer with Installed. Doing it again after a crash must be harmless. `partner` is
    the member GUID of whom the change order came from."""

    co_guid: bytes
    file_guid: bytes
    is_dir: bool
    steps: tuple[Step, ...]
    md5: bytes
    partner: bytes = b""


@dataclass(frozen=True, slots=True)
class DropStage:
    """The staging file is no longer needed."""

    co_guid: bytes


@dataclass(frozen=True, slots=True)
class Examine:
    """Compare this place with the IDTable again, soon: what is there is not what was expected."""

    parent_guid: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Report:
    """Something an administrator should know. With a `cause` it is an incident: counted, and logged at a bounded rate
    for each cause and `source` (the name of the partner it comes from)."""

    level: str  # "info", "warning", "error"
    text: str
    cause: Cause | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class WentOnline:
    """Initial sync is over (or was not needed): start to look for local changes."""


Action = Send | StoreBlock | ReadStage | MakeStage | Install | DropStage | Examine | Report | WentOnline
