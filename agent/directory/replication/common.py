"""What all the rules of replication share: the partitions of a server, its neighbours, what waits for them, and what
is asked of others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Self

from agent.directory.objects.model import (
    DeletedObject,
    DsObject,
)
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication.messages import (
    DirectoryChange,
    Message,
    PartitionNumbers,
    Propagation,
    PscAck,
    SyncRequest,
)
from agent.directory.replication.numbers import MAX_SEQ, MIN_SEQ, MOST_EPOCHS_AHEAD, epoch_of, following
from agent.directory.replication.ports import (
    DEFAULT_SIZES,
    ENTERPRISE_PARTITION,
    Action,
    Asking,
    Me,
    Partition,
    Reign,
    Send,
    Sizes,
    State,
    Store,
    Told,
)

S_NAME: Final = 301
S_PSC: Final = 304
E_PECNAME: Final = 604
#: Since which epoch of the site's partition S_PSC owns it: one more each time that it is given to a server.
S_EPOCH: Final = 1353
#: Host, port and key of a server, in its site and in its machine.
S_PLACE: Final = (1350, 1351, 1352)
QM_PLACE: Final = (1250, 1251, 1252)
QM_SERVICE: Final = 210
#: What changes of these mean to replication itself.
HAVE_EFFECTS: Final = (Type.MACHINE, Type.SITE, Type.ENTERPRISE)


class Common:
    """A directory server in whatever role. `reign` is higher with every opening of the store; only one of these uses
    it at a time."""

    def __init__(self, me: Me, store: Store, reign: int, sizes: Sizes = DEFAULT_SIZES) -> None:
        self.me = me
        self._store = store
        self.reign = reign
        self._sizes = sizes
        self._actions: list[Action] = []
        self._partitions = {one.id: one for one in store.partitions()}
        if ENTERPRISE_PARTITION not in self._partitions:  # 3.1.3.1
            self._partition(ENTERPRISE_PARTITION, me.upstream or me.name)
        self._asking: dict[bytes, Asking] = {}
        self._pending: dict[bytes, dict[int, DirectoryChange]] = {}
        self._waiting: dict[str, list[DirectoryChange]] = {}
        self._announce: set[str] = set()
        self._bscs: list[str] | None = None
        self._requests: dict[int, str] = {}  # that are under way, and to whom they went
        self._turns: dict[bytes, int] = {}  # by partition: of those whom a replica may ask, who is asked
        self.anew: set[bytes] = set()  # partitions of which all was taken anew, until somebody has looked here
        self._forwarded: OrderedDict[tuple[str, int], str] = OrderedDict()  # by requester and number, likewise
        self._last_request = reign << 10 & 0xFFFFFFFF  # an answer to one of before a restart is to none of now
        self._claim = 0  # the request by which this server asked for a site, until it is answered
        self._epochs: dict[bytes, int] = {}  # of the partitions, when one looked first since the last 12 hours began

    def goes_on(self, former: Self) -> None:
        """Go on where those rules were broken off, an event of which was rolled back: what waited for others is told
        by how far the partitions are."""
        self._epochs, self._turns, self._claim = former._epochs, former._turns, former._claim
        self._requests, self._forwarded, self._last_request = former._requests, former._forwarded, former._last_request
        self.anew = former.anew
        self._announce |= set(self.neighbours())

    @property
    def partitions(self) -> list[Partition]:
        """All partitions, the enterprise's first."""
        return [self._partitions[key] for key in sorted(self._partitions)]

    def owns(self, partition: bytes) -> bool:
        """Whether this server is the owner of the partition."""
        found = self._partitions.get(partition)
        return found is not None and found.authority == self.me.name

    def takes_changes(self, partition: bytes) -> bool:
        """Whether this server is the owner of the partition, and nobody disputes it."""
        return self.owns(partition) and not self._partitions[partition].disputed

    def complete(self, partition: bytes) -> bool:
        """Whether what is here of the partition is what its owner had at some time."""
        found = self._partitions.get(partition)
        return found is not None and found.whole

    def _is_behind(self, partition: Partition) -> bool:
        """Whether something of a partition is known to be missing here, or is being asked for."""
        return not partition.whole or partition.state != State.NORMAL or partition.id in self._asking

    @property
    def is_psc(self) -> bool:
        """Whether this server owns a partition; else it is a replica alone (BSC)."""
        return any(one.authority == self.me.name for one in self._partitions.values())

    def neighbours(self) -> list[str]:
        """Whom this server propagates to (3.1.1.2.4): owners of partitions to all others and to the replicas of their
        site, replicas to nobody."""
        return [*self._pscs(), *self._own_bscs()] if self.is_psc else []

    def _too_far(self, partition: Partition, seq: int) -> bool:
        """Whether a number is of an epoch that cannot have come yet. Where nothing of the partition is here any can."""
        known = max(partition.last, partition.purged)
        if not known:
            return False
        base = self._epochs.setdefault(partition.id, epoch_of(known))
        return epoch_of(seq) > max(epoch_of(known), base + MOST_EPOCHS_AHEAD)

    def _ask(self, partition: Partition, purged: int = MIN_SEQ) -> None:
        """Ask for all that is missing (3.3.7.3), unless that is under way. `purged`: where all is taken anew, how far
        tombstones were purged by whom it is asked of, if that is known."""
        source = self._source(partition)
        if partition.id in self._asking or not source:
            return
        first = MIN_SEQ if partition.state == State.SYNC0 else partition.last
        self._asking[partition.id] = Asking(source, first, purged)
        self._store.begin_arriving(partition.id)
        self._send_request(partition)

    def _send_request(self, partition: Partition) -> None:
        asking = self._asking[partition.id]
        sync0 = partition.state == State.SYNC0
        purged = asking.purged if sync0 else partition.purged
        request = SyncRequest(
            self.me.site, partition.id, asking.cursor, MAX_SEQ, purged, sync0, self.is_psc, self.me.name
        )
        self._send(asking.server, request)

    def _site_before(self, change: DirectoryChange) -> DsObject | None:
        """The site whose owner a change says, as it is now."""
        of_site = any(prop == S_PSC for prop, _ in change.properties)
        return self._store.get(change.guid) if change.guid is not None and of_site else None

    def _effects(self, done: DsObject | DeletedObject | None, was: DsObject | None) -> None:
        """What a change of an enterprise, a site or a machine means to replication (3.1.7.2.5-3.1.7.2.12). `was`: a
        site before it."""
        if done is None:
            return
        if done.type == Type.MACHINE:
            self._bscs = None
        elif done.type == Type.SITE and isinstance(done, DeletedObject) and done.guid != ENTERPRISE_PARTITION:
            self._asking.pop(done.guid, None)
            self._pending.pop(done.guid, None)
            self._store.begin_arriving(done.guid)
            if self._partitions.pop(done.guid, None) is not None:
                self._store.drop_partition(done.guid)
        elif isinstance(done, DsObject) and (owner := owner_said(done)):
            partition_id = done.guid if done.type == Type.SITE else ENTERPRISE_PARTITION
            if self._owned_by(partition_id, owner, done.number(S_EPOCH)):
                self._taken(was if was is not None else done)

    def _taken(self, site: DsObject) -> None:
        """This server owns the site now, which was like this before."""

    def _owned_by(self, partition_id: bytes, owner: str, epoch: int) -> bool:
        """Somebody owns a partition, since an epoch that its site has (0: none); whether this server has taken it from
        another one. A later epoch is known where its owner has said so before."""
        new = partition_id not in self._partitions
        partition = self._partition(partition_id, "") if new else self._partitions[partition_id]
        mine = owner == self.me.name
        if epoch and epoch < epoch_of(max(partition.last, partition.purged)):
            return False
        if partition.authority == owner and not (mine and epoch > partition.epoch):
            return False
        if epoch and mine and not new and not self.complete(partition_id):  # it came back out of an old backup
            return False
        if partition_id == self.me.site:
            self._turns.clear()
            self._claim = 0
        took = False
        partition.authority = owner
        self._bscs = None
        self._asking.pop(partition_id, None)
        if owner != self.me.name:
            partition.disputed = False  # whose it is the owner of the enterprise says
            self._ask(partition)
        elif new:
            partition.whole = True
        elif self.complete(partition_id):
            partition.disputed, took = False, True
            self._take(partition, epoch)
        else:
            partition.disputed = True
        self._store.put_partition(partition)
        return took

    def _take(self, partition: Partition, epoch: int = 0) -> None:
        """A partition that had another owner: its new epoch begins with a number that is of no change, so that nobody
        has it who has not taken all of the partition from here."""
        self._asking.pop(partition.id, None)
        self._pending.pop(partition.id, None)
        if partition.state == State.SYNC0:
            text = f"{named(partition)} is taken as it was before all of it was to be taken anew, which did not end: "
            self._tell(self.me.name, text + "what was changed at its former owner since then is lost")
        partition.state = State.NORMAL
        partition.epoch = max(epoch_of(max(partition.last, partition.purged)) + 1, epoch)
        first = following(partition.last, partition.epoch, self.reign)
        self._store.put_reign(partition.id, Reign(first, partition.last))
        self._store.purge(partition.id, first)
        partition.last = partition.purged = first
        self._store.put_partition(partition)
        self._announce |= set(self.neighbours())

    def _partition(self, partition_id: bytes, authority: str) -> Partition:
        found = self._partitions[partition_id] = Partition(partition_id, authority, whole=authority == self.me.name)
        self._store.put_partition(found)
        return found

    def _upstream(self, partition: Partition | None) -> str:
        """From whom a partition comes: its owner, or for a replica the owner of its site."""
        if partition is None:
            return ""
        return partition.authority if self.is_psc else self._site_owner()

    def _source(self, partition: Partition) -> str:
        """Whom a partition is asked of: from whom it comes; where that does not answer a replica asks the owner of the
        enterprise, and that one, in turn."""
        both = (self._upstream(partition), "" if self.is_psc else self._partitions[ENTERPRISE_PARTITION].authority)
        sources = [one for one in dict.fromkeys(both) if one not in ("", self.me.name)]
        return sources[self._turns.get(partition.id, 0) % len(sources)] if sources else ""

    def _site_owner(self) -> str:
        site = self._partitions.get(self.me.site)
        return (site.authority if site is not None else "") or self.me.upstream

    def _tellers(self, partition: Partition) -> tuple[str, ...]:
        """Whose word counts for what happens in a partition: its owner's, for a replica that of the owner of its site,
        too."""
        return (partition.authority,) if self.is_psc else (partition.authority, self._site_owner())

    def _pscs(self) -> list[str]:
        found = {one.authority for one in self._partitions.values()}
        return sorted(found - {self.me.name, ""})

    def _own_bscs(self) -> list[str]:
        """The replicas of the sites that this server owns."""
        if self._bscs is None:
            sites = [key for key, one in self._partitions.items() if one.authority == self.me.name]
            machines = [one for site in sites for one in self._store.of_type(Type.MACHINE, site)]
            names = (one.name for one in machines if one.number(QM_SERVICE) & SERVICE_BSC)
            self._bscs = sorted(name for name in names if name and name != self.me.name)
        return [name for name in self._bscs if name not in self._pscs()] if self.is_psc else []

    def _queue(self, names: Iterable[str], change: DirectoryChange) -> None:
        for name in names:
            waiting = self._waiting.setdefault(name, [])
            if len(waiting) < self._sizes.waiting:
                waiting.append(change)
            else:  # it takes them from a synchronisation
                self._waiting[name] = []
                self._announce.add(name)

    def _ack(self, partition: Partition) -> None:
        if self.is_psc:
            self._send(
                partition.authority, PscAck(self.me.site, self.me.site, partition.id, partition.last, self.me.name)
            )

    def _send_numbers(self, partition: Partition, to: str) -> None:
        self._send(to, Propagation(self.me.site, (), partition.authority, (numbers_of(partition),)))

    def _send(self, to: str, message: Message) -> None:
        if to and to != self.me.name:
            self._actions.append(Send(to, message))

    def _tell(self, source: str, text: str) -> None:
        self._actions.append(Told(source, text))

    def _done(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions


def owner_said(found: DsObject | DeletedObject) -> str:
    """Who owns the partition that an object says the owner of: a site, or the enterprise. Nobody: empty."""
    if not isinstance(found, DsObject) or found.type not in (Type.SITE, Type.ENTERPRISE):
        return ""
    return found.text(S_PSC if found.type == Type.SITE else E_PECNAME)


def numbers_of(partition: Partition) -> PartitionNumbers:
    """How far it is."""
    return PartitionNumbers(partition.id, partition.last, partition.purged)


def named(partition: Partition) -> str:
    """The partition, for people."""
    return "the enterprise partition" if partition.id == ENTERPRISE_PARTITION else f"partition {partition.id.hex()}"
