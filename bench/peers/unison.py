"""Unison over a socket: both ways, a command after each change."""

from __future__ import annotations

from pathlib import Path

from bench.peers.base import Peer, first_version, until
from bench.peers.rsync import listens
from bench.processes import Daemon, Meter, free_ports, run_command


class Unison(Peer):
    """``unison -batch`` between A and a ``unison -socket`` server that holds B."""

    key = "unison"
    live = False

    def __init__(self) -> None:
        super().__init__()
        self.daemon: Daemon | None = None
        self.port = 0

    @property
    def label(self) -> str:
        return "Unison, socket"

    def version(self) -> str:
        return first_version(["unison", "-version"])

    def lay(self, base: Path) -> None:
        self.base, self.near, self.far = base, base / "A", base / "B"
        for folder in (self.near, self.far, base / "home-near", base / "home-far"):
            folder.mkdir(parents=True)
        self.port = free_ports(1)

    def start_far(self) -> None:
        self.daemon = Daemon(
            ["unison", "-socket", str(self.port), "-listen", "127.0.0.1"],
            self.base / "server.log",
            env={"UNISON": str(self.base / "home-far")},
        )
        daemon = self.daemon

        def serves() -> bool:
            daemon.check()
            return listens(self.port)

        until("Unison's server", serves, 30)

    def push(self, meter: Meter | None = None) -> None:
        command = ["unison", str(self.near), f"socket://127.0.0.1:{self.port}/{self.far}"]
        command += ["-batch", "-ui", "text", "-times", "-confirmbigdel=false", "-log=false"]
        home = {"UNISON": str(self.base / "home-near")}
        run_command(command, self.base / "unison.log", env=home, meter=meter)

    def pids(self) -> set[int]:
        return {self.daemon.pid} if self.daemon else set()

    def stop(self) -> None:
        if self.daemon:
            self.daemon.stop(5)
            self.daemon = None
