"""Fetching staging files, block by block ([MS-FRS1] 3.3.4.4.6.1, 3.3.4.4.8, 3.3.4.4.11).

What has been asked for and is not on disk yet is bounded: so many staging files of one connection are fetched at a
time, and so many blocks ahead of what is stored; of a few of them large blocks, from an agent that has such. The others
wait for their turn. A block that was not asked for is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain

from agent.engine import flags as fl
from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.events import FetchStored, Outcome, StoreBlock
from agent.engine.inbound import Inbound
from agent.engine.order import Key
from agent.engine.session import Session
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.packet import Packet

MAX_STAGE_SIZE = 1 << 46
MIN_STAGE_SIZE = 0x400
_SAME_BLOCK = 12  # times that one block is asked for before the fetch begins anew
_BROUGHT = 2  # so many times the staging files that are fetched at a time may be stored as they came unasked
_HEADER_FLAGS = 0x54  # Flags of the change order in a STAGE_HEADER (2.2.3.10)


class Fetching:
    """Asks upstream partners for the staging files that entries need."""

    def __init__(self, ctx: Context, inbound: Inbound) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self._active: dict[bytes, dict[Key, Entry]] = {}  # by connection; some may have been given up since
        self._looked: dict[bytes, int] = {}  # by connection: Inbound.fetches_ended when those were left out
        self._turn: dict[bytes, dict[Key, Entry]] = {}  # by connection: what waits until another is fetched

        self._resending: dict[Key, Entry] = {}
        self._brought: Packet | None = None  # a change order that is being looked at, and has its staging file with it

    # -- whose turn it is --

    @contextlib.contextmanager
    def brought(self, packet: Packet) -> Iterator[None]:
        """The change order's staging file, if it came with it, counts as fetched where it would be asked for now. What
        waits first is asked for when its turn comes: nothing that nobody asked for is kept."""
        self._brought = packet if packet.block is not None else None
        try:
            yield
        finally:
            self._brought = None

    def _came_with_it(self, session: Session, entry: Entry) -> bytes | memoryview | None:
        packet = self._brought
        if (
            packet is None
            or packet.cxtion.guid != entry.cxtion
            or packet.remote_co is None
            or packet.remote_co.change_order_guid != entry.co.change_order_guid
        ):
            return None
        data = packet.block or b""
        if len(data) < MIN_STAGE_SIZE:
            self._refuse(session, entry, Cause.STAGING_FILE, f"a staging file of {len(data)} bytes")
            return None
        return None if self._full(entry.cxtion, _BROUGHT) else data

    def fetch(self, entry: Entry) -> None:
        """Ask for the staging file from its beginning (3.3.4.4.6.1) in its turn; without a session, later."""
        session = self.inbound.sessions[entry.cxtion]
        if not session.joined:
            self.inbound.switch(entry)
            session = self.inbound.sessions[entry.cxtion]
            if not session.joined:
                self.inbound.retry(entry, Outcome.STAGE_MISSING, f"{session.cxtion.partner.name} is not joined")
                return
        data = self._came_with_it(session, entry)
        if data is None and self._full(entry.cxtion) and not self._elsewhere(entry):
            self._turn.setdefault(entry.cxtion, {})[entry.key] = entry
            return
        session = self.inbound.sessions[entry.cxtion]
        entry.stage = Stage.FETCHING
        entry.begun = True
        entry.received = entry.stored = entry.requested = entry.stage_size = entry.resend_at = 0
        entry.early.clear()
        entry.asked.clear()
        entry.heard_at = self.ctx.now
        self._active.setdefault(entry.cxtion, {})[entry.key] = entry
        if data is None:
            self._request(session, entry)
        else:
            entry.requested = entry.stage_size = len(data)
            self._store(session, entry, data)

    def _elsewhere(self, entry: Entry) -> bool:
        """Another partner offers it, and may be asked now: go on with that one."""
        for number, (guid, _) in enumerate(entry.alternates):
            if self.inbound.sessions[guid].joined and not self._full(guid):
                entry.alternates.insert(0, entry.alternates.pop(number))
                entry.alternates += entry.offer()
                self.inbound.switch(entry)
                return True
        return False

    def offered(self, key: Key) -> Entry | None:
        """The change was offered once more: the entry, if it waited for its turn and may go on with another partner."""
        entry = self.inbound.entries.get(key)
        if entry is None or key not in self._turn.get(entry.cxtion, ()) or not self._elsewhere(entry):
            return None
        return entry

    def _full(self, cxtion: bytes, times: int = 1) -> bool:
        active, ended = self._active.setdefault(cxtion, {}), self.inbound.fetches_ended
        most = times * self.ctx.limits.fetches
        if len(active) >= most and self._looked.get(cxtion, 0) != ended:
            active = self._active[cxtion] = {k: e for k, e in active.items() if self._fetches(cxtion, e)}
            self._looked[cxtion] = ended
        return len(active) >= most

    def _fetches(self, cxtion: bytes, entry: Entry) -> bool:
        mine = entry.stage is Stage.FETCHING and entry.cxtion == cxtion
        return mine and self.inbound.entries.get(entry.key) is entry

    def next_turn(self) -> Entry | None:
        """An entry that waited until another was fetched, and may go on now."""
        for cxtion, turn in list(self._turn.items()):
            if not self.inbound.sessions[cxtion].joined:
                turn.clear()  # the next Join begins with all of them
            while turn and not self._full(cxtion):
                entry = turn.pop(next(iter(turn)))
                if entry.cxtion == cxtion and entry.stage is Stage.QUEUED:
                    return entry
            if not turn:
                del self._turn[cxtion]
        return None

    # -- partners that fall silent --

    def _patience(self, entry: Entry) -> int:
        """How long the next block may take. The first one may have to be made from a file of any size; but not when
        somebody else offers the same."""
        limits = self.ctx.limits
        other = any(self.inbound.sessions[guid].joined for guid, _ in entry.alternates)
        return limits.fetch_patience if entry.received or other else limits.first_patience

    def _silent_at(self) -> Iterator[tuple[int, Entry]]:
        for cxtion, active in self._active.items():
            for entry in active.values():
                if self._fetches(cxtion, entry):
                    yield entry.heard_at + self._patience(entry), entry

    def _held_up_until(self) -> Iterator[tuple[int, Entry]]:
        for cxtion, active in self._active.items():
            for entry in active.values():
                if entry.holds_up and self._fetches(cxtion, entry):
                    yield entry.heard_at + self.ctx.limits.fetch_alone, entry

    def _resends(self) -> list[Entry]:
        """What waits until the same block is asked for again."""
        waiting = {k: e for k, e in self._resending.items() if e.resend_at and self._fetches(e.cxtion, e)}
        self._resending = waiting
        return list(waiting.values())

    def deadline(self) -> int | None:
        """When the first of the partners that are asked will have been silent for too long, or is to be asked again;
        None for never."""
        silent = (at for at, _ in chain(self._silent_at(), self._held_up_until()))
        return min(chain(silent, (entry.resend_at for entry in self._resends())), default=None)

    def tick(self) -> list[Entry]:
        """Whoever was silent for too long is asked again later, and what has come gives its room back; or somebody else
        is asked at once: the entries that may go on. Long before that, only what is of the same file waits for what
        such a one does not send."""
        go_on = []
        for entry in [entry for entry in self._resends() if entry.resend_at <= self.ctx.now]:
            entry.resend_at, entry.heard_at = 0, self.ctx.now
            self._request(self.inbound.sessions[entry.cxtion], entry)
        for entry in [entry for at, entry in self._held_up_until() if at <= self.ctx.now]:
            entry.holds_up = False
            self.inbound.hold_up_nobody(entry)
        for entry in [entry for at, entry in self._silent_at() if at <= self.ctx.now]:
            partner = self.inbound.sessions[entry.cxtion].cxtion.partner.name
            if entry.received:
                came = f"{entry.received} of {entry.stage_size} bytes of its staging file came from {partner}"
                text = f"{self.ctx.path(entry.co)}: {came}, which fell silent; they make room, and are fetched again"
                self.ctx.incident(Cause.STAGING_SHARE, partner, text)
            if self._elsewhere(entry):
                go_on.append(entry)
            else:
                self.inbound.retry(entry, Outcome.STAGE_MISSING, f"{partner} does not send it")
        return go_on

    # -- asking --

    def _ask_ahead(self, session: Session, entry: Entry) -> None:
        """Ask for the blocks after those that are stored: one, or several between agents of this kind, fewer when many
        staging files are fetched."""
        limits, partner = self.ctx.limits, session.cxtion.partner.guid
        ahead, block = 1, c.MAX_BLOCK
        if partner in self.ctx.zstd_members:
            busy = len(self._active.get(entry.cxtion, ()))
            ahead = max(1, min(limits.fetch_window, limits.fetches // max(busy, 1)))
            if partner in self.ctx.block_members and busy <= limits.large_fetches:
                ahead, block = limits.large_window, c.LARGE_BLOCK
        while (
            not entry.resend_at
            and entry.requested < entry.stage_size
            and entry.requested - entry.stored < ahead * block
        ):
            self._request(session, entry, block)

    def _request(self, session: Session, entry: Entry, block: int = c.MAX_BLOCK) -> None:
        ctx = self.ctx
        co = entry.co
        flags = fl.request(
            initial=entry.initial,
            is_dir=entry.is_dir,
            rename=entry.is_rename,
            new=entry.is_new,
            compressed=entry.compressed,
        )
        if entry.retry_fetch:
            flags |= c.CO_FLAG_RETRY
        packet = session.packet(ctx, c.CMD_SEND_STAGE)
        packet.block_size = 0 if block == c.MAX_BLOCK else block
        packet.file_size = entry.stage_size
        packet.file_offset = entry.requested
        packet.co_guid = co.change_order_guid
        packet.co_sequence_number = 0
        packet.remote_co = co.replace(
            sequence_number=1,
            flags=flags,
            iflags=0,
            content_cmd=0 if entry.is_dir and not entry.is_rename else co.content_cmd,
            cxtion_guid=session.cxtion.guid,
            state=fl.STATE_REQUEST_INITIAL if entry.initial else fl.STATE_REQUEST_NORMAL,
            file_offset=0,
        )
        known = bytes(16) if entry.is_new else entry.checksum
        session.extend(packet, entry.extension(known))
        ctx.count_both(session.cxtion, "Fetch Requests Sent")
        ctx.send(session.cxtion, packet)
        entry.asked[entry.requested] = block
        entry.requested += block

    # -- what comes --

    def receiving_stage(self, session: Session, packet: Packet) -> None:
        """CMD_RECEIVING_STAGE: take a block that was asked for, in its order (3.3.4.4.8)."""
        ctx = self.ctx
        entry = self.inbound.told_of(session, packet.co_guid)
        if entry is None or entry.stage is not Stage.FETCHING:
            return
        data = packet.block or b""
        size, offset = packet.file_size or 0, packet.file_offset or 0
        ctx.count_both(session.cxtion, "Fetch Blocks Received")
        ctx.count_both(session.cxtion, "Fetch Blocks Received in Bytes", len(data))
        if offset < entry.received or offset in entry.early:
            return  # it came twice
        if (most := entry.asked.get(offset)) is None:
            if not entry.all_attempts and not entry.retry_fetches:  # else it may be late, and was asked for before
                self._refuse(session, entry, Cause.FLOOD, f"a block at {offset} that was not asked for")
            return
        wrong = f"a block of {len(data)} bytes at {offset} of {size}"
        left = max(size - offset, 0)
        if not MIN_STAGE_SIZE <= size <= MAX_STAGE_SIZE or len(data) != min(most, left):
            again = entry.all_attempts or entry.retry_fetches
            if again and len(data) in (min(c.MAX_BLOCK, left), min(c.LARGE_BLOCK, left)):
                return  # asked for before, in another size
            self._refuse(session, entry, Cause.STAGING_FILE, wrong)
            self.inbound.retry(entry, Outcome.STAGE_DAMAGED, wrong)
            return
        if entry.stage_size not in (0, size):
            self.inbound.retry(entry, Outcome.STAGE_DAMAGED, f"{wrong}, and it had {entry.stage_size} before")
            return
        entry.heard_at = ctx.now
        entry.early[offset] = data  # the partner reads blocks asked for together in any order
        entry.stage_size = size
        while (block := entry.early.pop(entry.received, None)) is not None:
            self._store(session, entry, block)

    def _refuse(self, session: Session, entry: Entry, cause: Cause, what: str) -> None:
        partner = session.cxtion.partner.name
        self.ctx.incident(cause, partner, f"{self.ctx.path(entry.co)} from {partner}: {what}; it is refused")

    def _store(self, session: Session, entry: Entry, data: bytes | memoryview) -> None:
        """The next block in its order."""
        offset, size = entry.received, entry.stage_size
        if not offset:
            flags = int.from_bytes(data[_HEADER_FLAGS : _HEADER_FLAGS + 4], "little")
            entry.compressed_after_all = bool(flags & c.CO_FLAG_COMPRESSED_STAGE)
        entry.asked.pop(offset, None)
        entry.received += len(data)
        self.ctx.out.append(
            StoreBlock(
                entry.guid,
                offset,
                data,
                entry.received >= size,
                size,
                entry.checksum,
                entry.is_dir,
                session.cxtion.partner.guid,
            )
        )

    def stored(self, event: FetchStored) -> Entry | None:
        """A block is on disk: ask for more. Returns the entry when its staging file is complete and verified."""
        entry = self.inbound.entry_of(event.co_guid)
        if entry is None or entry.stage is not Stage.FETCHING:
            return None
        if not event.complete or entry.received < max(entry.stage_size, 1):  # or of a fetch given up since
            entry.stored = max(entry.stored, min(event.upto, entry.received))
            session = self.inbound.sessions[entry.cxtion]
            if session.joined:
                self._ask_ahead(session, entry)
            return None
        entry.stage = Stage.FETCHED
        entry.staged = True
        self._active.get(entry.cxtion, {}).pop(entry.key, None)
        self.ctx.count("Staging Files Fetched")
        self.ctx.count("Bytes of Staging Fetched", entry.stage_size)
        return entry

    def retry_fetch(self, entry: Entry) -> None:
        """CMD_RETRY_FETCH: ask for the same block again after five seconds (3.3.4.4.11). When it has been the answer
        often, what was fetched gives its room back, and the next request is for the first block."""
        if entry.stage is not Stage.FETCHING or entry.resend_at:
            return
        entry.retry_fetch = True
        entry.retry_fetches += 1
        again_at = self.ctx.now + self.ctx.limits.retry_fetch_delay
        self.ctx.count_retry("Fetch")
        if any(self.inbound.sessions[guid].joined for guid, _ in entry.alternates):
            entry.alternates += entry.offer()  # somebody else may have it at hand
            self.inbound.switch(entry)
        elif entry.received and entry.retry_fetches % _SAME_BLOCK:
            entry.early.clear()
            entry.asked.clear()
            entry.requested, entry.resend_at = entry.received, again_at
            self._resending[entry.key] = entry
            return
        self.inbound.discard(entry)
        entry.stage = Stage.QUEUED
        entry.retry_at = again_at
        self.inbound.waiting.add(entry.key)
