"""What is in the folder of a demo, without starting it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import stat
from pathlib import Path
from typing import Any

import click
import pytest

from agent.cli import CommandFailed
from agent.cli.demo_cmd import default_directory
from agent.cli.demo_layout import Demo, DemoOptions, prepare
from agent.cli.demo_ports import HOST
from agent.cli.demo_runner import is_synchronised
from config.check import check_roots
from config.load import load_agent_config


def make(directory: Path, **options: Any) -> Demo:
    options.setdefault("port_base", 0)
    options.setdefault("dashboard_port", 0)
    return prepare(DemoOptions(directory, **options))


@pytest.fixture
def taken() -> Any:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(1)
        yield listener.getsockname()[1]


def test_what_is_made_can_be_run(tmp_path: Path) -> None:
    demo = make(tmp_path, members=4, topology="ring", aging_s=0.25)
    assert [member.name for member in demo.members] == ["a", "b", "c", "d"]
    for member in demo.members:
        config = load_agent_config(tmp_path / member.name / "agent.toml")
        check_roots(config)
        assert config.member_name == member.name
        assert config.sets[0].root == tmp_path / member.name / "root"
        assert config.state_dir == tmp_path / member.name / "state"
        assert config.pid_file == tmp_path / member.name / "agent.pid"
        assert config.topology_path == tmp_path / "topology.toml"
        assert config.aging_s == 0.25
        assert (config.listen_host, config.port) == (HOST, member.port)
        assert (config.dashboard_host, config.dashboard_port) == (HOST, member.dashboard_port)
        assert config.sets[0].set.primary == "a"
        assert len(config.sets[0].set.inbound(member.name)) == 2
        assert config.sets[0].set.file_filter == ()
        assert config.credential is None
        assert config.key_path == tmp_path / member.name / "key.toml"
        assert stat.S_IMODE(config.key_path.stat().st_mode) == 0o600
        assert all(one.key is not None for one in config.sets[0].set.members.values())
    assert len({port for m in demo.members for port in (m.port, m.dashboard_port)}) == 8


def test_demo_json_says_all_of_it_to_us_alone(tmp_path: Path) -> None:
    demo = make(tmp_path, members=2, shared_secret=True)
    demo.write_json({"a": 11, "b": None}, 10)
    assert stat.S_IMODE((tmp_path / "demo.json").stat().st_mode) == 0o600
    content = json.loads((tmp_path / "demo.json").read_text())
    assert demo.secret is not None
    assert content["ntlm"]["password"] == demo.secret.password
    assert content["pid"] == 10
    assert content["members"][0] == {
        "name": "a",
        "guid": content["members"][0]["guid"],
        "host": HOST,
        "rpc_port": demo.members[0].port,
        "root": str(tmp_path / "a" / "root"),
        "state": str(tmp_path / "a" / "state"),
        "config": str(tmp_path / "a" / "agent.toml"),
        "log": str(tmp_path / "a" / "state" / "agent.log"),
        "pid_file": str(tmp_path / "a" / "agent.pid"),
        "pid": 11,
        "dashboard_url": f"http://{HOST}:{demo.members[0].dashboard_port}/",
    }


def test_a_secret_besides_the_keys(tmp_path: Path) -> None:
    """Only where it is asked for, and then for good."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "both").mkdir()
    assert make(tmp_path / "keys").secret is None
    demo = make(tmp_path / "both", shared_secret=True)
    assert stat.S_IMODE((tmp_path / "both" / "secret.toml").stat().st_mode) == 0o600
    for one in (demo, make(tmp_path / "both")):
        config = load_agent_config(one.members[0].config)
        assert config.credential == one.secret == demo.secret is not None
        assert config.secret_for_all
        assert config.raw_ntlm
        assert config.key is not None


def test_a_demo_of_before_there_were_keys_goes_on_with_its_secret(tmp_path: Path) -> None:
    made = make(tmp_path, shared_secret=True)
    made.topology_file.write_text(re.sub(r"\nkey = .*", "", made.topology_file.read_text()))
    for member in made.members:
        member.key.unlink()
        member.config.write_text(member.config.read_text().replace('key = "key.toml"\n', ""))
        member.config.write_text(member.config.read_text().replace("secret_for_all = true\n", ""))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    again = prepare(DemoOptions(tmp_path))
    assert again.secret == made.secret
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.toml")} == files
    config = load_agent_config(again.members[0].config)
    assert config.credential == made.secret
    assert config.key is None


