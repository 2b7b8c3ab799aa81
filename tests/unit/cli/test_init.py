"""`frs init`: two hosts are set up from its output alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent.cli import run_cli
from config.load import load_agent_config


class Host:
    """A host's folders, and `frs init` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "root").mkdir(parents=True)
        self.config = folder / "etc" / "agent.toml"

    def init(self, *arguments: str) -> int:
        return run_cli(
            [
                "init",
                *("--root", str(self.folder / "root"), "--state", str(self.folder / "state")),
                *("--config", str(self.config), *arguments),
            ]
        )


@pytest.fixture
def first(tmp_path: Path) -> Host:
    host = Host(tmp_path / "first")
    assert (
        host.init("--member", "one", "--set", "docs", "--address", "h1:1", "--peer", "two=h2:2", "--peer", "x=[::1]:3")
        == 0
    )
    return host


def test_the_first_member(first: Host) -> None:
    config = load_agent_config(first.config)
    (local,) = config.sets
    assert config.member_name == "one"
    assert (config.listen_host, config.port) == ("0.0.0.0", 1)
    assert local.root == first.folder / "root"
    assert config.state_dir == first.folder / "state"
    assert {(m.name, m.host, m.port) for m in local.set.members.values()} == {
        ("one", "h1", 1),
        ("two", "h2", 2),
        ("x", "::1", 3),
    }
    assert len(local.set.connections) == 6
    assert local.set.primary == "one"
    assert local.set.file_filter == ("*.tmp", "*.bak", "~*")
    assert local.set.directory_filter == ()
    assert len(config.credential.password) >= 32
    assert stat.S_IMODE(config.secret_path.stat().st_mode) == 0o600


def test_what_to_do_next_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(tmp_path)
    assert (
        host.init("--member", "one", "--set", "docs", "--listen", "h1:1", "--peer", "two=h:2", "--peer", "x=h:3") == 0
    )
    said = capsys.readouterr().out
    for part in ("copy topology.toml and secret.toml to each of two, x", "frs run --config", "*.tmp, *.bak, ~*"):
        assert part in said


@pytest.mark.parametrize("beside", [False, True])
def test_the_second_member(tmp_path: Path, first: Host, beside: bool) -> None:
    """With the two files copied to some place, or to where they will stay."""
    second = Host(tmp_path / "second")
    place = second.config.parent if beside else tmp_path / "copied"
    place.mkdir()
    for name in ("topology.toml", "secret.toml"):
        (place / name).write_bytes((first.config.parent / name).read_bytes())
        (place / name).chmod(0o600)
    files = ("--topology", str(place / "topology.toml"), "--secret-file", str(place / "secret.toml"))
    assert second.init("--member", "two", *files) == 0
    one, two = load_agent_config(first.config), load_agent_config(second.config)
    assert two.sets[0].set == one.sets[0].set
    assert two.credential == one.credential
    assert (two.member_name, two.port) == ("two", 2)


def test_nothing_is_overwritten(first: Host, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in first.config.parent.iterdir()}
    again = ("--member", "one", "--set", "docs", "--address", "h1:1")
    assert first.init(*again) == 2
    assert "--force" in capsys.readouterr().err
    first.config.unlink()
    assert first.init(*again) == 2
    assert {path: path.read_bytes() for path in first.config.parent.iterdir()}.items() <= before.items()
    assert first.init(*again, "--force") == 0
    assert load_agent_config(first.config).sets[0].set.guid not in b"".join(before.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--member", "one"), "--set NAME is needed"),
        (("--member", "one", "--set", "d", "--listen", "nonsense"), "is not HOST:PORT"),
        (("--member", "one", "--set", "d", "--listen", "h:0"), "is not HOST:PORT"),
        (("--member", "one", "--set", "d", "--peer", "h:1"), "is not NAME=HOST:PORT"),
        (("--member", "one", "--set", "d", "--listen", "h:1", "--peer", "one=h:1"), "same name"),
        (("--member", "one", "--set", "d", "--listen", "h:1", "--primary", "two"), '--primary "two"'),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    host = Host(tmp_path)
    assert host.init(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not host.config.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--member", "nobody"), 'has no member "nobody"'),
        (("--member", "two", "--set", "other"), 'has no set "other"'),
        (("--member", "two", "--peer", "z=h:1"), "leave --peer"),
    ],
)
def test_wrong_arguments_with_a_topology(
    tmp_path: Path, first: Host, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    second = Host(tmp_path / "second")
    assert second.init(*arguments, "--topology", str(first.config.parent / "topology.toml")) == 2
    assert message in capsys.readouterr().err
    assert not second.config.exists()


def test_a_name_that_cannot_stand_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(tmp_path)
    assert host.init("--member", "a/b", "--set", "d", "--listen", "h:1") == 2
    assert "a/b" in capsys.readouterr().err
    assert not host.config.exists()


def test_a_root_that_will_be_refused_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(tmp_path)
    (tmp_path / "root").rmdir()
    assert host.init("--member", "one", "--set", "d", "--listen", "h:1") == 0
    assert "does not exist; make the folder" in capsys.readouterr().err


def test_the_port_of_the_address_is_listened_on(tmp_path: Path) -> None:
    host = Host(tmp_path / "f1")
    address = ("--address", "127.0.0.1:34701", "--peer", "f2=127.0.0.1:34702")
    assert host.init("--member", "f1", "--set", "docs", *address) == 0
    config = load_agent_config(host.config)
    assert config.port == 34701
    assert config.sets[0].set.members["f1"].port == 34701
