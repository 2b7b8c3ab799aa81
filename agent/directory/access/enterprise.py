"""The objects that a directory begins with, and those of further servers."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.directory.objects.table import SERVICE_PEC, SERVICE_PSC
from agent.directory.objects.values import Value
from agent.directory.replication.messages import CREATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Me
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore, DirectoryStoreError
from config.directory import DirectoryServerConfig
from config.errors import ConfigError
from config.keys import public_key
from staging import fsops

#: For which configuration a database was made.
_MADE_FOR: Final = "configuration"


def site_of(site: bytes, name: str, psc: str, host: str, port: int, key: bytes) -> DirectoryChange:
    """A site whose owner listens there."""
    properties: tuple[tuple[int, Value], ...] = (
        (302, site), (301, name), (304, psc), (1350, host), (1351, port), (1352, key),
    )  # fmt: skip
    return DirectoryChange(CREATE, None, ENTERPRISE_PARTITION, 0, 0, 0, properties)


def machine_of(
    machine: bytes, site: bytes, name: str, service: int, host: str, port: int, key: bytes
) -> DirectoryChange:
    """A server of a site."""
    properties: tuple[tuple[int, Value], ...] = (
        (202, machine), (203, name), (201, site), (210, service), (1250, host), (1251, port), (1252, key),
    )  # fmt: skip
    return DirectoryChange(CREATE, None, site, 0, 0, 0, properties)


def make_directory(
    config: DirectoryServerConfig,
    enterprise: str,
    site: str,
    host: str,
    port: int,
    also: Iterable[DirectoryChange] = (),
) -> None:
    """The database of the first server of all, which others reach at that address, with these changes made in it; or,
    for a server that has an upstream, an empty one. It is there as a whole, or not at all. Raises DirectoryStoreError,
    DirectoryError, OSError."""
    new = config.database.with_name(f"{config.database.name}.new")
    _remove(new)
    store = DirectoryStore(new)
    try:
        upstream = config.upstream
        with store.transaction():
            store.set_setting("enterprise", config.enterprise.hex())
            store.set_setting(_MADE_FOR, os.fspath(config.path))
            me = Me(config.name, config.machine, config.site, upstream.name if upstream is not None else "")
            rules = Replicator(me, store, 0)
            if upstream is None:
                key = public_key(config.key)
                named: tuple[tuple[int, Value], ...] = (
                    (609, config.enterprise), (601, enterprise), (604, config.name),
                )  # fmt: skip
                for change in (
                    DirectoryChange(CREATE, None, ENTERPRISE_PARTITION, 0, 0, 0, named),
                    site_of(config.site, site, config.name, host, port, key),
                ):
                    rules.change(ENTERPRISE_PARTITION, change)
                service = SERVICE_PEC | SERVICE_PSC
                machine = machine_of(config.machine, config.site, config.name, service, host, port, key)
                rules.change(config.site, machine)
                for change in also:
                    rules.change(change.partition, change)
    finally:
        store.close()
    new.replace(config.database)
    fsops.fsync_dir(os.fspath(config.state_dir))


def was_cut_short(database: Path) -> bool:
    """Whether this database was made for a configuration that was never written, and no server has run on it."""
    try:
        store = DirectoryStore(database)
    except DirectoryStoreError:
        return False
    try:
        made_for = store.setting(_MADE_FOR)
        return made_for is not None and store.setting("reign") is None and not Path(made_for).exists()
    finally:
        store.close()


def remove_database(database: Path) -> None:
    """It is gone. Raises OSError."""
    _remove(database)
    fsops.fsync_dir(os.fspath(database.parent))


def _remove(database: Path) -> None:
    for name in (database.name, f"{database.name}-wal", f"{database.name}-shm"):
        database.with_name(name).unlink(missing_ok=True)


def back_up(store: DirectoryStore, file: Path) -> None:
    """Write a copy of a store to a new file, for its owner alone; where that fails there is none. Raises
    DirectoryStoreError, OSError."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    try:
        store.backup(file)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def restore_directory(config: DirectoryServerConfig, backup: Path) -> Path | None:
    """Put a backup in the place of the database of a server that does not run; gives what the database that was there
    is called now, None where there was none. None that was put aside before is overwritten. Raises ConfigError for what
    is no backup of this enterprise, DirectoryStoreError, OSError: then all is as it was."""
    database = config.database
    if database.exists() and backup.samefile(database):
        raise ConfigError(backup, None, "", "is the database of this server itself, and no backup of it")
    new = database.with_name(f"{database.name}.new")
    _remove(new)
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with backup.open("rb") as source, open(descriptor, "wb") as target:
            shutil.copyfileobj(source, target)
        store = DirectoryStore(new)
        try:
            enterprise = store.setting("enterprise")
        finally:
            store.close()
        if enterprise != config.enterprise.hex():
            raise ConfigError(backup, None, "", "is no backup of this enterprise")
        with new.open("rb") as file:
            os.fsync(file.fileno())
        old = _put_aside(database)
        new.replace(database)
        fsops.fsync_dir(os.fspath(config.state_dir))
        return old
    finally:
        _remove(new)


def _put_aside(database: Path) -> Path | None:
    """Give a database a further name, at which nothing was, so that another one may take its place; a write-ahead log
    that could be played onto that one is gone from beside it then. None where nothing is there. Raises OSError."""
    name, number = f"{database.name}.before-restore", 1
    while os.path.lexists(old := database.with_name(name)):
        number += 1
        name = f"{database.name}.before-restore-{number}"
    if database.exists():
        with contextlib.suppress(DirectoryStoreError):  # it is damaged, most likely: why somebody restores it
            DirectoryStore(database).close()  # what is in its write-ahead log is in it then
    aside = None
    for end in ("-shm", "-wal"):
        beside = database.with_name(f"{database.name}{end}")
        if beside.exists():
            aside = old.with_name(f"{old.name}{end}")
            beside.replace(aside)
    if not database.exists():
        return aside
    os.link(database, old)
    return old
