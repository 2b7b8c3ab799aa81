"""What the configuration of a simulated member says: the set as its world has it now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.wire.filetime import SECOND
from config import model

if TYPE_CHECKING:
    from tests.simulation.simworld import World

ROOT = "/simulated"


def local_set(world: World, name: str) -> model.LocalSet:
    """The set, at the member of that name."""
    members = [m for m in world.members.values() if not m.left or m.name == name]
    here = {m.name: model.Member(m.name, m.guid, "", 0) for m in members}
    again = {m.name: m.again for m in members}
    options = dict(world.cxtion_options)
    trigger = options.pop("trigger", False)
    connections = tuple(
        model.Connection(
            world.guid_of("cxtion", up, down, *again[up], *again[down]),
            f"{up}->{down}",
            up,
            down,
            priority=world.priorities.get((up, down), 7),
            enabled=frozenset((up, down)) not in world.disabled,
            **(options | ({"schedule": bytes(84)} if {up, down} in world.shut else {})),
        )
        for up, down in world.edges
        if name in (up, down) and up in here and down in here
    )
    kind: model.ReplicaSetType = "sysvol" if trigger else "other"
    found = model.ReplicaSet("S", world.guid_of("set"), kind, here, connections, world.names[0])
    return model.LocalSet(found, here[name], Path(ROOT), Path(ROOT))


def agent_config(world: World, name: str) -> model.AgentConfig:
    """What else is configured there."""
    here = Path(ROOT)
    aging_s = world.aging / SECOND
    return model.AgentConfig(here, here, None, name, "", 0, here, (), None, aging_s=aging_s, scan_interval_s=0.0)
