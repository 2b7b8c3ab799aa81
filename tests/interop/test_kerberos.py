"""Kerberos against a real KDC: our client and server, impacket's client and Samba's, and who is not let in."""

from __future__ import annotations

import asyncio
import datetime
import math
import os
import shutil
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.reporting.causes import Cause
from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcAuthError, RpcError
from agent.rpc.frsrpc import FRSRPC, OP_NOP, OP_SEND_COMM_PKT, FrsPartner, frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.kerberos import FRS_SERVICE, KerberosAcceptor, KerberosCredential, Keytab
from agent.rpc.security import CredentialStore
from agent.rpc.server import RpcServer
from agent.wire.comm_packet import CommPacket, encode_send_comm_pkt
from tests.interop.kdc import REALM, Kdc, missing
from tests.interop.test_rpc_samba import Member as SambasServer
from tests.interop.test_rpc_samba import has_samba, run, smb_conf

__all__ = ["smb_conf"]

pytest.importorskip("gssapi", reason="the extra kerberos is not installed")
pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")

T = 60.0
PASSWORD = "a-password"
HOST = "127.0.0.1"
ONE, TWO, STRANGER = f"FILES1$@{REALM}", f"FILES2$@{REALM}", f"STRANGER$@{REALM}"
MEMBERS = {ONE: "files1", TWO: "files2"}


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A realm with two members, of which the first has services, and with somebody who is none."""
    one = Kdc(tmp_path_factory.mktemp("kdc"))
    try:
        one.start()
        services = (f"{FRS_SERVICE}/{HOST}", f"host/{HOST}", "host/files1.frs.test")
        one.keytab("files1", "FILES1$", *services)
        one.keytab("files2", "FILES2$", password=PASSWORD)
        one.keytab("stranger", "STRANGER$", "host/elsewhere.frs.test")
        yield one
    finally:
        one.stop()


@pytest.fixture(autouse=True)
def realm(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process knows the KDC."""
    for name, value in kdc.environment.items():
        monkeypatch.setenv(name, value)


