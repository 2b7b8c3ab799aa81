"""scapy's client and the stubs of scapy-rpc, which were made from the IDL of [MS-FRS1], call all methods of both
interfaces. It runs as a process of its own (both are under the GPL), is told on standard input whom to call and how,
and prints what was answered.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from msrpcs import ms_frs1_frsapi as api
from msrpcs import ms_frs1_frsrpc as frs
from scapy.compat import plain_str
from scapy.fields import StrNullFieldUtf16
from scapy.layers.dcerpc import (
    DCE_C_AUTHN_LEVEL,
    DceRpc5Fault,
    DCERPC_Transport,
    DceRpcSecVTPcontext,
    NDRConfStrLenField,
    NDRFullEmbPointerField,
    NDRIntField,
    NDRPacket,
    NDRPacketField,
    find_dcerpc_interface,
)
from scapy.layers.gssapi import GSS_C_FLAGS
from scapy.layers.msrpce.rpcclient import DCERPC_Client
from scapy.layers.ntlm import NTLMSSP, MD4le
from scapy.layers.spnego import SPNEGOSSP
from scapy.packet import Packet

LEVELS = {
    "none": DCE_C_AUTHN_LEVEL.NONE, "connect": DCE_C_AUTHN_LEVEL.CONNECT, "call": DCE_C_AUTHN_LEVEL.CALL,
    "packet": DCE_C_AUTHN_LEVEL.PKT, "integrity": DCE_C_AUTHN_LEVEL.PKT_INTEGRITY,
    "privacy": DCE_C_AUTHN_LEVEL.PKT_PRIVACY,
}  # fmt: skip


class CommPacket(NDRPacket):
    """COMM_PACKET with DataName and DataHandle, which scapy-rpc leaves out: they are [ignore], and so on the wire."""

    ALIGNMENT = (4, 8)
    fields_desc: ClassVar[list[Any]] = [
        *(NDRIntField(name, 0) for name in ("Major", "Minor", "CsId", "MemLen")),
        NDRIntField("PktLen", None, size_of="Pkt"), NDRIntField("UpkLen", 0),
        NDRFullEmbPointerField(NDRConfStrLenField("Pkt", "", size_is=lambda pkt: pkt.PktLen)),
        NDRIntField("DataName", 0), NDRIntField("DataHandle", 0),
    ]  # fmt: skip


class SendCommPkt(NDRPacket):
    """FrsRpcSendCommPkt with it."""

    fields_desc: ClassVar[list[Any]] = [NDRPacketField("CommPkt", CommPacket(), CommPacket)]


class Ntlm(NTLMSSP):
    """With the flag of signatures at all levels: without it scapy makes a session key of its own that nobody expects
    ([MS-NLMP] 3.1.5.1.2 has one with NEGOTIATE_SIGN or NEGOTIATE_SEAL alone)."""

    def GSS_Init_sec_context(self, Context: Any, *args: Any, **more: Any) -> Any:
        """The next token."""
        if more.get("req_flags") is not None:
            more["req_flags"] |= GSS_C_FLAGS.GSS_C_INTEG_FLAG
        return super().GSS_Init_sec_context(Context, *args, **more)


def requests(asked: dict[str, Any]) -> Iterator[tuple[str, str, int | None, Packet]]:
    """Interface, method, its opnum where the request does not say it, and the request."""

    def made(kind: type[Packet], **values: Any) -> Packet:
        return kind(ndr64=False, ndrendian=asked["order"], **values)

    pkt, some = bytes.fromhex(asked["pkt"]), bytes(range(16))
    yield "frsrpc", "FrsNOP", None, made(frs.FrsNOP_Request)
    comm = made(CommPacket, Minor=9, CsId=1, MemLen=len(pkt), Pkt=pkt)
    yield "frsrpc", "FrsRpcSendCommPkt", 0, made(SendCommPkt, CommPkt=comm)
    parent = dict.fromkeys(("ParentAccount", "ParentPassword"))
    names = dict.fromkeys(("ReplicaSetName", "ReplicaSetType"), "none of ours")
    verify = made(frs.FrsRpcVerifyPromotionParent_Request, **parent, **names, GuidSize=16)
    yield "frsrpc", "FrsRpcVerifyPromotionParent", None, verify
    partner = dict.fromkeys(("CxtionName", "PartnerName", "PartnerPrincName"), "none of ours")
    guids = dict.fromkeys(("CxtionGuid", "PartnerGuid", "ParentGuid"), some)
    start = made(frs.FrsRpcStartPromotionParent_Request, **parent, **names, **partner, **guids)
    yield "frsrpc", "FrsRpcStartPromotionParent", None, start

    intervals = made(api.NtFrsApi_Rpc_Set_DsPollingIntervalW_Request, LongInterval=30)
    yield "NtFrsApi", "Set_DsPollingIntervalW", None, intervals
    yield "NtFrsApi", "Get_DsPollingIntervalW", None, made(api.NtFrsApi_Rpc_Get_DsPollingIntervalW_Request)
    # to NDR, NTFRSAPI_INFO is bytes: little-endian, whatever is around it
    blob = struct.pack("<11I", 0, 9, 0, 0, 0x1000, 1, 1, 0, 0, 44, 44).ljust(0x1000, b"\0")
    yield "NtFrsApi", "InfoW", None, made(api.NtFrsApi_Rpc_InfoW_Request, Blob=blob)
    yield (
        "NtFrsApi",
        "IsPathReplicated",
        None,
        made(api.NtFrsApi_Rpc_IsPathReplicated_Request, Path=asked["path"]),
    )
    yield "NtFrsApi", "WriterCommand", None, made(api.NtFrsApi_Rpc_WriterCommand_Request, Command=2)
    whose = {"ReplicaSetGuid": None, "CxtionGuid": None, "ReplicaSetName": asked["set"], "PartnerDnsName": None}
    yield "NtFrsApi", "ForceReplication", None, made(api.NtFrsApi_Rpc_ForceReplication_Request, **whose)


def fields(answer: Packet) -> dict[str, Any]:
    """The numbers of an answer by their names, and all of its bytes."""
    named = {one.name: answer.getfieldval(one.name) for one in answer.fields_desc}
    return {name: value for name, value in named.items() if isinstance(value, int)} | {"all": bytes(answer).hex()}


def bound(asked: dict[str, Any], level: str, interface: str) -> tuple[DCERPC_Client, bool]:
    """A client, and whether its bind was taken."""
    ssp = None
    if level != "none":
        name = f"{asked['user']}@{asked['domain']}"
        ntlm = Ntlm(UPN=name, HASHNT=MD4le(asked["password"]))
        ssp = SPNEGOSSP([ntlm]) if asked["mechanism"] == "spnego" else ntlm
    client = DCERPC_Client(
        DCERPC_Transport.NCACN_IP_TCP, ndr64=False, ndrendian=asked["order"], verb=False, ssp=ssp,
        auth_level=LEVELS[level],
    )  # fmt: skip
    known = find_dcerpc_interface(interface)
    if asked["port"]:
        client.connect(asked["host"], endpoint=asked["port"], timeout=60)
    else:  # as the endpoint mapper on port 135 says
        client.connect(asked["host"], interface=known, timeout=60)
    return client, client.bind(known)


def call(asked: dict[str, Any], level: str, interface: str, opnum: int | None, request: Packet) -> dict[str, Any]:
    """The answer's fields; {"fault": code} where it was none; {"bind": False} where it did not come to that."""
    for again in range(240, -1, -1):
        try:
            client, taken = bound(asked, level, interface)
            break
        except TypeError:  # no answer at all: a member answers so many binds of one address in a second, and no more
            if not again:
                raise
            time.sleep(0.25)
    try:
        if not taken:
            return {"bind": False}
        more = {} if opnum is None else {"opnum": opnum}
        answer = client.sr1_req(request, **more)
        return {"fault": answer[DceRpc5Fault].status} if DceRpc5Fault in answer else fields(answer)
    finally:
        client.close()


def main() -> None:
    """Everything that is asked for, in one line."""
    # Its verification trailer names version 0 of every interface; those of [MS-FRS1] are 1.1.
    (version,) = (one for one in DceRpcSecVTPcontext.fields_desc if one.name == "Version")
    version.default = 0x10001
    asked = json.load(sys.stdin)
    if asked["order"] == "big":  # scapy forgets it of characters in a pointer, and writes their low byte first
        StrNullFieldUtf16.h2i = lambda field, packet, text: plain_str(text).encode("utf-16-be")
    found = []
    for level in asked["levels"]:
        for interface, method, opnum, request in requests(asked):
            found.append([level, interface, method, call(asked, level, interface, opnum, request)])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
