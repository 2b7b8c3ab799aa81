"""`frs demo`: several members on this host, each a process of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from config.topology import TopologyKind


def default_directory() -> Path:
    """Where a demo is when --dir does not say: the user's own, kept over a restart, and no tmpfs."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "frs" / "demo"


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of the demo.  [default: $XDG_STATE_HOME/frs/demo, that is ~/.local/state/frs/demo]",
)
@click.option("--members", type=click.IntRange(1, 26), metavar="N", help="How many, named a, b, c ...  [default: 2]")
@click.option(
    "--topology",
    type=click.Choice(["full-mesh", "ring", "hub-spoke"]),
    help="Who replicates with whom; a is the hub.  [default: full-mesh]",
)
@click.option(
    "--port-base",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="The members' RPC ports are P, P+1, ...; 0 takes free ones.  [default: 28700]",
)
@click.option(
    "--dashboard-port",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="The members' dashboards are at P, P+1, ...; 0 takes free ones.  "
    "[default: 1000 above the RPC port, or any free one]",
)
@click.option(
    "--aging",
    type=click.FloatRange(0, 3600),
    metavar="SECONDS",
    help="How long a change rests before it is sent.  [default: 3]",
)
@click.option(
    "--shared-secret",
    is_flag=True,
    help="Members take a secret besides their keys, for clients that know NTLM only. Said when the demo is made.",
)
@click.option(
    "--directory",
    "with_directory",
    is_flag=True,
    help="Members take their topology from a directory server, which runs, too. Said when the demo is made.",
)
@click.option(
    "--fault",
    multiple=True,
    metavar="KIND=NAMES",
    help="What goes wrong on purpose, to see what it looks like: staging-full=c, partition=e,f, clock=g:+2h, slow=h.",
)
def demo(
    directory: Path | None,
    members: int | None,
    topology: TopologyKind | None,
    port_base: int | None,
    dashboard_port: int | None,
    aging: float | None,
    shared_secret: bool,
    with_directory: bool,
    fault: tuple[str, ...],
) -> int:
    """Run several members on this host, to see replication work.

    Prints where the replicated folders and the dashboards are, then `ready` alone on a line once every
    connection is joined and every initial sync is done. Ctrl-C or SIGTERM stops all of it. Started again on
    the same DIR, it goes on from there; options left out are then as they were.

    DIR/NAME/root is the replicated tree of the member NAME; DIR/demo.json describes the demo for programs.
    """
    from agent.cli.demo_layout import DemoOptions
    from agent.cli.demo_runner import run_demo

    options = DemoOptions(
        directory=Path(os.path.abspath(directory if directory is not None else default_directory())),
        members=members,
        topology=topology,
        port_base=port_base,
        dashboard_port=dashboard_port,
        aging_s=aging,
        shared_secret=shared_secret,
        with_directory=with_directory,
    )
    return asyncio.run(run_demo(options, fault))
