"""The rules by which directory servers keep the same objects ([MC-MQDSRP] 3): events in, actions out.

Each event is handled in one transaction of the store, and its actions are carried out after the commit. Where the text
would not converge, docs/directory.md has what is done instead, and why.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

from agent.directory.objects.model import (
    MQ_ERROR,
    DirectoryError,
    DsObject,
)
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.objects.values import Value
from agent.directory.replication.common import (
    E_PECNAME,
    QM_PLACE,
    QM_SERVICE,
    S_EPOCH,
    S_PLACE,
    S_PSC,
    named,
    numbers_of,
)
from agent.directory.replication.following import Following
from agent.directory.replication.messages import (
    CREATE,
    UPDATE,
    AlreadyPurged,
    BscAck,
    ChangeReply,
    ChangeRequest,
    DirectoryChange,
    Message,
    PartitionNumbers,
    Propagation,
    PscAck,
    SyncReply,
    SyncRequest,
    numbers_in,
)
from agent.directory.replication.numbers import MAX_EPOCH, MIN_SEQ, MOST_EPOCHS_AHEAD, epoch_of, seq_text
from agent.directory.replication.owning import MQDS_UNKNOWN_SOURCE
from agent.directory.replication.ports import (
    ENTERPRISE_PARTITION,
    Action,
)

_TOO_FAR = (
    f"is more than {MOST_EPOCHS_AHEAD} epochs ahead of what was known 12 hours ago. If that server is the owner, say "
    "so here: `frs directory resign --owner NAME`. If not, `frs directory remove-server NAME`"
)


class Replicator(Following):
    """One directory server: events in, actions out."""

    def start(self) -> list[Action]:
        """The server has come up (3.3.3)."""
        for partition in self.partitions:
            if partition.authority != self.me.name:
                self._ask(partition)
        self._announce |= set(self.neighbours())
        return self._done()

    def change(self, partition_id: bytes, change: DirectoryChange) -> tuple[int, list[Action]]:
        """Make a change in a partition that this server owns; gives its number. Raises DirectoryError."""
        seq = self._change(partition_id, change)
        return seq, self._done()

    def ask_owner(self, partition_id: bytes, change: DirectoryChange) -> tuple[int, list[Action]]:
        """Have the owner of the partition make a change (3.1.7.1.1); gives the number by which `Answered` tells what
        became of it. Raises DirectoryError where no owner is known."""
        upstream = self._upstream(self._partitions.get(partition_id))
        if not upstream:
            raise DirectoryError(MQDS_UNKNOWN_SOURCE, "no owner of this partition is known here")
        number = self._request(upstream, partition_id, change, "" if self.is_psc else upstream)
        return number, self._done()

    def _request(self, to: str, partition_id: bytes, change: DirectoryChange, psc: str) -> int:
        self._last_request = self._last_request % 0xFFFFFFFF + 1
        self._requests[self._last_request] = to
        self._send(to, ChangeRequest(self.me.site, partition_id, self._last_request, self.me.name, change, psc))
        return self._last_request

    def received(self, sender: str, message: Message) -> list[Action]:
        """A message of a server that has authenticated as `sender`."""
        if sender == self._site_owner() and not self._claim:
            self._turns.clear()
        for partition_id, seq in numbers_in(message):
            partition = self._partitions.get(partition_id)
            if partition is not None and self._too_far(partition, seq):
                self._tell(sender, f"a message is not taken: {seq_text(seq)} of {named(partition)} {_TOO_FAR}")
                return self._done()
        match message:
            case Propagation():
                for change in message.changes:
                    self._propagated(sender, change)
                for numbers in message.numbers:
                    self._numbers(sender, numbers, message.machine == sender)
            case SyncRequest():
                self._sync_request(sender, message)
            case SyncReply():
                self._sync_reply(sender, message)
            case AlreadyPurged():
                self._already_purged(sender, message)
            case PscAck():
                self._psc_ack(sender, message)
            case ChangeRequest():
                self._change_request(sender, message)
            case ChangeReply():
                self._change_reply(sender, message)
            case BscAck():
                pass  # that it called is known already: nothing is kept of replicas but that
        return self._done()

    def propagate(self) -> list[Action]:
        """Send what waits for neighbours (3.3.7.2): again and again, every 2 seconds or so."""
        for name in self.neighbours():
            waiting = self._waiting.pop(name, [])
            numbers = self._own_numbers(name) if name in self._announce else ()
            batches = list(self._batches(waiting)) or ([[]] if numbers else [])
            for index, batch in enumerate(batches):
                last = numbers if index == len(batches) - 1 else ()
                self._send(name, Propagation(self.me.site, tuple(batch), self.me.name if last else "", last))
            self._announce.discard(name)
        return self._done()

    def announce(self) -> list[Action]:
        """Tell all neighbours with the next propagation how far partitions are, every 20 minutes or so (note 12), and
        ask for what nobody may have told here."""
        self._announce |= set(self.neighbours())
        for partition in self.partitions:
            if partition.authority != self.me.name:
                self._ask(partition)
        return self._done()

    def retry(self) -> list[Action]:
        """Ask again for what was asked and did not come, and somebody else where that was in vain, too; ask for what is
        known to be missing."""
        for partition in self.partitions:
            if partition.authority == self.me.name:
                continue
            asking = self._asking.get(partition.id)
            if asking is not None and not asking.silent:
                asking.silent += 1
                self._send_request(partition)
            elif self._is_behind(partition) or self._pending.get(partition.id):
                if asking is not None and asking.server == self._source(partition):
                    self._turns[partition.id] = self._turns.get(partition.id, 0) + 1
                self._asking.pop(partition.id, None)
                self._ask(partition)
        return self._done()

    def acknowledge(self) -> list[Action]:
        """A replica tells its PSC that it is there (3.3.6.2), and begins to count epochs anew: every 12 hours
        or so."""
        self._epochs.clear()
        upstream = self._upstream(self._partitions[ENTERPRISE_PARTITION])
        if not self.is_psc and upstream:
            self._send(upstream, BscAck(self.me.site, self.me.id, self.me.name))
        return self._done()

    def promote(self, partition_id: bytes) -> list[Action]:
        """Make this server the owner of a partition whose owner is lost, or disputed: a new epoch begins, and whatever
        its former owner says from now on is of the past. Every other server takes all of the partition from here.
        Raises DirectoryError."""
        partition = self._partitions.get(partition_id)
        if partition is None or not partition.whole:
            raise DirectoryError(MQ_ERROR, "this server has not all of the partition: promote one that has")
        if epoch_of(max(partition.last, partition.purged)) == MAX_EPOCH:
            raise DirectoryError(MQ_ERROR, "there is no higher epoch")
        former, partition.authority, partition.disputed = partition.authority, self.me.name, False
        self._bscs = None
        self._take(partition)
        if partition_id == ENTERPRISE_PARTITION:
            at = self._own_place()
            for found in self._store.of_type(Type.ENTERPRISE, partition_id):
                self._set(found, ((E_PECNAME, self.me.name),))
            for site in self._store.of_type(Type.SITE, partition_id):
                if site.text(S_PSC) == former and self.complete(site.guid):
                    self._set(site, ((S_PSC, self.me.name), *at))
        self._announce |= set(self.neighbours())
        return self._done()

    def promote_site(self, site_id: bytes) -> tuple[int, list[Action]]:
        """Make this server the owner of a site whose owner is lost, or disputed. Whose a site is the owner of the
        enterprise says, and in which epoch: where that is another one, it is asked, and this gives the number by which
        `Answered` tells what became of it; else 0. The partition is taken when that is heard here. Raises
        DirectoryError."""
        site, partition = self._store.get(site_id), self._partitions.get(site_id)
        if site is None or site.type != Type.SITE or partition is None or not self.complete(site_id):
            raise DirectoryError(MQ_ERROR, "this server has not all of the site: promote one that has")
        if site.text(S_PSC) == self.me.name and self.takes_changes(site_id):
            return 0, []
        epoch = max(epoch_of(max(partition.last, partition.purged)), partition.epoch, site.number(S_EPOCH)) + 1
        change = DirectoryChange(
            UPDATE, site_id, ENTERPRISE_PARTITION, 0, 0, 0,
            ((S_PSC, self.me.name), *self._own_place(), (S_EPOCH, epoch)),
        )  # fmt: skip
        if self.owns(ENTERPRISE_PARTITION):
            self._change(ENTERPRISE_PARTITION, change)
            return 0, self._done()
        self._claim = self._request(self._partitions[ENTERPRISE_PARTITION].authority, ENTERPRISE_PARTITION, change, "")
        self._ask_owner_of_enterprise()
        return self._claim, self._done()

    def unanswered(self, request: int) -> None:
        """Nobody waits for the answer to that request any more. Where a site was asked for by it, its owner may be
        followed again, should that be there still; if the site is given to this server after all, its change tells."""
        self._requests.pop(request, None)
        if self._claim == request:
            self._claim = 0

    def _change_reply(self, sender: str, message: ChangeReply) -> None:
        super()._change_reply(sender, message)
        if self._claim and self._claim not in self._requests:
            self._claim = 0
            self._ask_owner_of_enterprise()

    def _ask_owner_of_enterprise(self) -> None:
        """Whoever owned the site tells nothing any more."""
        self._turns = dict.fromkeys(self._partitions, 1)
        self._ask_all()

    def _ask_all(self) -> None:
        """Others are asked than before."""
        for one in self.partitions:
            if one.authority != self.me.name:
                self._asking.pop(one.id, None)
                self._ask(one)

    def _taken(self, site: DsObject) -> None:
        self._becomes_copy(site, site.text(S_PSC))
        self._ask_all()

    def _becomes_copy(self, site: DsObject, former: str) -> None:
        """A site was taken from its former owner, which is a copy there from now on: should it come back, and follow,
        it is told of changes as all others are, and known by its key."""
        if former in ("", self.me.name):
            return
        for machine in self._store.named(Type.MACHINE, former):
            if machine.partition == site.guid:
                self._set(machine, ((QM_SERVICE, SERVICE_BSC),))
                return
        guid = self._free_identifier(site.guid + former.encode())
        place = tuple((own, site.properties[prop]) for prop, own in zip(S_PLACE, QM_PLACE) if prop in site.properties)
        made: tuple[tuple[int, Value], ...] = (
            (202, guid), (203, former), (201, site.guid), (QM_SERVICE, SERVICE_BSC), *place,
        )  # fmt: skip
        self._change(site.guid, DirectoryChange(CREATE, None, site.guid, 0, 0, 0, made))

    def _free_identifier(self, seed: bytes) -> bytes:
        """One that nothing has, and nothing had."""
        for number in itertools.count():
            guid = hashlib.sha256(seed + number.to_bytes(8)).digest()[:16]
            if self._store.get(guid) is None and self._store.deleted(guid) is None:
                return guid
        raise AssertionError

    def _own_place(self) -> tuple[tuple[int, Value], ...]:
        """Where this server is, and its key, as properties of a site that it owns: of a site that it owns already, or
        of its machine, which has another identifier where it became a copy."""
        for site in self._store.of_type(Type.SITE, ENTERPRISE_PARTITION):
            if site.text(S_PSC) == self.me.name:
                return tuple((prop, site.properties[prop]) for prop in S_PLACE if prop in site.properties)
        machine = self._store.get(self.me.id) or self._store.find(Type.MACHINE, self.me.name)
        if machine is None or machine.type != Type.MACHINE:
            return ()
        there = zip(S_PLACE, QM_PLACE)
        return tuple((prop, machine.properties[own]) for prop, own in there if own in machine.properties)

    def resign(self, partition_id: bytes, owner: str) -> list[Action]:
        """Make this server a replica of a partition that another one owns: what was changed here and is not there is
        lost. Raises DirectoryError."""
        partition = self._partitions.get(partition_id)
        if partition is None or owner == self.me.name:
            raise DirectoryError(MQ_ERROR, "another server has to be the owner")
        partition.authority, partition.disputed = owner, False
        partition.last, partition.purged, partition.whole = MIN_SEQ, MIN_SEQ, False
        self._epochs.pop(partition_id, None)
        self._start_sync0(partition, MIN_SEQ)
        return self._done()

    def _batches(self, changes: list[DirectoryChange]) -> Iterable[list[DirectoryChange]]:
        batch: list[DirectoryChange] = []
        room = self._sizes.page_bytes
        for change in changes:
            size = len(change.encode())
            if batch and (size > room or len(batch) == self._sizes.page):
                yield batch
                batch, room = [], self._sizes.page_bytes
            batch.append(change)
            room -= size
        if batch:
            yield batch

    def _own_numbers(self, name: str) -> tuple[PartitionNumbers, ...]:
        """What is told to a PSC: of partitions that this server owns; to a replica: of all."""
        replica = name in self._own_bscs()
        return tuple(
            numbers_of(one) for one in self.partitions if one.authority == self.me.name or (replica and one.whole)
        )
