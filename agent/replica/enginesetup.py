"""From the configuration of a replica set to what its engine is made of."""

from __future__ import annotations

from typing import Final, Literal

from agent.engine.context import Cxtion, EngineConfig, Limits
from agent.engine.schedule import merged
from agent.tree.identity import Identity
from agent.wire import constants as c
from agent.wire.filetime import DAY, SECOND
from agent.wire.guid import guid_text
from agent.wire.packet import NamedGuid
from config.model import AgentConfig, Connection, LocalSet, ReplicaSet

#: Types of replica sets that domain controllers have of their own (3.3.2.1.1).
OF_CONTROLLERS: Final = ("sysvol", "enterprise")


def connections_of(local: LocalSet) -> tuple[Cxtion, ...]:
    """The connections that this member has a part in and that are enabled."""
    found = []
    me = local.member.name
    for connection in local.set.connections:
        if connection.enabled and me in (connection.upstream, connection.downstream):
            other = connection.downstream if connection.upstream == me else connection.upstream
            member = local.set.members[other]
            found.append(
                Cxtion(
                    guid=connection.guid,
                    key=connection.key,
                    wire_name=guid_text(connection.guid).upper(),
                    partner=NamedGuid(member.guid, member.name),
                    inbound=connection.downstream == me,
                    priority=connection.priority,
                    schedule=_schedule(local.set, connection),
                    ignore_schedule=connection.ignore_schedule,
                    trigger=local.set.type in OF_CONTROLLERS,
                )
            )
    return tuple(found)


def _schedule(replica_set: ReplicaSet, connection: Connection) -> bytes | None:
    """The connection's schedule, merged with that of the opposite one if that says so (2.3.1.6). Domain controllers
    of one site do not look at it (3.3.2.1.1)."""
    sites = {replica_set.members[name].site for name in (connection.downstream, connection.upstream)}
    if replica_set.type in OF_CONTROLLERS and len(sites) == 1 and None not in sites:
        return None
    ends = (connection.downstream, connection.upstream)
    for opposite in replica_set.connections:
        if (opposite.upstream, opposite.downstream) == ends and opposite.enabled and opposite.two_way_sync:
            return merged(connection.schedule, opposite.schedule)
    return connection.schedule


def engine_config(
    config: AgentConfig, local: LocalSet, identity: Identity, cxtions: tuple[Cxtion, ...]
) -> EngineConfig:
    """What the engine of this set is to know."""
    compressions = [c.COMPRESSION_NONE, c.COMPRESSION_LZNT1]
    if config.compression in ("auto", "zstd"):
        compressions.append(c.COMPRESSION_ZSTD)
    return EngineConfig(
        set_name=local.name,
        member=NamedGuid(local.member.guid, local.member.name),
        originator_guid=identity.originator_guid,
        root_guid=identity.root_guid,
        cxtions=cxtions,
        primary=local.set.primary == local.member.name,
        compressions=tuple(compressions),
        limits=limits_of(config),
        others=frozenset(member.guid for member in local.set.members.values()),
    )


def limits_of(config: AgentConfig) -> Limits:
    """The times and numbers of Appendix B that can be configured."""
    tombstone_lifetime = int(config.tombstone_days * DAY)
    return Limits(
        max_clock_skew=int(config.max_clock_skew_s * SECOND),
        max_retries=config.max_retries,
        max_retry_time=int(config.max_retry_days * DAY),
        outlog_history=int(config.outbound_log_days * DAY),
        outlog_most=tombstone_lifetime,
        tombstone_lifetime=tombstone_lifetime,
        mass_deletion_count=config.mass_deletion_count,
        mass_deletion_percent=config.mass_deletion_percent,
        mass_deletion_window=int(config.mass_deletion_window_s * SECOND),
    )


def stage_compressions(chosen: Literal["none", "lznt1", "zstd", "auto"]) -> list[bytes]:
    """The compressions to stage with, best first."""
    return {
        "none": [c.COMPRESSION_NONE],
        "lznt1": [c.COMPRESSION_LZNT1],
        "zstd": [c.COMPRESSION_ZSTD, c.COMPRESSION_LZNT1],
        "auto": [c.COMPRESSION_ZSTD, c.COMPRESSION_LZNT1],
    }[chosen]
