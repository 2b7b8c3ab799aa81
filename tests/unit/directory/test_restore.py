"""A backup takes the place of a database, whatever is left of that, and nothing that was there is lost."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from pathlib import Path

import pytest

from agent.directory.access.enterprise import back_up, make_directory, restore_directory
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.objects.table import Type
from agent.directory.replication.messages import CREATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store.store import DirectoryStore, DirectoryStoreError
from agent.reporting.incidents import Incidents
from config.directory import DirectoryServerConfig
from config.errors import ConfigError
from config.keys import new_key


def opened(config: DirectoryServerConfig) -> DirectoryServer:
    return open_server(config, Incidents(logging.getLogger("frs")))


def change(server: DirectoryServer, *numbers: int) -> None:
    for number in numbers:
        guid = number.to_bytes(16)
        made = (2001, guid), (2002, f"set {number}"), (2004, b"p" * 16)
        server.change([DirectoryChange(CREATE, guid, ENTERPRISE_PARTITION, 0, 0, 0, made)])


def sets(database: Path) -> set[str]:
    store = DirectoryStore(database)
    try:
        return {one.text(2002) for one in store.of_type(Type.FRS_SET, ENTERPRISE_PARTITION)}
    finally:
        store.close()


def with_backup(config: DirectoryServerConfig, name: str, *numbers: int) -> Path:
    server = opened(config)
    change(server, *numbers)
    file = config.state_dir / name
    back_up(server.store, file)
    server.store.close()
    return file


def test_a_second_restore_keeps_what_the_first_put_aside(config: DirectoryServerConfig) -> None:
    """The wrong backup first, then the right one: the newest database is there still."""
    first, second = with_backup(config, "b1", 1), with_backup(config, "b2", 2)
    server = opened(config)
    change(server, 3)
    server.store.close()
    newest, other = restore_directory(config, first), restore_directory(config, second)
    assert newest is not None
    assert other is not None
    assert sets(newest) == {"set 1", "set 2", "set 3"}
    assert sets(other) == {"set 1"}
    assert sets(config.database) == {"set 1", "set 2"}
    assert not config.database.with_name(f"{config.database.name}.new").exists()


def test_what_is_written_is_for_its_owner_alone(config: DirectoryServerConfig) -> None:
    umask = os.umask(0o022)
    try:
        file = with_backup(config, "backup", 1)
        restore_directory(config, file)
    finally:
        os.umask(umask)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (file, config.database)] == [0o600, 0o600]


@pytest.mark.parametrize("left", ["all", "no database", "a damaged one", "one that is none"])
def test_the_log_of_another_database_is_not_played_onto_it(config: DirectoryServerConfig, left: str) -> None:
    """A server was killed: what it wrote last is in its write-ahead log."""
    file = with_backup(config, "backup", 1)
    server = opened(config)
    change(server, *range(2, 60))
    there = config.state_dir / "killed"
    there.mkdir()
    names = [one for one in config.state_dir.iterdir() if one.name.startswith(config.database.name)]
    assert any(one.name.endswith("-wal") and one.stat().st_size for one in names)
    for one in names:
        shutil.copy(one, there)
    server.store.close()
    for one in names:
        shutil.copy(there / one.name, one)
    if left == "no database":
        config.database.unlink()
    elif left != "all":
        data = config.database.read_bytes()
        half = len(data) // 2
        config.database.write_bytes(data[:half] + os.urandom(half) if left == "a damaged one" else os.urandom(half))
    old = restore_directory(config, file)
    assert old is not None
    assert old.exists()
    assert sets(config.database) == {"set 1"}
    store = DirectoryStore(config.database)
    assert store._conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()
    if left == "all":
        assert len(sets(old)) == 59


def test_what_is_no_backup_changes_nothing(config: DirectoryServerConfig, tmp_path: Path) -> None:
    with_backup(config, "backup", 1)
    (tmp_path / "none").write_bytes(b"x" * 5000)
    other = DirectoryServerConfig(
        tmp_path / "o.toml", "o", tmp_path / "other", new_key(), b"F" * 16, b"t" * 16, b"n" * 16, "127.0.0.1", 0
    )
    other.state_dir.mkdir()
    make_directory(other, "enterprise", "site", "127.0.0.1", 1)
    before = sorted(one.name for one in config.state_dir.iterdir())
    for wrong, error in (
        (tmp_path / "none", DirectoryStoreError), (tmp_path / "absent", OSError), (other.database, ConfigError),
        (config.database, ConfigError),
    ):  # fmt: skip
        with pytest.raises(error):
            restore_directory(config, wrong)
    assert sorted(one.name for one in config.state_dir.iterdir()) == before
    assert sets(config.database) == {"set 1"}
