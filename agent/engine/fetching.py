"""Fetching staging files, block by block ([MS-FRS1] 3.3.4.4.6.1, 3.3.4.4.8, 3.3.4.4.11)."""

from __future__ import annotations

from agent.engine import flags as fl
from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.events import FetchStored, Outcome, StoreBlock
from agent.engine.inbound import Inbound
from agent.engine.session import Session
from agent.wire import constants as c
from agent.wire.change_order import CoExtension2
from agent.wire.packet import Packet

MAX_STAGE_SIZE = 1 << 46
_HEADER_FLAGS = 0x54  # Flags of the change order in a STAGE_HEADER (2.2.3.10)


class Fetching:
    """Asks upstream partners for the staging files that entries need."""

    def __init__(self, ctx: Context, inbound: Inbound) -> None:
        self.ctx = ctx
        self.inbound = inbound

    def fetch(self, entry: Entry) -> None:
        """Ask for the staging file from its beginning (3.3.4.4.6.1); without a session, later."""
        session = self.inbound.sessions[entry.cxtion]
        if not session.joined:
            self.inbound.switch(entry)
            session = self.inbound.sessions[entry.cxtion]
            if not session.joined:
                self.inbound.retry(entry, Outcome.STAGE_MISSING, f"{session.cxtion.partner.name} is not joined")
                return
        entry.stage = Stage.FETCHING
        entry.begun = True
        entry.received = entry.requested = entry.stage_size = 0
        entry.early.clear()
        self._request(session, entry)

    def _request(self, session: Session, entry: Entry) -> None:
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
        packet.block_size = 0
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
        packet.co_extension_2 = CoExtension2(checksum=known, retry_count=entry.attempts, first_try_time=ctx.now)
        ctx.count_both(session.cxtion, "Fetch Requests Sent")
        ctx.send(session.cxtion, packet)
        entry.requested += c.MAX_BLOCK

    def receiving_stage(self, session: Session, packet: Packet) -> None:
        """CMD_RECEIVING_STAGE: take the block in its order and ask for the next (3.3.4.4.8)."""
        ctx = self.ctx
        entry = self.inbound.entry_of(packet.co_guid)
        if entry is None or entry.stage is not Stage.FETCHING or entry.cxtion != session.cxtion.guid:
            return
        data = packet.block or b""
        size, offset = packet.file_size or 0, packet.file_offset or 0
        ctx.count_both(session.cxtion, "Fetch Blocks Received")
        ctx.count_both(session.cxtion, "Fetch Blocks Received in Bytes", len(data))
        if entry.received < offset < entry.requested and len(data) <= c.MAX_BLOCK:
            entry.early[offset] = (data, size)  # the partner reads blocks asked for together in any order
            return
        while offset == entry.received:
            if not self._take_block(session, entry, offset, data, size):
                return
            offset = entry.received
            data, size = entry.early.pop(offset, (b"", size))
            if not data:
                return

    def _take_block(self, session: Session, entry: Entry, offset: int, data: bytes | memoryview, size: int) -> bool:
        """The next block in order; False when it is not what it should be, or was the last."""
        ctx = self.ctx
        wanted = min(c.MAX_BLOCK, size - offset)
        changed = entry.stage_size not in (0, size)
        if len(data) != wanted or changed or size > MAX_STAGE_SIZE or size < 0x400:
            self.inbound.retry(entry, Outcome.STAGE_DAMAGED, f"a block of {len(data)} bytes at {offset} of {size}")
            return False
        if not offset:
            flags = int.from_bytes(data[_HEADER_FLAGS : _HEADER_FLAGS + 4], "little")
            entry.compressed_after_all = bool(flags & c.CO_FLAG_COMPRESSED_STAGE)
        entry.stage_size = size
        entry.received += len(data)
        last = entry.received >= size
        ctx.out.append(StoreBlock(entry.co.change_order_guid, offset, data, last, size, entry.checksum, entry.is_dir))
        if last:
            return False
        ahead = ctx.limits.fetch_window if session.cxtion.partner.guid in ctx.ours else 1
        while entry.requested < size and entry.requested - entry.received < ahead * c.MAX_BLOCK:
            self._request(session, entry)
        return True

    def stored(self, event: FetchStored) -> Entry | None:
        """A block is on disk. Returns the entry when its staging file is complete and verified."""
        entry = self.inbound.entry_of(event.co_guid)
        if entry is None or not event.complete or entry.stage is not Stage.FETCHING:
            return None
        entry.stage = Stage.FETCHED
        entry.staged = True
        self.ctx.count("Staging Files Fetched")
        self.ctx.count("Bytes of Staging Fetched", entry.stage_size)
        return entry

    def retry_fetch(self, packet: Packet) -> None:
        """CMD_RETRY_FETCH: ask again after five seconds (3.3.4.4.11); when it has been the answer often, later."""
        entry = self.inbound.entry_of(packet.co_guid)
        if entry is None or entry.stage is not Stage.FETCHING:
            return
        entry.retry_fetch = True
        if any(self.inbound.sessions[guid].joined for guid, _ in entry.alternates):
            entry.alternates.append((entry.cxtion, entry.co))  # somebody else may have it at hand
            self.inbound.switch(entry)
        entry.stage = Stage.QUEUED
        limits = self.ctx.limits
        delay = limits.retry_fetch_delay << max(0, min(entry.put_off, 20) - 10)
        entry.put_off += 1
        entry.retry_at = self.ctx.now + min(delay, max(limits.max_retry, limits.retry_fetch_delay))
        self.inbound.waiting.add(entry.key)
        self.ctx.count_co("Retried at Fetch", False)
