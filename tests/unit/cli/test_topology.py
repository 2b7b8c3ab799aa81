"""`frs topology`: the file is changed as a person would change it, and never so that a member is cut off."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli import run_cli
from agent.reporting.exit_codes import ExitCode
from config.edit import Edit, Refused
from config.errors import ConfigError
from config.model import ReplicaSet
from config.topology import cut_off
from config.topologyfile import load_topology, read_topology
from config.view import compare, whole
from tests.unit.config.member_files import TOPOLOGY, write

WORDY = (
    "# who replicates with whom\n\n"
    + TOPOLOGY.replace('name = "b"', 'name   =   "b"   # the second').replace("priority = 2", "priority = 2  # later")
    + "\n# the end\n"
)


def frs(folder: Path, *arguments: str) -> int:
    return run_cli(["topology", arguments[0], "--config", str(folder / "agent.toml"), *arguments[1:]])


def docs(folder: Path) -> ReplicaSet:
    (found,) = load_topology(folder / "topology.toml")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, topology=WORDY)
    return tmp_path


def kept_lines(folder: Path) -> bool:
    """Every line that was written by hand stands there still, in the same order."""
    now = iter((folder / "topology.toml").read_text().splitlines())
    return all(line in now for line in WORDY.splitlines())


def test_a_member_is_added_and_connected_with_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = docs(folder)
    assert frs(folder, "add-member", "c", "--address", "host-c:5003") == 0
    after = docs(folder)
    assert kept_lines(folder)
    assert (after.members["c"].host, after.members["c"].port) == ("host-c", 5003)
    assert {c.key for c in after.connections} == {"a->b", "b->a", "a->c", "c->a", "b->c", "c->b"}
    changes = compare(whole([before]), whole([after]))
    assert {(change.key.kind, change.before) for change in changes} == {("member", None), ("connection", None)}
    told = capsys.readouterr().out
    assert "c: becomes a member of the set docs" in told
    assert "b: set docs: the connection b->c is new" in told
    assert "a: set docs: the connection b->c" not in told
    assert read_topology(folder / "topology.toml").serial == 1
    assert frs(folder, "add-member", "d", "--address", "[::1]:5004", "--partner", "a") == 0
    assert {c.key for c in docs(folder).connections if "d" in c.key} == {"a->d", "d->a"}
    assert read_topology(folder / "topology.toml").serial == 2


def test_a_member_is_removed_and_added_again(folder: Path) -> None:
    text = (folder / "topology.toml").read_text()
    assert frs(folder, "add-member", "c", "--address", "host-c:5003") == 0
    assert frs(folder, "remove-member", "c") == 0
    assert docs(folder) == load_topology(write_text(folder / "before.toml", text))[0]
    assert kept_lines(folder)


def write_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_primary_member_is_removed_only_for_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "topology.toml").read_text()
    assert frs(folder, "remove-member", "a") == ExitCode.USAGE
    assert "name another with --primary" in capsys.readouterr().err
    assert frs(folder, "remove-member", "a", "--primary", "z") == ExitCode.USAGE
    assert (folder / "topology.toml").read_text() == text
    assert frs(folder, "remove-member", "a", "--primary", "b") == 0
    assert (docs(folder).primary, list(docs(folder).members)) == ("b", ["b"])
    assert frs(folder, "remove-member", "b") == ExitCode.USAGE
    assert "the last member" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("disconnect", "a", "b"),
        ("disconnect", "a", "b", "--one-way"),
        ("set", "enabled=false", "--connection", "b->a"),
        ("set", "schedule=" + "0" * 168, "--connection", "a->b"),
        ("set", "schedule=" + "0" * 168),
        ("set", "primary=z"),
        ("set", "priority=8", "--connection", "a->b"),
        ("set", "schedule=00"),
        ("set", "address=:1", "--member", "b"),
        ("set", "address=x:1", "--member", "z"),
        ("set", "root=x"),
        ("set", "enabled=maybe", "--connection", "a->b"),
        ("connect", "a", "b"),
        ("connect", "a", "z"),
        ("add-member", "b", "--address", "x:1"),
        ("add-member", "c", "--address", "host-b:5002"),
        ("add-member", "c", "--address", "x:1", "--partner", "z"),
        ("set", "primary=a"),
    ],
)
def test_what_would_do_harm_is_refused_and_nothing_is_changed(
    folder: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "topology.toml").read_text()
    assert frs(folder, *arguments) == ExitCode.USAGE
    assert capsys.readouterr().err
    assert (folder / "topology.toml").read_text() == text


def test_who_would_be_cut_off_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frs(folder, "add-member", "c", "--address", "host-c:5003", "--partner", "b") == 0
    assert frs(folder, "disconnect", "a", "b") == ExitCode.USAGE
    assert "b, c would be cut off from a" in capsys.readouterr().err
    assert frs(folder, "remove-member", "b") == ExitCode.USAGE
    assert frs(folder, "connect", "a", "c") == 0
    assert frs(folder, "disconnect", "a", "b") == 0
    assert cut_off(docs(folder)) == []


def test_a_dry_run_says_what_would_happen_and_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "topology.toml").read_text()
    assert frs(folder, "set", "priority=1", "schedule=" + "f" * 168, "--connection", "a->b", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "a: set docs: the connection a->b: priority 7 becomes 1, another schedule",
        "b: set docs: the connection a->b: priority 7 becomes 1, another schedule",
    ]
    assert (folder / "topology.toml").read_text() == text


def test_values_are_set_and_set_back(folder: Path) -> None:
    before = docs(folder)
    assert frs(folder, "set", "file_filter=*.tmp, ~*", "directory_filter=build", "primary=b", "type=dfs") == 0
    after = docs(folder)
    assert (after.file_filter, after.directory_filter, after.primary) == (("*.tmp", "~*"), ("build",), "b")
    assert frs(folder, "set", "file_filter=", "directory_filter=", "primary=a", "type=") == 0
    assert docs(folder) == before
    assert frs(folder, "set", "priority=", "two_way_sync=true", "--connection", "b->a") == 0
    (connection,) = [c for c in docs(folder).connections if c.key == "b->a"]
    assert (connection.priority, connection.two_way_sync) == (7, True)
    assert frs(folder, "set", "address=[::1]:99", "--member", "b") == 0
    assert (docs(folder).members["b"].host, docs(folder).members["b"].port) == ("::1", 99)
    assert "# the second" in (folder / "topology.toml").read_text()


def test_a_connection_that_is_disabled_is_enabled(folder: Path) -> None:
    assert frs(folder, "add-member", "c", "--address", "host-c:5003") == 0
    assert frs(folder, "set", "enabled=false", "--connection", "a->c") == 0
    assert frs(folder, "connect", "a", "c", "--one-way") == 0
    assert all(c.enabled for c in docs(folder).connections)


def test_the_set_is_chosen_where_there_are_several(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = TOPOLOGY.replace('"docs"', '"more"').replace("11111111", "22222222")
    (folder / "topology.toml").write_text(WORDY + more)
    assert frs(folder, "set", "primary=b") == ExitCode.USAGE
    assert "choose one with --set" in capsys.readouterr().err
    assert frs(folder, "set", "primary=b", "--set", "more") == 0
    assert [one.primary for one in load_topology(folder / "topology.toml")] == ["a", "b"]
    assert frs(folder, "set", "primary=b", "--set", "no") == ExitCode.USAGE
    assert frs(folder, "set", "address=new:5002", "--member", "b") == 0
    assert [one.members["b"].host for one in load_topology(folder / "topology.toml")] == ["new", "new"]


def test_shown_and_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frs(folder, "show") == 0
    assert "a->b: priority 7" in capsys.readouterr().out
    assert frs(folder, "show", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["sets"]
    assert [member["name"] for member in one["members"]] == ["a", "b"]
    assert frs(folder, "check") == 0
    (folder / "topology.toml").write_text(TOPOLOGY.replace("[[set.connection]]", "[[set.connection]]\nenabled = false"))
    assert frs(folder, "check") == ExitCode.NEGATIVE
    assert "b is cut off from a" in capsys.readouterr().out
    (folder / "topology.toml").write_text("[[set]]")
    assert frs(folder, "check") == ExitCode.USAGE
    assert frs(folder, "set", "primary=b") == ExitCode.USAGE
    assert run_cli(["topology", "check", "--file", str(folder / "none.toml")]) == ExitCode.USAGE


def test_what_comes_from_active_directory_is_never_changed_in_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is written anew from there, so that no change of it would last. It can be shown and checked."""
    config, text = folder / "agent.toml", (folder / "topology.toml").read_text()
    config.write_text(config.read_text() + '\n[active_directory]\ndomain = "example.org"\n')
    for command in (("set", "primary=b"), ("remove-member", "b"), ("set", "primary=b", "--dry-run")):
        assert frs(folder, *command) == ExitCode.USAGE
        assert "active_directory: needs the keytab of this member's account" in capsys.readouterr().err
    assert (folder / "topology.toml").read_text() == text
    assert frs(folder, "show") == 0
    assert frs(folder, "check") == 0


