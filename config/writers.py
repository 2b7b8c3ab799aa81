"""Who, beside the user that the agent runs as and root, can change what it is told to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from config.model import AgentConfig


def trusted_owner(uid: int) -> bool:
    """Whether what belongs to this user is as good as our own."""
    return uid in (0, os.geteuid())


def warnings(config: AgentConfig) -> list[str]:
    """What is to be said of files that others can write, or replace through a folder they can write. Whoever can
    change these decides which folders the agent works on with its rights, and with whom."""
    return warnings_of(
        (config.path, "the configuration"),
        (config.topology_path, "the topology"),
        (config.key_path, "the key"),
        (config.keytab, "the keytab"),
        (config.secret_path, "the secret"),
        (config.state_dir, "the state directory"),
    )


def warnings_of(*files: tuple[Path | None, str]) -> list[str]:
    """Likewise, of these files and what they are."""
    found: list[str] = []
    for path, what in files:
        if path is None:
            continue
        for place, why, advice in _open_places(path):
            where = f"{what} {path}" if place is None else f"{what} {path} lies in {place}, which"
            found.append(f"20105 {where} {why}: they can make this agent do anything; run: {advice} {place or path}")
    return found


def _open_places(path: Path) -> Iterator[tuple[Path | None, str, str]]:
    """`path` itself (None) and folders above it that others can write, with how, and what helps. What does not exist
    yet is passed over."""
    real = Path(os.path.realpath(path))
    for place in dict.fromkeys((real, *real.parents, *path.parents)):  # where it is, and where a link to it is
        try:
            status = os.stat(place)
        except OSError:
            continue
        shown = None if place == real else place
        if not trusted_owner(status.st_uid):
            yield shown, f"belongs to the user {status.st_uid}", f"chown {os.geteuid()}"
        elif shown is not None and status.st_mode & stat.S_ISVTX:
            continue  # others can add to this folder, and not replace what is ours
        elif status.st_mode & stat.S_IWOTH:
            yield shown, "can be written by everybody", "chmod o-w"
        elif status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
            yield shown, f"can be written by the group {status.st_gid}", "chmod g-w"
