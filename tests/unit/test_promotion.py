"""FrsRpcStartPromotionParent (3.3.4.2): what is validated, and what comes of a request that is valid."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from agent.partners.promotion import Refused, promoted
from agent.rpc import constants as c
from agent.rpc.errors import RpcFault
from agent.rpc.frsrpc import FrsPartner, frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import RpcServer
from agent.wire.comm_packet import StartPromotionParent, decode_start_promotion_parent_response
from config.model import LocalSet, ReplicaSetType
from config.topology import new_replica_set

ALICE = Credential("FRS", "alice", "password")
NAME = "Domain System Volume (SYSVOL share)"
SET = new_replica_set(
    NAME, [("dc1", "dc1.frs.test", 5000), ("dc2", "dc2.frs.test", 5001)], "full-mesh", primary="dc1", set_type="sysvol"
)
LOCAL = LocalSet(SET, SET.members["dc1"], Path("root"), Path("state"))
NEW = SET.members["dc2"].guid
CXTION = bytes(range(16))


def request(**other: Any) -> StartPromotionParent:
    good = StartPromotionParent(
        parent_account=None,
        parent_password=None,
        replica_set_name=NAME,
        replica_set_type="Domain",
        cxtion_name="dc1.frs.test",
        partner_name="dc2.frs.test",
        partner_princ_name="FRS\\DC2$",
        partner_auth_level=0,
        cxtion_guid=CXTION,
        partner_guid=NEW,
        parent_guid=bytes(16),
    )
    return good._replace(**other)


@pytest.mark.parametrize("other", [{}, {"replica_set_type": "DOMAIN"}, {"partner_auth_level": 1},
                                   {"replica_set_name": NAME.upper()}])  # fmt: skip
def test_a_valid_request_gets_a_volatile_outbound_connection(other: dict[str, Any]) -> None:
    local, cxtion = promoted(request(**other), [LOCAL], lambda member: member.name == "dc2", {CXTION: NEW})
    assert local is LOCAL
    assert (cxtion.guid, cxtion.partner.guid, cxtion.inbound, cxtion.volatile) == (CXTION, NEW, False, True)
    assert cxtion.schedule is None


@pytest.mark.parametrize(
    "other",
    [
        {"replica_set_name": None}, {"replica_set_name": "another"}, {"replica_set_type": None},
        {"replica_set_type": "Dfs"}, {"replica_set_type": "Enterprise"}, {"replica_set_type": "Domain "},
        {"cxtion_name": None}, {"partner_name": None}, {"partner_princ_name": None}, {"partner_auth_level": 2},
        {"cxtion_guid": None}, {"partner_guid": None}, {"parent_guid": None}, {"cxtion_guid": bytes(16)},
        {"cxtion_guid": SET.connections[0].guid}, {"partner_guid": b"1" * 16},
        {"partner_guid": SET.members["dc1"].guid},
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_what_is_not_valid(other: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        promoted(request(**other), [LOCAL], lambda member: True, {})


@pytest.mark.parametrize("kind", ["dfs", "other", "enterprise"])
def test_another_kind_of_set_has_no_domain_controllers(kind: ReplicaSetType) -> None:
    local = dataclasses.replace(LOCAL, set=dataclasses.replace(SET, type=kind))
    with pytest.raises(Refused):
        promoted(request(), [local], lambda member: True, {})


def test_the_caller_must_be_the_partner() -> None:
    with pytest.raises(Refused, match="the caller is not the member"):
        promoted(request(), [LOCAL], lambda member: member.name == "dc1", {})


def test_a_volatile_connection_of_another_is_not_taken_away() -> None:
    with pytest.raises(Refused, match="another one's"):
        promoted(request(), [LOCAL], lambda member: True, {CXTION: b"somebody else..."})


async def test_on_the_wire() -> None:
    async def on_promotion(context: CallContext, asked: StartPromotionParent) -> tuple[bytes | None, int]:
        try:
            local, _ = promoted(asked, [LOCAL], lambda member: context.user == "alice", {})
        except Refused:
            return asked.parent_guid, 87
        return local.member.guid, 0

    server = RpcServer(
        [frsrpc_interface(lambda context, packet: 0, on_promotion=on_promotion)], CredentialStore([ALICE])
    )
    partner = FrsPartner("127.0.0.1", await server.start("127.0.0.1", 0), ALICE)
    client = await partner.connect()
    answer = await client.call(2, request().encode(), 30)
    assert decode_start_promotion_parent_response(answer) == (SET.members["dc1"].guid, 0)
    answer = await client.call(2, request(partner_name=None).encode(), 30)
    assert decode_start_promotion_parent_response(answer) == (bytes(16), 87)
    assert await client.call(1, b"", 30) == (120).to_bytes(4, "little")
    wrong_size = bytearray(request().encode())
    at = wrong_size.rindex((16).to_bytes(4, "little") + (0x20000 + 20).to_bytes(4, "little"))
    wrong_size[at] = 17
    with pytest.raises(RpcFault) as fault:
        await client.call(2, bytes(wrong_size), 30)
    assert fault.value.status == c.RPC_X_BAD_STUB_DATA
    await partner.close()
    await server.close()
