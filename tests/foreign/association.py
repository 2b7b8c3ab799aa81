"""FrsRpcSendCommPkt both ways, sealed: impacket's client, and a server of its PDUs, NTLM and SPNEGO."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from Cryptodome.Cipher import ARC4
from impacket import ntlm
from impacket.dcerpc.v5 import rpcrt, transport
from impacket.spnego import SPNEGO_NegTokenInit, SPNEGO_NegTokenResp, TypesMech, asn1encode
from impacket.uuid import uuidtup_to_bin

FRSRPC = uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1"))
NDR = uuidtup_to_bin(("8a885d04-1ceb-11c9-9fe8-08002b104860", "2.0"))
SEND_COMM_PKT = 0
PRIVACY = rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY
NTLM = TypesMech["NTLMSSP - Microsoft NTLM Security Support Provider"]
SIGNATURE = 16
_PATIENCE_S = 120.0
# COMM_PACKET: Major, Minor, CsId, MemLen, PktLen, UpkLen, the pointers of Pkt and of DataName, DataHandle, max_count
_STUB = struct.Struct("<10I")


def stub(pkt: bytes, minor: int) -> bytes:
    """The NDR of COMM_PACKET (2.2.3.5)."""
    return _STUB.pack(0, minor, 1, len(pkt), len(pkt), 0, 0x20000, 0, 0, len(pkt)) + pkt


def unpack_stub(data: bytes) -> tuple[int, bytes]:
    """Minor and Pkt of a request."""
    major, minor, cs_id, mem_len, size, upk_len, pointer, name, handle, count = _STUB.unpack_from(data)
    assert (major, cs_id, upk_len, name, handle) == (0, 1, 0, 0, 0)
    assert pointer
    assert mem_len >= size == count <= 0x40000
    assert len(data) >= _STUB.size + size
    return minor, data[_STUB.size : _STUB.size + size]


class Account:
    """The account that both ends know."""

    def __init__(self, domain: str, user: str, password: str) -> None:
        self.domain, self.user, self.password = domain, user, password


class Caller:
    """impacket's client of one member, at packet privacy."""

    def __init__(self, port: int, account: Account) -> None:
        self._port, self._account = port, account
        self._dce: Any = None

    def send(self, pkt: bytes, minor: int) -> int:
        """FrsRpcSendCommPkt; its return value."""
        if self._dce is None:
            self._dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{self._port}]").get_dce_rpc()
            self._dce.set_credentials(self._account.user, self._account.password, self._account.domain)
            self._dce.set_auth_level(PRIVACY)
            self._dce.connect()
            self._dce.bind(FRSRPC)
        self._dce.call(SEND_COMM_PKT, stub(pkt, minor))
        return int.from_bytes(self._dce.recv()[:4], "little")

    def close(self) -> None:
        """End the association."""
        if self._dce is not None:
            self._dce.disconnect()
            self._dce = None


class _Way:
    """The keys of one direction."""

    def __init__(self, flags: int, key: bytes, mode: str) -> None:
        self._flags, self._sign = flags, ntlm.SIGNKEY(flags, key, mode)
        self._seal = ntlm.SEALKEY(flags, key, mode)
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """The key stream from its beginning, as after SPNEGO's mechListMIC."""
        self._cipher = ARC4.new(self._seal)

    def crypt(self, data: bytes) -> bytes:
        """Encrypt or decrypt."""
        return bytes(self._cipher.encrypt(data))

    def mac(self, data: bytes) -> bytes:
        """The signature of the next message."""
        signature = ntlm.MAC(self._flags, self._cipher.encrypt, self._sign, self._number, data)
        self._number += 1
        return bytes(signature.getData())


