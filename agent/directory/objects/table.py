"""The object types and their properties, as one table, from which codec, store and documentation are made.

Identifiers and types are those of [MC-MQDSRP] 2.2.1, [MS-MQDS] 2.2.10 and [MS-MQCN] 2.2.2.1; what may be read, written
and given when an object is made is [MS-MQDS] 3.1.4.21.8.1 to 3.1.4.21.8.3. What these do not list is refused in a
change and dropped in a new object (3.1.4.4, 3.1.4.9, 3.1.4.10). Defaults are those of its notes 23, 25 and 29.
Types 10 to 12 and the identifiers from 1250 on whose line says `frs` are ours: the topology of [MS-FRS1] 2.3.1, and
where servers are.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from agent.directory.objects.values import Value, Vt


class Type(enum.IntEnum):
    """Directory object types (2.2.8); those from 10 on are ours."""

    QUEUE = 1
    MACHINE = 2
    SITE = 3
    DELETED = 4
    CN = 5
    ENTERPRISE = 6
    USER = 7
    ROUTING_LINK = 8
    FRS_SET = 10
    FRS_MEMBER = 11
    FRS_CONNECTION = 12


#: What becomes of a value that is given: it is taken; it is dropped; the request is refused.
Given = Literal["taken", "dropped", "refused"]
_GIVEN: Final[dict[str, Given]] = {"w": "taken", "i": "dropped", "x": "refused"}


@dataclass(frozen=True, slots=True)
class Property:
    """A line of the table. `type` is that of the objects that have it; `update` and `create` say what becomes of a
    value in a change and in a new object; `default` is what a new object has, None for nothing; `required` is what no
    object can be made without."""

    id: int
    type: Type
    name: str
    vt: Vt
    read: bool
    update: Given
    create: Given
    required: bool
    default: Value | None
    private: bool


def type_of(prop: int) -> Type:
    """The type of object that has the property of that identifier ([MC-MQDSRP] 3.1.1.4). Raises ValueError."""
    return Type((prop - 1000) // 100 if prop > 1000 else prop // 100)


#: Identifier, name, type; r: can be read; what becomes of it in a change, in a new object: w taken, i dropped, x
#: refused; ! required; = default; frs: ours.
_TABLE: Final = """
101 Q_INSTANCE CLSID r x i
102 Q_TYPE CLSID r w w =00000000000000000000000000000000
103 Q_PATHNAME LPWSTR r i i
104 Q_JOURNAL UI1 r w w =0
105 Q_QUOTA UI4 r w w =4294967295
106 Q_BASEPRIORITY I2 r w w =0
107 Q_JOURNAL_QUOTA UI4 r w w =4294967295
108 Q_LABEL LPWSTR r w w =
109 Q_CREATE_TIME I4 r x x
110 Q_MODIFY_TIME I4 r x x
111 Q_AUTHENTICATE UI1 r w w =0
112 Q_PRIV_LEVEL UI4 r w w =1
113 Q_TRANSACTION UI1 r w w =0
114 Q_SCOPE UI1 r w w =0
115 Q_QMID CLSID r w i
116 Q_PARTITIONID CLSID r w w
117 Q_SEQNUM BLOB - i i
118 Q_HASHKEY UI4 - x i
119 Q_LABEL_HASHKEY UI4 - x i
121 Q_FULL_PATH LPWSTR r x i
123 Q_NAME_SUFFIX LPWSTR r w w
124 Q_PATHNAME_DNS LPWSTR r i i
125 Q_MULTICAST_ADDRESS LPWSTR - x i
126 Q_ADS_PATH LPWSTR - x i
1101 Q_SECURITY BLOB r x i
1102 Q_OBJ_SECURITY BLOB r x i
1103 Q_SECURITY_INFORMATION UI4 r x i
201 QM_SITE_ID CLSID r w w
202 QM_MACHINE_ID CLSID r x w
203 QM_PATHNAME LPWSTR r i i
205 QM_ENCRYPTION_PK BLOB r x i
206 QM_ADDRESS BLOB r w i
207 QM_CNS CLSIDS r i i
208 QM_OUTFRS CLSIDS r w w =
209 QM_INFRS CLSIDS r w w =
210 QM_SERVICE UI4 r x w =0
211 QM_PARTITIONID CLSID - w i
212 QM_HASHKEY UI4 - x i
213 QM_SEQNUM BLOB - i i
214 QM_QUOTA UI4 r w w =4294967295
215 QM_JOURNAL_QUOTA UI4 r w w =4294967295
216 QM_MACHINE_TYPE LPWSTR r w w =
217 QM_CREATE_TIME I4 r x x
218 QM_MODIFY_TIME I4 r x x
219 QM_FOREIGN UI1 r w w =0
220 QM_OS UI4 r w w =0
221 QM_FULL_PATH LPWSTR r x i
222 QM_SITE_IDS CLSIDS r w x
223 QM_OUTFRS_DN LPWSTRS r x i
224 QM_INFRS_DN LPWSTRS r x i
227 QM_SERVICE_ROUTING UI1 r x w
228 QM_SERVICE_DSSERVER UI1 r w w
229 QM_SERVICE_DEPCLIENTS UI1 r w w
231 QM_ENCRYPTION_PK_BASE BLOB r x i
232 QM_ENCRYPTION_PK_ENHANCED BLOB r x i
233 QM_PATHNAME_DNS LPWSTR r i i
234 QM_OBJ_SECURITY BLOB r x i
237 QM_SECURITY_INFORMATION UI4 r x i
238 QM_ENCRYPT_PKS BLOB r x i
239 QM_SIGN_PKS BLOB r x i
241 QM_OWNER_SID BLOB r x i
242 QM_GROUP_IN_CLUSTER UI1 r x i
1201 QM_SECURITY BLOB r x i
1202 QM_SIGN_PK BLOB r w w =
1203 QM_ENCRYPT_PK BLOB r w w =
1205 QM_UPGRADE_DACL UI1 r x i
1250 QM_FRS_HOST LPWSTR r w w frs
1251 QM_FRS_PORT UI2 r w w frs
1252 QM_FRS_KEY BLOB r w w frs
301 S_PATHNAME LPWSTR r x i
302 S_SITEID CLSID r x w
303 S_GATES CLSIDS r w w =
304 S_PSC LPWSTR r w i
305 S_INTERVAL1 UI2 r w w =2
306 S_INTERVAL2 UI2 r w w =10
307 S_PARTITIONID CLSID - x i
308 S_SEQNUM BLOB - i i
309 S_FULL_NAME LPWSTR r x i
310 S_NT4_STUB UI2 r w w
311 S_FOREIGN UI1 r w w
312 S_DONOTHING UI1 r i i
1301 S_SECURITY BLOB r x x
1302 S_PSC_SIGNPK BLOB r x w =
1350 S_FRS_HOST LPWSTR r w w frs
1351 S_FRS_PORT UI2 r w w frs
1352 S_FRS_KEY BLOB r w w frs
1353 S_FRS_EPOCH UI4 r w w frs
1401 D_SEQNUM BLOB - x x
1402 D_PARTITIONID CLSID - x x
1403 D_SCOPE UI1 - x x
1404 D_OBJTYPE UI1 - x x
1405 D_IDENTIFIER CLSID - x x
501 CN_PROTOCOLID UI1 - w w
502 CN_NAME LPWSTR r w w
503 CN_GUID CLSID r x w !
504 CN_PARTITIONID CLSID - x i
505 CN_SEQNUM BLOB - i i
1501 CN_SECURITY BLOB r x x
601 E_NAME LPWSTR r i w
602 E_NAMESTYLE UI1 r w w
603 E_CSP_NAME LPWSTR r w w
604 E_PECNAME LPWSTR r x w
605 E_S_INTERVAL1 UI2 - x w
606 E_S_INTERVAL2 UI2 - x w
607 E_PARTITIONID CLSID - x i
608 E_SEQNUM BLOB - i i
609 E_ID CLSID r x w
610 E_CRL BLOB - x w
611 E_CSP_TYPE UI4 - x w
612 E_ENCRYPT_ALG UI4 - x w
613 E_SIGN_ALG UI4 - x w
614 E_HASH_ALG UI4 - x w
615 E_CIPHER_MODE UI4 - x w
616 E_LONG_LIVE UI4 r w w
617 E_VERSION UI2 r w w
1601 E_SECURITY BLOB r x x
701 U_SID BLOB r x w
702 U_SIGN_CERT BLOB r w w !
703 U_PARTITIONID CLSID - x i
704 U_SEQNUM BLOB - i i
705 U_DIGEST CLSIDS r w w !
706 U_ID CLSID r x i
801 L_NEIGHBOR1 CLSID r x w !
802 L_NEIGHBOR2 CLSID r x w !
803 L_COST UI4 r w w
804 L_PARTITIONID CLSID - x i
805 L_SEQNUM BLOB - i i
806 L_ID CLSID r x w
808 L_NEIGHBOR1_DN LPWSTR r x i
809 L_NEIGHBOR2_DN LPWSTR r x i
810 L_DESCRIPTION LPWSTR r w w
811 L_FULL_PATH LPWSTR r x i
812 L_ACTUAL_COST UI4 r w w
813 L_GATES CLSIDS r w w
2001 FRS_SET_ID CLSID r x w ! frs
2002 FRS_SET_NAME LPWSTR r w w ! frs
2003 FRS_SET_TYPE LPWSTR r w w =other frs
2004 FRS_SET_PRIMARY CLSID r w w ! frs
2005 FRS_SET_FILE_FILTER LPWSTRS r w w = frs
2006 FRS_SET_DIRECTORY_FILTER LPWSTRS r w w = frs
2007 FRS_SET_SCHEDULE BLOB r w w = frs
2008 FRS_SET_FLAGS UI4 r w w =0 frs
2009 FRS_SET_LEVEL_LIMIT UI4 r w w =0 frs
2101 FRS_MEMBER_ID CLSID r x w ! frs
2102 FRS_MEMBER_SET CLSID r x w ! frs
2103 FRS_MEMBER_NAME LPWSTR r w w ! frs
2104 FRS_MEMBER_HOST LPWSTR r w w ! frs
2105 FRS_MEMBER_PORT UI2 r w w ! frs
2106 FRS_MEMBER_KEY BLOB r w w = frs
2107 FRS_MEMBER_SITE LPWSTR r w w = frs
2108 FRS_MEMBER_PRINCIPAL LPWSTR r w w = frs
2109 FRS_MEMBER_ENDPOINT_MAPPER UI2 r w w =135 frs
2201 FRS_CXTION_ID CLSID r x w ! frs
2202 FRS_CXTION_SET CLSID r x w ! frs
2203 FRS_CXTION_NAME LPWSTR r w w ! frs
2204 FRS_CXTION_UPSTREAM CLSID r x w ! frs
2205 FRS_CXTION_DOWNSTREAM CLSID r x w ! frs
2206 FRS_CXTION_PRIORITY UI1 r w w =7 frs
2207 FRS_CXTION_ENABLED UI1 r w w =1 frs
2208 FRS_CXTION_SCHEDULE BLOB r w w = frs
2209 FRS_CXTION_IGNORE_SCHEDULE UI1 r w w =0 frs
2210 FRS_CXTION_TWO_WAY_SYNC UI1 r w w =0 frs
"""


def _default(vt: Vt, text: str) -> Value:
    if vt in (Vt.BLOB, Vt.CLSID):
        return bytes.fromhex(text)
    if vt in (Vt.CLSIDS, Vt.LPWSTRS):
        return ()
    return text if vt == Vt.LPWSTR else int(text)


def _line(line: str) -> Property:
    number, name, vt, read, update, create, *more = line.split()
    kind = Vt[vt]
    default = next((_default(kind, word[1:]) for word in more if word.startswith("=")), None)
    return Property(
        int(number),
        type_of(int(number)),
        name,
        kind,
        read == "r",
        _GIVEN[update],
        _GIVEN[create],
        "!" in more,
        default,
        "frs" in more,
    )


PROPERTIES: Final = MappingProxyType({one.id: one for one in map(_line, _TABLE.strip().splitlines())})
#: An object's own identifier, the name it can be found by, its partition and its sequence number, by its type. The
#: last two are kept beside the properties.
IDENTIFIER: Final = {
    Type.QUEUE: 101, Type.MACHINE: 202, Type.SITE: 302, Type.CN: 503, Type.ENTERPRISE: 609, Type.USER: 706,
    Type.ROUTING_LINK: 806, Type.FRS_SET: 2001, Type.FRS_MEMBER: 2101, Type.FRS_CONNECTION: 2201,
}  # fmt: skip
NAME: Final = {
    Type.QUEUE: 103,
    Type.MACHINE: 203,
    Type.SITE: 301,
    Type.CN: 502,
    Type.ENTERPRISE: 601,
    Type.FRS_SET: 2002,
    Type.FRS_MEMBER: 2103,
    Type.FRS_CONNECTION: 2203,
}
#: What an object is in, whose others have other names: else it is the whole directory.
NAMED_WITHIN: Final = {Type.FRS_MEMBER: 2102, Type.FRS_CONNECTION: 2202}  # fmt: skip
BESIDE: Final = frozenset((116, 117, 211, 213, 307, 308, 504, 505, 607, 608, 703, 704, 804, 805))
#: Bits of QM_SERVICE: what a machine is to the directory.
SERVICE_BSC: Final = 0x2
SERVICE_PSC: Final = 0x4
SERVICE_PEC: Final = 0x8