def test_a_member_of_a_realm_is_added_with_its_principal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And keeps it where it comes into another set, too."""
    assert frs(folder, "add-member", "c", "--address", "host-c:5003", "--principal", "C$@EXAMPLE.ORG") == 0
    assert docs(folder).members["c"].principal == "C$@EXAMPLE.ORG"
    assert frs(folder, "set", "principal=B$@EXAMPLE.ORG", "--member", "b") == 0
    assert docs(folder).members["b"].principal == "B$@EXAMPLE.ORG"
    text = (folder / "topology.toml").read_text()
    for wrong in ("C$@EXAMPLE.ORG", "nobody"):
        assert frs(folder, "add-member", "d", "--address", "host-d:5004", "--principal", wrong) == ExitCode.USAGE
        assert "principal" in capsys.readouterr().err
    assert (folder / "topology.toml").read_text() == text
    assert frs(folder, "set", "principal=", "--member", "b") == 0
    assert docs(folder).members["b"].principal is None
    assert frs(folder, "add-member", "d", "--root", "/srv", "--address", "host-d:5004") == ExitCode.USAGE
    assert frs(folder, "add-member", "d") == ExitCode.USAGE
    text = (folder / "topology.toml").read_text()
    other = WORDY.replace("11111111", "22222222").replace('name = "docs"', 'name = "plans"')
    (folder / "topology.toml").write_text(f"{text}\n{other}")
    assert frs(folder, "add-member", "c", "--set", "plans", "--address", "host-c:5003") == 0
    _, plans = load_topology(folder / "topology.toml")
    assert plans.members["c"].principal == "C$@EXAMPLE.ORG"


def test_links_and_modes_stay(folder: Path) -> None:
    real = folder / "real.toml"
    (folder / "topology.toml").rename(real)
    (folder / "topology.toml").symlink_to(real)
    real.chmod(0o640)
    assert frs(folder, "set", "primary=b") == 0
    assert (folder / "topology.toml").is_symlink()
    assert stat.S_IMODE(os.stat(real).st_mode) == 0o640


NAMES = st.sampled_from("abcd")
CHANGES = st.one_of(
    st.tuples(st.just("add"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("connect"), NAMES, NAMES, st.integers(0, 7)),
    st.tuples(st.just("disconnect"), NAMES, NAMES),
    st.tuples(st.just("primary"), NAMES),
    st.tuples(st.just("filter"), st.lists(st.sampled_from(["*.tmp", "~*", 'q"t'])).map(tuple)),
)


@settings(max_examples=60)
@given(st.lists(CHANGES, max_size=12))
def test_no_row_of_changes_cuts_anybody_off_or_loses_a_comment(folder: Path, row: list[tuple[object, ...]]) -> None:
    """Against a model: what is in the file afterwards is what each change was to do, and nothing else."""
    path = folder / "topology.toml"
    path.write_text(WORDY.replace("# the second", "").replace("  # later", ""))
    serial = 0
    for kind, *rest in row:
        edit = Edit(path)
        (one,) = edit.sets
        try:
            match kind:
                case "add":
                    edit.add_member(one, str(rest[0]), (f"host-{rest[0]}", 6000), list(one.members))
                case "remove":
                    other = next((name for name in one.members if name != rest[0]), None)
                    edit.remove_member(one, str(rest[0]), other if one.primary == rest[0] else None)
                case "connect":
                    edit.connect(one, str(rest[0]), str(rest[1]), {"priority": rest[2]})
                case "disconnect":
                    edit.disconnect(one, str(rest[0]), str(rest[1]))
                case "primary":
                    edit.set_values(one, {"primary": rest[0]})
                case _:
                    edit.set_values(one, {"file_filter": list(rest[0])})  # type: ignore[call-overload]
            text, (after,) = edit.result()
        except (Refused, ConfigError):
            continue
        path.write_text(text)
        serial += 1
        assert read_topology(path).serial == serial
        assert load_topology(path) == (after,)
        assert cut_off(after) == []
        members, pairs = set(one.members), {c.key for c in one.connections}
        match kind:
            case "add":
                pairs |= {key for name in members for key in (f"{name}->{rest[0]}", f"{rest[0]}->{name}")}
                members.add(str(rest[0]))
            case "remove":
                members.remove(str(rest[0]))
                pairs = {key for key in pairs if rest[0] not in key.split("->")}
            case "connect":
                pairs.add(f"{rest[0]}->{rest[1]}")
            case "disconnect":
                pairs.remove(f"{rest[0]}->{rest[1]}")
            case "filter":
                assert after.file_filter == rest[0]
        assert (set(after.members), {c.key for c in after.connections}) == (members, pairs)
    assert path.read_text().startswith(("# who replicates with whom", "serial", "# who"))
    assert "# who replicates with whom" in path.read_text()
