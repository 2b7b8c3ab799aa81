"""What the rules need of a store, and what they give back."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import Type
from agent.directory.replication.messages import DirectoryChange, Message
from agent.directory.replication.numbers import MIN_SEQ

#: The partition of what is the whole enterprise's ([MC-MQDSRP] 1.9); that of a site has the site's identifier.
ENTERPRISE_PARTITION = bytes(16)


class State(enum.IntEnum):
    """The PurgeState of a partition (3.1.1.2.3), but for the two that end in the transaction in which they begin. In
    SYNC0 all of it is to be taken anew; until it is here, what was here before is a copy like any other."""

    NORMAL = 0
    SYNC0 = 2


@dataclass(slots=True)
class Partition:
    """A partition as one server has it (3.1.1.2.3). `last` and `purged` are those of the text; `whole`: what is here is
    what its owner had at `last`, so others may be given it. `epoch`: what the owner gives numbers in; `disputed`: it
    is known here that others have numbers that this owner never gave."""

    id: bytes
    authority: str
    last: int = MIN_SEQ
    purged: int = MIN_SEQ
    state: State = State.NORMAL
    whole: bool = False
    epoch: int = 0
    disputed: bool = False


@dataclass(frozen=True, slots=True)
class Reign:
    """The numbers that begin with `first` follow `base`: between them there is none that this owner gave."""

    first: int
    base: int


class Store(Protocol):
    """Where it is all kept. The rules read and write it in transactions that their caller begins and commits."""

    def partitions(self) -> list[Partition]:
        """All of them, by identifier."""

    def put_partition(self, partition: Partition) -> None:
        """It is like this from now on."""

    def drop_partition(self, partition: bytes) -> None:
        """It is gone, with all that is in it."""

    def get(self, guid: bytes) -> DsObject | None:
        """The object."""

    def find(self, type_: Type, name: str) -> DsObject | None:
        """The object of that type and name, upper and lower case the same."""

    def named(self, type_: Type, name: str) -> list[DsObject]:
        """All objects of that type and name, upper and lower case the same."""

    def put(self, found: DsObject) -> None:
        """It is like this from now on; its tombstone goes."""

    def remove(self, deleted: DeletedObject) -> None:
        """The object is gone, and this is its tombstone."""

    def deleted(self, guid: bytes) -> DeletedObject | None:
        """The tombstone."""

    def of_type(self, type_: Type, partition: bytes) -> list[DsObject]:
        """The objects of a type in a partition."""

    def changed(self, partition: bytes, first: int, to: int, most: int) -> list[DsObject | DeletedObject]:
        """Objects and tombstones with numbers in (first, to], the lowest first."""

    def nth_newest(self, partition: bytes, n: int) -> int:
        """The number that n objects and tombstones have a higher one than; MIN_SEQ where there are no more than n."""

    def mark(self, partition: bytes) -> None:
        """All objects and tombstones get the number MIN_SEQ."""

    def drop_marked(self, partition: bytes) -> None:
        """Those that have it still are gone."""

    def begin_arriving(self, partition: bytes) -> None:
        """A synchronisation begins: what an earlier one has brought and did not end is forgotten."""

    def put_arriving(self, partition: bytes, changes: Iterable[DirectoryChange]) -> None:
        """These changes of a synchronisation have come, and wait for the rest of it. A restart forgets them."""

    def arriving(self, partition: bytes) -> Iterable[DirectoryChange]:
        """All that wait, in the order in which they came."""

    def all_or_none(self) -> contextlib.AbstractContextManager[None]:
        """What is written inside is undone where that ends with an exception."""

    def purge(self, partition: bytes, to: int) -> None:
        """Tombstones with numbers up to that one are gone."""

    def acked(self, partition: bytes) -> dict[str, int]:
        """How far each server has acknowledged the partition."""

    def put_ack(self, partition: bytes, server: str, seq: int) -> None:
        """It has acknowledged it so far."""

    def reigns(self, partition: bytes) -> Iterable[Reign]:
        """Those of the owner of this partition that is here."""

    def put_reign(self, partition: bytes, reign: Reign) -> None:
        """A reign begins."""


@dataclass(frozen=True, slots=True)
class Send:
    """Give this message to that server's queue; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Answered:
    """A change that was asked for here was carried out elsewhere, or was not."""

    request: int
    result: int


@dataclass(frozen=True, slots=True)
class Told:
    """What an administrator should know; `source` is whom it comes from."""

    source: str
    text: str


Action = Send | Answered | Told


@dataclass(frozen=True, slots=True)
class Me:
    """The server that these rules run on: its name, identifier and site; from whom it learns of a partition of which it
    knows no owner yet (empty for the first server of all)."""

    name: str
    id: bytes
    site: bytes
    upstream: str = ""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds: the changes kept that came too early, the newest changes whose tombstones are never purged, how often one
    acknowledges, how many changes wait for one server, how many go into a message and how many bytes, and how many a
    synchronisation may have."""

    pending: int = 100
    buffer: int = 1024
    ack_every: int = 256
    waiting: int = 1000
    page: int = 1000
    page_bytes: int = 192 * 1024
    arriving: int = 2_000_000


DEFAULT_SIZES = Sizes()


@dataclass(slots=True)
class Asking:
    """A sync request is under way: to whom, what has arrived already of what it asks for, which tombstones (purged up
    to that number) are not missed where all is taken anew; how many times the answer was waited for in vain, and how
    many changes have come."""

    server: str
    cursor: int
    purged: int = MIN_SEQ
    silent: int = 0
    count: int = 0
