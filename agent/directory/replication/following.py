"""A partition that another server owns: changes as they come, and all that is missing at once ([MC-MQDSRP] 3.1.7,
3.3.7)."""

from __future__ import annotations

from agent.directory.objects.model import (
    MQ_ERROR,
    DirectoryError,
)
from agent.directory.replication import content
from agent.directory.replication.common import S_EPOCH, S_PSC, named
from agent.directory.replication.messages import (
    AlreadyPurged,
    ChangeReply,
    DirectoryChange,
    PartitionNumbers,
    SyncReply,
)
from agent.directory.replication.numbers import epoch_of
from agent.directory.replication.owning import Owning
from agent.directory.replication.ports import (
    Answered,
    Partition,
    State,
)


class Following(Owning):
    """The rules for partitions that other servers own."""

    def _propagated(self, sender: str, change: DirectoryChange) -> None:
        partition = self._partitions.get(change.partition)
        if partition is None or partition.authority == self.me.name or change.seq <= partition.last:
            return
        if sender != self._upstream(partition):
            self._tell(sender, f"a change of {named(partition)} is not taken: {sender} is not whom it comes from")
            return
        if not self.complete(partition.id) or partition.id in self._asking or change.previous != partition.last or (
            epoch_of(change.seq) != epoch_of(partition.last) and partition.last > 0
        ):  # fmt: skip
            pending = self._pending.setdefault(partition.id, {})
            if len(pending) < self._sizes.pending:
                pending[change.seq] = change
            self._ask(partition)
            return
        if self._in_sync(partition, change):
            self._check_pending(partition)

    def _in_sync(self, partition: Partition, change: DirectoryChange, *, ask: bool = True) -> bool:
        """A change comes next (3.1.7.2.3); whether it could be applied. Where it could not, `ask` for all."""
        try:
            was = self._site_before(change)
            done = content.apply(self._store, change)
        except DirectoryError as error:
            self._tell(partition.authority, f"a change of {named(partition)} cannot be applied: {error}")
            if ask:
                self._ask(partition)
            return False
        before, partition.last = partition.last, change.seq
        self._store.put_partition(partition)
        self._effects(done, was)
        self._queue(self._own_bscs(), change)
        if before // self._sizes.ack_every != partition.last // self._sizes.ack_every:
            self._ack(partition)
        return True

    def _check_pending(self, partition: Partition, *, ask: bool = True) -> None:
        """Apply what came too early and comes next now (3.1.7.2.4); where something is missing before it, `ask`."""
        pending = self._pending.get(partition.id, {})
        for seq in sorted(pending):
            change = pending[seq]
            comes_next = change.previous == partition.last
            if seq > partition.last and not (comes_next and self._in_sync(partition, change, ask=False)):
                if ask:
                    self._ask(partition)
                return
            del pending[seq]

    def _numbers(self, sender: str, numbers: PartitionNumbers, claim: bool) -> None:
        """How far the sender is in a partition (3.2.7.1). `claim`: it says that others have to follow it there; without
        that it says what it has from somebody else, which is no news but to an owner."""
        partition = self._partitions.get(numbers.partition)
        if partition is None:
            return
        if partition.authority == self.me.name:
            if self._never_given(partition, numbers.last):
                self._dispute(partition, sender, numbers.last)
            elif claim and epoch_of(numbers.last) < partition.epoch:  # a former owner
                self._send_numbers(partition, sender)
            return
        if not claim:
            return
        if sender != self._upstream(partition):
            if not self._is_news(partition, sender, epoch_of(numbers.last)):
                if numbers.last != partition.last:
                    self._send_numbers(partition, sender)
                return
            partition.authority = sender
            self._asking.pop(partition.id, None)
            self._store.put_partition(partition)
        if numbers.last != partition.last:
            self._ask(partition)
        elif self.complete(partition.id) and numbers.purged < partition.purged:
            # purged by what the owner, who came back out of a backup since, has forgotten: its tombstones come back
            self._start_sync0(partition, numbers.purged)
        elif self.complete(partition.id):
            self._ack(partition)
        if partition.state == State.NORMAL:
            self._purge_copy(partition, numbers.purged)

    def _is_news(self, partition: Partition, sender: str, epoch: int) -> bool:
        """Whether somebody owns a partition since an epoch of which nothing is known here; else it is a former owner,
        or one that should not be. The directory may have said so of a site before, and its former owner after that."""
        site = self._store.get(partition.id)
        since = site.number(S_EPOCH) if site is not None else 0
        if since and epoch == since:
            return site is not None and site.text(S_PSC) == sender != partition.authority
        return epoch > max(epoch_of(max(partition.last, partition.purged)), since)

    def _purge_copy(self, partition: Partition, purged: int) -> None:
        """Purge what the owner has purged."""
        if partition.purged < purged <= partition.last:
            self._store.purge(partition.id, purged)
            partition.purged = purged
            self._store.put_partition(partition)

    def _change_reply(self, sender: str, message: ChangeReply) -> None:
        """Of whom the change was asked for, and of nobody else."""
        forwarded = message.requester, message.request
        if message.requester == self.me.name and self._requests.get(message.request) == sender:
            del self._requests[message.request]
            self._actions.append(Answered(message.request, message.result))
        elif self._forwarded.get(forwarded) == sender:
            del self._forwarded[forwarded]
            self._send(message.requester, message)

    def _sync_reply(self, sender: str, message: SyncReply) -> None:
        """3.3.7.5, for the request that is under way and no other: `last` moves when all of it is here."""
        partition, asking = self._partitions.get(message.partition), self._asking.get(message.partition)
        if partition is None or asking is None or sender != asking.server or message.first != asking.cursor:
            return
        sync0 = partition.state == State.SYNC0
        if (sync0 and message.purged < partition.purged) or message.complete == (0 if sync0 else 2):
            return
        more = message.complete == 1
        if more and message.to <= asking.cursor:
            return
        if more and partition.whole:
            partition.whole = False
            self._store.put_partition(partition)
        for change in message.changes:
            try:
                if change.partition != partition.id:
                    raise DirectoryError(MQ_ERROR, "a change of another partition is among it")
                was = self._site_before(change)
                self._effects(content.apply(self._store, change), was)
            except DirectoryError as error:
                self._tell(sender, f"a synchronisation of {named(partition)} is not taken: {error}")
                return
        if more:
            asking.cursor = message.to
            self._send_request(partition)
            return
        del self._asking[partition.id]
        if sync0:
            self._store.drop_marked(partition.id)
            self._store.purge(partition.id, message.purged)  # an earlier page may have some of these
            partition.state, partition.purged = State.NORMAL, message.purged
            self._bscs = None
        before, partition.whole = partition.last, True
        partition.last = max(before, message.to)
        self._store.put_partition(partition)
        self._purge_copy(partition, message.purged)
        self._if_given(partition.id)
        if partition.authority != self.me.name:
            self._ack(partition)
        self._announce |= set(self._own_bscs()) if self.is_psc else set()
        # who has no more to tell may have it later, or be the wrong one: it is asked again in its time
        self._check_pending(partition, ask=partition.last != before)

    def _already_purged(self, sender: str, message: AlreadyPurged) -> None:
        """3.3.7.7."""
        partition, asking = self._partitions.get(message.partition), self._asking.get(message.partition)
        if partition is None or asking is None or sender != asking.server:
            return
        if message.purged > max(asking.cursor, partition.last, partition.purged if partition.state else 0):
            self._start_sync0(partition, message.purged)

    def _start_sync0(self, partition: Partition, purged: int) -> None:
        """All is taken anew from the owner, in one transaction (3.3.7.10): what of all that is here does not come again
        goes at the end."""
        self._store.mark(partition.id)
        partition.state, partition.whole = State.SYNC0, False
        partition.last, partition.purged = 0, purged
        self._store.put_partition(partition)
        self._pending.pop(partition.id, None)
        self._asking.pop(partition.id, None)
        self._ask(partition)
