"""Two Syncthing instances on loopback with homes of their own."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, first_version, until
from bench.processes import Daemon, free_ports

API_KEY = "measured-on-loopback"
ENV = {"STNODEFAULTFOLDER": "1", "STNOUPGRADE": "1"}

#: Nothing leaves the machine; everything that matters to speed stays Syncthing's default (TLS, fsync on).
OPTIONS = {
    "globalAnnounceEnabled": "false",
    "localAnnounceEnabled": "false",
    "relaysEnabled": "false",
    "natEnabled": "false",
    "announceLANAddresses": "false",
    "stunKeepaliveStartS": "0",
    "urAccepted": "-1",
    "crashReportingEnabled": "false",
    "autoUpgradeIntervalH": "0",
    "startBrowser": "false",
    "reconnectionIntervalS": "5",
}


class Syncthing(Peer):
    """``syncthing serve`` on both ends with ``fsWatcherDelayS`` = ``delay``."""

    key = "syncthing"
    fsyncs = True
    seals = True

    def __init__(self, delay: float = 1) -> None:
        super().__init__()
        self.delay = delay
        self.daemons: dict[str, Daemon] = {}
        self.ids: dict[str, str] = {}
        self.sync_port: dict[str, int] = {}
        self.gui_port: dict[str, int] = {}

    @property
    def label(self) -> str:
        return f"Syncthing, delay {self.delay:g} s"

    def version(self) -> str:
        return first_version(["syncthing", "--version"])

    def lay(self, base: Path) -> None:
        self.base, self.near, self.far = base, base / "A", base / "B"
        first = free_ports(4)
        self.sync_port = {"A": first, "B": first + 1}
        self.gui_port = {"A": first + 2, "B": first + 3}
        for side in "AB":
            (base / side / ".stfolder").mkdir(parents=True)
            home = f"--home={base / ('home' + side)}"
            subprocess.run(["syncthing", "generate", home, "--no-default-folder"], check=True, capture_output=True)
            told = subprocess.run(
                ["syncthing", "serve", home, "--device-id"], check=True, capture_output=True, text=True
            )
            self.ids[side] = told.stdout.strip()
        for side in "AB":
            self._configure(side, "B" if side == "A" else "A")

    def _configure(self, side: str, other: str) -> None:
        path = self.base / f"home{side}" / "config.xml"
        document = ET.parse(path)
        top = document.getroot()
        options = top.find("options")
        assert options is not None
        wanted = {**OPTIONS, "listenAddress": f"tcp://127.0.0.1:{self.sync_port[side]}"}
        for name, value in wanted.items():
            for old in options.findall(name):
                options.remove(old)
            ET.SubElement(options, name).text = value
        for name, value in (("gui/address", f"127.0.0.1:{self.gui_port[side]}"), ("gui/apikey", API_KEY)):
            element = top.find(name)
            assert element is not None
            element.text = value
        device = ET.SubElement(top, "device", id=self.ids[other], name=other, compression="metadata")
        ET.SubElement(device, "address").text = f"tcp://127.0.0.1:{self.sync_port[other]}"
        folder = ET.SubElement(
            top,
            "folder",
            id="measured",
            label="measured",
            path=str(self.base / side),
            type="sendreceive",
            rescanIntervalS="3600",
            fsWatcherEnabled="true",
            fsWatcherDelayS=f"{self.delay:g}",
            ignorePerms="false",
            autoNormalize="true",
        )
        for device_id in self.ids.values():
            ET.SubElement(folder, "device", id=device_id)
        document.write(path)

    def _api(self, side: str, path: str) -> dict[str, Any] | None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gui_port[side]}{path}", headers={"X-API-Key": API_KEY}
        )
        self.daemons[side].check()
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return dict(json.load(answer))
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def _idle(self, side: str) -> bool:
        state = self._api(side, "/rest/db/status?folder=measured")
        return bool(state) and state["state"] == "idle" and state["needTotalItems"] == 0

    def _start(self, side: str) -> None:
        self.daemons[side] = Daemon(
            ["syncthing", "serve", f"--home={self.base / ('home' + side)}", "--no-browser", "--no-restart"],
            self.base / f"{side}.log",
            env=ENV,
        )

    def start_far(self) -> None:
        self._start("B")
        until("Syncthing B", lambda: self._idle("B"))

    def start_near(self) -> None:
        self._start("A")

    def settle(self) -> None:
        def still() -> bool:
            links = self._api("A", "/rest/system/connections")
            if not links or not links["connections"].get(self.ids["B"], {}).get("connected"):
                return False
            complete = self._api("A", f"/rest/db/completion?folder=measured&device={self.ids['B']}")
            return bool(complete) and complete["completion"] == 100 and self._idle("A") and self._idle("B")

        until("Syncthing, idle and connected", still)

    def settle_near(self) -> None:
        """Return when A has hashed its tree (B need not run)."""
        until("Syncthing A", lambda: self._idle("A"))

    def pids(self) -> set[int]:
        return {daemon.pid for daemon in self.daemons.values()}

    def stop(self) -> None:
        for daemon in self.daemons.values():
            daemon.stop()
        self.daemons = {}
