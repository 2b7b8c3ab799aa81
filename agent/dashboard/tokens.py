"""Who may see names of files on the dashboard, and who may have files given back: whoever shows one of two tokens.

They are in files of the state directory that their owner alone can read, made where they are not there. Whoever may
restore may also read; not the other way round.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Final, Literal

from config.private import read_private

READ_FILE: Final = "dashboard-read.token"
RESTORE_FILE: Final = "dashboard-restore.token"
_SCHEME: Final = "bearer "

Right = Literal["read", "restore"]


class Tokens:
    """The tokens in ``folder``. Raises ``ConfigError`` where others can read one, ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self._reader = _token(folder / READ_FILE)
        self._restorer = _token(folder / RESTORE_FILE)
        #: What whoever has shown either may look by, for as long as the one for looking is the same.
        self.session: Final = hmac.digest(self._reader, b"session", "sha256").hex()

    def rights(self, authorization: str) -> tuple[Right, ...]:
        """What an ``Authorization`` header gives; nothing where it is none of the tokens."""
        if not authorization.lower().startswith(_SCHEME):
            return ()
        shown = authorization[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape")
        if hmac.compare_digest(shown, self._restorer):
            return ("read", "restore")
        return ("read",) if hmac.compare_digest(shown, self._reader) else ()


def _token(path: Path) -> bytes:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    found = read_private(path, "the token", "start the agent again, which makes another").strip().encode()
    if len(found) < 32:  # as after a crash, or a full disk
        path.unlink()
        return _token(path)
    return found
