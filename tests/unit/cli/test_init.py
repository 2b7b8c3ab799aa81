"""`frs init` and `frs key`: hosts are set up from their output alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent.cli import run_cli
from agent.reporting.exit_codes import ExitCode
from config.keys import key_text, public_key
from config.load import load_agent_config, load_directory_client
from config.model import AgentConfig, Secret
from config.write import secret_text, write_file


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
    assert config.credential is None
    assert config.key is not None
    assert config.key_path is not None
    assert stat.S_IMODE(config.key_path.stat().st_mode) == 0o600
    assert {m.name: m.key for m in local.set.members.values()} == {
        "one": public_key(config.key),
        "two": None,
        "x": None,
    }


def test_what_to_do_next_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(tmp_path)
    assert (
        host.init("--member", "one", "--set", "docs", "--listen", "h1:1", "--peer", "two=h:2", "--peer", "x=h:3") == 0
    )
    said = capsys.readouterr().out
    for part in (
        "copy topology.toml to each of two, x",
        "the topology.toml of the last back",
        "frs run --config",
        "*.tmp, *.bak, ~*",
    ):
        assert part in said


def known(config: AgentConfig) -> dict[str, bytes | None]:
    """The keys of members, by what this one has."""
    return {one.name: one.key for one in config.sets[0].set.members.values()}


@pytest.mark.parametrize("beside", [False, True])
def test_the_other_members(tmp_path: Path, first: Host, capsys: pytest.CaptureFixture[str], beside: bool) -> None:
    """With the topology of the one before copied to some place, or to where it will stay. That of the last has the keys
    of all."""
    before, keys = first, {"one": load_agent_config(first.config).key}
    guid = load_agent_config(first.config).sets[0].set.guid
    for name, port in (("two", 2), ("x", 3)):
        host = Host(tmp_path / name)
        place = host.config.parent if beside else tmp_path / f"copied to {name}"
        place.mkdir()
        topology = place / "topology.toml"
        topology.write_bytes((before.config.parent / "topology.toml").read_bytes())
        assert host.init("--member", name, "--topology", str(topology)) == 0
        config = load_agent_config(host.config)
        assert (config.member_name, config.port, config.sets[0].set.guid) == (name, port, guid)
        keys[name] = config.key
        before = host
    assert len(set(keys.values())) == 3
    assert known(config) == {name: public_key(key) for name, key in keys.items() if key is not None}
    said = capsys.readouterr().out
    assert "copy topology.toml to one, two: it has the key of x now" in said
    (first.config.parent / "topology.toml").write_bytes((before.config.parent / "topology.toml").read_bytes())
    assert known(load_agent_config(first.config)) == known(config)


def test_a_secret_besides(tmp_path: Path, first: Host) -> None:
    """For a set in which some members have no key."""
    write_file(tmp_path / "given.toml", secret_text(Secret("FRS", "frs", "password")), 0o600)
    second = Host(tmp_path / "second")
    topology = ("--topology", str(first.config.parent / "topology.toml"))
    assert second.init("--member", "two", *topology, "--secret-file", str(tmp_path / "given.toml")) == 0
    config = load_agent_config(second.config)
    assert config.credential == Secret("FRS", "frs", "password")
    assert config.key is not None
    assert config.secret_path is not None
    assert stat.S_IMODE(config.secret_path.stat().st_mode) == 0o600


def test_a_key_is_never_replaced_by_the_way(first: Host) -> None:
    key = load_agent_config(first.config).key
    assert first.init("--member", "one", "--set", "docs", "--address", "h1:1", "--force") == 0
    assert load_agent_config(first.config).key == key


def test_a_member_that_is_known_by_another_key(tmp_path: Path, first: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody sets up a second host as the first member."""
    second = Host(tmp_path / "second")
    topology = ("--topology", str(first.config.parent / "topology.toml"))
    assert second.init("--member", "one", *topology) == 2
    assert 'the member "one" has another key' in capsys.readouterr().err
    assert not second.config.parent.exists()
    assert second.init("--member", "one", *topology, "--force") == 0
    assert load_agent_config(second.config).key != load_agent_config(first.config).key


