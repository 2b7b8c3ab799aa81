"""From commands to what is written in Active Directory: read back it is what was meant, and nothing else changes."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.activedirectory import names
from agent.activedirectory.objects import Entry, of_kind
from agent.activedirectory.request import Reply
from agent.activedirectory.translation import translate
from agent.activedirectory.writing import Joining, Operation, Unwritable, operations
from agent.cli import run_cli, topology_target
from agent.reporting.exit_codes import ExitCode
from config.edit import Edit, Refused
from config.errors import ConfigError
from config.model import ActiveDirectory, DirectoryClient
from config.topologyfile import parse_file
from config.write import topology_text
from tests.unit.activedirectory.entries import SETS, a_set, answer, computer_dn, connection, domain, entry, guid_of
from tests.unit.activedirectory.test_translation import changed, sysvol

DOCS = f"CN=docs,{SETS}"
A, B, C = (f"CN={name},{DOCS}" for name in "ABC")
HOSTS = domain("A", "B", "C", "D")


def carried_out(entries: list[Entry], steps: list[Operation]) -> list[Entry]:
    """The entries as they are after these steps, as a controller carries them out."""
    found = {names.normal(one.dn): one for one in entries}
    for kind, dn, said in steps:
        at = names.normal(dn)
        values = {name.lower(): base64.b64decode(one) if one is not None else None for name, one in said.items()}
        if kind == "leave":
            for one in of_kind(list(found.values()), "nTFRSSubscriber"):
                if names.normal(one.text("fRSMemberReference") or "") == at:
                    del found[names.normal(one.dn)]
        elif kind == "delete":
            assert not [one for one in found if one.endswith("," + at)], "it has others below it"
            del found[at]
        elif kind == "modify":
            (found[at],) = changed([found[at]], found[at].dn, **values)
        elif kind == "add" or at not in found:
            assert at not in found
            made = {name: (one,) for name, one in values.items() if one is not None}
            found[at] = Entry(dn, {**made, "objectguid": (guid_of(dn),)})
    return list(found.values())


def as_text(entries: list[Entry]) -> str:
    """The topology file that a member makes of these."""
    return topology_text(translate(answer(*entries), "A", "A").sets, "any")


def made(entries: list[Entry], change: Callable[[Edit], None]) -> tuple[list[Entry], list[Operation]]:
    """The entries after a change, which is checked to be all that was meant."""
    one = answer(*entries)
    edit = Edit(Path("topology.toml"), as_text(entries))
    change(edit)
    _, after = edit.result()
    steps = operations(edit.sets, after, one, {"D": Joining(computer_dn("D"), "/srv/d")})
    later = carried_out(entries, steps)
    (now,), (meant,) = parse_file(Path("topology.toml"), as_text(later)).sets, after
    told = lambda of: (of.primary, of.file_filter, of.directory_filter, of.schedule, of.flags, of.type)  # noqa: E731
    assert told(now) == told(meant)
    assert {name: (m.host, m.principal) for name, m in now.members.items()} == {
        name: (m.host, m.principal) for name, m in meant.members.items()
    }
    links = lambda of: {  # noqa: E731
        c.key: (c.priority, c.enabled, c.schedule, c.ignore_schedule, c.two_way_sync) for c in of.connections
    }
    assert links(now) == links(meant)
    return later, steps


def docs(edit: Edit) -> Any:
    return edit.chosen("docs")


CHANGES: dict[str, Callable[[Edit], None]] = {
    "primary": lambda edit: edit.set_values(docs(edit), {"primary": "B"}),
    "filters": lambda edit: edit.set_values(docs(edit), {"file_filter": ["*.x", "y"], "directory_filter": ["cache"]}),
    "no filters": lambda edit: edit.set_values(docs(edit), {"file_filter": [], "directory_filter": []}),
    "schedule of the set": lambda edit: edit.set_values(docs(edit), {"schedule": "0f" * 84}),
    "rename": lambda edit: edit.set_values(docs(edit), {"rename_open": True}),
    "schedule": lambda edit: edit.set_connection(docs(edit), "A", "B", {"schedule": "f0" * 84}),
    "priority": lambda edit: edit.set_connection(docs(edit), "A", "B", {"priority": 3, "two_way_sync": True}),
    "disabled": lambda edit: edit.set_connection(docs(edit), "A", "B", {"enabled": False}),
    "disconnected": lambda edit: edit.disconnect(docs(edit), "A", "B"),
    "a member comes": lambda edit: edit.add_member(
        docs(edit), "D", ("d.frs.test", None), ["A", "C"], principal="D$@FRS.TEST"
    ),
    "a member goes": lambda edit: edit.remove_member(docs(edit), "B", None),
    "the primary member goes": lambda edit: edit.remove_member(docs(edit), "A", "B"),
}


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "the primary member goes"])
def test_what_is_written_is_what_was_meant(name: str) -> None:
    entries = [*HOSTS, *a_set(members="ABC")]
    later, steps = made(entries, CHANGES[name])
    assert steps
    touched = {names.normal(one.dn) for one in steps}
    kept = {names.normal(one.dn): one for one in entries}
    for one in later:
        if names.normal(one.dn) in kept and names.normal(one.dn) not in touched:
            assert one == kept[names.normal(one.dn)]


def test_a_member_goes_with_all_that_leads_to_it() -> None:
    """Its connections, its subscriber, which is below a computer that is not read here, and odd objects."""
    odd = entry(f"CN=odd,{B}", "nTDSConnection", fromServer=f"CN=X,{DOCS}", enabledConnection="TRUE")
    again = entry(f"CN=again,{A}", "nTDSConnection", fromServer=B, enabledConnection="TRUE")
    later, _ = made([*HOSTS, *a_set(members="ABC"), odd, again], CHANGES["a member goes"])
    assert not [one.dn for one in later if names.is_below(one.dn, B) or one.text("fromServer") == B]
    assert f"CN=docs,CN=NTFRS Subscriptions,{computer_dn('B')}" not in {one.dn for one in later}
    assert f"CN=docs,CN=NTFRS Subscriptions,{computer_dn('C')}" in {one.dn for one in later}


def test_a_member_that_comes_has_all_that_it_needs() -> None:
    """Seen from its own computer it is in the set, at its root."""
    later, _ = made([*HOSTS, *a_set(members="ABC")], CHANGES["a member comes"])
    found = translate(answer(*later), "D", "D")
    assert not found.faults
    assert found.places[guid_of(DOCS)].root == "/srv/d"


def test_bits_that_are_not_ours_stay() -> None:
    """Bit 0 of options says that the directory made the connection itself; others of fRSFlags are of other versions."""
    entries = changed([*HOSTS, *a_set(members="ABC")], f"CN=B,{A}", options=str((7 << 28 | 1) - 0))
    entries = changed(entries, DOCS, fRSFlags="4")
    later, _ = made(entries, lambda edit: edit.set_connection(docs(edit), "B", "A", {"priority": 0}))
    later, _ = made(later, CHANGES["rename"])
    by_dn = {one.dn: one for one in later}
    assert by_dn[f"CN=B,{A}"].text("options") == "1"
    assert by_dn[DOCS].text("fRSFlags") == "5"
    later, _ = made(later, lambda edit: edit.set_values(docs(edit), {"rename_open": None}))
    assert {one.dn: one for one in later}[DOCS].text("fRSFlags") == "4"


def test_what_is_no_matter_of_these_objects_is_refused() -> None:
    entries = [*HOSTS, *a_set(members="ABC")]
    with pytest.raises(Unwritable, match="its account, stand at its computer"):
        made(entries, lambda edit: edit.set_member("B", {"host": "other.frs.test"}))
    with pytest.raises(Unwritable, match="domain controllers make the objects"):
        made(entries, lambda edit: edit.set_values(docs(edit), {"type": "sysvol"}))
    with pytest.raises(Unwritable, match="domain controllers make the objects"):
        made([*domain("A", "B"), *sysvol()], lambda edit: edit.set_values(edit.chosen(None), {"primary": "B"}))
    with pytest.raises(Refused, match="cut off"):
        made([*HOSTS, *a_set(members="AB")], CHANGES["disconnected"])


ROW = st.lists(st.sampled_from(sorted(set(CHANGES) - {"the primary member goes"})), min_size=1, max_size=5)


@given(ROW, st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_row_of_changes(row: list[str], odd: bool) -> None:
    """One after the other, also where a connection has another name than that of the member it comes from."""
    entries = [*HOSTS, *a_set(members="ABC")]
    if odd:
        entries = [one for one in entries if one.dn != f"CN=B,{A}"]
        entries.append(Entry(f"CN=by hand,{A}", connection(A, B).attributes))
    for name in row:
        try:
            entries, _ = made(entries, CHANGES[name])
        except (Refused, ConfigError):  # what would make it wrong is changed nowhere
            continue


# -- the command --


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The command reads these entries; what it asks a controller to do is kept here, and done but for the last step
    where the list has "fails" in it."""
    found: list[Any] = []
    entries = [*HOSTS, *a_set(members="ABC")]

    def read(config_file: Path) -> tuple[DirectoryClient, Any, Any]:
        there = ActiveDirectory(domain="frs.test", computer="A")
        one = answer(*entries, **({"denied": frozenset({names.normal(B)})} if "denied" in found else {}))
        if "denied" in found:
            one = answer(*(Entry(e.dn, {}) if e.dn == B else e for e in entries))
        client = DirectoryClient(there, "A", Path("topology.toml"), Path("state"), None, 300.0)
        return client, one, translate(one, "A", "A")

    async def ask(request: Any) -> Reply:
        found.append(request)
        json.dumps(dataclasses.asdict(request))  # as it goes to the process that writes
        if "ends" in found:
            return Reply(None, ("no answer in 120 s",), {})
        less = int("fails" in found)
        return Reply(None, ("dc1: modify: Insufficient access",) * less, {}, len(request.operations) - less)

    monkeypatch.setattr(topology_target, "read_directory", read)
    monkeypatch.setattr("agent.activedirectory.request.ask", ask)
    return found


