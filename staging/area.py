"""The staging area of a replica set: staging files by change order GUID, within a quota.

Files are 0600 in a folder of 0700. A file is written under a temporary name and published by a rename; what is
left of an interrupted run is removed by `sweep`. Safe to use from several threads.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Collection
from typing import Final

from staging.compression import COMPRESSION_NONE
from staging.errors import NoSpace, StagingError, Vanished, from_oserror
from staging.generate import Staged, generate_to
from staging.header import CHANGE_ORDER_SIZE

_SUFFIX: Final = ".stage"
_TEMPORARY: Final = ".tmp"


class StagingArea:
    """Staging files in `path`, together at most `quota_bytes`."""

    def __init__(self, path: str, quota_bytes: int) -> None:
        """Creates the folder if need be and takes stock of it. Raises StagingError."""
        self.path = path
        self.quota_bytes = quota_bytes
        self._lock = threading.RLock()
        self._sizes: dict[bytes, int] = {}  # least recently used first
        self._total = 0  # of all sizes
        self._pins: Counter[bytes] = Counter()
        self._reserved = 0
        self._serial = itertools.count()
        self._run = f"{os.getpid()}-{time.time_ns():x}"
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            os.chmod(path, 0o700)
            found = []
            with os.scandir(path) as entries:
                for entry in entries:
                    guid = _guid_of(entry.name)
                    if guid is not None:
                        st = entry.stat(follow_symlinks=False)
                        found.append((st.st_mtime_ns, guid, st.st_size))
        except OSError as error:
            raise from_oserror(error, "opening the staging area") from error
        self._sizes = {guid: size for _, guid, size in sorted(found)}
        self._total = sum(self._sizes.values())

    # what is there

    @property
    def used_bytes(self) -> int:
        """Bytes of all staging files, those being received included."""
        with self._lock:
            return self._total + self._reserved

    @property
    def free_bytes(self) -> int:
        """Bytes left of the quota; never negative."""
        return max(self.quota_bytes - self.used_bytes, 0)

    def path_of(self, co_guid: bytes) -> str:
        """Where the staging file of a change order is, or would be."""
        return os.path.join(self.path, co_guid.hex() + _SUFFIX)

    def temp_path(self, co_guid: bytes) -> str:
        """A new temporary name in the area."""
        return os.path.join(self.path, f"{co_guid.hex()}.{self._run}-{next(self._serial)}{_TEMPORARY}")

    def size_of(self, co_guid: bytes) -> int | None:
        """Bytes of a staging file; None when there is none."""
        with self._lock:
            return self._sizes.get(co_guid)

    def guids(self) -> list[bytes]:
        """The change orders that have a staging file, least recently used first."""
        with self._lock:
            return list(self._sizes)

    # putting in

    def stage(
        self,
        co_guid: bytes,
        path: str,
        *,
        object_id: bytes,
        compression: bytes = COMPRESSION_NONE,
        change_order: bytes = bytes(CHANGE_ORDER_SIZE),
        dir_fd: int | None = None,
    ) -> Staged:
        """Generates a file's staging file in the area; raises like `generate`. The least recently used
        staging files that are not pinned make room for it. NoSpace when that is not enough."""
        temp = self.temp_path(co_guid)
        with self._lock:
            pinned = sum(self._sizes.get(guid, 0) for guid in self._pins if guid != co_guid)
            room = self.quota_bytes - self._reserved - pinned
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise from_oserror(error, "creating a staging file") from error
        try:
            try:
                staged = generate_to(
                    path, fd, object_id=object_id, compression=compression, change_order=change_order,
                    dir_fd=dir_fd, limit=max(room, 0),
                )  # fmt: skip
            finally:
                os.close(fd)
            self.publish(co_guid, temp)
        except BaseException:
            _unlink(temp)
            raise
        return staged

    def publish(self, co_guid: bytes, temp_path: str) -> None:
        """Makes a complete file at a temporary name the staging file of a change order. Raises NoSpace when
        the quota does not allow it, even without all that is not pinned; the temporary file then stays."""
        try:
            size = os.stat(temp_path, follow_symlinks=False).st_size
            with self._lock:
                self._make_room(size - self._sizes.get(co_guid, 0), co_guid)
                os.rename(temp_path, self.path_of(co_guid))
                self._total += size - self._sizes.pop(co_guid, 0)
                self._sizes[co_guid] = size
        except OSError as error:
            raise from_oserror(error, "publishing a staging file") from error

    def open_writer(self, co_guid: bytes, size: int = 0) -> StageWriter:
        """A writer for a staging file that is being received; `size` is what it will have, as far as known:
        the room is reserved at once. Raises NoSpace."""
        with self._lock:
            self._make_room(size, None)
            self._reserved += size
        try:
            return StageWriter(self, co_guid, size)
        except BaseException:
            self._release(size)
            raise

    def _reserve(self, size: int) -> None:
        with self._lock:
            self._make_room(size, None)
            self._reserved += size

    def _release(self, size: int) -> None:
        with self._lock:
            self._reserved -= size

    # using

    def read_block(self, co_guid: bytes, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; b"" at the end. Raises Vanished when there is no such file."""
        try:
            fd = os.open(self.path_of(co_guid), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                data = os.pread(fd, size, offset)
                while len(data) < size:
                    more = os.pread(fd, size - len(data), offset + len(data))
                    if not more:
                        break
                    data += more
            finally:
                os.close(fd)
        except OSError as error:
            raise from_oserror(error, "reading a staging file") from error
        self.touch(co_guid)
        return data

    def touch(self, co_guid: bytes) -> None:
        """Makes a staging file the most recently used one."""
        with self._lock:
            size = self._sizes.pop(co_guid, None)
            if size is not None:
                self._sizes[co_guid] = size

    def pin(self, co_guid: bytes) -> None:
        """Keeps a staging file from being evicted, until as many calls of `unpin`."""
        with self._lock:
            self._pins[co_guid] += 1

    def unpin(self, co_guid: bytes) -> None:
        """Undoes one `pin`."""
        with self._lock:
            self._pins[co_guid] -= 1
            if self._pins[co_guid] <= 0:
                del self._pins[co_guid]

    # taking out

    def remove(self, co_guid: bytes) -> bool:
        """Removes a staging file; False when there was none. Raises StagingError."""
        with self._lock:
            self._total -= self._sizes.pop(co_guid, 0)
            try:
                os.unlink(self.path_of(co_guid))
            except FileNotFoundError:
                return False
            except OSError as error:
                raise from_oserror(error, "removing a staging file") from error
            return True

    def evict(self, size: int) -> list[bytes]:
        """Removes the least recently used staging files that are not pinned until `size` bytes of the quota
        are free, or none is left. Returns the change orders whose files went."""
        with self._lock:
            gone = []
            for guid in list(self._sizes):
                if self.free_bytes >= size:
                    break
                if guid not in self._pins:
                    self.remove(guid)
                    gone.append(guid)
            return gone

    def _make_room(self, size: int, replaced: bytes | None) -> None:
        if size <= 0 or self.free_bytes >= size:
            return
        if replaced is not None:
            self.pin(replaced)
        try:
            self.evict(size)
        finally:
            if replaced is not None:
                self.unpin(replaced)
        if self.free_bytes < size:
            raise NoSpace(f"{size} bytes do not fit into the quota of {self.quota_bytes} bytes of the staging area")

    def sweep(self, keep: Collection[bytes] | None = None) -> int:
        """To be called at start: removes temporary files of earlier runs and, if `keep` is given, the staging
        files of all other change orders. Returns how many went. Raises StagingError."""
        count = 0
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
            for name in names:
                guid = _guid_of(name)
                if guid is None:
                    if not name.endswith(_TEMPORARY) or f".{self._run}-" in name:
                        continue
                    _unlink(os.path.join(self.path, name))
                elif keep is None or guid in keep:
                    continue
                else:
                    self.remove(guid)
                count += 1
        except OSError as error:
            raise from_oserror(error, "sweeping the staging area") from error
        return count


class StageWriter:
    """Writes a staging file block by block, in order. `position` is the offset of the next block."""

    def __init__(self, area: StagingArea, co_guid: bytes, reserved: int) -> None:
        self.co_guid = co_guid
        self.position = 0
        self._area = area
        self._reserved = reserved
        self._temp = area.temp_path(co_guid)
        try:
            self._fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise from_oserror(error, "creating a staging file") from error

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Appends the block at `offset`. Raises StagingError for a block out of order (it is not written), and
        NoSpace, after which the partial file is gone."""
        if offset != self.position:
            raise StagingError(f"a block at {offset} where {self.position} is expected")
        more = offset + len(data) - self._reserved
        try:
            if more > 0:
                self._area._reserve(more)
                self._reserved += more
            view = memoryview(data)
            while view:
                n = os.write(self._fd, view)
                self.position += n
                view = view[n:]
        except OSError as error:
            self.abort()
            raise from_oserror(error, "writing a staging file") from error
        except BaseException:
            self.abort()
            raise

    def finish(self, *, durable: bool = False) -> str:
        """Publishes the file and returns its path. Raises StagingError; the partial file is then gone."""
        try:
            if self._fd < 0:
                raise Vanished("this staging file was given up")
            if durable:
                os.fsync(self._fd)
            with self._area._lock:
                self._close()
                self._area.publish(self.co_guid, self._temp)
        except OSError as error:
            self.abort()
            raise from_oserror(error, "finishing a staging file") from error
        except BaseException:
            self.abort()
            raise
        return self._area.path_of(self.co_guid)

    def abort(self) -> None:
        """Gives up: nothing stays. Does nothing after finish() or abort()."""
        self._close()
        _unlink(self._temp)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._area._release(self._reserved)
            self._reserved = 0


def _guid_of(name: str) -> bytes | None:
    if len(name) != 32 + len(_SUFFIX) or not name.endswith(_SUFFIX):
        return None
    try:
        return bytes.fromhex(name[:32])
    except ValueError:
        return None


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
