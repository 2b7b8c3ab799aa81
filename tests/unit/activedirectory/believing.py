"""What a member makes of answers, one after the other."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from agent.activedirectory.deciding import Deciding, Decision, Disbelieved, Memory, memory_of
from agent.activedirectory.objects import Answer, Entry
from agent.activedirectory.translation import translate
from config.model import Topology
from tests.unit.activedirectory.entries import SETS, a_set, answer, computer_dn, domain

DOCS = f"CN=docs,{SETS}"
A, B = f"CN=A,{DOCS}", f"CN=B,{DOCS}"
#: The subscriber of A to the set docs.
OWN_BOX = f"CN=docs,CN=NTFRS Subscriptions,{computer_dn('A')}"
INTERVAL = 300.0
HOSTS = domain("A", "B", "C")
PLANS = a_set("plans", "AC")


class Member:
    """What a member A makes of answers."""

    def __init__(self) -> None:
        self.deciding = Deciding(Memory())
        self.topology = Topology((), 0)
        self.kept: tuple[str, ...] = ()

    def reads(self, entries: list[Entry], now: float, confirmed: Collection[bytes] = (), **values: object) -> Decision:
        return self.takes(answer(*entries, **values), now, confirmed)

    def takes(self, one: Answer, now: float, confirmed: Collection[bytes] = ()) -> Decision:
        found = translate(one, "A", "A")
        roots = {guid: Path(place.root) for guid, place in found.places.items()}
        try:
            decision = self.deciding.take(one, found, roots, self.topology, now, INTERVAL, confirmed)
        except Disbelieved:
            self.deciding.failed()  # there is no other controller
            raise
        self.topology, self.kept = Topology(decision.sets, 1, decision.roots), decision.kept
        self.deciding = (
            Deciding(memory_of(json.loads(json.dumps(self.deciding.memory.as_json()))))
            if (not self.deciding.vanished)
            else self.deciding
        )  # as after a restart
        return decision

    @property
    def has(self) -> dict[str, list[str]]:
        return {one.name: [connection.key for connection in one.connections] for one in self.topology.sets}