class Member:
    """files1: takes packets, and says who sent them."""

    def __init__(self, kdc: Kdc, keytab: str = "files1", min_level: int = c.LEVEL_PRIVACY) -> None:
        self.packets: list[tuple[CallContext, bytes]] = []
        own = Keytab(str(kdc.folder / f"{keytab}.keytab"), ONE)
        self.store = CredentialStore(keytab=own, principals=MEMBERS)
        self.server = RpcServer([frsrpc_interface(self.on_packet, min_level=min_level)], self.store)

    def on_packet(self, context: CallContext, packet: CommPacket) -> int:
        self.packets.append((context, bytes(packet.pkt)))
        return len(packet.pkt) % 251

    @property
    def failed(self) -> int:
        """How many authentications have failed."""
        return self.server.incidents.counts().get(Cause.AUTHENTICATION.value, 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        port = await self.server.start(HOST)
        try:
            yield port
        finally:
            await self.server.close()


def credential(kdc: Kdc, name: str = "files2", principal: str = TWO, realm: str = REALM) -> KerberosCredential:
    return KerberosCredential(Keytab(str(kdc.folder / f"{name}.keytab"), principal), realm)


async def client(port: int, account: KerberosCredential, **options: Any) -> RpcClient:
    return await RpcClient.connect(HOST, port, FRSRPC, account, timeout=T, **options)


@pytest.mark.parametrize("level", [c.LEVEL_CONNECT, c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
@pytest.mark.parametrize("fragment", [c.MIN_FRAGMENT, c.MAX_FRAGMENT])
async def test_a_member_is_known_by_its_principal(kdc: Kdc, level: int, fragment: int) -> None:
    """Many calls at once, in fragments, at each level."""
    member, told = Member(kdc, min_level=c.LEVEL_CONNECT), []
    sizes = (0, 1, 4000, 65_000, 200_000)
    packets = [os.urandom(size) for size in sizes for _ in range(4)]
    async with member.running() as port:
        one = await client(
            port, credential(kdc), level=level, max_fragment=fragment,
            on_authentication=lambda *how: told.append(how),
        )  # fmt: skip
        stubs = [encode_send_comm_pkt(packet) for packet in packets]
        answers = await asyncio.gather(*(one.call(OP_SEND_COMM_PKT, stub, T) for stub in stubs))
        await one.close()
    assert [int.from_bytes(answer, "little") for answer in answers] == [len(packet) % 251 for packet in packets]
    assert [packet for _, packet in member.packets] == packets
    assert {(x.member, x.user, x.domain, x.level) for x, _ in member.packets} == {("files2", "FILES2$", REALM, level)}
    assert told == [(True, "Kerberos")]


async def test_a_principal_that_is_no_members_is_refused(kdc: Kdc) -> None:
    member = Member(kdc)
    async with member.running() as port:
        with pytest.raises(RpcAuthError):
            await client(port, credential(kdc, "stranger", STRANGER))
    assert member.failed == 1
    assert member.packets == []


async def test_a_member_that_is_none_any_more_is_refused_at_once(kdc: Kdc) -> None:
    """Its association ends; another principal for the same member counts as well."""
    member = Member(kdc)
    own = member.store.keytab
    async with member.running() as port:
        one = await client(port, credential(kdc))
        assert await one.call(OP_NOP, b"", T) == bytes(4)
        member.server.admit(CredentialStore(keytab=own, principals={ONE: "files1", TWO: "files2", STRANGER: "x"}))
        assert await one.call(OP_NOP, b"", T) == bytes(4)
        member.server.admit(CredentialStore(keytab=own, principals={STRANGER: "files2"}))
        with pytest.raises(RpcError):
            await one.call(OP_NOP, b"", T)
        with pytest.raises(RpcAuthError):
            await client(port, credential(kdc))
        await (await client(port, credential(kdc, "stranger", STRANGER))).close()
        member.server.admit(CredentialStore(principals={TWO: "files2"}))
        with pytest.raises(RpcError):
            await client(port, credential(kdc))


async def test_an_association_ends_with_the_ticket(kdc: Kdc) -> None:
    """What has been asked is answered first; who has a new ticket is let in again."""
    member = Member(kdc)
    partner = FrsPartner(HOST, 0, credential(kdc))
    async with member.running() as port:
        partner.port = port
        first = await partner.connect()
        (connection,) = member.server.established
        assert 3600 < connection._until - asyncio.get_running_loop().time() < 25 * 3600
        connection._until = 0.0
        assert await first.call(OP_NOP, b"", T) == bytes(4)
        while not first.closed:
            await asyncio.sleep(0.01)
        assert await partner.nop(T) == 0
        (connection,) = member.server.established
        (await partner.connect())._association.pdu_received = lambda pdu: None  # type: ignore[method-assign]
        connection._until = 0.0
        while connection._ended == math.inf:
            await asyncio.sleep(0.01)
        connection._ended = 0.0
        while member.server.established:
            await asyncio.sleep(0.01)
        await partner.close()


async def test_a_server_without_the_keys_of_the_service_is_found_out(kdc: Kdc) -> None:
    """Its keytab has others, or none."""
    for keytab in ("stranger", "nowhere"):
        member = Member(kdc, keytab)
        async with member.running() as port:
            with pytest.raises(RpcAuthError):
                await client(port, credential(kdc))
        assert member.failed == 1


async def test_a_service_with_other_keys_is_called_with_another_ticket(kdc: Kdc) -> None:
    """One that is there from before is refused once, and not for as long as it is good."""
    kdc.keytab("changing", f"{FRS_SERVICE}/127.0.0.5")
    kdc.keytab("caller", "CALLER$")
    member, account = Member(kdc, "changing"), credential(kdc, "caller", f"CALLER$@{REALM}")
    member.server.credentials = CredentialStore(keytab=member.store.keytab, principals={f"CALLER$@{REALM}": "files2"})
    port = await member.server.start("127.0.0.5")

    async def call() -> None:
        await (await RpcClient.connect("127.0.0.5", port, FRSRPC, account, timeout=T)).close()

    await call()
    kdc.run("kadmin.local", "-r", REALM, said=f"delprinc -force {FRS_SERVICE}/127.0.0.5\n")
    (kdc.folder / "changing.keytab").unlink()
    kdc.keytab("changing", f"{FRS_SERVICE}/127.0.0.5")
    with pytest.raises(RpcAuthError):
        await call()
    await call()
    await member.server.close()


async def test_what_the_kdc_does_not_know_is_told_before_anything_is_sent(kdc: Kdc) -> None:
    """A service, a principal, a keytab, a realm."""
    member = Member(kdc)
    async with member.running() as port:
        with pytest.raises(RpcAuthError, match=r"localhost@FRS.TEST.*not found in Kerberos database"):
            await RpcClient.connect("localhost", port, FRSRPC, credential(kdc), timeout=T)
        for wrong in (
            credential(kdc, "files2", f"NOBODY$@{REALM}"),
            credential(kdc, "nowhere", f"FILES3$@{REALM}"),
            credential(kdc, realm="ELSEWHERE.TEST"),
        ):
            with pytest.raises(RpcAuthError, match=r"Kerberos: \w+"):
                await client(port, wrong)
        assert member.server.connections == 0


async def test_less_than_privacy_is_denied(kdc: Kdc) -> None:
    member = Member(kdc)
    async with member.running() as port:
        for level in (c.LEVEL_CONNECT, c.LEVEL_PKT, c.LEVEL_INTEGRITY):
            one = await client(port, credential(kdc), level=level)
            with pytest.raises(RpcError, match="access denied"):
                await one.call(OP_NOP, b"", T)
            await one.close()


# -- foreign clients --


def impacket_client(port: int, level: int, tickets: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has its tickets already. It does not sign headers."""
    from impacket.dcerpc.v5 import rpcrt, transport
    from impacket.uuid import uuidtup_to_bin

    monkeypatch.setenv("KRB5CCNAME", str(tickets))
    dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:{HOST}[{port}]").get_dce_rpc()
    dce.set_credentials("FILES2$", "", REALM)
    dce.get_rpc_transport().set_kerberos(True, HOST)
    dce.set_auth_type(rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE)
    dce.set_auth_level(level)
    dce.connect()
    dce.bind(uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1")))
    return dce


@pytest.mark.parametrize("level", [c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
async def test_impackets_client(kdc: Kdc, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("impacket")
    member = Member(kdc, min_level=level)
    tickets = kdc.tickets("impacket", kdc.folder / "files2.keytab", "FILES2$", f"host/{HOST}")
    packets = [os.urandom(size) for size in (0, 1, 4000, 70_000)]

    def talk(port: int) -> None:
        dce = impacket_client(port, level, tickets, monkeypatch)
        for packet in packets:
            dce.call(OP_SEND_COMM_PKT, encode_send_comm_pkt(packet))
            assert int.from_bytes(dce.recv()[:4], "little") == len(packet) % 251
        dce.disconnect()

    async with member.running() as port:
        await asyncio.to_thread(talk, port)
    assert [(x.member, x.level, packet) for x, packet in member.packets] == [
        ("files2", level, packet) for packet in packets
    ]


SAMBA = """
import sys
from samba import credentials, param
from samba.dcerpc import echo
lp = param.LoadParm()
lp.load(sys.argv[1])
creds = credentials.Credentials()
creds.guess(lp)
creds.set_realm(sys.argv[3])
creds.set_username("FILES2$")
creds.set_password(sys.argv[4])
creds.set_kerberos_state(credentials.MUST_USE_KERBEROS)
client = echo.rpcecho(sys.argv[2], lp, creds)
assert client.AddOne(41) == 42
assert client.SinkData([x % 251 for x in range(100_000)]) is None
assert len(client.SourceData(100_000)) == 100_000
print("all well")
"""


@pytest.mark.skipif(not has_samba(), reason="python3-samba is not installed")
@pytest.mark.parametrize("options", ["sign,spnego", "seal,spnego", "seal,krb5", "sign,krb5", "connect,krb5"])
async def test_sambas_client(kdc: Kdc, smb_conf: Path, options: str) -> None:
    """Inside SPNEGO and without (authentication type 16); it has a KDC of its own choice, the realm's."""
    foreign = SambasServer()
    foreign.server.credentials = Member(kdc).store
    port = await foreign.server.start(HOST)
    binding = f"ncacn_ip_tcp:{HOST}[{port},{options},target_hostname=files1.frs.test]"
    code, output = await run("/usr/bin/python3", "-c", SAMBA, smb_conf, binding, REALM, PASSWORD)
    await foreign.server.close()
    assert (code, output.strip().splitlines()[-1:]) == (0, ["all well"]), output
    level = {"connect": c.LEVEL_CONNECT, "sign": c.LEVEL_INTEGRITY, "seal": c.LEVEL_PRIVACY}[options.partition(",")[0]]
    assert [(x.member, x.level) for x, _ in foreign.calls] == [("files2", level)]


@pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed")
async def test_smbtorture_reaches_ntfrsapi(kdc: Kdc, smb_conf: Path) -> None:
    """The calls of rpc.frsapi arrive, sealed; what they mean is not decided here."""
    foreign = SambasServer()
    foreign.server.credentials = Member(kdc).store
    port = await foreign.server.start(HOST)
    binding = f"ncacn_ip_tcp:{HOST}[{port},seal,spnego,krb5,target_hostname=files1.frs.test]"
    who = ("-U", f"FILES2$@{REALM}%{PASSWORD}", "--use-kerberos=required", f"--realm={REALM}")
    _, output = await run("smbtorture", binding, "-s", smb_conf, *who, "rpc.frsapi", cwd=smb_conf.parent)
    await foreign.server.close()
    assert len(foreign.calls) > 5, output
    assert {(x.member, x.level) for x, _ in foreign.calls} == {("files2", c.LEVEL_PRIVACY)}


# -- tickets that are not good --


class Forged:
    """What impacket makes of a ticket of the KDC's for files2, with the key of the service in hand."""

    def __init__(self, kdc: Kdc) -> None:
        from impacket.krb5.ccache import CCache

        service = f"host/{HOST}@{REALM}"
        path = kdc.tickets("forged", kdc.folder / "files2.keytab", "FILES2$", service)
        self._kdc = kdc
        self.ticket = CCache.loadFile(str(path)).getCredential(service).toTGS()

    def dated(self, hours: float) -> None:
        """The ticket is good for an hour from then on."""
        from impacket.krb5.asn1 import TGS_REP, EncTicketPart
        from impacket.krb5.crypto import Key, _enctype_table
        from impacket.krb5.keytab import Keytab as Foreign
        from impacket.krb5.types import KerberosTime
        from pyasn1.codec.der import decoder, encoder

        answer = decoder.decode(self.ticket["KDC_REP"], asn1Spec=TGS_REP())[0]
        enc = answer["ticket"]["enc-part"]
        stored = Foreign.loadFile(str(self._kdc.folder / "files1.keytab")).getKey(f"host/{HOST}")
        key = Key(int(enc["etype"]), bytes(stored["keyvalue"]["data"]))
        cipher = _enctype_table[int(enc["etype"])]
        part = decoder.decode(cipher.decrypt(key, 2, bytes(enc["cipher"])), asn1Spec=EncTicketPart())[0]
        begin = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
        for name in ("authtime", "starttime"):
            part[name] = KerberosTime.to_asn1(begin)
        part["endtime"] = part["renew-till"] = KerberosTime.to_asn1(begin + datetime.timedelta(hours=1))
        enc["cipher"] = cipher.encrypt(key, 2, encoder.encode(part), None)
        self.ticket["KDC_REP"] = encoder.encode(answer)

    def first(self, monkeypatch: pytest.MonkeyPatch, hours: float = 0.0) -> bytes:
        """The first token, made by somebody whose clock is so many hours ahead."""
        from impacket.krb5 import kerberosv5
        from impacket.spnego import SPNEGO_NegTokenInit

        class Ahead(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Any:
                return datetime.datetime.now(tz) + datetime.timedelta(hours=hours)

        clock = types.SimpleNamespace(datetime=Ahead, timezone=datetime.timezone, timedelta=datetime.timedelta)
        monkeypatch.setattr(kerberosv5, "datetime", clock)
        found = kerberosv5.getKerberosType1("FILES2$", "", REALM, "", "", TGS=self.ticket, targetName=HOST)
        return bytes(SPNEGO_NegTokenInit(found[2])["MechToken"])


def good(forged: Forged) -> float:
    return 0.0


def unchanged_but_made_anew(forged: Forged) -> float:
    forged.dated(-0.5)
    return 0.0


def expired(forged: Forged) -> float:
    forged.dated(-2)
    return 0.0


def not_yet_good(forged: Forged) -> float:
    forged.dated(2)
    return 0.0


def behind(forged: Forged) -> float:
    return -1.0


def ahead(forged: Forged) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (good, None), (unchanged_but_made_anew, None), (expired, "Ticket expired"),
        (not_yet_good, "Ticket not yet valid"), (behind, "Clock skew too great"), (ahead, "Clock skew too great"),
    ],
)  # fmt: skip
def test_times(kdc: Kdc, what: Callable[[Forged], float], says: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets have a beginning and an end, and authenticators are of now, by the clock of whoever takes them."""
    pytest.importorskip("impacket")
    forged = Forged(kdc)
    token = forged.first(monkeypatch, what(forged))
    acceptor = KerberosAcceptor(Keytab(str(kdc.folder / "files1.keytab"), ONE), MEMBERS)
    if says is None:
        assert acceptor.step(token)
        assert not acceptor.complete
        return
    with pytest.raises(RpcAuthError, match=says):
        acceptor.step(token)