OLD = """\
# of before there were keys
member = "one"
topology = "topology.toml"
state = "../state"
secret = "secret.toml"
[[set]]
name = "docs"
root = "../root"
"""


def test_a_member_of_before_gets_a_key(first: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """agent.toml and topology.toml get a line each, and keep what people wrote there. Each key is a change of the
    topology, of which members refuse an older one."""
    folder = first.config.parent
    shared = (folder / "topology.toml").read_text()
    line = next(line for line in shared.splitlines() if line.startswith("key = "))
    shared = shared.replace(f"{line}\n", "# mine\n")
    (folder / "topology.toml").write_text(shared)
    (folder / "key.toml").unlink()
    write_file(folder / "secret.toml", secret_text(Secret("FRS", "frs", "password")), 0o600)
    first.config.write_text(OLD)
    assert load_agent_config(first.config).key is None
    capsys.readouterr()

    assert run_cli(["key", "--config", str(first.config)]) == 0
    config = load_agent_config(first.config)
    assert config.key is not None
    public = key_text(public_key(config.key))
    assert stat.S_IMODE((folder / "key.toml").stat().st_mode) == 0o600
    assert first.config.read_text() == OLD.replace('"one"\n', '"one"\nkey = "key.toml"\n')
    name = 'name = "one"\n'
    with_key = shared.replace(name, f'{name}key = "{public}"\n').replace("serial = 1\n", "serial = 2\n")
    assert (folder / "topology.toml").read_text() == with_key
    said = capsys.readouterr().out
    assert f"key of one: {public}\n" in said
    assert "in the topology.toml of all other members" in said

    assert run_cli(["key", "--config", str(first.config)]) == 0
    assert capsys.readouterr().out == f"key of one: {public}\n"
    assert run_cli(["key", "--config", str(first.config), "--replace"]) == 0
    replaced = load_agent_config(first.config)
    assert replaced.key not in (None, config.key)
    assert replaced.serial == 3
    assert f"key of one: {public}\n" not in capsys.readouterr().out


def test_a_key_that_cannot_be_put_into_the_topology_is_not_made(
    first: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = first.config.parent
    (folder / "key.toml").unlink()
    first.config.write_text(OLD)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert run_cli(["key", "--config", str(first.config)]) == 2
    assert "frs key --replace" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


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


def test_a_member_whose_topology_comes_from_active_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two commands later it runs; what cannot be is said before anything is written."""
    pytest.importorskip("bonsai", reason="the extra ldap is not installed")
    keytab, config = tmp_path / "a.keytab", tmp_path / "etc" / "agent.toml"
    keytab.touch(0o600)
    said = ["--member", "FILES3", "--keytab", str(keytab), "--root", "/srv", "--state", str(tmp_path / "state")]
    said += ["--config", str(config)]
    assert run_cli(["ad", "join", "--domain", "no domain", *said]) == ExitCode.USAGE
    assert "active_directory.domain" in capsys.readouterr().err
    assert not config.parent.exists()
    assert run_cli(["ad", "join", "--domain", "example.org", *said]) == 0
    assert f"frs ad check --config {config}" in capsys.readouterr().out
    found = load_directory_client(config)
    assert found is not None
    assert (found.member_name, found.keytab, found.state_dir) == ("FILES3", keytab, tmp_path / "state")
    assert (found.there.domain, found.there.computer, found.there.roots) == ("example.org", "FILES3", (Path("/srv"),))
    assert found.topology_path == config.parent / "topology.toml"
    assert run_cli(["ad", "join", "--domain", "example.org", *said]) == ExitCode.USAGE
    assert "exists" in capsys.readouterr().err
