"""What goes wrong in a demo on purpose (`frs demo --fault`), to see what it looks like on the dashboard.

    partition=e,f       nobody can call these members
    clock=g:+2h         the clock of this one is so much ahead, or behind
    slow=h              what others send to these passes through a slow line; a file is there that takes long
    staging-full=c      the staging area of these is small, and a file is there that does not fit

A member that has one runs with a configuration of its own, `agent.fault.toml`, made for that run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import click
import tomlkit

from agent.cli.demo_layout import DemoMember
from agent.cli.demo_ports import HOST
from config.write import write_file

KINDS: Final = ("staging-full", "partition", "clock", "slow")
#: Bytes a second that pass a slow line in each direction, and how late.
SLOW_BYTES: Final = 64 << 10
_SLOW_S: Final = 0.2
_SMALL_QUOTA: Final = "1 MiB"
_LARGE_FILE: Final = "larger-than-the-staging-area"
_LARGE: Final = 8 << 20
_LONG_FILE: Final = "long-on-its-way"
_LONG: Final = 12 << 20
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass
class Faults:
    """Which member has which; ``clocks`` by how many seconds a clock is ahead."""

    staging_full: frozenset[str] = frozenset()
    partition: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    clocks: Mapping[str, float] = field(default_factory=dict)
    _lines: list[asyncio.Server] = field(default_factory=list)

    @property
    def apart(self) -> frozenset[str]:
        """Members that join nobody."""
        return self.partition | {name for name, ahead in self.clocks.items() if abs(ahead) > 1800}

    def command(self, member: DemoMember, arguments: Sequence[str]) -> list[str]:
        """How the member is started, the configuration aside."""
        if (ahead := self.clocks.get(member.name)) is not None:
            return [sys.executable, "-P", "-m", "agent.cli.demo_clock", str(ahead), *arguments]
        return [sys.executable, "-P", "-m", "agent.cli", *arguments]

    async def config(self, member: DemoMember) -> str:
        """The configuration that the member is to run with."""
        of, name = tomlkit.parse(member.config.read_text(encoding="utf-8")), member.name
        if name not in self.partition | self.slow | self.staging_full:
            return str(member.config)
        if name in self.partition | self.slow:
            listening = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
            port = int(listening.sockets[0].getsockname()[1])
            listening.close()  # a port that nobody else has
            of["listen"] = {"host": HOST, "port": port}
            if name in self.slow:
                self._lines.append(await _slow_line(member.port, port))
        if name in self.staging_full:
            of["set"][0]["staging_quota"] = _SMALL_QUOTA
        place = member.folder / "agent.fault.toml"
        write_file(place, tomlkit.dumps(of))
        return str(place)

    def begin(self, members: Collection[DemoMember]) -> None:
        """What can go wrong only once all are joined: nobody's initial sync waits for what cannot be sent."""
        for member in members:
            large = member.root / _LARGE_FILE
            if member.name in self.staging_full and not large.exists():
                large.write_bytes(os.urandom(_LARGE))
        well = (one for one in members if one.name not in self.apart | self.staging_full | self.slow)
        if self.slow and (sender := next(well, None)) is not None:
            (sender.root / _LONG_FILE).write_bytes(os.urandom(_LONG))

    def close(self) -> None:
        """End the slow lines."""
        for line in self._lines:
            line.close()


def faults(given: Iterable[str], members: Iterable[str]) -> Faults:
    """Those of the command line. Raises ``click.UsageError``."""
    known, found = set(members), dict[str, set[str]]({kind: set() for kind in KINDS})
    clocks = {}
    for text in given:
        kind, _, names = text.partition("=")
        if kind not in KINDS or not names:
            raise click.UsageError(f"--fault takes KIND=NAME,..., and KIND is {', '.join(KINDS)}: not {text!r}")
        for one in names.split(","):
            name, _, ahead = one.partition(":")
            if name not in known:
                raise click.UsageError(f"--fault {text}: the demo has no member {name!r}")
            found[kind].add(name)
            if kind == "clock":
                match = re.fullmatch(r"([+-])(\d{1,6})([smhd])", ahead)
                if match is None:
                    raise click.UsageError(f"--fault {text}: by how much, as in {name}:+2h")
                clocks[name] = int(match[1] + match[2]) * float(_UNITS[match[3]])
            elif ahead:
                raise click.UsageError(f"--fault {text}: only a clock has a time")
    of = {kind: frozenset(names) for kind, names in found.items()}
    return Faults(of["staging-full"], of["partition"], of["slow"], clocks)


async def _slow_line(port: int, to: int) -> asyncio.Server:
    """Takes connections at a port, and passes on what comes, slowly."""

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(SLOW_BYTES // 5):
                await asyncio.sleep(_SLOW_S + len(data) / SLOW_BYTES)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(HOST, to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(passed(reader, back), passed(there, writer))

    return await asyncio.start_server(take, HOST, port)
