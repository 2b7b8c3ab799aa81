"""What inputs are made from: the captures of section 4, PDUs and tokens of impacket, staging files of real files, and
what is made here of all that a format knows. impacket is there for those targets alone that need it: the sanitizers do
not go with what it loads."""

from __future__ import annotations

import os
import struct
import tempfile
import uuid
from functools import cache
from pathlib import Path
from unittest import mock

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.epm import EPMAPPER, Tower
from agent.rpc.frsrpc import FRSRPC
from agent.rpc.memberkey import KeyCredential, KeyInitiator
from agent.rpc.message import encode_call
from agent.rpc.negotiate import OID_NTLM, NegTokenInit, encode_mech_list
from agent.rpc.noise import KeyPair
from agent.rpc.ntlm import NtlmAcceptor
from agent.rpc.security import Credential, CredentialStore, make_initiator
from agent.wire import comm_packet as cp
from agent.wire.change_order import CoExtWin2k
from agent.wire.frsapi import Info, encode_force_by_name, encode_info, encode_no_info
from agent.wire.packet import decode_packet, encode_packet
from staging import lznt1, posixacl, sd, streams
from staging.compression import SUPPORTED
from staging.generate import generate
from staging.posixacl import Acl
from tests.unit.wire.wire_samples import PACKETS, STAGES, packet_bytes, unmask

ACCOUNT = Credential("FRS", "alice", "password")
_MEMBER, _OWN = KeyPair(bytes(range(32))), KeyPair(bytes(range(1, 33)))


@cache
def store() -> CredentialStore:
    """Who is known: one account, one member."""
    return CredentialStore([ACCOUNT], domain="FRS", key=_OWN, members={_MEMBER.public: "b"})


@cache
def packets() -> list[bytes]:
    """Those of section 4, and one of each form of extension."""
    captured = [packet_bytes(entry).data for entry in PACKETS]
    made = []
    for pkt in captured:
        packet = decode_packet(pkt)
        if packet.co_extension_2 is not None:
            packet.co_ext_win2k, packet.co_extension_2 = CoExtWin2k(bytes(16)), None
            made.append(encode_packet(packet))
    # a block of 64 KiB is cut short, so that what changes is what counts
    return [pkt for pkt in captured if len(pkt) < 8192] + made


@cache
def stubs() -> list[bytes]:
    """Of all methods of frsrpc."""
    start = cp.StartPromotionParent(
        "a", "pw", "SET", "Domain", "cxtion", "partner", None, 6, uuid.uuid4().bytes, uuid.uuid4().bytes, bytes(16)
    )
    return [
        *(cp.encode_send_comm_pkt(pkt) for pkt in packets()[:8]), start.encode(),
        cp.VerifyPromotionParent("a", None, "b", "c", 6, 16).encode(), cp.encode_result(5),
        cp.encode_start_promotion_parent_response(bytes(16)),
    ]  # fmt: skip


@cache
def api_stubs() -> list[bytes]:
    """Of the methods of NtFrsApi, as Samba and impacket would send them."""
    infos = [
        struct.pack("<III", 0x1000, 0x20000, 0x1000)
        + struct.pack("<11I", 0, 9, 0, 0, 0x1000, 1, kind, 0, skip, 0x2C, 0x2C)
        + bytes(0x1000 - 0x2C)
        for kind in range(10)
        for skip in (0, 4000)
    ]
    name = struct.pack("<IIII", 0x20004, 5, 0, 5) + "docs\0".encode("utf-16le") + bytes(2)
    asked = Info(0, 0, 0x100)
    answers = [encode_info(asked, b"text\n" * 100, 9, 0), encode_no_info(8017), encode_force_by_name("docs", "b")]
    return [
        *infos,
        *answers,
        name + struct.pack("<I", 2),
        struct.pack("<I", 0x20000) + bytes(16) + bytes(4) + name + name,
    ]


def _sized(token: bytes) -> bytes:
    return len(token).to_bytes(2, "little") + token


