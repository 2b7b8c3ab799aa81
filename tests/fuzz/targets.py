"""The parsers. A target is given bytes as they come from a partner, a client or a staging file, and may refuse them
with the errors that its callers expect, and with nothing else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.rpc.errors import RpcAuthError, RpcError, RpcProtocolError
from agent.wire.errors import WireError
from staging.errors import StagingError
from tests.fuzz import seeds

Parse = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """`begin` is what has to be there while inputs are given, and gives what is called with each of them."""

    name: str
    seeds: Callable[[], list[bytes]]
    refusals: tuple[type[Exception], ...]
    begin: Callable[[], Any]


def _plain(parse: Parse) -> Callable[[], Any]:
    @contextmanager
    def begin() -> Iterator[Parse]:
        yield parse

    return begin


def _each(*parsers: Parse, refusals: type[Exception]) -> Parse:
    """All of them with the same input."""

    def parse(data: bytes) -> None:
        for one in parsers:
            try:
                one(data)
            except refusals:
                pass

    return parse


# -- RPC --


def _answers(data: bytes) -> None:
    from agent.rpc import pdu
    from agent.rpc.epm import Tower, towers

    for parse in (towers, Tower.decode):
        try:
            parse(data)
        except RpcError:
            pass
    if len(data) < 16:
        return
    header = pdu.decode_header(data)
    if header.frag_length > len(data):
        return  # a client waits for the rest
    whole = data[: header.frag_length]
    for parse_body in (pdu.decode_bind, pdu.decode_bind_ack, pdu.decode_bind_nak, pdu.decode_verifier):
        try:
            parse_body(whole, header)
        except RpcProtocolError:
            pass
    pdu.with_little_endian_numbers(whole)


def _ndr(data: bytes) -> None:
    from agent.wire import comm_packet as cp

    _each(
        cp.decode_send_comm_pkt, cp.decode_result, cp.StartPromotionParent.decode, cp.VerifyPromotionParent.decode,
        cp.decode_start_promotion_parent_response, refusals=WireError,
    )(data)  # fmt: skip


def _ntfrsapi(data: bytes) -> None:
    from agent.wire import frsapi

    asked = None
    try:
        asked = frsapi.decode_info(data)
    except WireError:
        pass
    if asked is not None:
        assert len(frsapi.encode_info(asked, b"x" * 5000, 9, 0)) <= asked.size + 24
    _each(
        frsapi.decode_path,
        frsapi.decode_force,
        frsapi.decode_info_answer,
        lambda stub: frsapi.decode_numbers(stub, "a", "b", "c"),
        refusals=WireError,
    )(data)


def _spnego(data: bytes) -> None:
    """The tokens of a client, each with its length before it, to one acceptor for keys and NTLM."""
    from agent.rpc.security import make_acceptor

    acceptor = make_acceptor(9, seeds.store())
    at = 0
    while at + 2 <= len(data) and not acceptor.complete:
        size = int.from_bytes(data[at : at + 2], "little")
        acceptor.step(data[at + 2 : at + 2 + size])
        at += 2 + size
    if acceptor.complete:
        assert acceptor.user


def _ntlm(data: bytes) -> None:
    """The two messages of a client, the first with its length before it."""
    from agent.rpc.ntlm import NtlmAcceptor

    acceptor = NtlmAcceptor(seeds.store().lookup, seeds.ACCOUNT.domain, "host")
    size = int.from_bytes(data[:2], "little")
    acceptor.step(data[2 : 2 + size])
    acceptor.step(data[2 + size :])
    assert acceptor.user == seeds.ACCOUNT.user


# -- replication --


def _comm_packet(data: bytes) -> None:
    from agent.wire.packet import decode_packet, describe, encode_packet

    packet = decode_packet(data)
    assert "\n" not in describe(packet)
    assert decode_packet(encode_packet(packet)) == packet


def _stage_header(data: bytes) -> None:
    from agent.wire.change_order import ChangeOrder
    from staging.header import StageHeader

    header = StageHeader.decode(data)
    order = ChangeOrder.decode(header.change_order)
    assert order.encode() == header.change_order
    assert StageHeader.decode(header.encode()) == header
    header.info.mtime_ns  # noqa: B018 - whatever the number is


def _lznt1(data: bytes) -> None:
    from staging import lznt1

    def outcome(expand: Callable[[bytes, int, int], tuple[bytes, int]]) -> object:
        try:
            return expand(data, 0, 1 << 18)
        except ValueError:
            return None

    assert outcome(lznt1.expand) == outcome(lznt1.py_expand)
    out = lznt1.decompress(data, 1 << 18)
    assert lznt1.decompress(lznt1.compress(out)) == out


def _descriptor(data: bytes) -> None:
    from staging import dosattrib, posixacl, sd, streams

    for kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        sd.parse(data, kind)
        assert sd.mode_for(data, kind) & ~0o755 == 0
    dosattrib.decode(data)
    _each(
        posixacl.decode, streams.decode_eas, streams.decode_symlink, lambda x: list(streams.split(x)),
        refusals=ValueError,
    )(data)  # fmt: skip


@contextmanager
def _restore() -> Iterator[Parse]:
    """A staging file, restored in a folder of memory; nothing may be left of one that is refused."""
    from staging.restore import restore, verify

    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        stage, result = os.path.join(folder, "stage"), os.path.join(folder, "result")

        def parse(data: bytes) -> None:
            with open(stage, "wb") as file:
                file.write(data)
            try:
                made = restore(stage, result, durable=False)
            except BaseException:
                assert os.listdir(folder) == ["stage"]
                raise
            (os.rmdir if made.kind == "folder" else os.unlink)(result)
            assert verify(stage) == made.md5

        yield parse


@contextmanager
def _server() -> Iterator[Parse]:
    from tests.fuzz.server import conversation

    with conversation() as parse:
        yield parse


# -- the directory --


def _directory(data: bytes) -> None:
    """What servers, hosts and clients of [MS-MQDS] send each other, and what comes over UDP."""
    from agent.directory.access.snapshot import Page, ReadRequest
    from agent.directory.discovery.packets import TopologyClientRequest, TopologyServerReply
    from agent.directory.mqds import security
    from agent.directory.mqds.methods import METHODS
    from agent.directory.notification.messages import decode_notification
    from agent.directory.replication.messages import decode_message

    methods = [one for table in METHODS.values() for one in table.values()]
    _each(
        TopologyClientRequest.decode, TopologyServerReply.decode, Page.decode, ReadRequest.decode,
        decode_message, decode_notification,
        *(one.decode_request for one in methods), *(one.decode_response for one in methods),
        lambda given: security.Descriptor.decode(given).allows([security.EVERYONE], security.GET),
        lambda given: security.stored_keys(given, security.SIGN_PUBLIC_KEY),
        lambda given: security.first_key(given, security.SIGN_PUBLIC_KEY),
        refusals=WireError,
    )(data)  # fmt: skip


TARGETS = {
    target.name: target
    for target in (
        Target("pdu", seeds.conversations, (), _server),
        Target("answers", seeds.answers, (RpcProtocolError,), _plain(_answers)),
        Target("ndr", seeds.stubs, (), _plain(_ndr)),
        Target("ntfrsapi_info", seeds.api_stubs, (), _plain(_ntfrsapi)),
        Target("spnego", seeds.negotiations, (RpcAuthError,), _plain(_spnego)),
        Target("ntlm", seeds.ntlm_messages, (RpcAuthError,), _plain(_ntlm)),
        Target("comm_packet", seeds.packets, (WireError,), _plain(_comm_packet)),
        Target("stage_header", seeds.headers, (StagingError, WireError), _plain(_stage_header)),
        Target("backup_stream", seeds.stages, (StagingError,), _restore),
        Target("descriptor", seeds.descriptors, (), _plain(_descriptor)),
        Target("directory", seeds.directory, (), _plain(_directory)),
        Target("lznt1", seeds.packed, (ValueError,), _plain(_lznt1)),
    )
}
#: What is done in C, too.
NATIVE = ("lznt1", "backup_stream")
FINDINGS = Path(__file__).parent / "findings"


def findings() -> list[tuple[str, Path]]:
    """What was found so far: the target, and the input."""
    return [(path.parent.name, path) for path in sorted(FINDINGS.glob("*/*.bin"))]
