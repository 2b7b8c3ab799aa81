"""impacket's client, with stubs made from the IDL, calls all methods of both interfaces of a running member: at privacy
they are carried out, at every lower level they are refused."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from impacket.dcerpc.v5 import rpcrt, transport
from impacket.dcerpc.v5.ndr import NULL
from impacket.dcerpc.v5.rpcrt import DCERPCException

from tests.foreign import packets, stubs
from tests.foreign.partner import Partner
from tests.foreign.site import Member, Names, names

LEVELS = {
    "none": rpcrt.RPC_C_AUTHN_LEVEL_NONE, "connect": rpcrt.RPC_C_AUTHN_LEVEL_CONNECT,
    "call": rpcrt.RPC_C_AUTHN_LEVEL_CALL, "packet": rpcrt.RPC_C_AUTHN_LEVEL_PKT,
    "integrity": rpcrt.RPC_C_AUTHN_LEVEL_PKT_INTEGRITY, "privacy": rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY,
}  # fmt: skip


def bound(port: int, interface: bytes, level: str) -> Any:
    """An association; a member that was bound to too often for now is asked again a little later."""
    for _ in range(300):
        try:
            return bound_once(port, interface, level)
        except ConnectionResetError:
            time.sleep(0.1)
    raise AssertionError("no bind was taken for half a minute")


def bound_once(port: int, interface: bytes, level: str) -> Any:
    dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]").get_dce_rpc()
    if level != "none":
        dce.set_credentials(Member.user, Member.password, Member.domain)
    dce.set_auth_level(LEVELS[level])
    dce.connect()
    dce.bind(interface)
    return dce


def need_join(known: Names) -> bytes:
    """CMD_NEED_JOIN of the partner."""
    member, partner = packets.guid(known.member_guid), packets.guid(known.partner_guid)
    return packets.build({
        "bop": 0, "command": packets.NEED_JOIN, "to": (member, known.member), "from": (partner, known.partner),
        "replica": (member, known.set_name.upper()), "cxtion": (packets.guid(known.down), "x"),
        "join_guid": bytes(16), "last_join_time": 1, "eop": 0xFFFFFFFF,
    })  # fmt: skip


def calls(known: Names, root: Path) -> list[tuple[bytes, Any, Callable[[Any], None]]]:
    """The interface, a request, and what the answer has to be."""

    def status(wanted: int) -> Callable[[Any], None]:
        def check(answer: Any) -> None:
            assert answer["ErrorCode"] == wanted

        return check

    pkt = need_join(known)
    send = stubs.FrsRpcSendCommPkt()
    fields = {"Major": 0, "Minor": 9, "CsId": 1, "MemLen": len(pkt), "PktLen": len(pkt), "UpkLen": 0, "Pkt": list(pkt)}
    for name, value in (fields | {"DataName": 0, "DataHandle": 0}).items():
        send["CommPkt"][name] = [bytes((one,)) for one in value] if name == "Pkt" else value

    verify = stubs.FrsRpcVerifyPromotionParent()
    for name in ("ParentAccount", "ParentPassword", "ReplicaSetName", "ReplicaSetType"):
        verify[name] = NULL
    verify["PartnerAuthLevel"], verify["GuidSize"] = 0, 16

    start = stubs.FrsRpcStartPromotionParent()
    for name in ("ParentAccount", "ParentPassword"):
        start[name] = NULL
    for name in ("ReplicaSetName", "ReplicaSetType", "CxtionName", "PartnerName", "PartnerPrincName"):
        start[name] = "none of ours\0"
    start["PartnerAuthLevel"], start["GuidSize"] = 0, 16
    for name in ("CxtionGuid", "PartnerGuid", "ParentGuid"):
        start[name] = [bytes((one,)) for one in range(16)]

    interval = stubs.SetDsPollingIntervalW()
    interval["UseShortInterval"], interval["LongInterval"], interval["ShortInterval"] = 0, 30, 0

    def intervals(answer: Any) -> None:
        status(0)(answer)
        assert (answer["Interval"], answer["LongInterval"], answer["ShortInterval"]) == (30, 30, 5)

    info = stubs.InfoW()
    blob = struct.pack("<11I", 0, 9, 0, 0, 0x1000, 1, 1, 0, 0, 44, 44).ljust(0x1000, b"\0")
    info["BlobSize"], info["Blob"] = len(blob), [bytes((one,)) for one in blob]

    def told(answer: Any) -> None:
        status(0)(answer)
        assert f"name: {known.set_name}".encode() in b"".join(answer["Blob"])

    path = stubs.IsPathReplicated()
    path["Path"], path["ReplicaSetTypeOfInterest"] = f"{root}\0", 0

    def replicated(answer: Any) -> None:
        status(0)(answer)
        assert (answer["Replicated"], answer["Primary"], answer["Root"]) == (1, 1, 1)

    writer = stubs.WriterCommand()
    writer["Command"] = 2
    force = stubs.ForceReplication()
    force["ReplicaSetGuid"] = force["CxtionGuid"] = force["PartnerDnsName"] = NULL
    force["ReplicaSetName"] = f"{known.set_name}\0"
    return [
        (stubs.FRSRPC, stubs.FrsNOP(), status(0)), (stubs.FRSRPC, send, status(0)),
        (stubs.FRSRPC, verify, status(120)), (stubs.FRSRPC, start, status(87)),
        (stubs.NTFRSAPI, interval, status(0)), (stubs.NTFRSAPI, stubs.GetDsPollingIntervalW(), intervals),
        (stubs.NTFRSAPI, info, told), (stubs.NTFRSAPI, path, replicated), (stubs.NTFRSAPI, writer, status(0)),
        (stubs.NTFRSAPI, force, status(0)),
    ]  # fmt: skip


def test_ntlm_without_spnego_is_for_those_that_ask_for_it(tmp_path: Path) -> None:
    """impacket calls so (authentication type 10). A member that is not told to take it refuses the bind, at each level,
    and is itself heard by NTLM inside SPNEGO."""
    known = names()
    with Partner(known, 9) as partner, Member(tmp_path, known, partner.port, raw_ntlm=False) as member:
        partner.hear(packets.NEED_JOIN)
        for level in LEVELS:
            if level != "none":
                with pytest.raises(DCERPCException, match="Authentication type not recognized"):
                    bound(member.port, stubs.FRSRPC, level)


def test_each_level_of_both_interfaces(tmp_path: Path) -> None:
    known = names()
    with Partner(known, 9) as partner:
        site = Member(tmp_path, known, partner.port, more=f'[ntfrsapi]\nreaders = ["{Member.user}"]\n')
        with site as member:
            partner.hear(packets.NEED_JOIN)  # its set is open
            for level in LEVELS:
                for interface, request, check in calls(known, member.root):
                    dce = bound(member.port, interface, level)
                    if level == "privacy":
                        check(dce.request(request, checkError=False))
                    else:
                        with pytest.raises(DCERPCException, match="access_denied"):
                            dce.request(request, checkError=False)
                    dce.disconnect()
            partner.hear(packets.START_JOIN)
