"""The source of a topology that is made of files: agent.toml, the topology, the key and the secret, read again when
they change.

A reading that is wrong, older than what is in force, or says that this member has left a set is the caller's to deal
with; see `FileSource.read`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.check import check_roots
from config.document import Document, read_text
from config.errors import ConfigError
from config.lastread import last_read
from config.load import load_agent_config
from config.model import AgentConfig
from config.view import DirectoryView, view_of

_Signature = tuple[tuple[int, int, int, int, int] | bool | None, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One complete reading: the configuration, and the view in it."""

    config: AgentConfig
    view: DirectoryView


class FileSource:
    """The files of the configuration that is in force. Everything here may block, and is for one thread at a time."""

    def __init__(self, config: AgentConfig) -> None:
        self._follow(config)
        self._path = config.path
        self._seen = self._look()
        self._before = self._seen

    @property
    def path(self) -> Path:
        """The agent.toml."""
        return self._path

    def changed(self) -> bool:
        """Whether the files are others than at the last reading, and have been the same since the last look: what
        somebody is still writing is not read."""
        now, before = self._look(), self._before
        self._before = now
        return now == before and now != self._seen

    def read(self, running: AgentConfig, known: Mapping[str, bytes]) -> Reading:
        """What the files say now. `running` is what is in force, `known` the sets that this member has or had, by
        name: an entry of agent.toml for one of these that the topology does not have is no mistake, but says that this
        member has left the set. Raises ConfigError, also for a topology that is older than the one in force."""
        self._seen = self._look()
        config = load_agent_config(self._path, known=known)
        self._refuse_another(running, config)
        if config.serial < running.serial and not _really_read(config):
            document = Document(config.topology_path, read_text(config.topology_path, "the topology", ""))
            raise document.fail(
                ("serial",),
                f"this file has serial {config.serial}, and the one in force has {running.serial}: it is older. Copy "
                f"the newest from another member, or, if this is the one that is meant, set serial = "
                f"{running.serial + 1}",
            )
        there = {local.set.guid for local in running.sets}
        check_roots(config, only=[local.name for local in config.sets if local.set.guid not in there])
        self._follow(config)
        return Reading(config, view_of(config))

    @staticmethod
    def _refuse_another(running: AgentConfig, config: AgentConfig) -> None:
        """A running agent is one member, and has one state directory."""
        document = Document(config.path, read_text(config.path, "the configuration", ""))
        for key, was, now in (
            ("member", running.member_name, config.member_name),
            ("state", running.state_dir, config.state_dir),
        ):
            if was != now:
                raise document.fail((key,), f"was {was} and is {now}; the agent has to be restarted for that")

    def _follow(self, config: AgentConfig) -> None:
        self._paths = _paths(config)
        secret = config.credential
        self._former_until = secret.former_until if secret is not None and secret.former is not None else math.inf

    def _look(self) -> _Signature:
        """The files as they are, and whether the secret's former password is good no more."""
        found: list[tuple[int, int, int, int, int] | bool | None] = [time.time() >= self._former_until]
        for path in self._paths:
            try:
                st = os.stat(path)
                found.append((st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns))
            except OSError:
                found.append(None)
        return tuple(found)


def _really_read(config: AgentConfig) -> bool:
    """Whether this topology is what a directory said last: then a higher `serial` in force was nobody's but an
    editor's."""
    found = last_read(config.state_dir, config.directory.enterprise) if config.directory is not None else None
    return found is not None and found.serial == config.serial


def _paths(config: AgentConfig) -> tuple[Path, ...]:
    files = (config.path, config.topology_path, config.key_path, config.keytab, config.secret_path)
    return tuple(file for file in files if file is not None)


def problems(error: ConfigError) -> list[dict[str, str | int | None]]:
    """What is wrong with files, for programs."""
    return [
        {"file": str(one.file), "line": one.line, "key": one.key, "message": one.message, "text": one.one_line()}
        for one in (error, *error.others)
    ]
