"""A partition that another server owns: changes as they come, and all that is missing at once ([MC-MQDSRP] 3.1.7,
3.3.7)."""

from __future__ import annotations

import itertools

from agent.directory.objects.model import DeletedObject, DirectoryError, DsObject
from agent.directory.replication import content
from agent.directory.replication.common import HAVE_EFFECTS, S_EPOCH, S_PSC, named, owner_said
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
    Asking,
    Partition,
    State,
)


class Following(Owning):
    """The rules for partitions that other servers own."""

    def _propagated(self, sender: str, change: DirectoryChange) -> None:
        partition = self._partitions.get(change.partition)
        if partition is None or partition.authority == self.me.name or change.seq <= partition.last:
            return
        if sender not in self._tellers(partition):
            self._tell(sender, f"a change of {named(partition)} is not taken: {sender} is not whom it comes from")
            return
        if self._is_behind(partition) or change.previous != partition.last or (
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
            done = self._applied(partition, change)
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

    def _applied(self, partition: Partition, change: DirectoryChange) -> DsObject | DeletedObject | None:
        """content.apply(); what is not the partition's own is left out, and told. Raises DirectoryError."""
        try:
            return content.apply(self._store, change)
        except content.NotItsOwn as error:
            self._tell(partition.authority, f"a change of {named(partition)} is left out: {error}")
            return None

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
        if sender not in self._tellers(partition):
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
        """3.3.7.5, for the request that is under way and no other. All of what was asked for is applied when all of it
        is here: until then this copy is what it was, and may be taken for what its owner had, should that be lost."""
        partition, asking = self._partitions.get(message.partition), self._asking.get(message.partition)
        if partition is None or asking is None or sender != asking.server or message.first != asking.cursor:
            return
        anew = partition.state == State.SYNC0
        if (anew and message.purged < asking.purged) or message.complete == (0 if anew else 2):
            return
        more = message.complete == 1
        numbers = [asking.cursor, *(change.seq for change in message.changes)]
        asking.count += len(message.changes)
        if any(change.partition != partition.id for change in message.changes):
            self._not_taken(partition, sender, "a change of another partition is among it")
        elif any(one >= other for one, other in itertools.pairwise(numbers)) or numbers[-1] > message.to:
            self._not_taken(partition, sender, "its changes are not in the order of their numbers")
        elif asking.count > self._sizes.arriving or (more and not message.changes):
            self._not_taken(partition, sender, "it does not end")
        elif more:
            self._store.put_arriving(partition.id, message.changes)
            asking.cursor, asking.silent = message.to, 0
            self._send_request(partition)
        elif message.purged > message.to:
            self._not_taken(partition, sender, "more is purged of it than there is")
        else:
            self._all_is_here(partition, asking, message)

    def _not_taken(self, partition: Partition, sender: str, why: str) -> None:
        """All that has come of it goes; it is asked for again in its time."""
        self._tell(sender, f"a synchronisation of {named(partition)} is not taken: {why}")
        self._asking.pop(partition.id, None)
        self._store.begin_arriving(partition.id)

    def _all_is_here(self, partition: Partition, asking: Asking, message: SyncReply) -> None:
        anew, before = partition.state == State.SYNC0, partition.last
        done: list[tuple[DsObject | DeletedObject, DsObject | None]] = []
        try:
            with self._store.all_or_none():
                if anew:
                    self._store.mark(partition.id)
                for change in itertools.chain(self._store.arriving(partition.id), message.changes):
                    was = self._site_before(change)
                    there = self._applied(partition, change)
                    if there is not None and there.type in HAVE_EFFECTS:
                        done.append((there, was))
                if anew:
                    self._store.drop_marked(partition.id)
                    self._store.purge(partition.id, message.purged)  # an earlier page may have some of these
        except DirectoryError as error:
            self._not_taken(partition, asking.server, str(error))
            return
        del self._asking[partition.id]
        self._store.begin_arriving(partition.id)
        if anew:
            partition.state, partition.last, partition.purged = State.NORMAL, message.to, message.purged
            self.anew.add(partition.id)
            self._bscs = None
        partition.whole, partition.last = True, max(partition.last, message.to)
        self._store.put_partition(partition)
        # What this server owns comes first: an owner asks others for what is theirs, a replica asks the one of its site
        for one in sorted(done, key=lambda one: owner_said(one[0]) != self.me.name):
            self._effects(*one)
        self._purge_copy(partition, message.purged)
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
        anew = partition.state == State.SYNC0
        if message.purged > max(asking.cursor, asking.purged if anew else partition.last):
            self._start_sync0(partition, message.purged)

    def _start_sync0(self, partition: Partition, purged: int) -> None:
        """All is taken anew (3.3.7.10): what of all that is here does not come again goes when all has come."""
        partition.state = State.SYNC0
        self._store.put_partition(partition)
        self._pending.pop(partition.id, None)
        self._asking.pop(partition.id, None)
        self._ask(partition, purged)
