"""Which ports the members of a demo listen on."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import click

from agent.cli import CommandFailed
from agent.reporting.exit_codes import ExitCode

HOST = "127.0.0.1"
DEFAULT_PORT_BASE = 28700
DASHBOARD_OFFSET = 1000
_LOWEST = 10240
_TRIES = 1000


def rpc_ports(names: Sequence[str], base: int) -> list[int]:
    """A port for each member: `base` and what follows, or any free ones where it is 0.

    Raises CommandFailed for ports in use, click.UsageError for a base that leaves no room.
    """
    return _ports(names, base, "RPC", "--port-base", ())


def dashboard_ports(
    names: Sequence[str], base: int | None, preferred: Sequence[int], taken: Collection[int]
) -> list[int]:
    """The ports asked for, else those preferred, each replaced by a free one where it is in use; none of `taken`."""
    if base is not None:
        ports = _ports(names, base, "dashboard", "--dashboard-port", taken)
        if overlap := sorted(set(ports) & set(taken)):
            raise click.UsageError(
                f"port {overlap[0]} would be an RPC port and a dashboard's; choose another --dashboard-port"
            )
        return ports
    with contextlib.ExitStack() as held:
        return [
            port if port and port not in taken and _bind(held, port) else _any_free(held, taken) for port in preferred
        ]


def dashboards_beside(ports: Iterable[int]) -> list[int]:
    """Where the dashboards go when the command line leaves it open: at a distance from the RPC ports."""
    return [port + DASHBOARD_OFFSET if port + DASHBOARD_OFFSET < 65536 else 0 for port in ports]


def check_free(names: Iterable[str], ports: Iterable[int], what: str, option: str) -> None:
    """Raises CommandFailed where one of `ports` is in use."""
    with contextlib.ExitStack() as held:
        for name, port in zip(names, ports):
            if not _bind(held, port):
                raise CommandFailed(
                    f"port {port} on {HOST} ({what} of member {name}) is in use; choose others with {option}",
                    ExitCode.FAILURE,
                )


def _ports(names: Sequence[str], base: int, what: str, option: str, taken: Collection[int]) -> list[int]:
    if base == 0:
        with contextlib.ExitStack() as held:
            return [_any_free(held, taken) for _ in names]
    ports = list(range(base, base + len(names)))
    if ports[-1] > 65535:
        raise click.UsageError(f"{option} {base} leaves no room for {len(names)} ports up to 65535")
    check_free(names, ports, what, option)
    return ports


def _any_free(held: contextlib.ExitStack, taken: Collection[int]) -> int:
    """A free port that the kernel gives to no outgoing connection, so that it is still free after a restart."""
    try:
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        highest = 32768
    for _ in range(_TRIES if highest > _LOWEST + 1000 else 0):
        port = random.randrange(_LOWEST, highest)  # noqa: S311 - nothing secret
        if port not in taken and _bind(held, port):
            return port
    while (port := _bind(held, 0)) in taken:
        pass
    if not port:
        raise CommandFailed(f"no port is free on {HOST}", ExitCode.FAILURE)
    return port


def _bind(held: contextlib.ExitStack, port: int) -> int:
    """Takes `port` (0: any) for as long as `held` lasts and returns it; 0 where it is in use."""
    listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1)
    except OSError:
        return 0
    return int(listener.getsockname()[1])
