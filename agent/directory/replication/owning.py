"""The owner of a partition: changes, their numbers, tombstones, and what it gives to others ([MC-MQDSRP] 3.2.7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from agent.directory.objects.model import (
    MQ_ERROR,
    MQ_ERROR_ACCESS_DENIED,
    MQ_OK,
    DirectoryError,
    DsObject,
)
from agent.directory.objects.table import Type
from agent.directory.objects.values import Value
from agent.directory.replication import content, trust
from agent.directory.replication.common import S_EPOCH, S_NAME, S_PSC, Common, named
from agent.directory.replication.messages import (
    UPDATE,
    AlreadyPurged,
    ChangeReply,
    ChangeRequest,
    DirectoryChange,
    PscAck,
    SyncReply,
    SyncRequest,
)
from agent.directory.replication.numbers import MAX_EPOCH, MAX_SEQ, MOST_EPOCHS_AHEAD, epoch_of, following, seq_text
from agent.directory.replication.ports import (
    ENTERPRISE_PARTITION,
    Partition,
    Reign,
)

MQDS_UNKNOWN_SOURCE: Final = 0xC00E0518


class Owning(Common):
    """The rules for partitions that this server owns, and for whoever asks it."""

    def _change(self, partition_id: bytes, change: DirectoryChange) -> int:
        partition = self._partitions.get(partition_id)
        if partition is None or partition.authority != self.me.name:
            raise DirectoryError(MQDS_UNKNOWN_SOURCE, "another server owns this partition")
        if partition.disputed:
            raise DirectoryError(MQ_ERROR, self._way_out(partition))
        change = self._with_epoch(change)
        seq = following(partition.last, partition.epoch, self.reign)
        made = content.asked(self._store, partition, change, seq)
        if seq != partition.last + 1:
            self._store.put_reign(partition_id, Reign(seq, partition.last))
        was = self._site_before(made)
        self._effects(content.apply(self._store, made), was)
        before, partition.last = partition.last, seq
        self._queue(self._pscs(), made)
        self._queue(self._own_bscs(), made)
        self._store.put_partition(partition)
        if before // self._sizes.ack_every != seq // self._sizes.ack_every:
            self._purge(partition)
        return seq

    def _with_epoch(self, change: DirectoryChange) -> DirectoryChange:
        """A change that gives a site to a server says since which epoch that owns it. To the server that has it
        already it is given anew where that asks for a later one. Raises DirectoryError."""
        given = dict(change.properties)
        psc, asked = given.get(S_PSC), given.pop(S_EPOCH, 0)
        if change.command != UPDATE or psc is None:
            return change
        site = self._store.get(change.guid) if change.guid is not None else self._store.find(Type.SITE, change.name)
        there = self._partitions.get(site.guid) if site is not None else None
        if site is None or there is None or not isinstance(asked, int):
            return change
        if psc != site.text(S_PSC) and 0 < asked <= site.number(S_EPOCH):  # or a request that comes late, or twice
            raise DirectoryError(MQ_ERROR, f"the site was given to {site.text(S_PSC)} meanwhile")
        known = max(epoch_of(max(there.last, there.purged)), site.number(S_EPOCH))
        epoch = max(asked, site.number(S_EPOCH) if psc == site.text(S_PSC) else known + 1)
        if epoch > min(known + MOST_EPOCHS_AHEAD, MAX_EPOCH):
            raise DirectoryError(MQ_ERROR, f"the site has no epoch {epoch} yet, or never")
        return replace(change, properties=(*given.items(), (S_EPOCH, epoch)))

    def _set(self, found: DsObject, properties: tuple[tuple[int, Value], ...]) -> None:
        """Change an object of a partition that this server owns."""
        self._change(found.partition, DirectoryChange(UPDATE, found.guid, found.partition, 0, 0, 0, properties))

    def _never_given(self, partition: Partition, seq: int) -> bool:
        """Whether a number is of this epoch, or a later one, and this owner never gave it. Those of epochs before are
        settled: everybody took the partition anew when this one began."""
        return seq > partition.last or (
            epoch_of(seq) == partition.epoch
            and any(reign.base < seq < reign.first for reign in self._store.reigns(partition.id))
        )

    def _dispute(self, partition: Partition, sender: str, seq: int) -> None:
        if not partition.disputed:
            partition.disputed = True
            self._store.put_partition(partition)
            self._send_numbers(partition, sender)
        self._tell(
            sender,
            f"{sender} has the number {seq_text(seq)} of {named(partition)}, which this server never gave: either its "
            f"database is out of a backup, or another server is the owner. {self._way_out(partition)}",
        )

    def _way_out(self, partition: Partition) -> str:
        begin = "No change is taken here until an administrator decides:"
        if partition.id == ENTERPRISE_PARTITION:
            owner = "`frs directory promote` on the server that is to be the owner"
            return f"{begin} {owner}, `frs directory resign` on the others"
        site = self._store.get(partition.id)
        name = site.text(S_NAME) if site is not None else partition.id.hex()
        return f"{begin} `frs directory promote --site {name}` on the server that is to be the owner of the site"

    def _purge(self, partition: Partition) -> None:
        """Purge tombstones that all others have (3.1.7.2.9), but for the newest changes."""
        acked = self._store.acked(partition.id)
        least = min((acked.get(name, 0) for name in self._pscs()), default=MAX_SEQ)
        to = min(least, self._store.nth_newest(partition.id, self._sizes.buffer))
        if to > partition.purged:
            self._store.purge(partition.id, to)
            partition.purged = to
            self._store.put_partition(partition)

    def _psc_ack(self, sender: str, message: PscAck) -> None:
        partition = self._partitions.get(message.partition)
        if partition is None or partition.authority != self.me.name or sender not in self._pscs():
            return
        if self._never_given(partition, message.seq):
            self._dispute(partition, sender, message.seq)
        elif message.seq > self._store.acked(partition.id).get(sender, 0):
            self._store.put_ack(partition.id, sender, message.seq)
            self._purge(partition)

    def _change_request(self, sender: str, message: ChangeRequest) -> None:
        partition = self._partitions.get(message.partition)
        known = (sender, *self.neighbours())
        if partition is not None and partition.authority != self.me.name and self.is_psc:
            if message.requester in known:
                self._forwarded[message.requester, message.request] = partition.authority
                if len(self._forwarded) > self._sizes.waiting:
                    self._forwarded.popitem(last=False)
                self._send(partition.authority, message)
            return
        try:
            trust.refuse(self._store, sender, message.requester, message.change)
            self._change(message.partition, message.change)
            result = MQ_OK
        except DirectoryError as error:
            result = error.status
            if result == MQ_ERROR_ACCESS_DENIED:
                self._tell(sender, f"a change that was asked for is refused: {error}")
        to = next((one for one in (message.requester, message.psc) if one in known), "")
        self._send(to, ChangeReply(self.me.site, message.request, result, message.requester))

    def _sync_request(self, sender: str, message: SyncRequest) -> None:
        """3.2.7.3. A server whose copy is not whole does not answer; it will be asked again."""
        partition = self._partitions.get(message.partition)
        if partition is None:
            return
        if partition.authority == self.me.name and self._never_given(partition, message.first):
            self._dispute(partition, sender, message.first)
            return
        if not partition.whole or message.first > partition.last:
            return
        if message.first < partition.purged and not (message.sync0 and message.purged >= partition.purged):
            self._send(sender, AlreadyPurged(self.me.site, partition.id, partition.purged))
            return
        changes: list[DirectoryChange] = []
        room, more = self._sizes.page_bytes, False
        for found in self._store.changed(partition.id, message.first, partition.last, self._sizes.page + 1):
            change = content.as_change(found, partition.purged)
            room -= len(change.encode())
            if changes and (room < 0 or len(changes) == self._sizes.page):
                more = True
                break
            changes.append(change)
        to = changes[-1].seq if more else partition.last
        complete = 1 if more else 2 * message.sync0
        reply = SyncReply(self.me.site, partition.id, message.first, to, partition.purged, complete, tuple(changes))
        self._send(sender, reply)
