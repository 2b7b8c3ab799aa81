"""What is looked at on this host before anything starts: can these roots be replicated from here, and can the agent
listen where it should?"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

from config.document import Document, read_text
from config.errors import ConfigError, joined
from config.model import AgentConfig
from config.positions import KeyPath

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PSEUDO = tuple(Path(path) for path in ("/proc", "/sys", "/dev"))
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a place for files, and only by its name one for devices


def check_listen(config: AgentConfig) -> None:
    """Refuses a host to listen on that has no address; raises ConfigError. One whose addresses cannot be told now (the
    name server does not answer) may have one later: that is left to the start."""
    try:
        socket.getaddrinfo(config.listen_host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            return
        document = Document(config.path, read_text(config.path, "the configuration", "`frs init` makes one"))
        here = "listen" in document.values and "host" in document.values["listen"]
        whose = "" if here else f", which the member {config.member_name} has in {config.topology_path},"
        raise document.fail(
            ("listen", "host"),
            f'no address is found of the host "{config.listen_host}"{whose} for this agent to listen on: '
            f'{error.strerror}; name an address of this host, or "0.0.0.0" for all',
        ) from None


def check_roots(config: AgentConfig, only: Container[str] | None = None) -> None:
    """Refuses roots and a state directory that cannot work; raises ConfigError with all that is wrong. `only`: the
    names of the sets to look at, where the others run already.

    A root must be an existing folder that we may write to, and neither that of the whole file system nor one where the
    kernel shows itself and its devices. It must neither be, nor hold, nor be inside:
    another root, the state directory. Nor may it hold our configuration, key or secret, which would be
    replicated. Symbolic links are followed first, so that two names of one folder are seen as one.
    """
    document = Document(config.path, read_text(config.path, "the configuration", "`frs init` makes one"))
    faults = [*_state_faults(config, document)]
    indices = {str(table["name"]): index for index, table in enumerate(document.values.get("set", []))}
    seen: list[tuple[str, Path, Path]] = []
    for local in config.sets:
        index = indices.get(local.name)
        key: KeyPath = ("set", index, "root") if index is not None else ("active_directory", "roots")
        real = Path(os.path.realpath(local.root))
        looked_at = only is None or local.name in only
        found = [*_root_faults(local.root, real)] if looked_at else []
        if not found:
            found += _nesting_faults(config, local.root, real, seen) if looked_at else ()
            seen.append((local.name, local.root, real))
        faults += [document.fail(key, message) for message in found]
    if faults:
        raise joined(faults)


def _root_faults(root: Path, real: Path) -> Iterator[str]:
    if not root.exists():
        yield f"the root {root} does not exist; make the folder, or correct the path"
    elif not root.is_dir():
        yield f"the root {root} is not a folder; name a folder"
    elif real == Path("/"):
        yield f"the root {root} is the root of the whole file system; name a folder for the files to replicate"
    elif any(real.is_relative_to(place) for place in _PSEUDO) and not real.is_relative_to(_SHARED_MEMORY):
        yield f"the root {root} is a place of the kernel and its devices, not one for files; name another folder"
    elif not _is_writable(root):
        yield f"the root {root} is not writable for this user; change its mode or owner"


def _nesting_faults(config: AgentConfig, root: Path, real: Path, seen: list[tuple[str, Path, Path]]) -> Iterator[str]:
    advice = "give each set a folder of its own"
    for name, other, other_real in seen:
        if real == other_real:
            yield f'the root {root} is also the root of the set "{name}"; {advice}'
        elif real.is_relative_to(other_real):
            yield f'the root {root} is inside the root {other} of the set "{name}"; {advice}'
        elif other_real.is_relative_to(real):
            yield f'the root {root} contains the root {other} of the set "{name}"; {advice}'
    state = Path(os.path.realpath(config.state_dir))
    if real == state:
        yield f"the root {root} is the state directory; name another folder for one of them"
    elif state.is_relative_to(real):
        yield f"the root {root} contains the state directory {config.state_dir}; move that out of the root"
    elif real.is_relative_to(state):
        yield f"the root {root} is inside the state directory {config.state_dir}; move one of them"
    for path, what in (
        (config.path, "the configuration"),
        (config.topology_path, "the topology"),
        (config.key_path, "the key"),
        (config.keytab, "the keytab"),
        (config.secret_path, "the secret"),
        (config.dashboard_tls.key if config.dashboard_tls is not None else None, "the key of the dashboard"),
        (config.directory_server, "the configuration of the directory server"),
    ):
        if path is not None and Path(os.path.realpath(path)).is_relative_to(real):
            yield f"the root {root} contains {what} {path}, which would be replicated; move it out"


def _state_faults(config: AgentConfig, document: Document) -> Iterator[ConfigError]:
    state = config.state_dir
    existing = next(p for p in (state, *state.parents) if p.exists())
    if not existing.is_dir():
        yield document.fail(("state",), f"{existing} is not a folder; name another state directory")
    elif not _is_writable(existing):
        yield document.fail(
            ("state",),
            f"{existing} is not writable for this user; change its mode or owner, or run as another user",
        )


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made in `folder`: tried with one that has no name, which nobody can see.

    Only where the file system has no such files (NFS, FUSE) it has a name for a moment. A file system that is full
    counts as writable: it can be again.
    """
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        return False
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return True
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            return error.errno in _FULL
    try:
        descriptor, name = tempfile.mkstemp(prefix=".frs-", dir=folder)
    except OSError as error:
        return error.errno in _FULL
    os.close(descriptor)
    os.unlink(name)
    return True
