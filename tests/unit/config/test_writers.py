"""Who else can write what decides what the agent does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from config.load import load_agent_config
from config.writers import warnings
from tests.unit.config.member_files import AGENT, write

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY = 65534


def told(folder: Path) -> list[str]:
    return warnings(load_agent_config(folder / "agent.toml"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    (tmp_path / "state").mkdir(mode=0o755)
    return tmp_path


def test_nothing_is_said_of_files_that_only_we_and_root_can_write(folder: Path) -> None:
    assert told(folder) == []
    (folder / "state").rmdir()
    assert told(folder) == [], "it is made at the start"


@pytest.mark.parametrize(
    ("name", "what"),
    [("agent.toml", "the configuration"), ("topology.toml", "the topology"), ("state", "the state directory")],
)
def test_a_file_that_everybody_can_write(folder: Path, name: str, what: str) -> None:
    (folder / name).chmod(0o777)
    assert told(folder) == [
        f"20105 {what} {folder / name} can be written by everybody: they can make this agent do anything; "
        f"run: chmod o-w {folder / name}"
    ]


def in_a_folder(folder: Path) -> Path:
    """The topology in a folder of its own."""
    (folder / "shared").mkdir()
    (folder / "topology.toml").rename(folder / "shared" / "topology.toml")
    (folder / "agent.toml").write_text(AGENT.replace('"topology.toml"', '"shared/topology.toml"'))
    return folder / "shared"


def test_a_file_that_others_can_replace(folder: Path) -> None:
    shared = in_a_folder(folder)
    shared.chmod(0o777)
    (warning,) = told(folder)
    assert warning.startswith(
        f"20105 the topology {shared / 'topology.toml'} lies in {shared}, which can be written by every"
    )
    shared.chmod(0o1777)
    assert told(folder) == [], "what is ours cannot be replaced there"


def test_what_a_link_leads_to_counts(folder: Path) -> None:
    shared = in_a_folder(folder)
    shared.chmod(0o777)
    (folder / "agent.toml").write_text(AGENT)
    (folder / "topology.toml").symlink_to("shared/topology.toml")
    (warning,) = told(folder)
    assert f"lies in {shared}" in warning


def test_where_a_link_is_counts(folder: Path) -> None:
    shared = in_a_folder(folder)
    (shared / "topology.toml").rename(folder / "topology.toml")
    (shared / "topology.toml").symlink_to("../topology.toml")
    shared.chmod(0o777)
    (warning,) = told(folder)
    assert f"lies in {shared}" in warning


@as_root
@pytest.mark.parametrize(
    ("change", "why", "advice"),
    [
        (lambda path: os.chown(path, NOBODY, 0), f"belongs to the user {NOBODY}", "chown 0"),
        (
            lambda path: (os.chown(path, 0, NOBODY), os.chmod(path, 0o664)),
            f"can be written by the group {NOBODY}",
            "chmod g-w",
        ),
    ],
)
def test_what_others_own_or_their_group_can_write(
    folder: Path, change: Callable[[Path], object], why: str, advice: str
) -> None:
    change(folder / "topology.toml")
    (warning,) = told(folder)
    assert why in warning
    assert warning.endswith(f"run: {advice} {folder / 'topology.toml'}")


@as_root
def test_what_roots_group_can_write_is_ours(folder: Path) -> None:
    (folder / "topology.toml").chmod(0o664)
    assert told(folder) == []
