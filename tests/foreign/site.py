"""A member of ours that a test runs as a process, and what it has to know of its partner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

#: Until a process or a member is given up as hung, in seconds; nothing is measured.
PATIENCE = float(os.environ.get("FRS_TEST_PATIENCE", "900"))
_TOLD = " is running, RPC on "


class Names(NamedTuple):
    """GUIDs as text and names: of the member, its partner and the set; of the connections up (the partner is
    upstream) and down."""

    member: str
    member_guid: str
    partner: str
    partner_guid: str
    set_name: str
    up: str
    down: str


def names() -> Names:
    """New ones."""
    member, partner, up, down = (str(uuid.uuid4()) for _ in range(4))
    return Names("ours", member, "FOREIGN", partner, "docs (shared)", up, down)


class Member:
    """`frs run` on a folder, which listens at `host`; the partner listens on `partner_port`, and `more` is of its
    configuration, the first lines of it, up to a table, of [listen]. `raw_ntlm`: it is called without SPNEGO, too. As a
    context manager it is stopped at the end, which must succeed."""

    domain, user, password = "FRS", "partners", "not a word of it"

    def __init__(
        self,
        folder: Path,
        known: Names,
        partner_port: int,
        *,
        host: str = "127.0.0.1",
        more: str = "",
        raw_ntlm: bool = True,
    ) -> None:
        self.host = host
        self.root, self.config, self._log = folder / "root", folder / "agent.toml", folder / "log"
        self.root.mkdir(exist_ok=True)
        secret = folder / "secret.toml"
        secret.touch(0o600)
        secret.write_text(f'domain = "{self.domain}"\nuser = "{self.user}"\npassword = "{self.password}"\n')
        self.config.write_text(
            f'member = "{known.member}"\ntopology = "topology.toml"\nstate = "state"\nsecret = "secret.toml"\n'
            f'raw_ntlm = {str(raw_ntlm).lower()}\n[[set]]\nname = "{known.set_name}"\nroot = "root"\n'
            f'[replication]\naging = 0.1\n[log]\nlevel = "debug"\n[listen]\nhost = "{host}"\nport = 0\n{more}'
        )
        (folder / "topology.toml").write_text(
            f'[[set]]\nname = "{known.set_name}"\nguid = "{uuid.uuid4()}"\nprimary = "{known.member}"\n'
            f'[[set.member]]\nname = "{known.member}"\nguid = "{known.member_guid}"\nhost = "127.0.0.1"\nport = 1\n'
            f'[[set.member]]\nname = "{known.partner}"\nguid = "{known.partner_guid}"\nhost = "127.0.0.1"\n'
            f"port = {partner_port}\n"
            f'[[set.connection]]\nguid = "{known.up}"\nupstream = "{known.partner}"\ndownstream = "{known.member}"\n'
            f'[[set.connection]]\nguid = "{known.down}"\nupstream = "{known.member}"\ndownstream = "{known.partner}"\n'
        )

    def __enter__(self) -> Member:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.cli", "run", "--config", self.config],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment(),
        )  # fmt: skip
        self.lines: list[str] = []
        self._port = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._port.wait(PATIENCE)
        for line in self.lines:
            if _TOLD in line:
                self.port = int(line.rpartition(":")[2])
                return self
        raise AssertionError(f"the member ended:\n{self.log()}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._process.terminate()
        code = self._process.wait(PATIENCE)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if error is not None:
            error.add_note(self.log())
        else:
            assert code == 0, self.log()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if _TOLD in line:
                self._port.set()
        self._port.set()

    def log(self) -> str:
        """The end of what the member has said."""
        return "".join(self.lines[-200:])

    def status(self) -> Any:
        """What `frs status --json` prints."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agent.cli", "status", "--config", self.config, "--json"],
            capture_output=True, check=False, env=_environment(), timeout=PATIENCE,
        )  # fmt: skip
        return json.loads(done.stdout)

    def until(self, what: str, path: str, content: bytes | None) -> None:
        """Waits until a file of the tree has this content, or is not there (None)."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = (self.root / path).read_bytes()
            except FileNotFoundError:
                found = None
            if found == content:
                return
            assert self._process.poll() is None, f"the member ended before: {what}"
            assert time.monotonic() < deadline, f"never reached: {what}"
            time.sleep(0.05)


def _environment() -> dict[str, str]:
    repository = os.fspath(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([repository, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
