"""rsync to a daemon: one way, a command after each change."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bench.peers.base import Peer, first_version, until
from bench.processes import Daemon, Meter, free_ports, run_command


def listens(port: int) -> bool:
    """Whether something accepts connections on that loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Rsync(Peer):
    """``rsync -a --delete`` from A to a module of a daemon that holds B; with ``--fsync`` if asked."""

    key = "rsync"
    live = False

    def __init__(self, *, fsync: bool = False) -> None:
        super().__init__()
        self.fsyncs = fsync
        self.daemon: Daemon | None = None
        self.port = 0

    @property
    def label(self) -> str:
        return "rsync --fsync, daemon" if self.fsyncs else "rsync, daemon"

    def version(self) -> str:
        return first_version(["rsync", "--version"])

    def lay(self, base: Path) -> None:
        self.base, self.near, self.far = base, base / "A", base / "B"
        self.near.mkdir(parents=True)
        self.far.mkdir()
        self.port = free_ports(1)
        # A daemon that root starts would become "nobody" for each transfer unless it is told not to.
        user = "uid = 0\ngid = 0\n" if os.geteuid() == 0 else ""
        (base / "rsyncd.conf").write_text(
            f"address = 127.0.0.1\nport = {self.port}\nuse chroot = no\nlog file = {base}/rsyncd.log\n"
            f"pid file = {base}/rsyncd.pid\n[b]\npath = {self.far}\nread only = no\n{user}"
        )

    def start_far(self) -> None:
        command = ["rsync", "--daemon", "--no-detach", f"--config={self.base / 'rsyncd.conf'}"]
        self.daemon = Daemon(command, self.base / "rsyncd.out")
        daemon = self.daemon

        def serves() -> bool:
            daemon.check()
            return listens(self.port)

        until("rsync's daemon", serves, 30)

    def push(self, meter: Meter | None = None) -> None:
        extra = ["--fsync"] if self.fsyncs else []
        run_command(
            ["rsync", "-a", "--delete", *extra, f"{self.near}/", f"rsync://127.0.0.1:{self.port}/b/"],
            self.base / "rsync.log",
            meter=meter,
        )

    def pids(self) -> set[int]:
        return {self.daemon.pid} if self.daemon else set()

    def stop(self) -> None:
        if self.daemon:
            self.daemon.stop()
            self.daemon = None