def test_it_goes_on_as_it_was(tmp_path: Path) -> None:
    first = make(tmp_path, members=3, topology="hub-spoke", aging_s=0.5)
    edited = first.members[1].config
    edited.write_text(edited.read_text() + "workers = 2\n")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    second = prepare(DemoOptions(tmp_path))
    assert second == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.toml")} == files
    third = make(tmp_path, port_base=None, aging_s=7.0)
    assert [m.guid for m in third.members] == [m.guid for m in first.members]
    assert [m.port for m in third.members] == [m.port for m in first.members]
    config = load_agent_config(edited)
    assert (config.aging_s, config.workers) == (7.0, 2)
    assert config.dashboard_port == third.members[1].dashboard_port


def test_other_ports_keep_everything_else(tmp_path: Path) -> None:
    first = make(tmp_path)
    second = make(tmp_path)
    assert [m.port for m in second.members] != [m.port for m in first.members]
    assert [m.guid for m in second.members] == [m.guid for m in first.members]
    assert second.secret == first.secret
    assert [c.guid for c in second.set.connections] == [c.guid for c in first.set.connections]
    assert load_agent_config(second.members[0].config).port == second.members[0].port


def test_what_is_not_a_whole_demo_is_made_again(tmp_path: Path) -> None:
    first = make(tmp_path)
    (tmp_path / "a" / "root" / "file").write_text("kept")
    first.topology_file.unlink()
    second = make(tmp_path)
    assert second.set.guid != first.set.guid
    assert (tmp_path / "a" / "root" / "file").read_text() == "kept"


def test_consecutive_ports(tmp_path: Path) -> None:
    free = make(tmp_path / "x", members=1).members[0].port
    with contextlib.suppress(CommandFailed):  # the next one may be somebody else's
        demo = make(tmp_path / "y", port_base=free)
        assert [m.port for m in demo.members] == [free, free + 1]


def test_a_port_in_use_is_named(tmp_path: Path, taken: int) -> None:
    with pytest.raises(CommandFailed, match=rf"port {taken} .*RPC of member a.*--port-base"):
        make(tmp_path, port_base=taken, members=1)
    with pytest.raises(CommandFailed, match=rf"port {taken} .*dashboard of member a.*--dashboard-port"):
        make(tmp_path, dashboard_port=taken, members=1)
    assert not (tmp_path / "topology.toml").exists()


def test_a_dashboard_gives_way_to_a_port_in_use_unless_asked_for(tmp_path: Path, taken: int) -> None:
    demo = make(tmp_path, members=1)
    config = demo.members[0].config
    config.write_text(config.read_text().replace(f"port = {demo.members[0].dashboard_port}", f"port = {taken}"))
    again = prepare(DemoOptions(tmp_path))
    assert again.members[0].dashboard_port != taken
    assert load_agent_config(config).dashboard_port == again.members[0].dashboard_port


def test_ports_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="leaves no room"):
        make(tmp_path, port_base=65535)
    free = make(tmp_path / "x", members=1).members[0].port
    with pytest.raises(click.UsageError, match=f"port {free} would be"):
        make(tmp_path / "y", port_base=free, dashboard_port=free, members=1)


def test_another_demo_than_is_there(tmp_path: Path) -> None:
    make(tmp_path, members=4)
    with pytest.raises(click.UsageError, match="4 members, not 3"):
        make(tmp_path, members=3)
    with pytest.raises(click.UsageError, match="topology full-mesh, not ring"):
        make(tmp_path, topology="ring")
    make(tmp_path, members=4, topology="full-mesh")


def test_where_a_demo_is_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_directory() == Path("/state/frs/demo")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert default_directory() == Path("/home/x/.local/state/frs/demo")


@pytest.mark.parametrize(
    ("state", "connections", "ready"),
    [
        ("online", ["joined", "joined"], True),
        ("online", [], True),
        ("online", ["joined", "vvjoin"], False),
        ("seeding", ["joined"], False),
        ("stopped", [], False),
    ],
)
def test_when_a_member_is_ready(state: str, connections: list[str], ready: bool) -> None:
    entry = {"state": state, "connections": [{"state": one, "partner": "b"} for one in connections]}
    assert is_synchronised({"sets": [entry]}) is ready


def test_members_that_are_to_be_apart_are_not_waited_for() -> None:
    connections = [{"state": "joined", "partner": "b"}, {"state": "unjoined", "partner": "c"}]
    status = {"sets": [{"state": "online", "connections": connections}]}
    assert not is_synchronised(status, {"d"})
    assert is_synchronised(status, {"c"})
