"""Staging files in worker threads: storing fetched blocks, reading blocks for partners, making what is gone anew from
the tree."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from agent.engine import events as ev
from agent.files.earlyfiles import EarlyFiles
from agent.files.facts import fingerprint_of
from agent.files.lookups import look
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from staging import smallfiles
from staging.area import StagingArea
from staging.errors import AccessDenied, Interrupted, NoSpace, StagingError, TooLarge, Torn, Unsupported, Vanished
from staging.header import HEADER_SIZE, StageHeader
from staging.rootdir import RootDir
from staging.shares import ShareUsed
from staging.smallfiles import Source
from staging.unstored import Unstored
from staging.writer import StageWriter

_CHANGE_ORDER_AT: Final = 0x50
_CHANGE_ORDER_END: Final = _CHANGE_ORDER_AT + 0x318
_COC_EXT_AT: Final = 0x3A8
_COC_EXT_END: Final = _COC_EXT_AT + 0x28

log = logging.getLogger(__name__)


class Stages:
    """The staging files of one replica set. Methods may be called from several threads, one at a time per change
    order."""

    def __init__(
        self,
        root: RootDir,
        area: StagingArea,
        compressions: Iterable[bytes],
        dropped: Callable[[ev.FetchFailed], None],
        early: EarlyFiles | None = None,
    ) -> None:
        """`dropped` is told, in any thread, of a staging file half received that had to make room for others. `early`
        are the files that are restored meanwhile, if any are to be."""
        self._dropped = dropped
        self._early = early
        self._root = root
        self.area = area
        self._compressions = tuple(compressions)  # those to choose from, best first
        self._writers: dict[bytes, StageWriter] = {}
        self._making: dict[bytes, threading.Lock] = {}
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """Give up what is half received."""
        if self._early is not None:
            self._early.drop_all()
        while self._writers:
            self._writers.popitem()[1].abort()

    # -- fetching --

    def store_blocks(self, blocks: deque[ev.StoreBlock | ev.DropStage]) -> list[ev.FetchStored | ev.FetchFailed]:
        """Append the blocks of one staging file, in order, or drop it."""
        done: list[ev.FetchStored | ev.FetchFailed] = []
        while blocks:
            block = blocks.popleft()
            if isinstance(block, ev.DropStage):
                self.drop(block.co_guid)
                continue
            try:
                if block.offset == 0:
                    self._abandon(block.co_guid)
                    self._writers[block.co_guid] = self.area.open_writer(
                        block.co_guid, block.file_size, block.partner, on_dropped=self._make_room
                    )
                writer = self._writers.get(block.co_guid)
                if writer is None:
                    continue  # an earlier block failed, and was answered
                writer.write(block.offset, block.data)
                if block.offset == 0 and not block.last and not block.is_dir and self._early is not None:
                    self._early.begin(block.co_guid, block.file_size, writer.path)
                if block.last:
                    del self._writers[block.co_guid]
                    writer.finish()
                if self._early is not None:
                    self._early.grown(block.co_guid, complete=block.last)
                done.append(ev.FetchStored(block.co_guid, block.last, block.offset + len(block.data)))
            except TooLarge as error:
                self._abandon(block.co_guid)
                done.append(ev.FetchFailed(block.co_guid, ev.Outcome.UNSUPPORTED, str(error)))
            except NoSpace as error:
                self._abandon(block.co_guid)
                if self._early is not None:
                    self._early.drop_all()
                cause = Cause.STAGING_SHARE if isinstance(error, ShareUsed) else None
                done.append(ev.FetchFailed(block.co_guid, ev.Outcome.NO_SPACE, str(error), cause))
            except StagingError as error:
                self._abandon(block.co_guid)
                done.append(ev.FetchFailed(block.co_guid, ev.Outcome.FAILED, str(error)))
        return done

    def _make_room(self, co_guid: bytes, why: str) -> None:
        if self._early is not None:
            self._early.drop(co_guid)
        self._dropped(ev.FetchFailed(co_guid, ev.Outcome.NO_SPACE, why, Cause.STAGING_SHARE))

    def drop(self, co_guid: bytes) -> None:
        """Remove the staging file, or what has been stored of it. Not while its blocks are being stored."""
        try:
            self._abandon(co_guid)
            self.area.remove(co_guid)
        except StagingError as error:
            log.warning("20412 a staging file cannot be removed: %s", error)

    def _abandon(self, co_guid: bytes) -> None:
        if self._early is not None:
            self._early.drop(co_guid)
        writer = self._writers.pop(co_guid, None)
        if writer is not None:
            writer.abort()

    # -- serving --

    def choose(self, allowed: Iterable[bytes]) -> bytes:
        """The compression to stage with for somebody who understands `allowed`."""
        wanted = set(allowed)
        return next((guid for guid in self._compressions if guid in wanted), c.COMPRESSION_NONE)

    def read_stage(
        self, action: ev.ReadStage, path: str | None, unstored: Unstored | None = None, size: int | None = None
    ) -> ev.StageBlock | ev.StageRefused:
        """Read the block that is asked for; make the staging file from the tree (at `path`, where a file has that
        `size` in bytes), and what is remembered of the file as `unstored`, if there is none."""
        co = action.change_order
        guid = co.change_order_guid
        generated = 0
        try:
            block = self._read(guid, action) if action.at_hand else None
            if block is None:  # or of another compression; whoever else asks by that GUID may mean another file
                guid = hashlib.md5(guid + action.file_guid + action.md5, usedforsecurity=False).digest()
                block = self._read(guid, action)
            if block is None:
                if not action.regenerate or path is None:
                    return ev.StageRefused(action, action.regenerate, "the version asked for is no longer here")
                with self._lock_of(guid):
                    block = self._read(guid, action)
                    if block is None:
                        generated = self._generate(guid, path, action, unstored, size)
                        block = self._read(guid, action)
            if block is None:
                return ev.StageRefused(action, True, "the staging file was removed at once")
            if not block:
                return ev.StageRefused(action, True, "the staging file is not so long (any more)")
            return ev.StageBlock(action, block, self.area.size_of(guid) or 0, generated)
        except (Torn, Vanished, Interrupted) as error:
            return ev.StageRefused(action, True, str(error))
        except NoSpace as error:
            return ev.StageRefused(action, True, str(error), no_room=True, generating=True)
        except Unsupported as error:
            return ev.StageRefused(action, False, str(error), generating=True)
        except AccessDenied as error:
            log.error("20411 %r cannot be staged: %s", path, error)
            return ev.StageRefused(action, False, str(error), generating=True)
        except StagingError as error:
            self.area.remove(guid)  # damaged: it is made anew at the next request (3.3.4.4.7)
            return ev.StageRefused(action, True, str(error), generating=True)

    def read_cached(self, action: ev.ReadStage) -> ev.StageBlock | None:
        """The block that is asked for, where it is all of its staging file and in memory: nothing is waited for. None
        for any other, or when it has to be made in some way."""
        guid = action.change_order.change_order_guid
        try:
            whole = None if action.offset or not action.at_hand else self.area.read_cached(guid, c.MAX_BLOCK)
            block = whole and self._to_be_sent(whole, action.change_order, action.compressions, action.coc_ext)
        except StagingError:
            return None
        return ev.StageBlock(action, block, len(block), 0) if block else None

    def to_go_with(self, co: ChangeOrder, compressions: Collection[bytes]) -> bytes | None:
        """The staging file that goes with a change order, as its receiver would get it if it asked; None where it is
        not one block in memory, compressed in one of these ways."""
        try:
            whole = self.area.read_cached(co.change_order_guid, c.MAX_BLOCK)
            return self._to_be_sent(whole, co, compressions) if whole else None  # a power cut may have emptied it
        except StagingError:
            return None

    def _read(self, guid: bytes, action: ev.ReadStage) -> bytes | None:
        if self.area.size_of(guid) is None:
            return None
        try:
            block = self.area.read_block(guid, action.offset, action.most)
            first = self.area.read_block(guid, 0, HEADER_SIZE) if action.offset else block
        except Vanished:
            return None
        sent = self._to_be_sent(first, action.change_order, action.compressions, action.coc_ext)
        return block if action.offset and sent is not None else sent

    @staticmethod
    def _to_be_sent(
        block: bytes, co: ChangeOrder, compressions: Collection[bytes], coc_ext: bytes = bytes(0x28)
    ) -> bytes | None:
        """The first block with the change order of the request in its header (4.4.7); None when it is of another file,
        or compressed as the partner does not understand it. Raises StagingError."""
        header = StageHeader.decode(block[:HEADER_SIZE])
        if header.compression not in compressions or header.object_id not in (co.file_guid, bytes(16)):
            return None
        if header.compression != c.COMPRESSION_NONE:
            co = co.replace(flags=co.flags | c.CO_FLAG_COMPRESSED_STAGE)  # 4.4.7
        return with_change_order(block, co, coc_ext)

    def _generate(
        self, guid: bytes, path: str, action: ev.ReadStage, unstored: Unstored | None, size: int | None
    ) -> int:
        with self._root.parent(path) as at:
            found = look(at)
            if found is not None and size not in (None, found.size):
                raise Torn("the file has changed since")
            staged = self.area.stage(
                guid,
                at.name,
                object_id=action.file_guid,
                compression=self.choose(action.compressions),
                dir_fd=at.fd,
                owner=action.partner,
                unstored=unstored,
            )
            if not self._root.holds(at.fd, path.rpartition("/")[0]):
                self.area.remove(guid)
                raise Vanished("its folder left the tree")
        here = staged.md5 == action.md5 or (unstored is not None and staged.md5 == unstored.made)
        if action.md5 != bytes(16) and not here:
            self.area.remove(guid)
            raise Torn("the file has changed since")
        return staged.stage_size

    def make(self, wanted: Sequence[tuple[ev.MakeStage, str]]) -> list[tuple[ev.MakeStage, bytes | None]]:
        """The staging files of small files at these paths; None where something stands in the way of one."""
        folders: dict[tuple[str, bytes], list[tuple[ev.MakeStage, str]]] = {}
        made: dict[bytes, bytes] = {}
        for action, path in wanted if smallfiles.native is not None else ():
            if action.expected.fsize <= smallfiles.MOST and self.area.size_of(action.co_guid) is None:
                key = path.rpartition("/")[0], self.choose(action.compressions)
                folders.setdefault(key, []).append((action, path))
        for (folder, compression), group in folders.items():
            with contextlib.suppress(StagingError, OSError):  # it is told of when it is asked for
                made |= self._make_in(folder, group, compression)
        return [(action, made.get(action.co_guid)) for action, _ in wanted]

    def _make_in(self, folder: str, group: list[tuple[ev.MakeStage, str]], compression: bytes) -> dict[bytes, bytes]:
        with self._root.parent(group[0][1]) as at:
            sources = [
                Source(os.fsencode(path.rpartition("/")[2]), action.file_guid, False, fingerprint_of(action.expected))
                for action, path in group
            ]
            found = smallfiles.generate_all(at.fd, sources, compression)
            if not self._root.holds(at.fd, folder):
                return {}
        return {
            action.co_guid: one.head + one.body
            for (action, _), one in zip(group, found)
            if one is not None and one.staged.md5 == action.md5
        }

    def _lock_of(self, guid: bytes) -> threading.Lock:
        with self._lock:
            if len(self._making) > 10_000:
                self._making.clear()
            return self._making.setdefault(guid, threading.Lock())


def with_change_order(block: bytes, co: ChangeOrder, coc_ext: bytes) -> bytes:
    """The first block of a staging file with this change order and its extension in its header (3.3.4.4.7)."""
    order, object_id = co.replace().encode(), block[_CHANGE_ORDER_END:_COC_EXT_AT]
    return b"".join((block[:_CHANGE_ORDER_AT], order, object_id, coc_ext, block[_COC_EXT_END:]))
