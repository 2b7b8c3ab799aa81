"""The agent: wires replica sets, partners, the RPC server, the control socket, samples and the dashboard together,
and starts and stops all of it in order.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import socket
import traceback
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from agent.activedirectory.source import ActiveDirectorySource
from agent.counters.archiver import Archiver, archive_options
from agent.counters.copier import Copier
from agent.counters.instances import Origin, instances
from agent.counters.registry import Counters, Snapshot
from agent.counters.samples import SAMPLES_FOLDER, SampleWriter
from agent.directory.access.reading import DirectoryReader
from agent.directory.notification.interface import notify_interface
from agent.edge.partners import PartnerAddresses
from agent.ntfrsapi.access import Access
from agent.ntfrsapi.interface import ntfrsapi_interface
from agent.ntfrsapi.polling import POLLING_NAME, Polling
from agent.partners.identities import Identities
from agent.reporting.causes import Cause
from agent.reporting.events import led, numbered
from agent.reporting.exit_codes import ExitCode
from agent.reporting.health import problems
from agent.reporting.incidents import Incidents
from agent.rpc.epm import EndpointMapper
from agent.rpc.frsrpc import frsrpc_interface
from agent.rpc.limits import MAPPER_LIMITS
from agent.rpc.security import CredentialStore
from agent.rpc.server import Hooks, Limits, RpcServer
from agent.service.administration import Administration
from agent.service.commands import Commands
from agent.service.control import ControlServer
from agent.service.directory import Directory
from agent.service.partnerlinks import PartnerLinks
from agent.service.receiving import Receiving
from agent.service.sets import Sets
from agent.service.shown import Shown, tls_of
from agent.service.states import States
from agent.tree.identity import ReplicaError
from agent.work import descriptors
from agent.work.clock import filetime_now, iso_time
from agent.work.supervise import Supervisor
from config.errors import ConfigError
from config.files import FileSource
from config.model import AgentConfig
from idtable.errors import StoreError
from staging.errors import StagingError

log = logging.getLogger("frs")

WAIT_POLL_S: Final = 0.05


async def run_agent(
    config: AgentConfig,
    incidents: Incidents,
    reload: asyncio.Event,
    beside: Callable[[], dict[str, Any]] | None = None,
) -> int:
    """Run one member until cancelled; returns an exit code when it cannot go on. Cancelling is its clean stop. Whenever
    `reload` is set the configuration is read at once. `beside` gives the status of a directory server beside it."""
    service = Service(config, incidents, reload, beside)
    try:
        try:
            await service.start()
        except (ReplicaError, StoreError, StagingError, OSError) as error:
            log.error("%s", led("cannot start: ", numbered(str(error), 20101)))
            return ExitCode.FAILURE
        log.info("member %s is running, RPC on %s:%d", config.member_name, config.listen_host, service.port)
        await asyncio.Event().wait()
        return ExitCode.OK
    finally:
        await service.close()


class Service:
    """Everything that runs in one `frs run` process."""

    def __init__(
        self,
        config: AgentConfig,
        incidents: Incidents | None = None,
        reload: asyncio.Event | None = None,
        beside: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self.config = config
        self.port = config.port
        self._beside = beside
        self.counters = Counters()
        self.incidents = incidents if incidents is not None else Incidents(log)
        self.started = filetime_now()
        self.partners = PartnerLinks(self)
        self.identities = Identities(config)
        self.sets = Sets(self)
        self.states = States(self)
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._supervisor = Supervisor(self.sets.part_failed)
        self._samples: SampleWriter | None = None
        store, folder = config.samples_store, config.state_dir / SAMPLES_FOLDER
        self._copier = Copier(folder, store) if store is not None else None
        self._instances = instances(config.sets)  # those that are no more, too: something may still be counted of them
        self._addresses: PartnerAddresses | None = None
        self._server: RpcServer | None = None
        self._mapper: RpcServer | None = None
        asked = reload if reload is not None else asyncio.Event()
        self.directory = Directory(self, FileSource(config), asked)
        self.reader = DirectoryReader(lambda: self.config, asked.set, self.incidents) if config.directory else None
        self.polling = Polling(config.state_dir / POLLING_NAME)
        self.active_directory = self._active_directory() if config.active_directory is not None else None

    async def start(self) -> None:
        """Start in this order: sets (their stores and trees), server, control socket, dashboard, replication."""
        config = self.config
        asyncio.get_running_loop().set_exception_handler(self._loop_fault)
        await self.sets.open()
        self.port = await self._start_server()
        control = ControlServer(
            config.state_dir,
            Commands(self).handlers(),
            self.incidents,
        )
        await control.start()
        self._closers.append(control.close)
        await self._start_dashboard()
        copier = self._copier
        archived = copier.begin if copier is not None else lambda: None
        archiver = Archiver(config.state_dir / SAMPLES_FOLDER, archive_options(config), archived)
        self._closers += [copier.close, archiver.close] if copier is not None else [archiver.close]
        self._samples = SampleWriter(
            self.counters,
            config.state_dir,
            Origin(config.fleet, socket.gethostname(), config.member_name),
            lambda: self._instances,
            config.sample_interval_s,
            gauges=self._gauges,
            max_total_bytes=config.samples_quota_bytes,
            on_file=archiver.begin,
        )
        await self.sets.start()
        await self._samples.start()
        self._closers.append(self._samples.stop)
        self._supervisor.start(self.partners.look_after(), "looking after the connections")
        self._supervisor.start(self.states.run(), "telling partners how this member is")
        self.sets.open_later()
        self._supervisor.start(self.directory.run(), "reading the configuration again")
        if self.reader is not None:
            self._supervisor.start(self.reader.run(), "reading the directory")
        if self.active_directory is not None:
            self._supervisor.start(self.active_directory.run(), "reading Active Directory")

    def _active_directory(self) -> ActiveDirectorySource:
        async def changed(left: Collection[bytes]) -> list[str]:
            told: list[str] = (await self.directory.read(left))["changes"]
            return told

        def count(counter: str, by: int) -> None:
            for local in self.config.sets:
                self.counters.inc_set(local.name, counter, by)

        return ActiveDirectorySource(lambda: self.config, changed, self.polling, self.incidents, count)

    async def read_topology(self) -> dict[str, Any]:
        """Read what the topology comes from at once; as Directory.read."""
        changes = await self.active_directory.poll() if self.active_directory is not None else []
        answer = await self.directory.read()
        problem = self.active_directory.problem if self.active_directory is not None else ""
        return answer | {"changes": [*changes, *answer["changes"]], "active_directory_problem": problem}

    async def _start_server(self) -> int:
        """The RPC server, with at most half of the file descriptors that there are; gives its port."""
        config = self.config
        limit = descriptors.raise_limit()
        if limit < descriptors.ENOUGH:
            log.warning("20111 only %d files may be open at once; %s", limit, descriptors.ADVICE)
        receiving = Receiving(self)
        interfaces = [frsrpc_interface(receiving.packet, receiving.malformed, receiving.promote, self.states.take)]
        if config.ntfrsapi is not None:
            said = config.ntfrsapi
            access = Access(said.checks, said.readers, said.writers)
            interfaces.append(ntfrsapi_interface(Administration(self), access, self.polling))
        if self.reader is not None:
            interfaces.append(notify_interface(self.reader.hints.notified, self.reader.malformed))
        server = RpcServer(
            interfaces,
            self.identities.store(),
            Hooks(on_bind=receiving.bound, on_authentication=receiving.authenticated),
            limits=Limits().within(limit // 2),
            incidents=self.incidents,
        )
        self._closers.append(server.close)
        if config.secret_for_all:
            log.warning(
                "20102 whoever has %s can pass as any member, for secret_for_all is set in %s; when `frs status` says "
                "on all members that each partner is called by its key, remove that line, and the secret if all have "
                "keys",
                config.secret_path,
                config.path,
            )
        port = await server.start(config.listen_host, config.port)
        self._server = server
        await self._start_endpoint_mapper(server)
        self._look_up_addresses()
        return port

    async def _start_endpoint_mapper(self, server: RpcServer) -> None:
        """It tells where the interfaces of this server are. One that cannot be is not worth ending for."""
        config, port = self.config, self.config.endpoint_mapper_port
        if port is None:
            return
        endpoints = {one.id: (server.port, "NtFrs Service") for one in server.interfaces.values()}
        mapper = RpcServer(
            [EndpointMapper(endpoints).interface()], CredentialStore(), limits=MAPPER_LIMITS, incidents=self.incidents
        )
        try:
            await mapper.start(config.listen_host, port)
        except OSError as error:
            log.error(
                "20116 no endpoint mapper on %s:%d: %s; set another listen.endpoint_mapper in %s, and that port for "
                "this member in %s, or take it out where all partners know port %d",
                config.listen_host, port, error, config.path, config.topology_path, server.port,
            )  # fmt: skip
            return
        self._closers.append(mapper.close)
        self._mapper = mapper
        log.info("endpoint mapper on %s:%d", config.listen_host, mapper.port)

    def _look_up_addresses(self) -> None:
        """Of the hosts of all members, for whom the server has room of their own."""
        if self._addresses is not None:
            self._addresses.close()
        if self._server is not None:
            hosts = [member.host for local in self.config.sets for member in local.set.members.values()]
            self._addresses = PartnerAddresses(hosts, self._set_partners)

    def _set_partners(self, sources: Collection[str]) -> None:
        for server in (self._server, self._mapper):
            if server is not None:
                server.set_partners(sources)

    # -- while it runs (see applying) --

    def use(self, config: AgentConfig) -> None:
        """The configuration is this from now on. What it says of sets is begun, ended and changed besides."""
        self.config, self.identities = config, Identities(config)
        self._instances |= instances(config.sets)
        self._look_up_addresses()
        if self._server is not None:
            self._server.admit(self.identities.store())

    async def samples_written(self) -> None:
        """All that was counted by now is in the samples."""
        if self._samples is not None:
            await self._samples.flush()

    async def _start_dashboard(self) -> None:
        config = self.config
        if config.dashboard_port is None:
            return
        from agent.dashboard.server import DashboardServer
        from agent.dashboard.tokens import Tokens

        try:
            tls = tls_of(config)
            tokens = Tokens(config.state_dir)
        except (ConfigError, OSError) as error:
            log.error("20103 no dashboard: %s", error)
            return
        dashboard = DashboardServer(
            Shown(self),
            config.dashboard_host,
            config.dashboard_port,
            summary_dirs=self._summary_dirs(),
            incidents=self.incidents,
            tokens=tokens,
            samples=config.state_dir / SAMPLES_FOLDER,
            allowed_hosts=config.dashboard_names,
            tls=tls,
        )
        try:
            await dashboard.start()
        except OSError as error:
            advice = f"dashboard.port in {config.path}, or 0 for any free one"
            if isinstance(error, socket.gaierror):
                advice = f"dashboard.host in {config.path}"
            log.error(
                "20103 no dashboard on %s:%d: %s; set another %s",
                config.dashboard_host,
                config.dashboard_port,
                error,
                advice,
            )
            return
        self._closers.append(dashboard.close)
        log.info("dashboard on %s", dashboard.url)

    def _summary_dirs(self) -> list[Path]:
        """Where to look for what `frs summarize` wrote: in the state directory, and beside the shared topology if our
        state is there too (a demo, whose members all show that one)."""
        state, shared = self.config.state_dir, self.config.topology_path.parent
        return [state, shared] if state.is_relative_to(shared) else [state]

    async def close(self) -> None:
        """Stop everything, the last started first."""
        self._supervisor.cancel()
        await self._supervisor.ended()
        await self.sets.stop_opening()
        if self._addresses is not None:
            self._addresses.close()
        await self.directory.close()
        for close in [*reversed(self._closers), *(replica.close for replica in self.sets.replicas.values())]:
            try:
                await asyncio.wait_for(close(), 30.0)
            except Exception:
                log.exception("13504 a part of the agent did not stop as it should")
        self._closers.clear()
        await self.partners.close()
        self.sets.close()

    def _loop_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What went wrong in a callback or a task that nobody waits for: as asyncio tells it, but not a thousand times
        what is the same."""
        error, message = context.get("exception"), str(context.get("message"))
        if descriptors.run_out(error):
            self.incidents.report(Cause.DESCRIPTORS, "event loop", f"{message}: {error}; {descriptors.ADVICE}")
            return
        told = "".join(traceback.format_exception(error)) if error is not None else repr(context)
        self.incidents.report(Cause.FAULT, message, f"{message}\n{told}", level="error")

    # -- telling: the dashboard and the control socket --

    def status(self) -> dict[str, Any]:
        """The status of this member (`frs status --json`)."""
        sets = self.sets.status()
        return {
            "member": self.config.member_name,
            "pid": os.getpid(),
            "version": _version(),
            "started": iso_time(self.started),
            "problems": problems(sets),
            "sets": sets,
            "directory": self.directory.status()
            | ({"reading": self.reader.status()} if self.reader is not None else {})
            | ({"active_directory": self.active_directory.status()} if self.active_directory is not None else {})
            | (self._beside() if self._beside is not None else {}),
            "partners": self.partners.told(),
            "incidents": self.incidents.counts(),
        } | ({"samples_store": self._copier.status()} if self._copier is not None else {})

    def snapshot(self) -> Snapshot:
        """All counters (`frs counters --json`)."""
        return self.counters.snapshot()

    def _gauges(self) -> dict[str, dict[str, int]]:
        """Present amounts of each connection, for the samples."""
        return {
            f"{replica.name}/{name}": amounts
            for replica in self.sets.replicas.values()
            for name, amounts in replica.amounts().items()
        }


def _version() -> str:
    try:
        return importlib.metadata.version("frs-agent")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
