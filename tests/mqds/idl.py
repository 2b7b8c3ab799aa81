"""The IDL of [MS-MQDS] in the types of impacket: a client of dscomm and dscomm2 that has nothing of ours."""

from __future__ import annotations

from typing import Any, ClassVar

from impacket.dcerpc.v5 import rpcrt, transport
from impacket.dcerpc.v5.dtypes import GUID, LONG, LPWSTR, NULL, SHORT, UCHAR, ULONG, USHORT, WSTR
from impacket.dcerpc.v5.ndr import (
    NDR,
    NDRCALL,
    NDRPOINTER,
    NDRSTRUCT,
    NDRUNION,
    NDRUniConformantArray,
    NDRUniConformantVaryingArray,
)
from impacket.uuid import uuidtup_to_bin

DSCOMM = uuidtup_to_bin(("77df7a80-f298-11d0-8358-00a024c480a8", "1.0"))
DSCOMM2 = uuidtup_to_bin(("708cca10-9569-11d1-b2a5-0060977d8118", "1.0"))
VT_NULL, VT_I2, VT_I4, VT_UI1, VT_UI2, VT_UI4, VT_LPWSTR, VT_BLOB, VT_CLSID = 1, 2, 3, 17, 18, 19, 31, 65, 72
VT_CLSIDS, VT_LPWSTRS = 0x1000 | 72, 0x1000 | 31


def pointer_to(kind: type) -> type:
    return type(f"P{kind.__name__}", (NDRPOINTER,), {"referent": (("Data", kind),)})


class BYTES(NDRUniConformantArray):
    item = "c"


class GUIDS(NDRUniConformantArray):
    item = GUID


class STRINGS(NDRUniConformantArray):
    item = LPWSTR


class PROPIDS(NDRUniConformantArray):
    item = ULONG


PBYTES, PGUID, PGUIDS, PSTRINGS, PPROPIDS, PPWSTR = map(pointer_to, (BYTES, GUID, GUIDS, STRINGS, PROPIDS, LPWSTR))


class BLOB(NDRSTRUCT):
    structure = (("cbSize", ULONG), ("pBlobData", PBYTES))


class CACLSID(NDRSTRUCT):
    structure = (("cElems", ULONG), ("pElems", PGUIDS))


class CALPWSTR(NDRSTRUCT):
    structure = (("cElems", ULONG), ("pElems", PSTRINGS))


class NOTHING(NDR):
    structure = ()


class VALUE(NDRUNION):
    commonHdr = (("tag", USHORT),)
    notAlign = True
    union: ClassVar = {
        VT_NULL: ("nothing", NOTHING), VT_I2: ("iVal", SHORT), VT_I4: ("lVal", LONG), VT_UI1: ("bVal", UCHAR),
        VT_UI2: ("uiVal", USHORT), VT_UI4: ("ulVal", ULONG), VT_LPWSTR: ("pwszVal", LPWSTR), VT_BLOB: ("blob", BLOB),
        VT_CLSID: ("puuid", PGUID), VT_CLSIDS: ("cauuid", CACLSID), VT_LPWSTRS: ("calpwstr", CALPWSTR),
    }  # fmt: skip

    def getAlignment(self) -> int:
        return 2  # of its discriminant; what it has of 64 bits makes its structure 8


class PROPVARIANT(NDRSTRUCT):
    structure = (("vt", USHORT), ("r1", UCHAR), ("r2", UCHAR), ("r3", ULONG), ("value", VALUE))

    def getAlignment(self) -> int:
        return 8


class PROPVARIANTS(NDRUniConformantArray):
    item = PROPVARIANT

    def getData(self, soFar: int = 0) -> bytes:
        return bytes(NDRUniConformantArray.getData(self, soFar + 4))  # impacket forgets the count before the array


class SOME_PROPVARIANTS(NDRUniConformantVaryingArray):
    item = PROPVARIANT


class HANDLE(NDRSTRUCT):
    structure = (("attributes", ULONG), ("uuid", "16s=b''"))

    def getAlignment(self) -> int:
        return 4


class TOKEN(NDRUniConformantVaryingArray):
    item = "c"


class SITES(NDRUniConformantVaryingArray):
    item = PGUID


class PROPERTYRESTRICTION(NDRSTRUCT):
    structure = (("rel", ULONG), ("prop", ULONG), ("prval", PROPVARIANT))

    def getAlignment(self) -> int:
        return 8


