"""A real MIT KDC on loopback, with a database and a configuration of its own: no root, nothing of the host's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import free_port

REALM = "FRS.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kvno")
PATIENCE_S = 60.0

KRB5_CONF = """[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""
KDC_CONF = """[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
    supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
  }}
"""


def found(program: str) -> str | None:
    """Where a program is; those of administrators may be in no path."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def missing() -> list[str]:
    """What is not installed here of what a KDC needs."""
    return [program for program in PROGRAMS if found(program) is None]


class Kdc:
    """Runs from start() to stop(), and again from serve() on. All that asks it needs `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        known = {"realm": REALM, "port": self.port, "folder": folder}
        (folder / "krb5.conf").write_text(KRB5_CONF.format(**known))
        (folder / "kdc.conf").write_text(KDC_CONF.format(**known))
        self.environment = {
            "KRB5_CONFIG": os.fspath(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": os.fspath(folder / "kdc.conf"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str, said: str = "") -> str:
        """Run one of the programs to its end, with this on its standard input; gives what it printed."""
        command = [found(program) or program, *arguments]
        done = subprocess.run(
            command, env=os.environ | self.environment, input=said, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Make the database, and serve it."""
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.serve()

    def serve(self) -> None:
        """Serve what database there is."""
        with open(self.folder / "kdc.log", "wb") as log:
            self._process = subprocess.Popen(
                [found("krb5kdc") or "", "-n", "-r", REALM, "-P", os.fspath(self.folder / "kdc.pid")],
                env=os.environ | self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, (self.folder / "kdc.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def keytab(self, name: str, *principals: str, password: str | None = None) -> Path:
        """A keytab with the keys of these new principals, random ones or those of a password."""
        path = self.folder / f"{name}.keytab"
        how = "-randkey" if password is None else f"-pw {password}"
        orders = [f"addprinc {how} {one}\nktadd -norandkey -k {path} {one}\n" for one in principals]
        self.run("kadmin.local", "-r", REALM, said="".join(orders))
        return path

    def tickets(self, name: str, keytab: Path, principal: str, *services: str) -> Path:
        """A file of tickets of that principal: for the realm, and for these services."""
        path = self.folder / f"{name}.tickets"
        self.run("kinit", "-k", "-t", os.fspath(keytab), "-c", os.fspath(path), principal)
        for service in services:
            self.run("kvno", "-c", os.fspath(path), service)
        return path
