"""Our client against Samba's server: a domain controller in a network namespace of its own. Skipped without it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.epm import resolve
from agent.rpc.errors import RpcClosed, RpcError, RpcFault
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import Credential

DSSETUP = InterfaceId.parse("3919286a-b10c-11d0-9ba8-00c04fd92ef5", 0)
EPMAPPER = InterfaceId.parse("e1af8308-5d1f-11c9-91a4-08002b14a0fa", 3)
UNKNOWN = InterfaceId.parse("f5cc59b4-4264-101a-8c59-08002b2f8426", 1, 1)
PASSWORD = "Adm1n-pass"
ROLE_REQUEST = b"\1\0"  # DsRoleGetPrimaryDomainInformation, basic information
LOOKUP_REQUEST = bytes(36) + (500).to_bytes(4, "little")  # ept_lookup, everything
PORT = 49900
T = 30.0

CONF = """[global]
  workgroup = FRSTEST
  realm = FRS.TEST
  netbios name = DC1
  server role = active directory domain controller
  server services = rpc
  dcerpc endpoint servers = epmapper, dssetup
  rpc server port:dssetup = {port}
  interfaces = lo
  bind interfaces only = yes
  private dir = {dir}/private
  state directory = {dir}/state
  cache directory = {dir}/cache
  lock directory = {dir}
  pid directory = {dir}
  ncalrpc dir = {dir}/ncalrpc
  log file = {dir}/log
"""


async def talk() -> dict[str, object]:
    """Runs inside the namespace: everything the test wants to know."""
    good = Credential("FRSTEST", "Administrator", PASSWORD)

    async def client(interface: InterfaceId = DSSETUP, port: int = PORT, **options: object) -> RpcClient:
        credential = options.pop("credential", good)
        return await RpcClient.connect("127.0.0.1", port, interface, credential, timeout=T, **options)  # type: ignore[arg-type]

    while True:  # until it listens
        try:
            await (await client()).close()
            break
        except RpcClosed:
            await asyncio.sleep(0.05)
    found: dict[str, object] = {}
    for provider in (c.AUTH_SPNEGO, c.AUTH_NTLM):
        for level in (c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY):
            for fragment in (c.MIN_FRAGMENT, c.MAX_FRAGMENT):
                options = {"auth_type": provider, "level": level, "max_fragment": fragment}
                one = await client(**options)
                answers = await asyncio.gather(*(one.call(0, ROLE_REQUEST, T) for _ in range(40)))
                # What follows the arguments of a request is ignored, so a request may be as long as one likes.
                answers.append(await one.call(0, ROLE_REQUEST + bytes(100_000), T))
                try:
                    await one.call(77, b"", T)
                    fault = 0
                except RpcFault as error:
                    fault = error.status
                answers.append(await one.call(0, ROLE_REQUEST, T))
                await one.close()
                mapper = await client(EPMAPPER, 135, **options)
                lookup = await mapper.call(2, LOOKUP_REQUEST, T)
                await mapper.close()
                name = "FRSTEST".encode("utf-16-le")
                found[f"{provider} {level} {fragment}"] = [
                    len(answers), len(set(answers)), name in answers[0], fault, len(lookup) > c.MIN_FRAGMENT,
                ]  # fmt: skip
        try:
            one = await client(auth_type=provider, credential=Credential("FRSTEST", "Administrator", "wrong"))
            await one.call(0, ROLE_REQUEST, T)
            found[f"{provider} wrong"] = "accepted"
        except RpcError:
            found[f"{provider} wrong"] = "refused"
    found["port"] = await resolve("127.0.0.1", 135, DSSETUP, T)
    try:
        await resolve("127.0.0.1", 135, UNKNOWN, T)
    except RpcError as error:
        found["no port"] = str(error)
    try:
        await client(UNKNOWN)
    except RpcError as error:
        found["unknown"] = str(error)
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(x) for x in ("samba", "samba-tool", "unshare", "ip")),
    reason="needs root, Samba's domain controller, unshare and ip",
)
async def test_our_client_and_sambas_server(tmp_path: Path) -> None:
    directory = tmp_path / "dc"
    subprocess.run(
        ["samba-tool", "domain", "provision", f"--targetdir={directory}", "--realm=FRS.TEST", "--domain=FRSTEST",
         "--server-role=dc", "--dns-backend=NONE", f"--adminpass={PASSWORD}", "--host-name=dc1", "--host-ip=127.0.0.1",
         "--option=interfaces=lo", "--option=bind interfaces only=yes"],
        check=True, capture_output=True,
    )  # fmt: skip
    conf = tmp_path / "smb.conf"
    conf.write_text(CONF.format(dir=directory, port=PORT))
    script = (
        "ip link set lo up; "
        f"samba -s {conf} -F --no-process-group -M single --debug-stdout > {tmp_path}/samba.out 2>&1 & "
        f'"{sys.executable}" "{__file__}"; kill $!; wait'
    )
    process = await asyncio.create_subprocess_exec(
        "unshare", "-n", "sh", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert output, errors.decode() + (tmp_path / "samba.out").read_text()
    found = json.loads(output)
    assert found.pop("9 wrong") == "refused"
    assert found.pop("10 wrong") == "refused"
    assert found.pop("port") == PORT
    assert "knows no port of" in found.pop("no port")
    assert "reason 1" in found.pop("unknown")
    assert len(found) == 12
    assert {tuple(x) for x in found.values()} == {(42, 1, True, c.NCA_S_OP_RNG_ERROR, True)}, found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(talk())))
