"""The staging area of a replica set: staging files by change order GUID, within a quota.

Files are 0600 in a folder of 0700. A file is written under a temporary name and published by a rename; what is
left of an interrupted run is removed by `sweep`. Safe to use from several threads. Room is taken by what is there, not
by what is announced: block by block as a file is received (see shares for who makes room for whom), and never all that
a disk has. Small ones that are needed for a moment only are in memory (see held), on the same account.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from staging import smallfiles
from staging.compression import COMPRESSION_NONE
from staging.errors import NoSpace, StagingError, from_oserror
from staging.generate import Staged, generate_to
from staging.header import CHANGE_ORDER_SIZE
from staging.held import Held
from staging.shares import LOCAL, Item, Shares
from staging.smallfiles import Generated, Plain
from staging.space import room, too_little
from staging.unstored import Unstored
from staging.writer import StageWriter, unlink

_SUFFIX: Final = ".stage"
_TEMPORARY: Final = ".tmp"


class StagingArea:
    """Staging files in `path`, together at most `quota_bytes`, of which each of `owners` (partners, by whatever names
    them) is guaranteed a share."""

    def __init__(
        self,
        path: str,
        quota_bytes: int,
        owners: Collection[bytes] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the folder if need be and takes stock of it. Raises StagingError."""
        self.path = path
        self.quota_bytes = quota_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._shares = Shares(quota_bytes, owners)
        self._held = Held()
        self._writers: dict[int, StageWriter] = {}  # by Receiving.begun
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
        for _, guid, size in sorted(found):
            self._shares.store(guid, LOCAL, size)

    def divide(self, quota_bytes: int, owners: Collection[bytes]) -> None:
        """The quota and the partners are these from now on."""
        with self._lock:
            self.quota_bytes = quota_bytes
            self._shares.divide(quota_bytes, owners)

    # what is there

    @property
    def used_bytes(self) -> int:
        """Bytes of all staging files, of those being received as much as has come."""
        with self._lock:
            return self._shares.used

    @property
    def free_bytes(self) -> int:
        """Bytes left of the quota; never negative."""
        return max(self.quota_bytes - self.used_bytes, 0)

    def path_of(self, co_guid: bytes) -> str:
        """Where the staging file of a change order is, or would be; one in memory is written there. Raises OSError."""
        with self._lock:
            data = self._held.pop(co_guid)
            if data is not None:
                self._write(co_guid, data)
        return self._path_of(co_guid)

    def _path_of(self, co_guid: bytes) -> str:
        return os.path.join(self.path, co_guid.hex() + _SUFFIX)

    def _write(self, co_guid: bytes, data: bytes) -> None:
        temp = self.temp_path(co_guid)
        try:
            with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
            os.rename(temp, self._path_of(co_guid))
        except OSError:
            self._shares.drop(co_guid)
            unlink(temp)
            raise

    def temp_path(self, co_guid: bytes) -> str:
        """A new temporary name in the area."""
        return os.path.join(self.path, f"{co_guid.hex()}.{self._run}-{next(self._serial)}{_TEMPORARY}")

    def size_of(self, co_guid: bytes) -> int | None:
        """Bytes of a staging file; None when there is none."""
        with self._lock:
            found = self._shares.stored.get(co_guid)
            return None if found is None else found.size

    def guids(self) -> list[bytes]:
        """The change orders that have a staging file, least recently used first."""
        with self._lock:
            return list(self._shares.stored)

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
        owner: bytes = LOCAL,
        unstored: Unstored | None = None,
    ) -> Staged:
        """Generates a file's staging file in the area, for `owner`; takes `unstored` and raises like `generate`. Others
        make room for it once it is complete. NoSpace when that is not enough."""
        temp = self.temp_path(co_guid)
        with self._lock:
            share = self._shares.obtainable(owner, self._clock())
        try:
            free = room(self.path)
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise from_oserror(error, "creating a staging file") from error
        try:
            try:
                staged = generate_to(
                    path, fd, object_id=object_id, compression=compression, change_order=change_order,
                    dir_fd=dir_fd, limit=min(share, free), unstored=unstored,
                )  # fmt: skip
            except NoSpace as error:
                by_disk = free <= share or isinstance(error.__cause__, OSError)
                try:
                    found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
                except OSError as gone:
                    raise from_oserror(gone, "staging a file there is no room for") from error
                size = min(found.st_size, found.st_blocks * 512 or found.st_size)  # without holes
                raise NoSpace(self._why_not(size, None if by_disk else share)) from error
            finally:
                os.close(fd)
            self.publish(co_guid, temp, owner)
        except BaseException:
            unlink(temp)
            raise
        return staged

    def _why_not(self, size: int, share: int | None) -> str:
        """Why a file of that size cannot be staged: for the quota, for its share of that, or, without one, for the
        disk."""
        if share is None:
            return too_little(f"the staging area {self.path}", size, room(self.path))
        if size > self.quota_bytes:
            return (
                f"{size} bytes are needed, which is larger than the whole staging area of {self.quota_bytes} bytes; "
                f"raise `staging_quota` of the set"
            )
        return (
            f"the staging area {self.path} is full: {size} bytes are needed, and {share} of its "
            f"{self.quota_bytes} may be used; raise `staging_quota`"
        )

    def publish(self, co_guid: bytes, temp_path: str, owner: bytes = LOCAL) -> None:
        """Makes a complete file at a temporary name the staging file of a change order. Raises NoSpace when
        the quota does not allow it, whoever makes room; the temporary file then stays."""
        try:
            self._publish(co_guid, temp_path, owner, os.stat(temp_path, follow_symlinks=False).st_size)
        except OSError as error:
            raise from_oserror(error, "publishing a staging file") from error

    def _publish(self, co_guid: bytes, temp_path: str, owner: bytes, size: int) -> None:
        with self._lock:
            self._make_room(owner, size - (self.size_of(co_guid) or 0), co_guid)
            os.rename(temp_path, self._path_of(co_guid))
            self._held.pop(co_guid)
            self._shares.store(co_guid, owner, size)

    def store_all(self, files: Sequence[tuple[bytes, Generated]]) -> list[bool]:
        """Puts staging files of this member itself into the area, by change order; whether each is there now. Where
        there is not room for all, none of those that are not held in memory is."""
        held = [self.hold(co_guid, one.head + one.body, LOCAL) for co_guid, one in files]
        others = iter(self._store_all([file for file, done in zip(files, held) if not done]))
        return [done or next(others) for done in held]

    def hold(self, co_guid: bytes, data: bytes, owner: bytes) -> bool:
        """Has a complete staging file in memory, if it may be there and nothing has to make room for it. Waits for
        nothing."""
        with self._lock:
            if len(data) > self.quota_bytes - self._shares.used or co_guid in self._shares.stored:
                return False
            if not self._held.put(co_guid, owner, data):
                return False
            self._shares.store(co_guid, owner, len(data))
            return True

    def _store_all(self, files: Sequence[tuple[bytes, Generated]]) -> list[bool]:
        if not files:
            return []
        with self._lock:
            share = self._shares.obtainable(LOCAL, self._clock())
        if sum(one.staged.stage_size for _, one in files) > min(share, room(self.path)):
            return [False] * len(files)
        temps = [self.temp_path(co_guid) for co_guid, _ in files]
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            named = [(os.fsencode(os.path.basename(temp)), one.head, one.body) for temp, (_, one) in zip(temps, files)]
            done = smallfiles.write_all(fd, named)
        finally:
            os.close(fd)
        for number, (temp, (co_guid, one)) in enumerate(zip(temps, files)):
            try:
                if done[number]:
                    self._publish(co_guid, temp, LOCAL, one.staged.stage_size)
            except (StagingError, OSError):
                done[number] = False
                unlink(temp)
        return done

    def open_writer(
        self,
        co_guid: bytes,
        size: int = 0,
        owner: bytes = LOCAL,
        *,
        on_dropped: Callable[[bytes, str], None] = lambda co_guid, why: None,
    ) -> StageWriter:
        """A writer for a staging file that is being received for `owner`. `size` is what it is to have: no room is
        taken for that, but NoSpace raised when it could never fit. `on_dropped` is told the change order and why when
        it has to make room for others (in any thread, under the lock of the area)."""
        if size > self.quota_bytes:
            raise NoSpace(self._why_not(size, self.quota_bytes))
        with self._lock:
            receiving = self._shares.begin(owner, self._clock())
            self._writers[receiving.begun] = writer = StageWriter(self, co_guid, receiving, on_dropped)
        return writer

    def _make_room(self, owner: bytes, size: int, but: Item | None) -> None:
        for item in self._shares.make_room(owner, size, self._clock(), but=but):
            if isinstance(item, bytes):
                self.remove(item)
            else:
                self._writers[item.begun]._drop()

    # using

    def read_block(self, co_guid: bytes, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; b"" at the end and beyond. Raises Vanished when there is no such file."""
        if (held := self._in_memory(co_guid)) is not None:
            return held[offset : offset + size]
        try:
            fd = os.open(self._path_of(co_guid), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                data, end = b"", os.fstat(fd).st_size
                while len(data) < size and offset + len(data) < end:
                    more = os.pread(fd, size - len(data), offset + len(data))
                    if not more:
                        break
                    data += more
            finally:
                os.close(fd)
        except OSError as error:
            raise from_oserror(error, "reading a staging file") from error
        with self._lock:
            self._shares.touch(co_guid)
        return data

    def _in_memory(self, co_guid: bytes) -> bytes | None:
        with self._lock:
            held = self._held.get(co_guid)
            if held is not None:
                self._shares.touch(co_guid)
            return held

    def read_cached(self, co_guid: bytes, most: int) -> bytes | None:
        """All of a staging file of at most `most` bytes that is in memory; None for any other. Raises StagingError."""
        size = self.size_of(co_guid)
        if size is None or size > most:
            return None
        if (held := self._in_memory(co_guid)) is not None:
            return held
        data = bytearray(size)
        try:
            fd = os.open(self._path_of(co_guid), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                n = os.preadv(fd, [data], 0, os.RWF_NOWAIT)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT):
                return None
            raise from_oserror(error, "reading a staging file") from error
        with self._lock:
            self._shares.touch(co_guid)
        return bytes(data) if n == size else None

    def read_plain(self, co_guids: Sequence[bytes]) -> list[Plain | None]:
        """What the staging files of small files say; None for all others, and for what is not there. Raises OSError."""
        found = {guid: self._in_memory(guid) for guid in co_guids}
        on_disk = [guid for guid, data in found.items() if data is None]
        if on_disk:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                names = [os.fsencode(guid.hex() + _SUFFIX) for guid in on_disk]
                found.update(zip(on_disk, smallfiles.read_files(fd, names)))
            finally:
                os.close(fd)
        return smallfiles.plain_all([found[guid] for guid in co_guids])

    # taking out

    def remove(self, co_guid: bytes) -> bool:
        """Removes a staging file; False when there was none. Raises StagingError."""
        with self._lock:
            self._shares.drop(co_guid)
            if self._held.pop(co_guid) is not None:
                return True
            try:
                os.unlink(self._path_of(co_guid))
            except FileNotFoundError:
                return False
            except OSError as error:
                raise from_oserror(error, "removing a staging file") from error
            return True

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
                    unlink(os.path.join(self.path, name))
                elif keep is None or guid in keep:
                    continue
                else:
                    self.remove(guid)
                count += 1
        except OSError as error:
            raise from_oserror(error, "sweeping the staging area") from error
        return count


def _guid_of(name: str) -> bytes | None:
    if len(name) != 32 + len(_SUFFIX) or not name.endswith(_SUFFIX):
        return None
    try:
        return bytes.fromhex(name[:32])
    except ValueError:
        return None