def _deterministic_acceptor() -> NtlmAcceptor:
    return NtlmAcceptor(store().lookup, ACCOUNT.domain, "host")


@cache
def _ntlm_exchange() -> tuple[bytes, bytes]:
    """NEGOTIATE and AUTHENTICATE of impacket, whose proof holds as long as `frozen` does."""
    from impacket import ntlm

    with frozen():
        first = ntlm.getNTLMSSPType1("", "", signingRequired=True)
        first["flags"] |= ntlm.NTLMSSP_NEGOTIATE_SEAL
        challenge = _deterministic_acceptor().step(first.getData())
        third, _ = ntlm.getNTLMSSPType3(first, challenge, ACCOUNT.user, ACCOUNT.password, ACCOUNT.domain)
        return first.getData(), third.getData()


def frozen() -> mock._patch[object]:
    """The challenge of NTLM is always the same, so that a recorded proof holds."""
    return mock.patch("agent.rpc.ntlm.os.urandom", lambda size: bytes(size))


@cache
def ntlm_messages() -> list[bytes]:
    """Both messages."""
    first, third = _ntlm_exchange()
    return [_sized(first) + third]


@cache
def negotiations() -> list[bytes]:
    """Tokens of SPNEGO around NTLM by impacket, around members' keys by us."""
    from impacket.spnego import SPNEGO_NegTokenInit, SPNEGO_NegTokenResp

    first, third = _ntlm_exchange()
    init = SPNEGO_NegTokenInit()
    init["MechTypes"] = [OID_NTLM]
    init["MechToken"] = first
    answer = SPNEGO_NegTokenResp()
    answer["ResponseToken"] = third
    signed = SPNEGO_NegTokenResp()
    signed["ResponseToken"], signed["mechListMIC"] = third, bytes(16)
    keyed = make_initiator(9, None, host="h", level=6, key=KeyCredential(_MEMBER, _OWN.public)).step(None)
    assert keyed is not None
    raw = KeyInitiator(KeyCredential(_MEMBER, _OWN.public)).step(None)
    mechanisms = b"\x2a\x03", OID_NTLM
    several = NegTokenInit(mechanisms, encode_mech_list(mechanisms), raw).encode()
    return [
        _sized(init.getData()) + _sized(answer.getData()), _sized(init.getData()) + _sized(signed.getData()),
        _sized(keyed) + _sized(bytes(20)), _sized(several) + _sized(answer.getData()), _sized(first) + _sized(third),
    ]  # fmt: skip


def _ept_map() -> bytes:
    tower = Tower(FRSRPC).encode()
    octets = struct.pack("<II", len(tower), len(tower)) + tower + bytes(-len(tower) % 4)
    return struct.pack("<I", 1) + bytes(16) + struct.pack("<I", 2) + octets + bytes(20) + struct.pack("<I", 4)


