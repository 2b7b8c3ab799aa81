"""One change order of the inbound log, and how far it has come ([MS-FRS1] 3.1.1.6)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.engine import flags as fl
from agent.engine.events import Outcome
from agent.engine.order import Key
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2

if TYPE_CHECKING:
    from agent.engine.context import Limits


class Stage(enum.IntEnum):
    """How far an entry has come. The number is stored in the inbound log."""

    QUEUED = 0
    FETCHING = 1
    FETCHED = 2
    INSTALLING = 3
    FINISHED = 4  # done here; waits for an earlier change before it is passed on
    PASSED_ON = 5  # as FINISHED, and there is nothing (more) to pass on
    PASSED_EARLY = 6  # as FINISHED, and passed on with CO_FLAG_SKIP_VV_UPDATE: once more when its turn has come


@dataclass(slots=True)
class Entry:
    """A change order of the inbound log. `co` names parents as the IDTable does."""

    key: Key
    co: ChangeOrder
    checksum: bytes
    cxtion: bytes
    guid: bytes = b""  # by which all of it goes here: see Inbound.enter()
    stage: Stage = Stage.QUEUED
    alternates: list[tuple[bytes, ChangeOrder]] = field(default_factory=list)
    is_new: bool = True
    needs_stage: bool = False
    staged: bool = False
    begun: bool = False  # some of the staging file may have been stored
    compressed_after_all: bool = False  # the header of the staging file says so (vectors: ruling 15)
    stage_size: int = 0
    received: int = 0  # bytes of the staging file received in order
    stored: int = 0  # and of these, on disk
    requested: int = 0  # bytes of the staging file asked for
    heard_at: int = 0  # when it was asked for, or the last block came
    holds_up: bool = True  # others may wait for their turn behind it while it is fetched
    asked: dict[int, int] = field(default_factory=dict)  # blocks asked for that are not stored: offset -> most bytes
    early: dict[int, bytes | memoryview] = field(default_factory=dict)  # blocks that came before their turn
    retry_at: int = 0
    attempts: int = 0  # those that count (see Inbound.futile)
    first_failed: int = 0  # when the first of the attempts since the start failed
    without_room: int = 0  # attempts since the start for which there was no room: they do not count
    damaged: int = 0  # times that its staging file came damaged
    waits_for: Outcome | None = None
    detail: str = ""  # of that, for people
    first_try: int = 0
    tries_before: int = 0  # of other members, as the sender told them
    tried_since: int = 0  # when the first of them tried (FILETIME); 0 where nobody said
    arrival: int = 0
    retry_fetch: bool = False
    resend_at: int = 0  # when the block that CMD_RETRY_FETCH was the answer for is asked for again (FILETIME); 0: never
    retry_fetches: int = 0  # times that CMD_RETRY_FETCH was the answer
    not_found: bytes = b""  # GUID of what was to make room and was not at its place (in initial sync)
    lost_folders: list[bytes] = field(default_factory=list)  # GUIDs, topmost first: see installs
    out_of_order_by: set[bytes] = field(default_factory=set)  # connections that offered it out of its order only
    beaten_version: int = -1  # the highest version number that it beat by its event time alone (see reconcile)
    former_cxtion: bytes = b""  # the connection it came by, where that is no more and `cxtion` stands in for it
    not_before: int = 0  # event time of the removal that it undoes

    def came_by(self, cxtion: bytes) -> bool:
        """The change order came by this connection, which does not just stand in for another one."""
        return self.cxtion == cxtion and not self.former_cxtion

    def offer(self) -> list[tuple[bytes, ChangeOrder]]:
        """By which connection it is offered, and in which change order; by none where its connection just stands in for
        another one: the partner there may not have it."""
        return [] if self.former_cxtion else [(self.cxtion, self.co)]

    @property
    def all_attempts(self) -> int:
        """With those that do not count."""
        return self.attempts + self.without_room

    def has_tried(self, times: int, now: int, limits: Limits) -> bool:
        """So many attempts have failed, in no less time than they take by themselves: what happens around the entry
        wakes it, and they may follow each other at once."""
        return self.attempts >= times and now - self.first_failed >= limits.time_of(times)

    @property
    def tries(self) -> int:
        """How often this member and those before it have tried again."""
        return min(self.tries_before + self.attempts, 0xFFFFFFFF)

    def extension(self, checksum: bytes) -> CoExtension2:
        """What is said beside the change order: a checksum of the staging file, and of the tries (2.2.3.9)."""
        return CoExtension2(checksum, self.tries, self.tried_since or self.first_try)

    @property
    def is_delete(self) -> bool:
        """The change order removes its file or folder."""
        return fl.is_delete(self.co.location_cmd, self.co.flags)

    @property
    def is_rename(self) -> bool:
        """The change order is a rename and nothing else."""
        return fl.is_rename(self.co.location_cmd, self.co.flags, self.co.content_cmd)

    @property
    def is_dir(self) -> bool:
        """The change order is about a folder."""
        return fl.is_folder(self.co.location_cmd, self.co.flags, self.co.file_attributes)

    @property
    def initial(self) -> bool:
        """The change order belongs to an initial sync (VVJoin)."""
        return bool(self.co.flags & c.CO_FLAG_VVJOIN_TO_ORIG)

    @property
    def compressed(self) -> bool:
        """The upstream partner said that the staging file is compressed."""
        return bool(self.co.flags & c.CO_FLAG_COMPRESSED_STAGE)