def frs(folder: Path, *arguments: str) -> int:
    config = folder / "agent.toml"
    config.write_text(
        'member = "A"\ntopology = "topology.toml"\nstate = "s"\n[active_directory]\ndomain = "frs.test"\n'
    )
    return run_cli(["topology", arguments[0], "--config", str(config), *arguments[1:]])


def test_the_command_writes_at_the_server_that_it_has_read(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert frs(tmp_path, "set", "priority=2", "--connection", "A->B", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "B: set docs: the connection A->B: priority 0 becomes 2" in said
    assert f"dc1: modify CN=A,{B}" in said
    assert "nothing was changed in Active Directory, the domain frs.test" in said
    assert asked == []
    assert frs(tmp_path, "set", "priority=2", "--connection", "A->B") == 0
    (request,) = asked
    assert request.servers == ("dc1",)
    assert [(one.kind, one.dn) for one in request.operations] == [("modify", f"CN=A,{B}")]
    assert "changed Active Directory, the domain frs.test, at dc1" in capsys.readouterr().out


def test_the_command_adds_a_member_by_its_computer(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert frs(tmp_path, "add-member", "D", "--root", "/srv/d", "--partner", "A") == 0
    (request,) = asked
    values: Mapping[str, str] = request.operations[0].values
    assert base64.b64decode(values["frsComputerReference"]).decode() == computer_dn("D")
    wrong = {
        ("--root", "/srv/d", "--address", "d:1"): "--address stands at the computer",
        (): "--root DIR is needed",
        ("--root", "/srv/d", "--key", "x"): "known by its computer's account",
    }
    for arguments, said in wrong.items():
        assert frs(tmp_path, "add-member", "D", *arguments) == ExitCode.USAGE
        assert said in capsys.readouterr().err


def test_the_command_says_what_was_done_where_not_all_could_be(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked.append("fails")
    assert frs(tmp_path, "disconnect", "A", "B") == ExitCode.NEGATIVE
    said = capsys.readouterr().err
    assert "Insufficient access" in said
    assert f"Before that was done: delete CN=A,{B}. " in said
    assert "name one that may by `user`" in said
    assert frs(tmp_path, "set", "priority=2", "--connection", "A->B") == ExitCode.NEGATIVE
    assert "Before that was done: nothing." in capsys.readouterr().err
    asked.append("ends")
    assert frs(tmp_path, "disconnect", "A", "B") == ExitCode.NEGATIVE
    assert "What was done `frs ad check` shows." in capsys.readouterr().err


def test_nothing_is_written_of_what_may_not_all_be_read(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked.append("denied")
    assert frs(tmp_path, "set", "priority=2", "--connection", "A->C") == ExitCode.NEGATIVE
    assert "not all of it may be read" in capsys.readouterr().err
    assert asked == ["denied"]