class PROPERTYRESTRICTIONS(NDRUniConformantArray):
    item = PROPERTYRESTRICTION


class RESTRICTION(NDRSTRUCT):
    structure = (("cRes", ULONG), ("paPropRes", pointer_to(PROPERTYRESTRICTIONS)))


class COLUMNSET(NDRSTRUCT):
    structure = (("cCol", ULONG), ("aCol", PPROPIDS))


class SORTKEY(NDRSTRUCT):
    structure = (("propColumn", ULONG), ("dwOrder", ULONG))


class SORTKEYS(NDRUniConformantArray):
    item = SORTKEY


class SORTSET(NDRSTRUCT):
    structure = (("cCol", ULONG), ("aCol", pointer_to(SORTKEYS)))


PRESTRICTION, PSORTSET = pointer_to(RESTRICTION), pointer_to(SORTSET)

_OBJECT = (("dwObjectType", ULONG), ("pwcsPathName", WSTR))
_BY_GUID = (("dwObjectType", ULONG), ("pGuid", GUID))
_BY_GUID_OR_NOT = (("dwObjectType", ULONG), ("pGuid", PGUID))
_PROPERTIES = (("cp", ULONG), ("aProp", PROPIDS), ("apVar", PROPVARIANTS))
_SIGNED = (("phServerAuth", HANDLE), ("pdwServerSignatureSize", ULONG))
_SIGNATURE = (("pbServerSignature", BYTES), ("pdwServerSignatureSize", ULONG), ("ErrorCode", ULONG))
_RESULT = (("ErrorCode", ULONG),)
_GET_SECURITY = (("SecurityInformation", ULONG), ("nLength", ULONG))
_SECURITY = (("pSecurityDescriptor", BYTES), ("lpnLengthNeeded", ULONG), *_SIGNATURE)
_SET_SECURITY = (("SecurityInformation", ULONG), ("pSecurityDescriptor", PBYTES), ("nLength", ULONG))

_METHODS = {
    (DSCOMM, 0): (
        (
            ("dwObjectType", ULONG), ("pwcsPathName", LPWSTR), ("dwSDLength", ULONG), ("SecurityDescriptor", PBYTES),
            *_PROPERTIES, ("pObjGuid", PGUID),
        ),
        (("pObjGuid", PGUID), *_RESULT),
    ),
    (DSCOMM, 1): (_OBJECT, _RESULT),
    (DSCOMM, 2): ((*_OBJECT, *_PROPERTIES, *_SIGNED), (("apVar", PROPVARIANTS), *_SIGNATURE)),
    (DSCOMM, 3): ((*_OBJECT, *_PROPERTIES), _RESULT),
    (DSCOMM, 4): ((*_OBJECT, *_GET_SECURITY, *_SIGNED), _SECURITY),
    (DSCOMM, 5): ((*_OBJECT, *_SET_SECURITY), _RESULT),
    (DSCOMM, 6): (
        (
            ("pwcsContext", LPWSTR), ("pRestriction", PRESTRICTION), ("pColumns", COLUMNSET), ("pSort", PSORTSET),
            ("phServerAuth", HANDLE),
        ),
        (("pHandle", HANDLE), *_RESULT),
    ),
    (DSCOMM, 7): (
        (("Handle", HANDLE), ("dwSize", ULONG), *_SIGNED),
        (("dwOutSize", ULONG), ("pbBuffer", SOME_PROPVARIANTS), *_SIGNATURE),
    ),
    (DSCOMM, 8): ((("phContext", HANDLE),), (("phContext", HANDLE), *_RESULT)),
    (DSCOMM, 10): (_BY_GUID, _RESULT),
    (DSCOMM, 11): ((*_BY_GUID_OR_NOT, *_PROPERTIES, *_SIGNED), (("apVar", PROPVARIANTS), *_SIGNATURE)),
    (DSCOMM, 12): ((*_BY_GUID, *_PROPERTIES), _RESULT),
    (DSCOMM, 13): ((*_BY_GUID, *_GET_SECURITY, *_SIGNED), _SECURITY),
    (DSCOMM, 14): ((*_BY_GUID, *_SET_SECURITY), _RESULT),
    (DSCOMM, 19): ((("pwcsPathName", WSTR), *_PROPERTIES, ("dwContext", ULONG)), _RESULT),
    (DSCOMM, 20): (
        (("pdwIndex", ULONG), ("lplpSiteServers", PPWSTR), *_SIGNED),
        (("pdwIndex", ULONG), ("lplpSiteServers", PPWSTR), *_SIGNATURE),
    ),
    (DSCOMM, 21): ((*_BY_GUID, *_GET_SECURITY, ("dwContext", ULONG), *_SIGNED), _SECURITY),
    (DSCOMM, 22): (
        (
            ("pguidEnterpriseId", GUID), ("fSetupMode", ULONG), ("dwContext", ULONG), ("dwClientBuffMaxSize", ULONG),
            ("pClientBuff", TOKEN), ("dwClientBuffSize", ULONG),
        ),
        (("pphServerAuth", HANDLE), *_RESULT),
    ),
    (DSCOMM, 23): ((("pphServerAuth", HANDLE),), (("pphServerAuth", HANDLE), *_RESULT)),
    (DSCOMM, 27): ((("fIP", ULONG),), _RESULT),
    (DSCOMM2, 0): (
        (("pwcsPathName", LPWSTR), *_SIGNED),
        (("pdwNumberOfSites", ULONG), ("ppguidSites", SITES), *_SIGNATURE),
    ),
    (DSCOMM2, 1): ((*_OBJECT, *_PROPERTIES, *_SIGNED), (("apVar", PROPVARIANTS), *_SIGNATURE)),
    (DSCOMM2, 2): ((*_BY_GUID_OR_NOT, *_PROPERTIES, *_SIGNED), (("apVar", PROPVARIANTS), *_SIGNATURE)),
    (DSCOMM2, 3): ((("pwcsPathName", WSTR), ("phServerAuth", HANDLE)), (("pHandle", HANDLE), *_RESULT)),
    (DSCOMM2, 4): ((("Handle", HANDLE),), _RESULT),
    (DSCOMM2, 5): ((("pHandle", HANDLE),), (("pHandle", HANDLE),)),
    (DSCOMM2, 6): ((), _RESULT),
    (DSCOMM2, 8): (
        (("lpwszComputerName", LPWSTR), ("lpwszDomainName", LPWSTR), *_SIGNED),
        (("lplpwszGCList", LPWSTR), *_SIGNATURE),
    ),
}  # fmt: skip


