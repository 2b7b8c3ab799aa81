"""Folders that their owner may not write to, made writable for the moment in which an entry comes or goes.

Who is not root may not rename, make or remove anything in a folder without write permission, nor move such a folder
into another one; but its owner may change its mode. It is changed by descriptor and given back at once. What is lent
is on record before, in a folder of the agent's own: after kill -9 or a power cut the next start gives it back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from staging import fsops
from staging.beneath import LOOK, Entry
from staging.openat2 import open_beneath

Key = tuple[int, int, int]
"""Device, inode and birth time in Unix nanoseconds (0 where that is not known)."""

Told = Callable[[Key, bool], None]
"""Told of a folder that its mode is another one for a moment (True), and that it is its own again (False)."""

_ALL: Final = stat.S_IRWXU
_WRITE: Final = os.W_OK | os.X_OK

log = logging.getLogger(__name__)


class Folder(NamedTuple):
    """A folder open as `fd` (with LOOK, too), and the places in the tree where it is looked for after a crash."""

    fd: int
    paths: tuple[str, ...]


@contextlib.contextmanager
def moving(at: Entry, *paths: str) -> Iterator[Folder]:
    """An entry that is to come into another folder: if it is a folder, its owner has to be able to write to it for
    that. `paths`: see Folder. Raises OSError."""
    fd = open_beneath(at.fd, at.name, LOOK)
    try:
        yield Folder(fd, paths)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class _Loan:
    fd: int
    key: Key
    before: int
    during: int
    record: str | None


class Lending:
    """The folders of one tree that are writable for a moment. One thread at a time: RootDir sees to that."""

    def __init__(self, records: str | None = None, told: Told = lambda key, lent: None) -> None:
        """`records` is the path of the folder for records, made when it is needed; without it a crash is not made
        good."""
        self._records = records
        self._told = told

    @contextlib.contextmanager
    def writable(self, *folders: Folder) -> Iterator[None]:
        """Entries may come and go in these folders as far as their owner can have it so. Raises OSError."""
        loans: list[_Loan] = []
        try:
            for folder in folders:
                loan = self._lend(folder)
                if loan is not None:
                    loans.append(loan)
            yield
        finally:
            for loan in reversed(loans):
                self._give_back(loan)

    @contextlib.contextmanager
    def rewriting(self, folder: Folder) -> Iterator[None]:
        """The folder is given a mode: what it has at the end is its own, unless that failed. Raises OSError."""
        loan = self._lend(folder)
        try:
            yield
        except BaseException:
            if loan is not None:
                self._give_back(loan)
            raise
        if loan is not None:
            self._ended(loan)

    def _lend(self, folder: Folder) -> _Loan | None:
        found = fsops.fingerprint(folder.fd)
        if not stat.S_ISDIR(found.mode) or found.uid != os.geteuid() or is_writable(folder.fd):
            return None
        before = stat.S_IMODE(found.mode)
        during = before | _ALL
        if before == during:
            return None  # it is not the mode: a file system mounted read-only
        key = found[:3]
        record = self._write(folder, key, before, during)
        self._told(key, True)
        loan = _Loan(folder.fd, key, before, during, record)
        try:
            _chmod(folder.fd, during)
        except OSError as error:
            self._ended(loan)
            if error.errno in (errno.EPERM, errno.EROFS):
                return None  # what is to be done in it says why it cannot be done
            raise
        return loan

    def _give_back(self, loan: _Loan) -> None:
        try:
            if stat.S_IMODE(os.fstat(loan.fd).st_mode) == loan.during:  # else somebody has given it another mode
                _chmod(loan.fd, loan.before)
        except OSError as error:
            log.error("20415 a folder keeps the mode %#o that it had for a moment: %s", loan.during, error)
        self._ended(loan)

    def _ended(self, loan: _Loan) -> None:
        self._told(loan.key, False)
        if loan.record is not None:
            with contextlib.suppress(OSError):
                os.unlink(loan.record)

    # -- records --

    def _write(self, folder: Folder, key: Key, before: int, during: int) -> str | None:
        if self._records is None:
            return None
        _, ino, birth = key
        path = os.path.join(self._records, f"{ino}-{birth}.json")
        told = {"paths": folder.paths, "ino": ino, "btime_ns": birth, "before": before, "during": during}
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._records, 0o700)
        with open(path, "wb") as stream:
            stream.write(json.dumps(told, ensure_ascii=True).encode())
            stream.flush()
            os.fsync(stream.fileno())
        fsops.fsync_dir(self._records)
        return path

    def give_back_all(self, root_fd: int) -> None:
        """At the start, before anybody looks at the tree: what a crash left writable gets its mode back."""
        if self._records is None:
            return
        try:
            names = os.listdir(self._records)
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self._records, name)
            try:
                with open(path, "rb") as stream:
                    told = json.loads(stream.read())
                if not _give_back_recorded(root_fd, told):
                    log.warning(
                        "20415 the folder %r was writable for a moment, with the mode %#o instead of %#o, when this "
                        "agent was killed; it is not there any more: if it has another name now, give it its mode back "
                        "with chmod", told["paths"][0], told["during"], told["before"],
                    )  # fmt: skip
            except (ValueError, LookupError, TypeError):
                pass  # cut short: then nothing was lent yet
            except OSError as error:
                log.error("20415 a folder keeps the mode that it had for a moment: %s", error)
            with contextlib.suppress(OSError):
                os.unlink(path)


def _give_back_recorded(root_fd: int, told: dict[str, object]) -> bool:
    paths, before, during = told["paths"], told["before"], told["during"]
    if not isinstance(paths, list) or not isinstance(before, int) or not isinstance(during, int):
        raise ValueError("not a record")
    for path in paths:
        try:
            fd = open_beneath(root_fd, path or ".", LOOK | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            found = fsops.fingerprint(fd)
            if (found.ino, found.btime_ns) != (told["ino"], told["btime_ns"]):
                continue
            if stat.S_IMODE(found.mode) == during and found.uid == os.geteuid():
                _chmod(fd, before)
            return True
        finally:
            os.close(fd)
    return False


def is_writable(fd: int) -> bool:
    """Whether entries may come and go in the folder that is open, with LOOK too."""
    return os.access(".", _WRITE, dir_fd=fd, effective_ids=True)


def _chmod(fd: int, mode: int) -> None:
    """Gives what is open its mode, with LOOK too: exactly that, whatever its name is by now."""
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        os.chmod(f"/proc/self/fd/{fd}", mode)