@cache
def conversations() -> list[bytes]:
    """What clients send: binds of ours and of impacket's, fragments, alter_context, auth3, cancel, orphaned."""
    from impacket.dcerpc.v5 import rpcrt

    first, third = _ntlm_exchange()
    contexts = tuple(p.ContextElement(n, one, (p.NDR,)) for n, one in enumerate((FRSRPC, EPMAPPER)))
    verifier = p.AuthVerifier(c.AUTH_NTLM, c.LEVEL_PRIVACY, 0, 7, first)
    plain = p.encode_bind(p.Bind(5840, 5840, 0, contexts, call_id=1))
    authenticated = p.encode_bind(p.Bind(5840, 5840, 0, contexts, call_id=1, verifier=verifier))
    auth3 = p.encode_auth3(1, p.AuthVerifier(c.AUTH_NTLM, c.LEVEL_PRIVACY, 0, 7, third))
    negotiation = negotiations()[0]
    token = negotiation[2 : 2 + int.from_bytes(negotiation[:2], "little")]
    spnego = p.encode_bind(
        p.Bind(5840, 5840, 0, contexts, call_id=1, verifier=p.AuthVerifier(c.AUTH_SPNEGO, c.LEVEL_PRIVACY, 0, 7, token))
    )
    bind, item = rpcrt.MSRPCBind(), rpcrt.CtxItem()
    item["AbstractSyntax"] = FRSRPC.uuid + struct.pack("<I", FRSRPC.version)
    item["TransferSyntax"] = p.NDR.uuid + struct.pack("<I", p.NDR.version)
    item["ContextID"], item["TransItems"] = 0, 1
    bind.addCtxItem(item)
    header = rpcrt.MSRPCHeader()
    header["type"], header["pduData"], header["call_id"] = rpcrt.MSRPC_BIND, bind.getData(), 1
    impackets = header.get_packet()

    def call(context: int, opnum: int, stub: bytes, size: int = 5840, number: int = 2) -> bytes:
        return bytes(encode_call(c.REQUEST, number, context, opnum, stub, size, None))

    send = cp.encode_send_comm_pkt(packets()[4])
    alter = p.encode_bind(p.Bind(5840, 5840, 1, contexts[1:], call_id=4), c.ALTER_CONTEXT)
    big = bytearray(
        p.with_little_endian_numbers(plain)
    )  # turning round is its own inverse, but for the byte that says so
    big[4] = 0
    trailer = bytes.fromhex("8ae3137102f43671") + struct.pack("<HHI", 0x4001, 4, 0)
    return [
        plain + call(1, 3, _ept_map()) + call(1, 2, struct.pack("<4I", 0, 0, 0, 1) + bytes(20) + struct.pack("<I", 9)),
        plain + call(0, 0, send, 1024) + call(0, 3, b"", number=3) + alter + call(1, 3, _ept_map(), number=5),
        plain + call(0, 0, send + bytes(-len(send) % 4) + trailer) + p.encode_simple(c.CO_CANCEL, 2),
        plain + call(0, 0, send, 1024)[:1500] + p.encode_simple(c.ORPHANED, 2),
        plain + call(0, 2, stubs()[8]) + call(0, 1, stubs()[9], number=3),
        authenticated + auth3 + call(0, 0, send), spnego + auth3, impackets + call(0, 3, b""),
        bytes(big) + call(0, 3, b""),
    ]  # fmt: skip


@cache
def answers() -> list[bytes]:
    """What servers send: bind_ack, bind_nak, fault, towers."""
    ack = p.BindAck(5840, 5840, 9, b"28700", (p.ContextResult(0, 0, p.NDR), p.ContextResult(2, 1)), call_id=1)
    tower = Tower(FRSRPC, p.NDR, 28700, bytes((127, 0, 0, 1))).encode()
    octets = struct.pack("<II", len(tower), len(tower)) + tower + bytes(-len(tower) % 4)
    mapped = bytes(20) + struct.pack("<IIIIII", 2, 4, 0, 2, 3, 4) + octets + octets + bytes(4)
    return [
        p.encode_bind_ack(ack), p.encode_bind_nak(4, 1), p.encode_fault(5, 1, 0), p.encode_simple(c.SHUTDOWN), mapped,
        tower, conversations()[5], p.encode_bind_ack(ack, c.ALTER_CONTEXT_RESP),
    ]  # fmt: skip


