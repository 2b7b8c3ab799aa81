"""The objects that a directory begins with, and those of further servers."""

from __future__ import annotations

from agent.directory.objects.table import SERVICE_PEC, SERVICE_PSC
from agent.directory.objects.values import Value
from agent.directory.replication.messages import CREATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Me
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore
from config.directory import DirectoryServerConfig
from config.keys import public_key


def site_of(site: bytes, name: str, psc: str, host: str, port: int, key: bytes) -> DirectoryChange:
    """A site whose owner listens there."""
    properties: tuple[tuple[int, Value], ...] = (
        (302, site), (301, name), (304, psc), (1350, host), (1351, port), (1352, key),
    )  # fmt: skip
    return DirectoryChange(CREATE, None, ENTERPRISE_PARTITION, 0, 0, 0, properties)


def machine_of(
    machine: bytes, site: bytes, name: str, service: int, host: str, port: int, key: bytes
) -> DirectoryChange:
    """A server of a site."""
    properties: tuple[tuple[int, Value], ...] = (
        (202, machine), (203, name), (201, site), (210, service), (1250, host), (1251, port), (1252, key),
    )  # fmt: skip
    return DirectoryChange(CREATE, None, site, 0, 0, 0, properties)


def make_directory(config: DirectoryServerConfig, enterprise: str, site: str, host: str, port: int) -> None:
    """The database of the first server of all, which others reach at that address; or, for a server that has an
    upstream, an empty one. Raises DirectoryStoreError, OSError."""
    store = DirectoryStore(config.database)
    try:
        upstream = config.upstream
        with store.transaction():
            store.set_setting("enterprise", config.enterprise.hex())
            me = Me(config.name, config.machine, config.site, upstream.name if upstream is not None else "")
            rules = Replicator(me, store, 0)
            if upstream is None:
                key = public_key(config.key)
                named: tuple[tuple[int, Value], ...] = (
                    (609, config.enterprise), (601, enterprise), (604, config.name),
                )  # fmt: skip
                for change in (
                    DirectoryChange(CREATE, None, ENTERPRISE_PARTITION, 0, 0, 0, named),
                    site_of(config.site, site, config.name, host, port, key),
                ):
                    rules.change(ENTERPRISE_PARTITION, change)
                service = SERVICE_PEC | SERVICE_PSC
                machine = machine_of(config.machine, config.site, config.name, service, host, port, key)
                rules.change(config.site, machine)
    finally:
        store.close()
