"""Members whose topology comes from a real Active Directory: objects by `frs ad ldif`, Kerberos from keytabs, changes
that arrive, and a directory that is away, or hides things."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from config.load import load_topology
from tests.activedirectory.fleet import SETS, DomainMember, Fleet, a_set, until

DOCS = f"CN=docs,{SETS}"
#: All rights on an object, and on what is below it, are denied to the computers of the domain.
DENIED = "(D;CI;GA;;;DC)"
#: They may not list what is below it.
UNLISTED = "(D;;LC;;;DC)"


@contextlib.contextmanager
def running(*members: DomainMember) -> Iterator[None]:
    with contextlib.ExitStack() as started:
        for member in members:
            started.callback(member.stop)
            member.start()
        yield


def arrives(name: str, source: Path, *targets: Path) -> None:
    """A new file in one root comes to the others."""
    (source / name).write_text(name)
    until(lambda: all((target / name).exists() for target in targets))


def sets_of(member: DomainMember) -> dict[str, list[str]]:
    """The connections of each set that it runs."""
    return {one["name"]: sorted(c["name"] for c in one["connections"]) for one in member.status().get("sets", [])}


def test_members_get_everything_from_it(fleet: Fleet, tmp_path: Path) -> None:
    """Two sets by `frs ad ldif`; a member begins with nothing but its keytab, and a second set arrives after "poll
    now". Then the directory is away, and hides half of the objects of a set: nothing changes, the status says why, and
    files go on."""
    dc = fleet.controller
    one, two = fleet.members(tmp_path, "FS1", "FS2", poll_interval="1", more="short_interval = 3600")
    roots = {name: (one.root(name), two.root(name)) for name in ("docs", "plans")}
    fleet.import_set(a_set("docs", ("FS1", "FS2")), tmp_path)
    said = one.asked("ad", "check")
    assert "connection FS1->FS2: enabled, priority 7" in said
    assert "nothing is wrong" in said
    with running(one, two):
        until(lambda: len(one.joined()) == 2 and len(two.joined()) == 2, two.log)
        arrives("from one", *roots["docs"])
        arrives("from two", *reversed(roots["docs"]))
        called = {each["name"]: each["called_by"] for each in one.status()["partners"]}
        assert called == {"FS2": "Kerberos"}

        # a second set
        fleet.import_set(a_set("plans", ("FS1", "FS2")), tmp_path)
        for member in (one, two):
            member.poll()
        arrives("plan", *roots["plans"])
        exported = tmp_path / "exported.toml"
        exported.write_text(one.asked("ad", "export"))
        assert load_topology(exported) == load_topology(one.folder / "topology.toml")

        # away: whoever asks is told so, and files go on
        dc.stop()
        assert "dc1.frs.test: cannot bind" in one.poll()["active_directory_problem"]
        arrives("while it was away", *roots["docs"])
        dc.start()
        one.poll()
        assert one.directory()["problem"] == ""

        # half of the objects may not be read, or are not shown at all, as if they were gone
        before = sets_of(one)
        for hidden, ace in ((f"CN=FS2,{DOCS}", DENIED), (f"CN=FS1,{DOCS}", UNLISTED)):
            with dc.denies(hidden, ace):
                for _ in range(2):
                    one.poll()
                    assert "not all of it may be read" in one.directory()["problem"]
                assert sets_of(one) == before
                assert "may not" in one.asked("ad", "check", expect=1)
                arrives(f"while it was hidden from {ace}", *roots["docs"])
        one.poll()
        assert one.directory()["problem"] == ""
