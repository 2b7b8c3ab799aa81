"""Files that nobody but their owner may read: a member's key, its keytab, the secret."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from config.document import decoded
from config.errors import ConfigError
from config.writers import trusted_owner


def read_private(path: Path, what: str, missing: str) -> str:
    """The text of `path`, a regular file of our user or root that nobody else can read. `what` names it ("the secret"),
    `missing` says what to do where it does not exist. Raises ConfigError."""
    with _opened(path, what, missing) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        return decoded(path, what, stream)


def check_private(path: Path, what: str, missing: str) -> None:
    """As read_private(), for a file that others read. Raises ConfigError."""
    with _opened(path, what, missing):
        pass


@contextlib.contextmanager
def _opened(path: Path, what: str, missing: str) -> Iterator[int]:
    try:
        # Neither follows a link nor waits on a FIFO; what is checked is what is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ConfigError(path, None, "", f"{what} does not exist; {missing}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(path, None, "", f"{what} is a symbolic link; name the file itself") from None
        raise ConfigError(path, None, "", f"{what} cannot be read: {error.strerror}") from None
    try:
        _check(path, what, os.fstat(descriptor))
        yield descriptor
    except OSError as error:
        raise ConfigError(path, None, "", f"{what} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _check(path: Path, what: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(path, None, "", f"{what} must be a regular file")
    if not trusted_owner(status.st_uid):
        raise ConfigError(
            path,
            None,
            "",
            f"{what} belongs to the user {status.st_uid}, who can read and change it; run: chown {os.geteuid()} {path}",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(path, None, "", f"{what} has mode {mode:04o}, so others may read it; run: chmod 600 {path}")
