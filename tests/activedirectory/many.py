"""What a set of very many members costs a member that reads it from Active Directory: python -m
tests.activedirectory.many [MEMBERS]. A star around the member; a line for each step, with its processor time and what
the process holds at most by then. Without a controller: its own time comes on top.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.activedirectory import names
from agent.activedirectory.objects import Entry, answer_of
from agent.activedirectory.source import Reading
from config.load import load_agent_config, load_directory_client
from config.view import compare, view_of
from config.write import write_file
from tests.unit.activedirectory.entries import (
    SETS,
    answer,
    computer,
    computer_dn,
    connection,
    domain,
    entry,
)

T = TypeVar("T")
DOCS = f"CN=docs,{SETS}"
AGENT = """member = "A"
topology = "topology.toml"
state = "state"
keytab = "a.keytab"

[active_directory]
domain = "frs.test"
roots = ["/srv"]
"""


def measured(what: str, step: Callable[[], T]) -> T:
    """Do it, and print what it cost."""
    began = time.process_time()
    made = step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:48} {time.process_time() - began:7.2f} s  {peak:7.0f} MiB at most so far", flush=True)
    return made


def star(count: int, host: str = "{}.frs.test") -> list[Entry]:
    """One set of A and `count` others, each connected with A."""
    spokes = [f"M{number}" for number in range(count)]
    at = {name: names.child(name, DOCS) for name in ("A", *spokes)}
    found = [*domain("A"), entry(DOCS, "nTFRSReplicaSet", fRSReplicaSetType="3", fRSPrimaryMember=at["A"])]
    found += [computer(name, dNSHostName=host.format(name.lower())) for name in spokes]
    found += [entry(dn, "nTFRSMember", frsComputerReference=computer_dn(name)) for name, dn in at.items()]
    for name in spokes:
        found += [connection(at[name], at["A"]), connection(at["A"], at[name])]
    found.append(
        entry(f"CN=docs,{computer_dn('A')}", "nTFRSSubscriber", fRSMemberReference=at["A"], fRSRootPath="/srv/docs")
    )
    return found


def main(count: int) -> None:
    """Print it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "agent.toml").write_text(AGENT)
        (folder / "a.keytab").touch(0o600)
        first = measured(f"(making {count} members and {2 * count} connections)", lambda: answer(*star(count)))
        text = measured("written by the process that asks", lambda: json.dumps(first.as_json()))
        print(f"{'':48} {len(text) / 2**20:7.1f} MiB between the processes")
        read = measured("read by the agent", lambda: answer_of(json.loads(text)))
        client = load_directory_client(folder / "agent.toml")
        assert client is not None
        reading = Reading(folder / "state" / "active-directory.json")
        outcome = measured("translated, decided, remembered, as a topology", lambda: reading.take(read, client, 0.0))
        assert outcome.text is not None
        write_file(client.topology_path, outcome.text)
        print(f"{'':48} {len(outcome.text) / 2**20:7.1f} MiB topology.toml")
        view = measured("the configuration read", lambda: view_of(load_agent_config(folder / "agent.toml")))
        assert measured("read again, where nothing has changed", lambda: reading.take(read, client, 1.0)).text is None
        other = answer_of(json.loads(json.dumps(answer(*star(count, "{}.other.test")).as_json())))
        outcome = measured("read again, where all hosts have changed", lambda: reading.take(other, client, 2.0))
        write_file(client.topology_path, outcome.text or "")
        later: Any = measured("the configuration read", lambda: view_of(load_agent_config(folder / "agent.toml")))
        changes = measured("compared", lambda: compare(view, later))
        assert len(changes) >= count, len(changes)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
