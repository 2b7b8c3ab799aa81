"""A large file is restored while its staging file is still coming: its data alone, beside the tree, by a thread.

That saves time and nothing else. The staging file is whole on the disk as ever before anything is installed, what was
written here counts only when the MD5 of all of it agrees, and nobody sees it before. Whatever goes wrong, the file is
restored once more, from its staging file, and that tells what is wrong.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from staging import fsops, interrupt, restore
from staging.beneath import Entry, remove_tree
from staging.errors import StagingError, Swapped, Unsupported, from_oserror
from staging.restore import Restored, SetId
from staging.source import StageReader

_SUFFIX: Final = ".early"
_LOOK_S: Final = 0.2  # between looks whether the work was given up


class _Growth:
    """How far a staging file has come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = 0
        self._complete = False
        self.over = threading.Event()

    def step(self, *, complete: bool = False) -> None:
        """There is more of it, or all."""
        with self._changed:
            self._steps += 1
            self._complete |= complete
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody wants it any more."""
        self.over.set()
        self.step()

    def seen(self) -> tuple[int, bool]:
        """What there has been of steps, and whether all is there."""
        with self._changed:
            return self._steps, self._complete

    def wait(self, steps: int) -> None:
        """Until there has been another one."""
        with self._changed:
            self._changed.wait_for(lambda: self._steps != steps)


class _Growing(StageReader):
    """Reads a staging file that grows, and waits where it has no more yet."""

    def __init__(self, path: str, growth: _Growth) -> None:
        self._growth = growth
        super().__init__(path)

    def _more(self, size: int) -> bytes:
        while True:
            steps, complete = self._growth.seen()
            data = super()._more(size)
            if data or complete:
                return data
            interrupt.check()
            self._growth.wait(steps)


class EarlyFile:
    """One file that is restored early. Only whoever stores the blocks of its staging file, or has taken the object for
    itself, may call the methods; `drop` may be called by anybody."""

    def __init__(self, stage_path: str, at: Entry) -> None:
        """`stage_path` has the first block of the staging file; the file is built in the folder of `at`, under the name
        there with a suffix. Raises StagingError, also for what is no file, and OSError."""
        self._name = at.name + _SUFFIX
        self._growth = _Growth()
        self._written: restore.Written | None = None
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self._folder = os.dup(at.fd)  # that of unfinished installs may be made anew
        try:
            reader = _Growing(stage_path, self._growth)
            try:
                if restore.kind_of(reader) != "file":
                    raise Unsupported("only files are restored early")
                self._begin(reader)
            except BaseException:
                reader.close()
                raise
        except BaseException:
            self._remove()
            raise

    def _begin(self, reader: StageReader) -> None:
        remove_tree(self._folder, self._name)
        fd = os.open(
            self._name,
            os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=self._folder,
        )
        try:
            self._made = fsops.fingerprint(fd)[:3]
            self._thread = threading.Thread(target=self._run, args=(reader, fd), name="frs-early", daemon=True)
            self._thread.start()
        except RuntimeError as error:  # no thread to be had
            os.close(fd)
            raise StagingError(str(error)) from error

    def _run(self, reader: StageReader, fd: int) -> None:
        try:
            with interrupt.interruptible(self._growth.over):
                self._written = restore.write_data(reader, fd)
        except (StagingError, OSError):
            pass  # told of when it is restored from the whole staging file
        finally:
            os.close(fd)
            reader.close()
            with self._lock:
                if self._growth.over.is_set() or self._written is None:
                    self._remove()
                self.ended.set()

    def grown(self, *, complete: bool = False) -> None:
        """There is more of the staging file, or all of it."""
        self._growth.step(complete=complete)

    def finish(self, at: Entry, *, durable: bool, set_id: SetId) -> Restored:
        """As `restore` does at the place `at`, on the same file system. Raises StagingError; what is at `at` then is
        the caller's to remove."""
        try:
            while not self.ended.wait(_LOOK_S):
                interrupt.check()
            if self._written is None:
                raise StagingError("the file could not be restored early")
            os.rename(self._name, at.name, src_dir_fd=self._folder, dst_dir_fd=at.fd)
            fd = os.open(at.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at.fd)
            try:
                if fsops.fingerprint(fd)[:3] != self._made:
                    raise Swapped("another file is where one was restored")
                return restore.complete(self._written, fd, durable=durable, set_id=set_id)
            finally:
                os.close(fd)
        except OSError as error:
            raise from_oserror(error, "restoring a file early") from error
        finally:
            self.drop()

    def drop(self) -> None:
        """What was built is not wanted (any more)."""
        self._growth.stop()
        with self._lock:
            if self.ended.is_set():
                self._remove()

    @property
    def over(self) -> bool:
        """No thread is at it any more."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until no thread is at it, once it was dropped."""
        self._thread.join()

    def _remove(self) -> None:
        if self._folder >= 0:
            with contextlib.suppress(OSError):
                remove_tree(self._folder, self._name)
            os.close(self._folder)
            self._folder = -1
