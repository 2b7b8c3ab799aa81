"""The endpoint mapper of a directory server, for clients that do not know its port ([MS-MQDS] 2.1)."""

from __future__ import annotations

import logging

from agent.reporting.incidents import Incidents
from agent.rpc.epm import EndpointMapper
from agent.rpc.limits import MAPPER_LIMITS
from agent.rpc.security import CredentialStore
from agent.rpc.server import RpcServer
from config.directory import DirectoryServerConfig

log = logging.getLogger("frs")


async def start_mapper(server: RpcServer, config: DirectoryServerConfig, incidents: Incidents) -> RpcServer | None:
    """The mapper that tells where the interfaces of `server` are, if the configuration has one. One that cannot be is
    told, and not worth ending for."""
    if config.endpoint_mapper_port is None:
        return None
    endpoints = {one.id: (server.port, "Message Queuing directory") for one in server.interfaces.values()}
    interface = EndpointMapper(endpoints).interface()
    mapper = RpcServer([interface], CredentialStore(), limits=MAPPER_LIMITS, incidents=incidents)
    try:
        await mapper.start(config.listen_host, config.endpoint_mapper_port)
    except OSError as error:
        log.error(
            "20116 no endpoint mapper on %s:%d: %s; set another listen.endpoint_mapper in %s, or take it out where all "
            "clients know port %d",
            config.listen_host, config.endpoint_mapper_port, error, config.path, server.port,
        )  # fmt: skip
        return None
    log.info("endpoint mapper on %s:%d", config.listen_host, mapper.port)
    return mapper
