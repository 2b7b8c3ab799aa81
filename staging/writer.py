"""Staging files as they are received, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from staging.errors import NoSpace, StagingError, from_oserror
from staging.shares import Receiving, ShareUsed
from staging.space import room, too_little

if TYPE_CHECKING:
    from staging.area import StagingArea

_MADE_ROOM: Final = "it had to make room for others in the staging area"


class StageWriter:
    """Writes a staging file block by block, in order. `position` is the offset of the next block. It holds no
    descriptor between two blocks: however many files are half received."""

    def __init__(
        self, area: StagingArea, co_guid: bytes, receiving: Receiving, on_dropped: Callable[[bytes, str], None]
    ) -> None:
        self.co_guid = co_guid
        self.position = 0
        self._area = area
        self._receiving = receiving
        self._on_dropped = on_dropped
        self._temp = area.temp_path(co_guid)
        self._over = False

    @property
    def path(self) -> str:
        """Where it is written until it is finished."""
        return self._temp

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Appends the block at `offset`. Raises StagingError for a block out of order (it is not written), and
        NoSpace, after which the partial file is gone."""
        if offset != self.position:
            raise StagingError(f"a block at {offset} where {self.position} is expected")
        try:
            self._take(len(data))
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if offset else os.O_CREAT | os.O_EXCL)
            fd = os.open(self._temp, flags, 0o600)
            try:
                view = memoryview(data)
                while view:
                    n = os.pwrite(fd, view, self.position)
                    self.position += n
                    view = view[n:]
            finally:
                os.close(fd)
            self._check()
        except OSError as error:
            dropped = self._over
            self.abort()
            raise ShareUsed(_MADE_ROOM) if dropped else from_oserror(error, "writing a staging file") from error
        except BaseException:
            self.abort()
            raise

    def _check(self) -> None:
        if self._over:
            raise ShareUsed(_MADE_ROOM)

    def _take(self, size: int) -> None:
        area = self._area
        free = room(area.path)
        if size > free:
            raise NoSpace(too_little(f"the staging area {area.path}", size, free))
        with area._lock:
            self._check()
            area._make_room(self._receiving.owner, size, self._receiving)
            area._shares.grow(self._receiving, size, area._clock())

    def finish(self, *, durable: bool = False) -> str:
        """Publishes the file and returns its path. Raises StagingError; the partial file is then gone."""
        area = self._area
        try:
            if durable:
                fd = os.open(self._temp, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            with area._lock:
                self._check()
                self._end()
                area.publish(self.co_guid, self._temp, self._receiving.owner)
        except OSError as error:
            self.abort()
            raise from_oserror(error, "finishing a staging file") from error
        except BaseException:
            self.abort()
            raise
        return area._path_of(self.co_guid)

    def abort(self) -> None:
        """Gives up: nothing stays. Does nothing after finish() or abort()."""
        self._end()
        unlink(self._temp)

    def _drop(self) -> None:
        """Others need the room. Whoever is writing at this moment writes to a file without a name."""
        self.abort()
        self._on_dropped(self.co_guid, _MADE_ROOM)

    def _end(self) -> None:
        with self._area._lock:
            if not self._over:
                self._over = True
                self._area._shares.end(self._receiving)
                del self._area._writers[self._receiving.begun]


def unlink(path: str) -> None:
    """Removes a file, if that can be done."""
    try:
        os.unlink(path)
    except OSError:
        pass
