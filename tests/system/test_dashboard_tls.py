"""The dashboard where the network can reach it: TLS, and nobody looks without a token or a certificate."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from aiohttp import ClientConnectorError, ClientError, ClientSession, TCPConnector
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.cli.demo_layout import DemoOptions, prepare
from agent.dashboard.access import COOKIE
from agent.dashboard.tls import context_of
from agent.dashboard.tokens import READ_FILE, RESTORE_FILE
from agent.edge.http import MOST_OF_ONE
from agent.service.service import Service
from agent.service.shown import tls_of
from config.errors import ConfigError
from config.load import load_agent_config
from config.model import DashboardTls
from tests.ports import port_base
from tests.system.chromium import chromium, needs_chromium

SHOWN = (
    "api/status", "api/counters", "api/fleet", "api/live", "api/summary", "api/history", "api/history/own", "metrics",
    "healthz", "events", "summary/chart-light.svg", "api/files", "api/files/show?id=1", "nowhere",
)  # fmt: skip


class Authority:
    """Signs certificates, which are in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        extension = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._signed(self._name, self._key.public_key()).add_extension(extension, critical=True)
        self.path = folder / "ca.pem"
        self.path.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        """A certificate for this host, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._signed(subject, key.public_key()).add_extension(names, critical=False)
        certificate, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        how: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            how = serialization.BestAvailableEncryption(password)
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
        private.chmod(0o600)
        return certificate, private

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
async def member(authority: Authority, tmp_path: Path) -> AsyncIterator[tuple[Service, str]]:
    """A running member with TLS, and the address of its dashboard."""
    made = prepare(
        DemoOptions(tmp_path / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.1)
    ).members[0]
    certificate, key = authority.issue("server")
    of = tomlkit.parse(made.config.read_text())
    of["dashboard"] |= {
        "certificate": str(certificate), "key": str(key), "client_ca": str(authority.path),
        "host_names": ["files.example"],
    }  # fmt: skip
    made.config.write_text(tomlkit.dumps(of))
    service = Service(load_agent_config(made.config))
    await service.start()
    try:
        yield service, made.dashboard_url.replace("http:", "https:")
    finally:
        await service.close()


def client(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ClientSession:
    context = ssl.create_default_context(cafile=authority.path)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return ClientSession(connector=TCPConnector(ssl=context))


def bearer(service: Service, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {(service.config.state_dir / name).read_text().strip()}"}


async def test_nobody_looks_who_shows_nothing(member: tuple[Service, str], authority: Authority) -> None:
    service, url = member
    async with client(authority) as session:

        async def status(path: str, **more: Any) -> int:
            async with session.get(f"{url}{path}", **more) as response:
                return response.status

        for path in ("", "dashboard.js", "dashboard.css", "icon.svg"):
            assert await status(path) == 200, "there is no secret in the page"
        for path in SHOWN:
            assert await status(path) == 401, path
            assert await status(path, headers={"Authorization": "Bearer guessed"}) == 401, path
            assert await status(path, headers={"Cookie": f"{COOKIE}00000000=guessed"}) == 401, path
        assert service.incidents.counts()["authentication failed"] == len(SHOWN)
        for name in (READ_FILE, RESTORE_FILE):
            assert await status("api/status", headers=bearer(service, name)) == 200
            assert await status("metrics", headers=bearer(service, name)) == 200, "so Prometheus asks"
            assert await status("nowhere", headers=bearer(service, name)) == 404
        async with session.get(f"{url}api/session") as response:
            assert await response.json() == {"needed": True}
        for name, expected in (("files.example", 200), ("elsewhere.example", 421)):
            assert await status("", headers={"Host": name}) == expected


async def test_a_page_may_look_by_its_cookie_and_do_nothing_else(
    member: tuple[Service, str], authority: Authority
) -> None:
    service, url = member
    for name in (READ_FILE, RESTORE_FILE):
        async with client(authority) as session:
            async with session.post(f"{url}api/session") as response:
                assert response.status == 401
            async with session.post(f"{url}api/session", headers=bearer(service, name)) as response:
                assert response.status == 200
                told = response.headers["Set-Cookie"]
            cookie = told.partition(";")[0]
            called, _, value = cookie.partition("=")
            assert called.startswith(COOKIE)
            assert {one.strip().lower() for one in told.split(";")[1:]} == {
                "httponly", "secure", "samesite=strict", "path=/"
            }  # fmt: skip
            token = bearer(service, name)["Authorization"].split()[1]
            assert token not in told
            for other in ("__Host-frs", f"{called}x", f"{COOKIE}00000000"):
                async with session.get(f"{url}api/status", headers={"Cookie": f"{other}={value}"}) as response:
                    assert response.status == 401
            headers = {"Cookie": cookie}
            async with session.get(f"{url}api/status", headers=headers) as response:
                assert response.status == 200
            async with session.get(f"{url}api/session", headers=headers) as response:
                assert await response.json() == {"needed": False}
            async with session.get(f"{url}api/files", headers=headers) as response:
                assert response.status == 401
            async with session.post(f"{url}api/files/restore", json={"id": "1"}, headers=headers) as response:
                assert response.status == 401


async def test_a_certificate_of_the_authority_may_look(
    member: tuple[Service, str], authority: Authority, tmp_path: Path
) -> None:
    _, url = member
    async with client(authority, authority.issue("prometheus")) as session:
        async with session.get(f"{url}metrics") as response:
            assert response.status == 200
        async with session.get(f"{url}api/files") as response:
            assert response.status == 401, "names of files take a token"
    async with client(authority, Authority(tmp_path / "another").issue("prometheus")) as session:
        with pytest.raises(ClientError):
            await session.get(f"{url}metrics")


async def test_what_is_no_tls_is_not_answered_and_handshakes_are_bounded(
    member: tuple[Service, str], authority: Authority
) -> None:
    service, url = member
    port = int(url.rsplit(":", 1)[1].strip("/"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await until_end(reader) == 0
    writer.close()
    assert service.incidents.counts()["not DCE/RPC as it should be"] == 1

    hello = ssl.MemoryBIO()
    begun = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        begun.do_handshake()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_OF_ONE + 8)]
    first = hello.read()
    for _, writer in silent:
        writer.write(first[:7])  # in pieces: nothing is made for the first
        writer.write(first[7:])
    ended = [asyncio.create_task(until_end(reader)) for reader, _ in silent]
    refused = 0
    for one in asyncio.as_completed(ended):
        refused += await one == 0
        if refused == 8:
            break
    assert sum(one.done() for one in ended) == 8, "the others have their answer, and are waited for"
    for one in ended:
        one.cancel()
    for _, writer in silent:
        writer.close()
    while True:
        async with client(authority) as session:
            try:
                async with session.get(url) as response:
                    assert response.status == 200
                    break
            except ClientConnectorError:
                await asyncio.sleep(0)  # those that have gone are not known to have, yet


async def until_end(reader: asyncio.StreamReader) -> int:
    """How many bytes came before the connection ended."""
    count = 0
    try:
        while data := await reader.read(4096):
            count += len(data)
    except ConnectionError:
        pass
    return count


async def test_a_dashboard_that_the_network_reaches_has_tls_or_is_not_there(
    member: tuple[Service, str], caplog: pytest.LogCaptureFixture
) -> None:
    service, _ = member
    config = dataclasses.replace(service.config, dashboard_tls=None)
    for host in ("127.0.0.1", "::1", "localhost"):
        assert tls_of(dataclasses.replace(config, dashboard_host=host)) is None
    for host in ("0.0.0.0", "::", "192.0.2.7", "files.example"):
        with pytest.raises(ConfigError, match="forward the port"):
            tls_of(dataclasses.replace(config, dashboard_host=host))
    assert tls_of(dataclasses.replace(service.config, dashboard_host="0.0.0.0")) is not None
    service.config = dataclasses.replace(config, dashboard_host="0.0.0.0", dashboard_port=0)
    await service._start_dashboard()
    assert "20103 no dashboard" in caplog.text


def test_a_certificate_that_cannot_be_used_says_why(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    assert context_of(DashboardTls(certificate, key, None)).verify_mode == ssl.CERT_NONE
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read it"):
        context_of(DashboardTls(certificate, key, None))
    key.chmod(0o600)
    other, _ = authority.issue("other")
    for name, wrong in (
        ("another's", DashboardTls(other, key, None)),
        ("with a password", DashboardTls(*authority.issue("locked", b"secret"), None)),
        ("none", DashboardTls(tmp_path / "none.pem", key, None)),
        ("no authority", DashboardTls(certificate, key, key)),
    ):
        with pytest.raises(ConfigError, match="PEM") as raised:
            context_of(wrong)
        assert raised.value.file.suffix in (".pem", ".key"), name


@pytest.mark.slow
@needs_chromium
async def test_the_page_asks_for_a_token_once(member: tuple[Service, str], tmp_path: Path) -> None:
    service, url = member
    async with chromium(tmp_path) as page:
        await page.send("Security.setIgnoreCertificateErrors", ignore=True)
        await page.send("Page.navigate", url=url)
        await page.until("document.getElementById('session')?.hidden === false")
        assert "demo" not in await page.js("document.getElementById('sets').textContent")
        await page.type("session-token", "guessed")
        await page.press("Enter", "Enter", "\r")
        said = "document.getElementById('session-said').textContent"
        await page.until(f"{said} === 'a token of this member is needed'")
        passed, violations = await page.judged()
        assert (violations, "color-contrast" in passed) == ([], True)
        await page.type("session-token", bearer(service, READ_FILE)["Authorization"].split()[1])
        await page.press("Enter", "Enter", "\r")
        await page.until(
            "document.getElementById('session').hidden && document.getElementById('member').textContent === 'a'"
        )
        await page.until("document.getElementById('sets').textContent.includes('demo')")
        assert await page.js("document.cookie") == "", "no script has it"
        await page.send("Page.reload")
        await page.until("document.getElementById('sets')?.textContent.includes('demo')")
        assert await page.js("document.getElementById('session').hidden") is True
        assert [one for one in page.complaints() if "401" not in json.dumps(one)] == []