def call_of(interface: bytes, opnum: int) -> tuple[type, type]:
    takes, gives = _METHODS[interface, opnum]
    return (
        type(f"Call{opnum}", (NDRCALL,), {"opnum": opnum, "structure": takes}),
        type(f"Call{opnum}Response", (NDRCALL,), {"structure": gives}),
    )


def fill(element: Any, vt: int, value: Any) -> None:
    """A PROPVARIANT."""
    element["vt"] = vt
    element["value"]["tag"] = vt
    if vt == VT_NULL:
        return
    name = VALUE.union[vt][0]
    if vt == VT_BLOB:
        element["value"][name]["cbSize"] = len(value)
        element["value"][name]["pBlobData"] = value
    elif vt in (VT_CLSIDS, VT_LPWSTRS):
        element["value"][name]["cElems"] = len(value)
        for one in value:
            item = GUID() if vt == VT_CLSIDS else LPWSTR()
            item["Data"] = one if vt == VT_CLSIDS else one + "\0"
            element["value"][name]["pElems"].append(item)
    else:
        element["value"][name] = NULL if value is None else value + "\0" if vt == VT_LPWSTR else value


def plain(element: Any) -> tuple[int, Any]:
    """What a PROPVARIANT has."""
    vt = element["vt"]
    assert element["value"]["tag"] == vt
    if vt == VT_NULL:
        return vt, None
    found = element["value"][VALUE.union[vt][0]]
    if vt == VT_BLOB:
        return vt, b"".join(found["pBlobData"]) if found["cbSize"] else b""
    if vt == VT_CLSIDS:
        return vt, tuple(one["Data"] for one in found["pElems"]) if found["cElems"] else ()
    if vt == VT_LPWSTRS:
        return vt, tuple(one["Data"][:-1] for one in found["pElems"]) if found["cElems"] else ()
    return vt, found[:-1] if vt == VT_LPWSTR else found


def client(port: int, domain: str, user: str, password: str, interface: bytes) -> Any:
    """impacket's association, at packet privacy."""
    dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]").get_dce_rpc()
    dce.set_credentials(user, password, domain)
    dce.set_auth_level(rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY)
    dce.connect()
    dce.bind(interface)
    return dce
