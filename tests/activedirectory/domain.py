"""A real Active Directory for the tests: Samba as a domain controller, provisioned in a folder of its own, in a network
namespace of its own with its own names, so that nothing of the host's is touched. Needs root."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

REPOSITORY = Path(__file__).parents[2]
REALM, DOMAIN, NC = "FRS.TEST", "frs.test", "DC=frs,DC=test"
SERVER, SECOND = "dc1.frs.test", "dc2.frs.test"
ADDRESSES = {SERVER: "127.0.0.1", SECOND: "127.0.0.2"}
PASSWORD = "Secret-1-for-Tests"
PROGRAMS = ("samba", "samba-tool", "ldapmodify", "ldapsearch", "ip", "unshare", "nsenter", "setpriv", "mount")
PROVISION = Path("/usr/share/samba/setup/provision.ldif")
SASL = ("/usr/lib/*/sasl2/libgssapiv2.so", "/usr/lib/sasl2/libgssapiv2.so", "/usr/lib64/sasl2/libgssapiv2.so")
PATIENCE_S = 600.0
#: What LDAP says of an object that is added a second time.
ALREADY_EXISTS = 68


def found(program: str) -> str | None:
    """Where a program is; those of administrators may be in no path."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")


def missing() -> list[str]:
    """What is not here of what a domain controller, and asking it, needs."""
    gone = [program for program in PROGRAMS if found(program) is None]
    if os.geteuid() != 0:
        gone.append("root")
    if not PROVISION.exists():
        gone.append("samba-ad-provision")
    if not any(any(Path("/").glob(pattern.lstrip("/"))) for pattern in SASL):
        gone.append("libsasl2-modules-gssapi-mit")
    for module, extra in (("bonsai", "ldap"), ("gssapi", "kerberos")):
        try:
            __import__(module)
        except ImportError:
            gone.append(f"the extra {extra}")
    return gone


