"""From the configuration to the engine's connections."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agent.engine.context import Limits
from agent.replica.enginesetup import connections_of, limits_of
from agent.wire.filetime import DAY, SECOND
from config.model import AgentConfig, LocalSet, ReplicaSetType, Secret
from config.topology import new_replica_set

MORNING, EVENING = b"\x0f" * 84, b"\xf0" * 84


@pytest.mark.parametrize(
    ("two_way_sync", "enabled", "back"),
    [(True, True, b"\xff" * 84), (False, True, EVENING), (True, False, EVENING)],
)
def test_two_way_sync_opens_the_opposite_connection_too(two_way_sync: bool, enabled: bool, back: bytes) -> None:
    """2.3.1.6: the schedules are merged, for the connection in the opposite direction."""
    pair = new_replica_set("one", [("a", "host", 5000), ("b", "host", 5001)], "full-mesh", primary="a")
    there = next(c for c in pair.connections if c.key == "a->b")
    other = next(c for c in pair.connections if c.key == "b->a")
    there = dataclasses.replace(there, schedule=MORNING, two_way_sync=two_way_sync, enabled=enabled)
    pair = dataclasses.replace(pair, connections=(there, dataclasses.replace(other, schedule=EVENING)))
    for name in "ab":
        cxtions = connections_of(LocalSet(pair, pair.members[name], Path("root"), Path("state")))
        found = {cxtion.key: cxtion.schedule for cxtion in cxtions}
        assert found == {"b->a": back} | ({"a->b": MORNING} if enabled else {})


@pytest.mark.parametrize(
    ("kind", "sites", "schedule"),
    [
        ("sysvol", ("s1", "s1"), None),
        ("enterprise", ("s1", "s1"), None),
        ("sysvol", ("s1", "s2"), MORNING),
        ("sysvol", (None, None), MORNING),
        ("dfs", ("s1", "s1"), MORNING),
    ],
)
def test_within_a_site_domain_controllers_have_no_schedule(
    kind: ReplicaSetType, sites: tuple[str | None, str | None], schedule: bytes | None
) -> None:
    """3.3.2.1.1"""
    name = "Domain System Volume (SYSVOL share)"
    pair = new_replica_set(name, [("a", "host", 5000), ("b", "host", 5001)], "full-mesh", primary="a", set_type=kind)
    members = {m.name: dataclasses.replace(m, site=site) for m, site in zip(pair.members.values(), sites, strict=True)}
    connections = tuple(dataclasses.replace(c, schedule=MORNING) for c in pair.connections)
    pair = dataclasses.replace(pair, members=members, connections=connections)
    for cxtion in connections_of(LocalSet(pair, pair.members["a"], Path("root"), Path("state"))):
        assert cxtion.schedule == schedule
        assert cxtion.trigger == (kind != "dfs")


def test_limits_are_those_of_appendix_b_unless_configured(tmp_path: Path) -> None:
    config = AgentConfig(
        path=tmp_path,
        topology_path=tmp_path,
        secret_path=tmp_path,
        member_name="a",
        listen_host="host",
        port=5000,
        state_dir=tmp_path,
        sets=(),
        credential=Secret("FRS", "frs", "password"),
    )
    assert limits_of(config) == Limits()
    fewer = limits_of(dataclasses.replace(config, max_retries=5, max_retry_days=0.5, tombstone_days=30))
    assert (fewer.max_retries, fewer.max_retry_time) == (5, DAY // 2)
    assert (fewer.tombstone_lifetime, fewer.outlog_most, fewer.outlog_history) == (30 * DAY, 30 * DAY, 7 * DAY)
    mass = limits_of(
        dataclasses.replace(config, mass_deletion_count=7, mass_deletion_percent=0.5, mass_deletion_window_s=10)
    )
    assert (mass.mass_deletion_count, mass.mass_deletion_percent) == (7, 0.5)
    assert mass.mass_deletion_window == 10 * SECOND