class _Acceptor:
    """NTLM inside SPNEGO for one association."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._challenge = os.urandom(8)
        self._mechanisms = b""

    def challenge(self, token: bytes) -> bytes:
        """The answer to the first token."""
        init = SPNEGO_NegTokenInit(token)
        assert init["MechTypes"][0] == NTLM, "the member does not offer NTLM first"
        names = b"".join(b"\x06" + asn1encode(oid) for oid in init["MechTypes"])
        self._mechanisms = b"\x30" + asn1encode(names)
        asked = ntlm.NTLMAuthNegotiate()
        asked.fromString(init["MechToken"])
        pairs = ntlm.AV_PAIRS()
        name = self._account.domain.encode("utf-16le")
        for kind in (ntlm.NTLMSSP_AV_DOMAINNAME, ntlm.NTLMSSP_AV_HOSTNAME):
            pairs[kind] = name
        pairs[ntlm.NTLMSSP_AV_TIME] = struct.pack("<Q", int((time.time() + 11644473600) * 10_000_000))
        answer = ntlm.NTLMAuthChallenge()
        self._flags = asked["flags"] & ~ntlm.NTLMSSP_NEGOTIATE_VERSION | ntlm.NTLMSSP_NEGOTIATE_TARGET_INFO
        self._flags |= ntlm.NTLMSSP_TARGET_TYPE_DOMAIN
        answer["flags"] = self._flags
        answer["domain_name"] = name
        answer["domain_offset"] = 48
        answer["challenge"] = self._challenge
        answer["TargetInfoFields"] = pairs.getData()
        answer["TargetInfoFields_offset"] = 48 + len(name)
        answer["Version"] = b""
        token = SPNEGO_NegTokenResp()
        token["NegState"] = b"\x01"  # accept-incomplete
        token["SupportedMech"] = NTLM
        token["ResponseToken"] = answer.getData()
        return bytes(token.getData())

    def accept(self, token: bytes) -> bytes:
        """The answer to the second token, which has to prove the password and to sign the list of mechanisms."""
        response = SPNEGO_NegTokenResp(token)["ResponseToken"]
        mic = token[-SIGNATURE:]  # mechListMIC is the last of NegTokenResp
        auth = ntlm.NTLMAuthChallengeResponse()
        auth.fromString(response)
        assert auth["user_name"].decode("utf-16le").upper() == self._account.user.upper()
        key = ntlm.NTOWFv2(self._account.user, self._account.password, auth["domain_name"].decode("utf-16le"))
        proof = auth["ntlm"][:16]
        assert ntlm.hmac_md5(key, self._challenge + auth["ntlm"][16:]) == proof, "another password"
        session = ntlm.hmac_md5(key, proof)
        if auth["flags"] & ntlm.NTLMSSP_NEGOTIATE_KEY_EXCH:
            at = auth["session_key_offset"]  # impacket itself looks for it elsewhere
            session = ARC4.new(session).decrypt(response[at : at + 16])
        self.incoming = _Way(auth["flags"], session, "Client")
        self.outgoing = _Way(auth["flags"], session, "Server")
        assert self.incoming.mac(self._mechanisms) == mic, "the list of mechanisms is not what the member sent"
        signed = b"\xa3" + asn1encode(b"\x04" + asn1encode(self.outgoing.mac(self._mechanisms)))
        for way in (self.incoming, self.outgoing):
            way.begin()
        completed = b"\xa0" + asn1encode(b"\x0a" + asn1encode(b"\x00"))
        return b"\xa1" + bytes(asn1encode(b"\x30" + asn1encode(completed + signed)))


class Endpoint:
    """A server of frsrpc on a port of 127.0.0.1; `received` gets Minor and Pkt of each call, in the thread of its
    association, and gives its return value. What fails in such a thread is in `faults`."""

    def __init__(self, port: int, account: Account, received: Callable[[int, bytes], int]) -> None:
        self._account, self._received = account, received
        self.faults: list[BaseException] = []
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End all associations."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(_PATIENCE_S)
        self._listening.close()
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the member was first
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(one)
            self._threads.append(threading.Thread(target=self._serve, args=(one,)))
            self._threads[-1].start()

    def _serve(self, one: socket.socket) -> None:
        try:
            self._talk(one)
        except (ConnectionError, EOFError):
            pass
        except BaseException as error:
            self.faults.append(error)
            one.shutdown(socket.SHUT_RDWR)

    def _talk(self, one: socket.socket) -> None:
        acceptor = _Acceptor(self._account)
        calls: dict[int, bytes] = {}
        while True:
            pdu = _read_pdu(one)
            header = rpcrt.MSRPCHeader(pdu)
            if header["type"] in (rpcrt.MSRPC_BIND, rpcrt.MSRPC_ALTERCTX):
                verifier = rpcrt.SEC_TRAILER(header["sec_trailer"])
                assert verifier["auth_type"] == rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE
                assert verifier["auth_level"] == PRIVACY
                first = header["type"] == rpcrt.MSRPC_BIND
                token = (acceptor.challenge if first else acceptor.accept)(header["auth_data"])
                one.sendall(_bind_ack(header, verifier, token))
                continue
            assert header["type"] == rpcrt.MSRPC_REQUEST, f"PDU type {header['type']}"
            request = rpcrt.MSRPCRequestHeader(pdu)
            number = request["call_id"]
            calls[number] = calls.get(number, b"") + _open(pdu, acceptor.incoming)
            if request["flags"] & rpcrt.PFC_LAST_FRAG:
                assert request["op_num"] == SEND_COMM_PKT
                status = self._received(*unpack_stub(calls.pop(number)))
                one.sendall(_response(request, struct.pack("<I", status), acceptor.outgoing))


def _read_pdu(one: socket.socket) -> bytes:
    head = _read(one, 16)
    return head + _read(one, int.from_bytes(head[8:10], "little") - 16)


def _read(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = one.recv(size - len(data))
        if not got:
            raise EOFError
        data += got
    return data


def _bind_ack(asked: Any, verifier: Any, token: bytes) -> bytes:
    bind = rpcrt.MSRPCRelayBind(asked["pduData"])
    ack = rpcrt.MSRPCRelayBindAck()
    ack["max_tfrag"] = ack["max_rfrag"] = 4280
    ack["assoc_group"] = 0x12345678
    ack["SecondaryAddr"] = ""
    for item in bind.getCtxItems():
        assert item["AbstractSyntax"] == FRSRPC
        result = rpcrt.CtxItemResult()
        same = item["TransferSyntax"] == NDR
        result["Result"], result["Reason"] = (0, 0) if same else (2, 2)
        result["TransferSyntax"] = NDR if same else bytes(20)
        ack.addCtxItem(result)
    answer = rpcrt.MSRPCHeader()
    answer["type"] = rpcrt.MSRPC_BINDACK if asked["type"] == rpcrt.MSRPC_BIND else rpcrt.MSRPC_ALTERCTX_R
    answer["flags"] = asked["flags"] & ~rpcrt.PFC_CONC_MPX
    answer["call_id"] = asked["call_id"]
    data = ack.getData()
    answer["pduData"] = data + bytes(-len(data) % 4)
    own = rpcrt.SEC_TRAILER()
    for field in ("auth_type", "auth_level", "auth_ctx_id"):
        own[field] = verifier[field]
    own["auth_pad_len"] = -len(data) % 4
    answer["sec_trailer"], answer["auth_data"] = own.getData(), token
    return bytes(answer.get_packet())


def _open(pdu: bytes, way: _Way) -> bytes:
    """The stub of a fragment, whose signature must hold."""
    trailer = rpcrt.SEC_TRAILER(pdu[-SIGNATURE - 8 : -SIGNATURE])
    assert trailer["auth_level"] == PRIVACY
    plain = way.crypt(pdu[24 : -SIGNATURE - 8])
    assert way.mac(pdu[:24] + plain + pdu[-SIGNATURE - 8 : -SIGNATURE]) == pdu[-SIGNATURE:], "the signature is wrong"
    return plain[: len(plain) - trailer["auth_pad_len"]]


def _response(request: Any, data: bytes, way: _Way) -> bytes:
    answer = rpcrt.MSRPCRespHeader()
    answer["call_id"], answer["ctx_id"], answer["alloc_hint"] = request["call_id"], request["ctx_id"], len(data)
    answer["flags"] = rpcrt.PFC_FIRST_FRAG | rpcrt.PFC_LAST_FRAG
    trailer = rpcrt.SEC_TRAILER()
    asked = rpcrt.SEC_TRAILER(request["sec_trailer"])
    trailer["auth_type"], trailer["auth_level"], trailer["auth_ctx_id"] = (
        rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE, PRIVACY, asked["auth_ctx_id"],
    )  # fmt: skip
    padded = data + bytes(-len(data) % 4)
    trailer["auth_pad_len"] = len(padded) - len(data)
    answer["pduData"], answer["sec_trailer"], answer["auth_data"] = padded, trailer.getData(), bytes(SIGNATURE)
    whole = answer.get_packet()
    sealed = way.crypt(padded)
    return bytes(whole[:24] + sealed + whole[24 + len(padded) : -SIGNATURE] + way.mac(whole[:-SIGNATURE]))