class Namespace:
    """Network and mounts of its own, for as long as the process that has it: /etc/hosts, /etc/resolv.conf and
    /etc/krb5.conf are those of the domain there."""

    def __init__(self, folder: Path, names: Mapping[str, str]) -> None:
        self.folder = folder
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {n}\n" for n, ip in names.items()))
        (folder / "resolv.conf").write_text(f"nameserver 127.0.0.1\nsearch {DOMAIN}\noptions timeout:2 attempts:1\n")
        centers = "".join(f"  kdc = {ip}\n" for ip in ADDRESSES.values())
        (folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" dns_canonicalize_hostname = false\n rdns = false\n"
            f"[realms]\n {REALM} = {{\n{centers} }}\n[domain_realm]\n .{DOMAIN} = {REALM}\n"
        )
        loopback = f"ip link set lo up && ip address add {ADDRESSES[SECOND]}/8 dev lo"
        binds = " && ".join(f"mount --bind {folder}/{name} /etc/{name}" for name in ("hosts", "resolv.conf"))
        script = f"mount --make-rprivate / && {binds} && {loopback} && echo ready && exec cat"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        self.environment = os.environ | {"KRB5_CONFIG": str(folder / "krb5.conf"), "PYTHONPATH": str(REPOSITORY)}

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs these in it, for no longer than who starts it lives."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", f"--mount=/proc/{self.holder.pid}/ns/mnt",
                f"--wd={REPOSITORY}", "setpriv", "--pdeathsig", "KILL", *arguments]  # fmt: skip

    def run(
        self, *arguments: str, said: str = "", expect: int | None = 0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it to its end."""
        done = subprocess.run(
            self.command(*arguments), input=said, capture_output=True, text=True, check=False,
            env=self.environment | dict(environment or {}),
        )  # fmt: skip
        assert expect is None or done.returncode == expect, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    def frs(self, *arguments: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of frs in it."""
        return self.run(sys.executable, "-m", "agent.cli", *arguments, expect=expect)

    def close(self) -> None:
        """It ends."""
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.wait()


class DomainController:
    """Runs from start() to stop(), and again. Its data are in `folder`/NAME; see keep() and put_back()."""

    def __init__(self, folder: Path, space: Namespace, server: str = SERVER) -> None:
        self.folder, self.space, self.server = folder, space, server
        self.name, self.address = server.partition(".")[0], ADDRESSES[server]
        self.data = folder / self.name
        self.ca = folder / "ca.pem"
        self._process: subprocess.Popen[bytes] | None = None

    def provision(self) -> None:
        """Make the domain."""
        certificate(self.folder)
        self._make("provision", f"--realm={REALM}", "--domain=FRSTEST", "--server-role=dc",
                   "--dns-backend=SAMBA_INTERNAL", f"--adminpass={PASSWORD}", f"--host-name={self.name}",
                   f"--host-ip={self.address}", "--use-rfc2307")  # fmt: skip

    def join(self, other: DomainController) -> None:
        """Become another controller of a domain that runs, with all that it has."""
        self._make("join", DOMAIN, "DC", f"--server={other.server}", f"--realm={REALM}", "-UAdministrator",
                   f"--password={PASSWORD}", "--dns-backend=NONE", f"--option=netbios name={self.name}")  # fmt: skip

    def pull(self, other: DomainController) -> None:
        """Take over what has changed at another controller, which runs."""
        self.tool("drs", "replicate", self.server, other.server, NC, "--local", "-UAdministrator",
                  f"--password={PASSWORD}")  # fmt: skip

    def _make(self, how: str, *arguments: str) -> None:
        self.space.run(
            "samba-tool", "domain", how, *arguments, f"--targetdir={self.data}",
            f"--option=interfaces={self.address}/8", "--option=bind interfaces only=yes",
            environment={"TDB_NO_FSYNC": "1"},
        )  # fmt: skip
        run = self.folder / f"run-{self.name}"
        run.mkdir()
        text = (self.data / "etc/smb.conf").read_text()
        ours = {
            "server services": "rpc, ldap, cldap, kdc" + (", dns" if how == "provision" else ""),
            "log file": f"{self.folder}/samba.log",
            "pid directory": f"{run}",
            "ncalrpc dir": f"{run}/ncalrpc",
            "lock directory": f"{run}",
            "tls certfile": f"{self.folder}/cert.pem",
            "tls keyfile": f"{self.folder}/key.pem",
            "tls cafile": f"{self.folder}/ca.pem",
            "dns forwarder": "",
        }
        lines = [line for line in text.splitlines() if line.partition("=")[0].strip() not in ours]
        at = lines.index("[global]") + 1
        lines[at:at] = [f"\t{name} = {value}" for name, value in ours.items()]
        (self.data / "etc/smb.conf").write_text("\n".join(lines) + "\n")

    def tool(self, *arguments: str) -> str:
        """samba-tool, on its files."""
        return self.space.run(
            "samba-tool", *arguments, "-s", f"{self.data}/etc/smb.conf", environment={"TDB_NO_FSYNC": "1"}
        ).stdout

    def start(self) -> None:
        """Serve LDAP, Kerberos and DNS."""
        with open(self.folder / "samba.out", "ab") as log:
            self._process = subprocess.Popen(
                self.space.command(
                    found("samba") or "samba", "-s", f"{self.data}/etc/smb.conf", "-F", "--no-process-group",
                    "-M", "single", "--debug-stdout",
                ),
                env=self.space.environment | {"TDB_NO_FSYNC": "1"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        look = "import socket,sys; [socket.create_connection((sys.argv[1], int(p))).close() for p in sys.argv[2:]]"
        ports = ("88", "389", "636", *(("53",) if self.server == SERVER else ()))
        while self.space.run(sys.executable, "-c", look, self.address, *ports, expect=None).returncode:
            assert self._process.poll() is None, (self.folder / "samba.out").read_text()[-4000:]
            assert time.monotonic() < until
            time.sleep(0.05)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def pause(self, *, on: bool) -> None:
        """It takes connections and answers none, or goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def keep(self, name: str) -> None:
        """A backup of a stopped one."""
        assert self._process is None
        shutil.copytree(self.data, self.folder / name, symlinks=True, ignore=_sockets)

    def put_back(self, name: str) -> None:
        """Its data are those of that backup from now on."""
        assert self._process is None
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / name, self.data, symlinks=True)

    def change(self, ldif: str) -> None:
        """As an administrator does it: with ldapmodify, over TLS. What is there already is passed over."""
        done = self.space.run(
            "ldapmodify", "-c", "-H", f"ldaps://{self.server}", "-x", "-D", f"Administrator@{REALM}", "-w", PASSWORD,
            said=ldif, expect=None, environment={"LDAPTLS_CACERT": str(self.ca)},
        )  # fmt: skip
        errors = re.findall(r"^ldap_\w+: .*\((\d+)\)$", done.stderr, re.MULTILINE)
        assert done.returncode in (0, ALREADY_EXISTS), f"{done.stdout}\n{done.stderr}"
        assert set(errors) <= {str(ALREADY_EXISTS)}, f"{done.stdout}\n{done.stderr}"

    def guids(self, base: str, query: str) -> list[str]:
        """The objectGUIDs, as text, of what is there."""
        said = self.space.run(
            "ldapsearch", "-LLL", "-o", "ldif-wrap=no", "-H", f"ldaps://{self.server}", "-x", "-D",
            f"Administrator@{REALM}", "-w", PASSWORD, "-b", base, query, "objectGUID",
            environment={"LDAPTLS_CACERT": str(self.ca)},
        ).stdout  # fmt: skip
        return [base64.b64decode(one).hex() for one in re.findall(r"^objectGUID:: (\S+)$", said, re.MULTILINE)]

    def add(self, ldif: str) -> None:
        """Objects of classes that only a controller may make."""
        environment = {"TDB_NO_FSYNC": "1", "PYTHONPATH": ""}
        self.space.run(
            "/usr/bin/python3", "-c", _RELAXED, f"{self.data}/etc/smb.conf", said=ldif, environment=environment
        )

    def denies(self, dn: str, ace: str) -> contextlib.AbstractContextManager[None]:
        """For as long as this lasts, an entry (SDDL) stands before all others of the access control list of an
        object."""
        return _restored(lambda sddl: self._descriptor(dn, sddl), lambda shown: shown.replace("(", f"{ace}(", 1))

    def _descriptor(self, dn: str, sddl: str) -> str:
        """The security descriptor of an object as it was, as SDDL; it becomes `sddl`, where that is one."""
        environment = {"TDB_NO_FSYNC": "1", "PYTHONPATH": ""}
        done = self.space.run(
            "/usr/bin/python3", "-c", _DESCRIPTOR, f"{self.data}/etc/smb.conf", dn, sddl, environment=environment
        )
        return done.stdout.strip()

    def keytab(self, computer: str, path: Path) -> None:
        """The keys of a computer's account."""
        self.tool("user", "setpassword", f"{computer}$", f"--newpassword={PASSWORD}")
        self.tool("domain", "exportkeytab", str(path), f"--principal={computer}$")


#: With Samba's own library, on the files of a controller.
_DATABASE = """
import sys
from samba.auth import system_session
from samba.param import LoadParm
from samba.samdb import SamDB
from samba.sd_utils import SDUtils
from samba.dcerpc import security
settings = LoadParm(filename_for_non_global_lp=sys.argv[1])
database = SamDB(lp=settings, session_info=system_session(settings))
"""
_RELAXED = f"""{_DATABASE}
database.add_ldif(sys.stdin.read(), controls=["relax:0"])
"""
_DESCRIPTOR = f"""{_DATABASE}
descriptors = SDUtils(database)
print(descriptors.read_sd_on_dn(sys.argv[2]).as_sddl(security.dom_sid(database.get_domain_sid())))
if sys.argv[3]:
    descriptors.modify_sd_on_dn(sys.argv[2], sys.argv[3])
"""


@contextlib.contextmanager
def _restored(descriptor: Callable[[str], str], changed: Callable[[str], str]) -> Iterator[None]:
    shown = descriptor("")
    descriptor(changed(shown))
    try:
        yield
    finally:
        descriptor(shown)


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def certificate(folder: Path) -> None:
    """A key, and a certificate that has signed itself, for the names of the controllers."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER)])
    now = datetime.datetime.now(datetime.UTC)
    names = [*map(x509.DNSName, ADDRESSES), *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in ADDRESSES.values())]
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = made.public_bytes(serialization.Encoding.PEM)
    (folder / "cert.pem").write_bytes(pem)
    (folder / "ca.pem").write_bytes(pem)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").touch(0o600)
    (folder / "key.pem").write_bytes(private)
