"""Foreign clients that know the address of a running member alone: its endpoint mapper on port 135 tells them the rest,
and they call both interfaces. (That a member of ours finds Samba's server so is in tests/interop.)"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from impacket.dcerpc.v5 import epm, transport

from tests.foreign import packets, stubs
from tests.foreign.partner import Partner
from tests.foreign.site import PATIENCE, Member, Names, names
from tests.foreign.test_levels import LEVELS
from tests.foreign.test_scapy import READERS, carried_out, scapy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="port 135 is root's")


@pytest.fixture
def known() -> Names:
    return names()


@pytest.fixture
def member(tmp_path: Path, known: Names) -> Iterator[Member]:
    """At an address of its own, where nothing else has the port."""
    host = f"127.{os.getpid() >> 16 & 0xFF}.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
    with (
        Partner(known, 9) as partner,
        Member(tmp_path, known, partner.port, host=host, more=f"endpoint_mapper = 135\n{READERS}") as one,
    ):
        partner.hear(packets.NEED_JOIN)  # its set is open
        yield one


def test_impacket(member: Member) -> None:
    for interface, request in ((stubs.FRSRPC, stubs.FrsNOP()), (stubs.NTFRSAPI, stubs.GetDsPollingIntervalW())):
        found = epm.hept_map(member.host, interface, protocol="ncacn_ip_tcp")
        assert found == f"ncacn_ip_tcp:{member.host}[{member.port}]"
        dce = transport.DCERPCTransportFactory(found).get_dce_rpc()
        dce.set_credentials(member.user, member.password, member.domain)
        dce.set_auth_level(LEVELS["privacy"])
        dce.connect()
        dce.bind(interface)
        assert dce.request(request)["ErrorCode"] == 0
        dce.disconnect()


@pytest.mark.parametrize("order", ["little", "big"])
def test_scapy(member: Member, known: Names, order: str) -> None:
    """With numbers in either order, from the question to the endpoint mapper on."""
    carried_out(scapy(member, known, port=None, order=order), known)


@pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed")
def test_samba(member: Member, tmp_path: Path) -> None:
    """A binding without a port: Samba's library asks the endpoint mapper."""
    private = tmp_path / "private"
    private.mkdir()
    folders = "".join(f"{one} directory = {private}\n" for one in ("lock", "state", "cache", "pid"))
    conf = tmp_path / "smb.conf"
    conf.write_text(f"[global]\nprivate dir = {private}\n{folders}workgroup = {member.domain}\nrealm = FRS.TEST\n")
    done = subprocess.run(
        ["smbtorture", "-s", conf, "-U", f"{member.domain}/{member.user}%{member.password}",
         f"ncacn_ip_tcp:{member.host}[seal,spnego]", "rpc.frsapi"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("success: frsapi.") == 4
