"""The table of properties against what the texts say, and values as bytes."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.directory.objects.model import (
    MQ_ERROR_ILLEGAL_PROPERTY_VALUE,
    MQ_ERROR_ILLEGAL_PROPID,
    DirectoryError,
    new_object,
)
from agent.directory.objects.table import BESIDE, IDENTIFIER, NAME, PROPERTIES, Type, type_of
from agent.directory.objects.values import MAX_BLOB, Reader, Value, Vt, decode_value, encode_value
from agent.directory.store.store import decode_properties, encode_properties
from agent.wire.errors import WireError

#: Identifiers by type, as [MC-MQDSRP] 2.2.1 and 3.2.7.8 have them.
TYPES = {
    Vt.CLSID: "101,115,116,201,202,211,302,307,503,504,607,609,703,706,801,802,804,806",
    Vt.CLSIDS: "207,208,209,303,705",
    Vt.LPWSTR: "103,108,216,203,301,304,502,601,603,604",
    Vt.UI1: "104,111,113,114,219,501,602,1403,1404",
    Vt.UI2: "305,306,605,606,617",
    Vt.UI4: "105,107,112,118,119,210,212,214,215,220,611,612,613,614,615,616,803",
    Vt.I2: "106",
    Vt.I4: "109,110,217,218",
    Vt.BLOB: "117,206,213,308,505,608,610,701,702,704,805,1101,1201,1202,1203,1301,1302,1501,1601",
}
#: Of those that [MC-MQDSRP] does not have: [MS-MQDS] 2.2.10.2-2.2.10.4, and what [MS-MQMQ] 2.3 has them as (125 and
#: 126 are of [MS-MQCN] 2.2.2.1).
OTHER_TYPES = {
    Vt.CLSID: "102,1402,1405",
    Vt.CLSIDS: "222,813",
    Vt.LPWSTR: "121,123,124,125,126,221,233,309,808,809,810,811",
    Vt.LPWSTRS: "223,224",
    Vt.UI1: "227,228,229,242,311,312,1205",
    Vt.UI2: "310",
    Vt.UI4: "237,812,1103",
    Vt.BLOB: "205,231,232,234,238,239,241,1102,1401",
}
#: [MC-MQDSRP] 2.2.1.
NAMES = """
101 Q_INSTANCE, 102 Q_TYPE, 103 Q_PATHNAME, 104 Q_JOURNAL, 105 Q_QUOTA, 106 Q_BASEPRIORITY, 107 Q_JOURNAL_QUOTA,
108 Q_LABEL, 109 Q_CREATE_TIME, 110 Q_MODIFY_TIME, 111 Q_AUTHENTICATE, 112 Q_PRIV_LEVEL, 113 Q_TRANSACTION,
114 Q_SCOPE, 115 Q_QMID, 116 Q_PARTITIONID, 117 Q_SEQNUM, 118 Q_HASHKEY, 119 Q_LABEL_HASHKEY, 201 QM_SITE_ID,
202 QM_MACHINE_ID, 203 QM_PATHNAME, 206 QM_ADDRESS, 207 QM_CNS, 208 QM_OUTFRS, 209 QM_INFRS, 210 QM_SERVICE,
211 QM_PARTITIONID, 212 QM_HASHKEY, 213 QM_SEQNUM, 214 QM_QUOTA, 215 QM_JOURNAL_QUOTA, 216 QM_MACHINE_TYPE,
217 QM_CREATE_TIME, 218 QM_MODIFY_TIME, 219 QM_FOREIGN, 220 QM_OS, 301 S_PATHNAME, 302 S_SITEID, 303 S_GATES,
304 S_PSC, 305 S_INTERVAL1, 306 S_INTERVAL2, 307 S_PARTITIONID, 308 S_SEQNUM, 501 CN_PROTOCOLID, 502 CN_NAME,
503 CN_GUID, 504 CN_PARTITIONID, 505 CN_SEQNUM, 601 E_NAME, 602 E_NAMESTYLE, 603 E_CSP_NAME, 604 E_PECNAME,
605 E_S_INTERVAL1, 606 E_S_INTERVAL2, 607 E_PARTITIONID, 608 E_SEQNUM, 609 E_ID, 610 E_CRL, 611 E_CSP_TYPE,
612 E_ENCRYPT_ALG, 613 E_SIGN_ALG, 614 E_HASH_ALG, 615 E_CIPHER_MODE, 616 E_LONG_LIVE, 617 E_VERSION, 701 U_SID,
702 U_SIGN_CERT, 703 U_PARTITIONID, 704 U_SEQNUM, 705 U_DIGEST, 706 U_ID, 801 L_NEIGHBOR1, 802 L_NEIGHBOR2,
803 L_COST, 804 L_PARTITIONID, 805 L_SEQNUM, 806 L_ID, 1101 Q_SECURITY, 1201 QM_SECURITY, 1202 QM_SIGN_PK,
1203 QM_ENCRYPT_PK, 1301 S_SECURITY, 1302 S_PSC_SIGNPK, 1401 D_SEQNUM, 1402 D_PARTITIONID, 1403 D_SCOPE,
1404 D_OBJTYPE, 1405 D_IDENTIFIER, 1501 CN_SECURITY, 1601 E_SECURITY
"""
#: [MS-MQDS] 2.2.10.1.
RANGES = {
    Type.QUEUE: (101, 126), Type.MACHINE: (201, 243), Type.SITE: (301, 312), Type.CN: (501, 505),
    Type.ENTERPRISE: (601, 618), Type.USER: (701, 706), Type.ROUTING_LINK: (801, 813),
}  # fmt: skip
#: Those that others number and the tables of 3.1.4.21.8 name.
NAMED = {
    121: "Q_FULL_PATH", 123: "Q_NAME_SUFFIX", 124: "Q_PATHNAME_DNS", 1103: "Q_SECURITY_INFORMATION",
    205: "QM_ENCRYPTION_PK", 221: "QM_FULL_PATH", 223: "QM_OUTFRS_DN", 224: "QM_INFRS_DN", 227: "QM_SERVICE_ROUTING",
    228: "QM_SERVICE_DSSERVER", 229: "QM_SERVICE_DEPCLIENTS", 231: "QM_ENCRYPTION_PK_BASE",
    232: "QM_ENCRYPTION_PK_ENHANCED", 233: "QM_PATHNAME_DNS", 237: "QM_SECURITY_INFORMATION", 241: "QM_OWNER_SID",
    242: "QM_GROUP_IN_CLUSTER", 1205: "QM_UPGRADE_DACL", 309: "S_FULL_NAME", 310: "S_NT4_STUB", 311: "S_FOREIGN",
    312: "S_DONOTHING", 808: "L_NEIGHBOR1_DN", 809: "L_NEIGHBOR2_DN", 810: "L_DESCRIPTION", 811: "L_FULL_PATH",
    812: "L_ACTUAL_COST", 813: "L_GATES", 234: "QM_OBJ_SECURITY", 238: "QM_ENCRYPT_PKS", 239: "QM_SIGN_PKS",
    222: "QM_SITE_IDS", 1102: "Q_OBJ_SECURITY", 125: "Q_MULTICAST_ADDRESS", 126: "Q_ADS_PATH",
}  # fmt: skip


@pytest.mark.parametrize("vt", Vt)
def test_each_identifier_has_the_type_of_the_text(vt: Vt) -> None:
    text = {int(prop) for of in (TYPES, OTHER_TYPES) for prop in of.get(vt, "0").split(",")} - {0}
    assert {prop for prop, line in PROPERTIES.items() if line.vt == vt and not line.private} == text


def test_each_identifier_has_the_name_of_the_text() -> None:
    text = {int(number): name for number, name in (line.split() for line in re.split(r",\s", NAMES.strip()))}
    assert len(text) == 92
    assert {prop: PROPERTIES[prop].name for prop in text} == text
    assert {prop for prop, line in PROPERTIES.items() if not line.private} == text.keys() | NAMED.keys()


def test_identifiers_of_other_documents_are_there_by_their_names() -> None:
    assert {prop: PROPERTIES[prop].name for prop in NAMED} == NAMED


def test_each_identifier_lies_in_the_range_of_its_type_or_is_private() -> None:
    for prop, line in PROPERTIES.items():
        if prop < 1000:
            first, last = RANGES[line.type]
            assert first <= prop <= last
            assert not line.private
        if line.private:
            assert prop >= 1250, "no identifier of a text"


def test_private_identifiers_tell_their_type_by_the_rule_of_the_text() -> None:
    """[MC-MQDSRP] 3.1.1.4: (identifier - 1000) / 100 above 1000."""
    assert type_of(2001) == Type.FRS_SET == 10
    assert type_of(2106) == Type.FRS_MEMBER == 11
    assert type_of(2210) == Type.FRS_CONNECTION == 12
    assert type_of(1252) == Type.MACHINE
    assert type_of(1352) == Type.SITE


def test_every_type_but_tombstones_has_an_identifier_and_what_is_kept_beside_an_object() -> None:
    assert set(IDENTIFIER) == set(Type) - {Type.DELETED}
    for type_, prop in IDENTIFIER.items():
        assert PROPERTIES[prop].type == type_
        assert PROPERTIES[prop].vt == Vt.CLSID
        assert PROPERTIES[prop].update == "refused", "an object keeps its identifier (3.1.4.21.8.2)"
    assert all(PROPERTIES[prop].vt == Vt.LPWSTR for prop in NAME.values())
    assert {prop for prop in BESIDE if PROPERTIES[prop].name.endswith(("PARTITIONID", "SEQNUM"))} == BESIDE


def test_defaults_are_those_of_the_notes() -> None:
    """Notes 23, 25 and 29 of [MS-MQDS]."""
    queue = new_object(Type.QUEUE, b"q" * 16, bytes(16), {103: "m\\q"}).properties
    assert queue == {
        102: bytes(16), 103: "m\\q", 104: 0, 105: 0xFFFFFFFF, 106: 0, 107: 0xFFFFFFFF, 108: "", 111: 0, 112: 1, 113: 0,
        114: 0,
    }  # fmt: skip
    site = new_object(Type.SITE, b"s" * 16, bytes(16), {}).properties
    assert site == {305: 2, 306: 10, 303: (), 1302: b""}
    machine = new_object(Type.MACHINE, b"m" * 16, bytes(16), {}).properties
    assert machine == {
        210: 0, 209: (), 208: (), 214: 0xFFFFFFFF, 215: 0xFFFFFFFF, 219: 0, 220: 0, 216: "", 1202: b"", 1203: b"",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("type_", "properties", "status"),
    [
        (Type.USER, {702: b"c"}, MQ_ERROR_ILLEGAL_PROPID),  # U_DIGEST is required (3.1.4.4)
        (Type.ROUTING_LINK, {801: bytes(16)}, MQ_ERROR_ILLEGAL_PROPID),
        (Type.QUEUE, {203: "of a machine"}, MQ_ERROR_ILLEGAL_PROPID),
        (Type.QUEUE, {999: 1}, MQ_ERROR_ILLEGAL_PROPID),
        (Type.QUEUE, {104: 256}, MQ_ERROR_ILLEGAL_PROPERTY_VALUE),
        (Type.QUEUE, {104: "text"}, MQ_ERROR_ILLEGAL_PROPERTY_VALUE),
        (Type.QUEUE, {102: b"short"}, MQ_ERROR_ILLEGAL_PROPERTY_VALUE),
    ],
)
def test_an_object_that_cannot_be_is_refused(type_: Type, properties: dict[int, Value], status: int) -> None:
    with pytest.raises(DirectoryError) as caught:
        new_object(type_, b"x" * 16, bytes(16), properties)
    assert caught.value.status == status


VALUES = {
    Vt.I2: st.integers(-(1 << 15), (1 << 15) - 1),
    Vt.I4: st.integers(-(1 << 31), (1 << 31) - 1),
    Vt.UI1: st.integers(0, 255),
    Vt.UI2: st.integers(0, 65535),
    Vt.UI4: st.integers(0, (1 << 32) - 1),
    Vt.LPWSTR: st.text(r"aZ9 ,\ä€😀", max_size=40),
    Vt.BLOB: st.binary(max_size=60),
    Vt.CLSID: st.binary(min_size=16, max_size=16),
}
VALUES[Vt.LPWSTRS] = st.lists(VALUES[Vt.LPWSTR], max_size=4).map(tuple)  # type: ignore[assignment]
VALUES[Vt.CLSIDS] = st.lists(VALUES[Vt.CLSID], max_size=4).map(tuple)  # type: ignore[assignment]


@given(st.sampled_from(list(VALUES)).flatmap(lambda vt: st.tuples(st.just(vt), VALUES[vt])))
def test_values_come_back(found: tuple[Vt, Value]) -> None:
    vt, value = found
    reader = Reader(encode_value(vt, value), "test")
    assert decode_value(vt, reader) == value
    reader.end()


def test_values_as_bytes() -> None:
    assert encode_value(Vt.LPWSTR, "aä").hex() == "6100e4000000"
    assert encode_value(Vt.UI4, 0x01020304).hex() == "04030201"
    assert encode_value(Vt.BLOB, b"xy").hex() == "020000007879"
    assert encode_value(Vt.CLSIDS, (b"x" * 16,)) == b"\1\0\0\0" + b"x" * 16


@pytest.mark.parametrize(
    ("vt", "data"),
    [
        (Vt.UI4, b"\0\0\0"),
        (Vt.LPWSTR, b"a\0b\0"),
        (Vt.LPWSTR, b"a"),
        (Vt.LPWSTR, b"\0\xd8\0\0"),
        (Vt.LPWSTR, b"a\0" * 5000 + b"\0\0"),
        (Vt.BLOB, b"\xff\xff\xff\xff"),
        (Vt.BLOB, (MAX_BLOB + 1).to_bytes(4, "little") + bytes(MAX_BLOB + 1)),
        (Vt.CLSIDS, b"\xff\xff\xff\x0f" + bytes(64)),
        (Vt.LPWSTRS, b"\xff\xff\0\0" + bytes(64)),
    ],
)
def test_bytes_that_are_no_value_are_refused(vt: Vt, data: bytes) -> None:
    with pytest.raises(WireError):
        decode_value(vt, Reader(data, "test"))


def test_properties_of_an_object_come_back_and_others_are_refused() -> None:
    properties = dict(new_object(Type.QUEUE, b"q" * 16, bytes(16), {103: "m\\q"}).properties)
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    rng = random.Random(3)
    for _ in range(500):
        try:
            decode_properties(rng.randbytes(rng.randrange(60)))
        except WireError:
            pass


def test_the_page_has_every_property_of_the_topology() -> None:
    page = (Path(__file__).parents[3] / "docs" / "directory.md").read_text()
    found = {int(number): name for number, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}
    assert found == {prop: line.name for prop, line in PROPERTIES.items() if line.private}
