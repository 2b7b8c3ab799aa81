"""Both interfaces in impacket's NDR, as the IDL of section 6 of [MS-FRS1] has them."""

from __future__ import annotations

from impacket.dcerpc.v5.dtypes import GUID, LPWSTR, PGUID, ULONG
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUniConformantArray
from impacket.uuid import uuidtup_to_bin

FRSRPC = uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1"))
NTFRSAPI = uuidtup_to_bin(("d049b186-814f-11d1-9a3c-00c04fc9b232", "1.1"))


class UCHARS(NDRUniConformantArray):
    item = "c"


class PUCHARS(NDRPOINTER):
    referent = (("Data", UCHARS),)


class COMM_PACKET(NDRSTRUCT):
    structure = (
        ("Major", ULONG), ("Minor", ULONG), ("CsId", ULONG), ("MemLen", ULONG), ("PktLen", ULONG), ("UpkLen", ULONG),
        ("Pkt", PUCHARS), ("DataName", ULONG), ("DataHandle", ULONG),
    )  # fmt: skip


class FrsRpcSendCommPkt(NDRCALL):
    opnum = 0
    structure = (("CommPkt", COMM_PACKET),)


class FrsRpcSendCommPktResponse(NDRCALL):
    structure = (("ErrorCode", ULONG),)


class FrsRpcVerifyPromotionParent(NDRCALL):
    opnum = 1
    structure = (
        ("ParentAccount", LPWSTR), ("ParentPassword", LPWSTR), ("ReplicaSetName", LPWSTR), ("ReplicaSetType", LPWSTR),
        ("PartnerAuthLevel", ULONG), ("GuidSize", ULONG),
    )  # fmt: skip


class FrsRpcVerifyPromotionParentResponse(FrsRpcSendCommPktResponse):
    pass


class FrsRpcStartPromotionParent(NDRCALL):
    opnum = 2
    structure = (
        ("ParentAccount", LPWSTR), ("ParentPassword", LPWSTR), ("ReplicaSetName", LPWSTR), ("ReplicaSetType", LPWSTR),
        ("CxtionName", LPWSTR), ("PartnerName", LPWSTR), ("PartnerPrincName", LPWSTR), ("PartnerAuthLevel", ULONG),
        ("GuidSize", ULONG), ("CxtionGuid", PUCHARS), ("PartnerGuid", PUCHARS), ("ParentGuid", PUCHARS),
    )  # fmt: skip


class FrsRpcStartPromotionParentResponse(NDRCALL):
    structure = (("ParentGuid", PUCHARS), ("ErrorCode", ULONG))


class FrsNOP(NDRCALL):
    opnum = 3
    structure = ()


class FrsNOPResponse(FrsRpcSendCommPktResponse):
    pass


class SetDsPollingIntervalW(NDRCALL):
    opnum = 4
    structure = (("UseShortInterval", ULONG), ("LongInterval", ULONG), ("ShortInterval", ULONG))


class SetDsPollingIntervalWResponse(FrsRpcSendCommPktResponse):
    pass


class GetDsPollingIntervalW(NDRCALL):
    opnum = 5
    structure = ()


class GetDsPollingIntervalWResponse(NDRCALL):
    structure = (("Interval", ULONG), ("LongInterval", ULONG), ("ShortInterval", ULONG), ("ErrorCode", ULONG))


class InfoW(NDRCALL):
    opnum = 7
    structure = (("BlobSize", ULONG), ("Blob", PUCHARS))


class InfoWResponse(NDRCALL):
    structure = (("Blob", PUCHARS), ("ErrorCode", ULONG))


class IsPathReplicated(NDRCALL):
    opnum = 8
    structure = (("Path", LPWSTR), ("ReplicaSetTypeOfInterest", ULONG))


class IsPathReplicatedResponse(NDRCALL):
    structure = (
        ("Replicated", ULONG),
        ("Primary", ULONG),
        ("Root", ULONG),
        ("ReplicaSetGuid", GUID),
        ("ErrorCode", ULONG),
    )


class WriterCommand(NDRCALL):
    opnum = 9
    structure = (("Command", ULONG),)


class WriterCommandResponse(FrsRpcSendCommPktResponse):
    pass


class ForceReplication(NDRCALL):
    opnum = 10
    structure = (
        ("ReplicaSetGuid", PGUID), ("CxtionGuid", PGUID), ("ReplicaSetName", LPWSTR), ("PartnerDnsName", LPWSTR),
    )  # fmt: skip


class ForceReplicationResponse(FrsRpcSendCommPktResponse):
    pass
