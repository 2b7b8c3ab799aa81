"""Hosts with network namespaces of their own on one bridge for each site; the sites are joined, and can be cut off. For
root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MISSING = (
    "" if os.geteuid() == 0 and all(shutil.which(x) for x in ("unshare", "nsenter", "ip"))
    else "needs root, unshare, nsenter and ip"
)  # fmt: skip


class Namespace:
    """A network namespace, for as long as the process that has it."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs these in it."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *arguments]

    def run(self, *arguments: str) -> str:
        """What a command prints in it, which has to succeed."""
        return subprocess.run(
            self.command(*arguments), check=True, capture_output=True, text=True, cwd=REPOSITORY
        ).stdout

    def close(self) -> None:
        """It ends with the last process in it."""
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.wait()


class Network:
    """Sites by name, and the hosts in them."""

    def __init__(self, sites: Iterable[str]) -> None:
        self._hub = Namespace()
        self._hosts: list[Namespace] = []
        self._sites = {site: number for number, site in enumerate(sites, 1)}
        self._ip("link", "add", "core", "type", "bridge")
        self._ip("link", "set", "core", "up")
        for number in self._sites.values():
            self._ip("link", "add", f"site{number}", "type", "bridge")
            self._ip("link", "set", f"site{number}", "up")
            self._ip("link", "add", f"up{number}", "type", "veth", "peer", "name", f"down{number}")
            for link, bridge in ((f"up{number}", "core"), (f"down{number}", f"site{number}")):
                self._ip("link", "set", link, "master", bridge, "up")

    def _ip(self, *arguments: str) -> None:
        self._hub.run("ip", *arguments)

    def host(self, site: str) -> Namespace:
        """A new host there."""
        number = len(self._hosts) + 1
        host = Namespace(f"10.77.{self._sites[site]}.{number}")
        self._hosts.append(host)
        self._ip("link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", str(host.holder.pid))
        self._ip("link", "set", f"p{number}", "master", f"site{self._sites[site]}", "up")
        host.run("ip", "address", "add", f"{host.address}/16", "brd", "+", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def cut(self, site: str) -> None:
        """Nothing passes between this site and the others any more."""
        self._ip("link", "set", f"up{self._sites[site]}", "down")

    def heal(self, site: str) -> None:
        """It does again."""
        self._ip("link", "set", f"up{self._sites[site]}", "up")

    def close(self) -> None:
        """All of it ends."""
        for one in (*self._hosts, self._hub):
            one.close()