@cache
def stages() -> list[bytes]:
    """Those of section 4 that are whole; those of a file, a folder, a link and a sparse file in each compression."""
    found = []
    for one in STAGES:
        header, packed = one.get("header_hex") or one.get("header_template_hex"), one.get("compressed_hex")
        if header and packed:
            found.append(unmask(header + packed).data)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "file").write_bytes(b"some words of a file\n" * 50)
        (at / "folder").mkdir()
        (at / "link").symlink_to("../there")
        with open(at / "sparse", "wb") as file:
            file.truncate(1 << 20)
            file.seek(1 << 18)
            file.write(b"data")
        try:
            os.setxattr(at / "file", "user.one", b"1" * 100)
            os.setxattr(at / "file", "user.two", b"2" * 3000)
        except OSError:
            pass  # a file system without them
        for kind in ("file", "folder", "link", "sparse"):
            for compression in SUPPORTED:
                generate(str(at / kind), str(at / "stage"), object_id=bytes(range(16)), compression=compression)
                found.append((at / "stage").read_bytes())
                (at / "stage").unlink()
    alternate = streams.stream(4, b"data", 0, ":name:$DATA".encode("utf-16le")) + streams.stream(
        2, streams.encode_eas([streams.Ea(b"NAME", b"value"), streams.Ea(b"OTHER", b"v", 0x80)])
    )
    plain = found[len(found) - 12]
    return [*found, plain + alternate]


@cache
def headers() -> list[bytes]:
    """STAGE_HEADERs."""
    return [stage[:0x400] for stage in stages()]


@cache
def packed() -> list[bytes]:
    """LZNT1 of several kinds of data."""
    kinds = [b"", b"a", b"abc" * 2000, bytes(9000), bytes(range(256)) * 20, b"".join(b"%d\n" % n for n in range(3000))]
    return [lznt1.compress(one) for one in kinds if one] + [stage[0x400:] for stage in stages()[:3]] + [bytes(2)]


@cache
def descriptors() -> list[bytes]:
    """Security descriptors, and what else is held in attributes and streams."""
    acl = posixacl.encode(Acl(7, ((3, 6), (70000, 0)), 5, ((4, 7),), 4, 1))
    ours = [sd.Posix(0o100644, 1000, 100), sd.Posix(0o40750, 0, 0, acl, acl), sd.Posix(0o120777, 1, 2)]
    captured = [next(streams.split(lznt1.decompress(stage[0x400:]))).data for stage in stages()[:3]]
    from staging import dosattrib

    return [
        *(sd.build(one) for one in ours), *captured, acl, dosattrib.encode(0x22, 133_000_000_000_000_000),
        streams.encode_eas([streams.Ea(b"NAME", b"value"), streams.Ea(b"OTHER", b"v")]),
        streams.encode_symlink(b"../a/b"), streams.stream(1, b"data") + streams.stream(4, b"x", 0, b"n\0"),
    ]  # fmt: skip


def directory() -> list[bytes]:
    """Messages of the directory's protocols."""
    from agent.directory.mqds import security
    from agent.directory.mqds.methods import DSCOMM, METHODS, Restriction, SortKey
    from agent.directory.notification.messages import MACHINE_CHANGED, Body, Update, Updates
    from agent.directory.replication import messages as m

    guid, by_name = b"g" * 16, METHODS[DSCOMM]
    change = m.DirectoryChange(m.UPDATE, guid, guid, 1, 2, 0, ((101, guid), (105, 5), (108, "label")))
    found = [
        m.encode_message(one)
        for one in (
            m.Propagation(guid, (change,), "pec", (m.PartitionNumbers(guid, 9, 1),)),
            m.SyncReply(guid, guid, 1, 9, 0, 1, (change, change)),
            m.ChangeRequest(guid, guid, 1, "bsc", change, "psc"),
        )
    ]
    found += [Body(MACHINE_CHANGED, guid, "dir1").encode(), Updates((Update(1, guid, guid, ((214, 5),)),)).encode()]
    values = [(72, guid), (31, "text"), (0x1048, (guid, guid)), (65, b"blob")]
    found.append(
        by_name["SetPropsGuid"].encode_request(
            {"type": 1, "guid": guid, "cp": 4, "ids": (101, 108, 207, 1101), "values": values}
        )
    )
    asked = {"context": None, "restrictions": [Restriction(4, 103, (31, "x"))], "columns": (101, 103)}
    found.append(by_name["LookupBegin"].encode_request({**asked, "sort": [SortKey(103, True)], "auth": bytes(20)}))
    return [*found, security.DEFAULT.encode()]
