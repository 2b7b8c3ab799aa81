"""The files of a configuration as a source: when they are read again, and what of a reading is refused."""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config.errors import ConfigError
from config.files import FileSource, problems
from config.load import load_agent_config
from config.model import AgentConfig
from config.view import compare, view_of
from tests.unit.config.member_files import AGENT, TOPOLOGY, write

DOCS = uuid.UUID("11111111-0000-4000-8000-000000000001").bytes_le


def started(folder: Path, topology: str = TOPOLOGY, agent: str = AGENT) -> tuple[AgentConfig, FileSource]:
    config = load_agent_config(write(folder, topology=topology, agent=agent))
    return config, FileSource(config)


def refused(source: FileSource, config: AgentConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        source.read(config, {"docs": DOCS})
    return caught.value


def test_files_that_are_the_same_are_not_read_again(tmp_path: Path) -> None:
    _, source = started(tmp_path)
    assert not source.changed()
    os.utime(tmp_path / "root")
    assert not source.changed()


@pytest.mark.parametrize("name", ["agent.toml", "topology.toml", "secret.toml"])
@pytest.mark.parametrize("how", ["in place", "replaced", "removed"])
def test_a_change_is_read_once_it_has_stayed_for_a_look(tmp_path: Path, name: str, how: str) -> None:
    config, source = started(tmp_path)
    file = tmp_path / name
    text = file.read_text()
    if how == "in place":
        file.write_text(text + "# more\n")
    elif how == "replaced":  # as editors do
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").chmod(0o600)
        (tmp_path / "new").rename(file)
    else:
        file.unlink()
    assert [source.changed(), source.changed()] == [False, True]
    if how == "removed":
        assert name in str(refused(source, config))
    else:
        source.read(config, {})
    assert not source.changed()


def test_a_former_password_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to touch the file for that."""
    until = int(time.time()) + 3600
    path = write(tmp_path)
    with open(tmp_path / "secret.toml", "a") as file:
        file.write(f'[former]\npassword = "old"\nuntil = {datetime.fromtimestamp(until, UTC):%Y-%m-%dT%H:%M:%SZ}\n')
    config = load_agent_config(path)
    assert config.credential is not None
    assert (config.credential.former, config.credential.former_until) == ("old", until)
    source = FileSource(config)
    monkeypatch.setattr(time, "time", lambda: until - 0.5)
    assert [source.changed(), source.changed()] == [False, False]
    monkeypatch.setattr(time, "time", lambda: until + 0.5)
    assert [source.changed(), source.changed()] == [False, True]
    after = source.read(config, {}).config.credential
    assert after is not None
    assert after.former is None


def test_what_somebody_is_still_writing_is_not_read(tmp_path: Path) -> None:
    _, source = started(tmp_path)
    for line in range(5):
        with open(tmp_path / "topology.toml", "a") as file:
            file.write(f"# {line}\n")
        assert not source.changed()
    assert source.changed()


def test_a_topology_at_another_place_is_watched_there(tmp_path: Path) -> None:
    config, source = started(tmp_path)
    (tmp_path / "other.toml").write_text(TOPOLOGY)
    (tmp_path / "agent.toml").write_text(AGENT.replace('"topology.toml"', '"other.toml"'))
    source.read(config, {})
    (tmp_path / "other.toml").write_text(TOPOLOGY.replace("5002", "5003"))
    assert [source.changed(), source.changed()] == [False, True]


def test_an_older_file_is_refused_with_its_line(tmp_path: Path) -> None:
    config, source = started(tmp_path, topology="serial = 7\n" + TOPOLOGY)
    assert config.serial == 7
    (tmp_path / "topology.toml").write_text("# old\nserial = 6\n" + TOPOLOGY)
    error = refused(source, config)
    assert (error.file, error.line, error.key) == (tmp_path / "topology.toml", 2, "serial")
    assert "serial = 8" in error.message
    for serial in (7, 8):
        (tmp_path / "topology.toml").write_text(f"serial = {serial}\n" + TOPOLOGY)
        assert source.read(config, {}).config.serial == serial


def test_what_is_wrong_is_told_with_file_line_and_key(tmp_path: Path) -> None:
    config, source = started(tmp_path)
    (tmp_path / "topology.toml").write_text(TOPOLOGY.replace("port = 5002", 'port = "x"'))
    (found,) = problems(refused(source, config))
    assert found["file"] == str(tmp_path / "topology.toml")
    assert (found["line"], found["key"]) == (16, "set[0].member[1].port")
    for text in ("", "[[set]", TOPOLOGY[:200]):
        (tmp_path / "topology.toml").write_text(text)
        assert problems(refused(source, config))


def test_a_set_that_this_member_was_in_may_be_gone(tmp_path: Path) -> None:
    """But one that it never was in is a mistake."""
    config, source = started(tmp_path)
    others = TOPOLOGY.replace('"docs"', '"tools"').replace("000000000001", "000000000002")
    (tmp_path / "topology.toml").write_text(others)
    assert source.read(config, {"docs": DOCS}).config.sets == ()
    with pytest.raises(ConfigError, match="no set of the topology is named"):
        source.read(config, {})


def test_a_set_with_another_name_is_not_gone(tmp_path: Path) -> None:
    config, source = started(tmp_path)
    (tmp_path / "topology.toml").write_text(TOPOLOGY.replace('"docs"', '"papers"'))
    assert 'the set "docs" is called "papers" now' in str(refused(source, config))


def test_a_member_that_is_in_no_set_needs_no_address(tmp_path: Path) -> None:
    config, source = started(tmp_path)
    (tmp_path / "topology.toml").write_text(TOPOLOGY.replace('"a"', '"z"'))
    assert source.read(config, {"docs": DOCS}).config.sets == ()
    assert "a" in config.sets[0].set.members


def test_only_the_root_of_a_set_that_comes_is_looked_at(tmp_path: Path) -> None:
    """That of one that runs may be unmounted at the moment: its set says so itself."""
    config, source = started(tmp_path)
    (tmp_path / "root").rmdir()
    assert source.read(config, {}).config == config
    more = TOPOLOGY.replace('"docs"', '"tools"').replace("11111111", "22222222")
    (tmp_path / "topology.toml").write_text(TOPOLOGY + more)
    (tmp_path / "agent.toml").write_text(AGENT + '[[set]]\nname = "tools"\nroot = "root/tools"\n')
    assert "root/tools does not exist" in str(refused(source, config))
    (tmp_path / "root" / "tools").mkdir(parents=True)
    assert "is inside the root" in str(refused(source, config))


def test_a_reading_is_the_view_of_its_configuration(tmp_path: Path) -> None:
    config, source = started(tmp_path)
    assert source.read(config, {}).view == view_of(config)
    (tmp_path / "topology.toml").write_text(TOPOLOGY.replace('primary = "a"', 'primary = "b"'))
    (change,) = compare(view_of(config), source.read(config, {}).view)
    assert str(change) == "the set docs: primary a becomes b"
