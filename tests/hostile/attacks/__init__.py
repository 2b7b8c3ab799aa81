"""The attacks, by name."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.attacks import content, network, numbers, sessions, staging

ALL: tuple[type[Attack], ...] = (
    numbers.EdgeVsn,
    numbers.PoisonedVector,
    numbers.ManyOriginators,
    numbers.ReservedName,
    staging.QuotaClaim,
    staging.SendStage,
    staging.OddOffsets,
    content.Streams,
    sessions.Flood,
    sessions.FloodOneFile,
    content.Bombs,
    network.Dashboard,
    network.Connections,
    network.ConnectionsNear,
    network.Unauthenticated,
    network.AlterContext,
    network.Fragments,
    sessions.JoinStorm,
    sessions.OthersNames,
    network.Calls,
    content.SetIds,
)


def by_name(name: str) -> type[Attack]:
    """Raises KeyError where there is none."""
    return {attack.name: attack for attack in ALL}[name]
