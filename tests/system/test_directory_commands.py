"""The commands of a directory, as an administrator calls them: what they say, and what they leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.directory.store.store import DirectoryStore
from config.credentials import load_key
from config.keys import decode_public_key, key_text, new_key, public_key
from config.model import Connection
from config.topology import new_guid, new_replica_set
from config.write import topology_text
from tests.directory.processes import Process, frs, run, until
from tests.ports import free_ports

pytestmark = pytest.mark.slow


def key() -> str:
    return key_text(public_key(new_key()))


def init(server: Process, name: str, port: int, *more: str, code: int = 0) -> str:
    return frs(
        "directory", "init", "--name", name, "--state", str(server.state), "--listen", f"127.0.0.1:{port}", "--config",
        str(server.config), *more, code=code,
    )  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    with contextlib.ExitStack() as stack:
        made = Process(tmp_path / "dir1", "directory.toml", "directory", "run")
        init(made, "dir1", free_ports()[0])
        made.start()
        stack.callback(made.stop)
        yield made


def asked(server: Process, *words: str, code: int = 0) -> str:
    return frs("directory", *words, "--config", str(server.config), code=code)


def a_topology(members: int, connections: int) -> str:
    made = new_replica_set("docs", [(f"m{n}", "127.0.0.1", 1000 + n) for n in range(members)], "hub-spoke")
    there = {name: dataclasses.replace(one, key=public_key(new_key())) for name, one in made.members.items()}
    pairs = ((f"m{up}", f"m{down}") for up in range(members) for down in range(members) if up != down)
    cxtions = tuple(
        Connection(new_guid(), f"{up}->{down}", up, down) for (up, down), _ in zip(pairs, range(connections))
    )
    return topology_text([dataclasses.replace(made, members=MappingProxyType(there), connections=cxtions)], "Wanted.")


def test_a_topology_of_any_size_is_taken_over(server: Process, tmp_path: Path) -> None:
    """A request is larger than 64 KiB from some twenty members in a mesh on; `frs topology` has it twice."""
    (tmp_path / "wanted.toml").write_text(a_topology(60, 1800))
    assert (tmp_path / "wanted.toml").stat().st_size > 2 * (64 << 10)
    assert "1861 changes" in asked(server, "import", str(tmp_path / "wanted.toml"))
    frs("topology", "set", "--member", "m7", "address=127.0.0.1:999", "--config", str(server.config))
    assert "127.0.0.1" in asked(server, "export")
    assert "port = 999" in asked(server, "export")


def test_a_change_of_the_topology_that_is_refused_is_told(server: Process, tmp_path: Path) -> None:
    """The owner takes none while it is disputed: another server has numbers that it never gave."""
    (tmp_path / "wanted.toml").write_text(a_topology(3, 6))
    asked(server, "import", str(tmp_path / "wanted.toml"))
    server.stop()
    store = DirectoryStore(server.state / "directory.db")
    with store.transaction():
        for partition in store.partitions():
            partition.disputed = True
            store.put_partition(partition)
    store.close()
    server.start()
    changing = ("topology", "set", "--member", "m1", "address=127.0.0.1:999", "--config", str(server.config))
    assert "No change is taken here until an administrator decides" in frs(*changing, code=2)


def test_a_join_that_fails_leaves_the_topology_that_was_there(server: Process, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "topology.toml").write_text("# somebody's own\n")
    said = init_of_host(server, host, code=4)
    key = re.search(r"with the key (\S+)\?", said)
    assert key is not None
    made = new_replica_set("docs", [("a", "127.0.0.1", 1000), ("b", "127.0.0.1", 1001)], "full-mesh")
    keys = {"a": decode_public_key(key[1]), "b": public_key(new_key())}
    there = {name: dataclasses.replace(one, key=keys[name]) for name, one in made.members.items()}
    text = topology_text([dataclasses.replace(made, members=MappingProxyType(there))], "Wanted.")
    (tmp_path / "wanted.toml").write_text(text)
    asked(server, "import", str(tmp_path / "wanted.toml"))
    impossible = ("--listen", "no host:1"), ("--config", str(host / ("n" * 250 + ".toml")))
    for one in impossible:  # a configuration that none may be, and a file that none may be
        said = init_of_host(server, host, *one, code=2)
        assert (host / "topology.toml").read_text() == "# somebody's own\n", said
    assert not (host / "agent.toml").exists()
    init_of_host(server, host)
    assert "docs" in (host / "topology.toml").read_text()


def init_of_host(server: Process, host: Path, *more: str, code: int = 0) -> str:
    port = tomllib.loads(server.config.read_text())["listen"]["port"]
    own = load_key(server.folder / "key.toml")
    (host / "root").mkdir(exist_ok=True)
    return frs(
        "join", "--member", "a", "--root", str(host / "root"), "--state", str(host / "state"), "--server",
        f"127.0.0.1:{port}", "--server-key", key_text(public_key(own)), "--config",
        str(host / "agent.toml"), *more, code=code,
    )  # fmt: skip


def test_a_directory_without_a_topology_says_how_it_gets_one(server: Process) -> None:
    assert "`frs directory import FILE`" in frs("topology", "show", "--config", str(server.config), code=1)


def test_a_further_server_is_made_as_the_help_tells_it(server: Process, tmp_path: Path) -> None:
    further, port = Process(tmp_path / "dir2", "directory.toml", "directory", "run"), free_ports()[0]
    said = init(further, "dir2", port, "--key-only")
    assert not further.config.exists()
    assert not list(further.state.glob("*"))
    command = re.search(r"frs directory (add-server .*)", said)
    assert command is not None
    joining = asked(server, *command[1].split(), "--site", "west").strip()
    other = Process(tmp_path / "dir3", "directory.toml", "directory", "run")
    assert "printed for the server dir2" in init(other, "dir3", port, "--joining", joining, code=2)
    assert "printed for another key" in init(other, "dir2", port, "--joining", joining, code=2)
    assert not other.config.exists()
    init(further, "dir2", port, "--joining", joining)
    with contextlib.ExitStack() as stack:
        further.start()
        stack.callback(further.stop)
        words = ("directory", "status", "--config", str(further.config))
        until("dir2 has all of the enterprise", lambda: run(*words).returncode == 0, further, server)
        assert json.loads(asked(further, "status", "--json"))["name"] == "dir2"
        assert "site west" in asked(server, "status")
        assert "there is a server dir2" in asked(
            server, "add-server", "--name", "dir2", "--address", "127.0.0.1:9", "--key", key(), code=2
        )
        assert "there are: dir2" in asked(server, "resign", "--owner", "dir-2", code=2)
        assert "there is no server dir9" in asked(server, "remove-server", "dir9", code=2)


@pytest.mark.parametrize("name", ["", "a/b", "ü", "x" * 64])
@pytest.mark.parametrize("option", ["--name", "--site", "--enterprise", "--administrator"])
def test_a_name_that_cannot_be_leaves_nothing_behind(tmp_path: Path, option: str, name: str) -> None:
    made = Process(tmp_path / "dir1", "directory.toml", "directory", "run")
    assert f"{option}': must be 1 to 63 letters" in init(made, "dir1", 9, option, name, code=2)
    assert not made.config.parent.exists() or not list(made.config.parent.iterdir())


@pytest.mark.parametrize("address", ["", ":5", "a:0", "a b:5", f"{'h' * 64}:5", "h:65536"])
def test_an_address_that_cannot_be_leaves_nothing_behind(tmp_path: Path, address: str) -> None:
    made = Process(tmp_path / "dir1", "directory.toml", "directory", "run")
    assert f"{address!r} is not HOST:PORT" in init(made, "dir1", 9, "--address", address, code=2)
    assert not made.config.parent.exists() or not list(made.config.parent.iterdir())


def test_an_interface_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    made = Process(tmp_path / "dir1", "directory.toml", "directory", "run")
    said = init(made, "dir1", 9, "--interface", "nosuch0", code=2)
    assert "there is no interface nosuch0; there are: " in said


def test_the_configuration_of_another_kind_is_told_from_this_one(server: Process, tmp_path: Path) -> None:
    agent = tmp_path / "agent.toml"
    agent.write_text('member = "a"\ntopology = "topology.toml"\nstate = "state"\n')
    assert "names the directory.toml" in frs("directory", "status", "--config", str(agent), code=2)
    for command in ("status", "counters"):
        assert "names the agent.toml" in frs(command, "--config", str(server.config), code=2)


def test_why_a_server_does_not_answer_is_told(server: Process) -> None:
    if os.geteuid() == 0:
        socket = server.state / "control.sock"
        socket.rename(socket.with_name("elsewhere"))
        said = asked(server, "status", code=3)
        socket.with_name("elsewhere").rename(socket)
    else:
        server.state.chmod(0)
        said = asked(server, "status", code=3)
        server.state.chmod(0o700)
        assert "Permission denied" in said
        return
    assert "no directory server is running" in said
    assert "`frs directory run --config" in said
