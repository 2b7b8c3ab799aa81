"""A partner that has its own key and keeps no rule: it joins as a member does, and sends what a test tells it to."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

from agent.engine import flags as fl
from agent.rpc.errors import RpcError
from agent.rpc.frsrpc import FrsPartner, frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.security import CredentialStore, KeyCredential, KeyPair
from agent.rpc.server import RpcServer
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.comm_packet import CommPacket
from agent.wire.guid import ZERO_GUID, guid_text
from agent.wire.packet import Gvsn, NamedGuid, Packet, decode_packet, encode_packet
from agent.work.clock import filetime_now
from config.load import load_agent_config
from tests.system.demo import PATIENCE, Demo

T = TypeVar("T")
_TIMEOUT = 120.0


class Rogue:
    """Takes the place of the stopped member `name` of a demo, towards the member `target`. As a context manager; its
    methods are for the test's thread, and its server and connection live in one of their own."""

    def __init__(self, demo: Demo, name: str, target: str) -> None:
        config = load_agent_config(demo.members[name].config)
        (local,) = config.sets
        members = {one: NamedGuid(m.guid, m.name) for one, m in local.set.members.items()}
        ends = {(x.upstream, x.downstream): x.guid for x in local.set.connections}
        self.me, self.target = members[name], members[target]
        self.up, self.down = ends[name, target], ends[target, name]  # connections in which this is up, down
        self.set_name = local.name.upper()
        public = local.set.members[target].key
        assert config.key is not None
        assert public is not None
        self.key = KeyCredential(KeyPair(config.key), public)
        self.port, self.target_port = demo.members[name].rpc_port, demo.members[target].rpc_port
        self.originator = os.urandom(16)
        self.sessions: dict[bytes, bytes] = {}  # connection -> the session that is joined
        self.offered: list[ChangeOrder] = []  # change orders that the target has sent
        self.asked: dict[bytes, Callable[[Packet], None]] = {}  # change order -> what to do when its stage is asked for
        self.mute = False  # answer nothing any more
        self._vsns = itertools.count(filetime_now())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Rogue:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)

    # -- its thread --

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        store = CredentialStore(key=self.key.own, members={self.key.partner: self.target.name})
        server = RpcServer([frsrpc_interface(self._received)], store)
        await server.start("127.0.0.1", self.port)
        self._partner = FrsPartner("127.0.0.1", self.target_port, None, key=self.key)
        self._ready.set()
        await self._end.wait()
        await self._partner.close()
        await server.close()

    def _received(self, context: CallContext, comm: CommPacket) -> int | Coroutine[Any, Any, int]:
        packet = decode_packet(comm.pkt)
        if packet.from_.guid != self.target.guid:
            return 0x490
        if self.mute:
            return _never()
        up = packet.cxtion.guid == self.up
        match packet.command:
            case c.CMD_NEED_JOIN:
                self._post(self.packet(c.CMD_START_JOIN, session=ZERO_GUID))
            case c.CMD_JOINING:
                self.sessions[self.up] = packet.join_guid
                self._post(self.packet(c.CMD_JOINED))
                if packet.last_join_time == 1:
                    self._post(self.packet(c.CMD_VVJOIN_DONE))
            case c.CMD_START_JOIN:
                self.sessions[self.down] = os.urandom(16)
                self._post(self.joining())
            case c.CMD_SEND_STAGE if packet.co_guid in self.asked:
                self.asked[packet.co_guid](packet)
            case c.CMD_REMOTE_CO if packet.remote_co is not None:
                self.offered.append(packet.remote_co)
            case c.CMD_UNJOIN_REMOTE:
                self.sessions.pop(self.up if up else self.down, None)
        return 0

    def _post(self, packet: Packet) -> None:
        task = self._loop.create_task(self._send(packet))
        task.add_done_callback(lambda done: done.exception())

    async def _send(self, packet: Packet) -> int | None:
        try:
            return await self._partner.send(encode_packet(packet), _TIMEOUT)
        except RpcError:
            return None

    # -- packets --

    def packet(self, command: int, *, up: bool = True, session: bytes | None = None) -> Packet:
        """A packet of the connection in which this is up (or down)."""
        cxtion = self.up if up else self.down
        if session is None:
            session = self.sessions.get(cxtion, ZERO_GUID)
        return Packet(
            command=command,
            to=self.target,
            from_=self.me,
            replica=NamedGuid(self.target.guid, self.set_name),
            cxtion=NamedGuid(cxtion, guid_text(cxtion).upper()),
            join_guid=session,
            last_join_time=filetime_now(),
        )

    def joining(self) -> Packet:
        """CMD_JOINING, for everything that the target has."""
        packet = self.packet(c.CMD_JOINING, up=False)
        packet.last_join_time, packet.join_time = 1, filetime_now()
        packet.vvector, packet.replica_version_guid = [Gvsn(0, self.originator)], self.originator
        packet.compression_guids = [c.COMPRESSION_NONE, c.COMPRESSION_ZSTD]
        return packet

    def change_order(self, name: str, **changes: Any) -> ChangeOrder:
        """A new file in the root."""
        fields = {
            "flags": fl.local_created(is_dir=False, has_content=True, compressed=False),
            "content_cmd": c.REASON_DATA_EXTEND,
            "location_cmd": fl.location(c.CO_LOCATION_CREATE, False),
            "file_attributes": c.FILE_ATTRIBUTE_ARCHIVE,
            "state": fl.STATE_OUTBOUND_REQUEST,
            "frs_vsn": next(self._vsns),
            "change_order_guid": os.urandom(16),
            "originator_guid": self.originator,
            "file_guid": os.urandom(16),
            "new_parent_guid": self.target.guid,
            "old_parent_guid": self.target.guid,
            "cxtion_guid": self.up,
            "event_time": filetime_now(),
            "file_name": name,
        }
        return ChangeOrder(**(fields | changes))

    def offer(self, co: ChangeOrder, md5: bytes = bytes(16)) -> Packet:
        """CMD_REMOTE_CO."""
        packet = self.packet(c.CMD_REMOTE_CO)
        packet.remote_co, packet.co_extension_2 = co, CoExtension2(checksum=md5)
        return packet

    def block(self, co: ChangeOrder, offset: int, data: bytes, size: int) -> Packet:
        """CMD_RECEIVING_STAGE."""
        packet = self.packet(c.CMD_RECEIVING_STAGE)
        packet.block, packet.block_size, packet.file_size, packet.file_offset = data, len(data), size, offset
        packet.co_guid, packet.co_sequence_number = co.change_order_guid, 0
        return packet

    def request(self, co: ChangeOrder, offset: int) -> Packet:
        """CMD_SEND_STAGE for a change that the target has sent."""
        packet = self.packet(c.CMD_SEND_STAGE, up=False)
        packet.block_size, packet.file_size, packet.file_offset = 0, 0, offset
        packet.co_guid, packet.co_sequence_number = co.change_order_guid, 0
        packet.remote_co, packet.co_extension_2 = co.replace(cxtion_guid=self.down), CoExtension2(checksum=bytes(16))
        return packet

    # -- for the test --

    def stage(self, co: ChangeOrder, data: bytes, claimed: int | None = None) -> None:
        """When its staging file is asked for, send it; with `claimed` only the first block, of so large a file."""

        def answer(packet: Packet) -> None:
            offset = packet.file_offset or 0
            if claimed is None or not offset:
                size = len(data) if claimed is None else claimed
                self._post(self.block(co, offset, data[offset : offset + c.MAX_BLOCK], size))

        self.asked[co.change_order_guid] = answer

    def join(self) -> None:
        """Wait until both connections are joined; asks for it again and again."""
        deadline = time.monotonic() + PATIENCE
        while not {self.up, self.down} <= self.sessions.keys():
            assert time.monotonic() < deadline, "the rogue cannot join"
            self.send([self.packet(c.CMD_START_JOIN, session=ZERO_GUID)] if self.up not in self.sessions else [])
            self.send(
                [self.packet(c.CMD_NEED_JOIN, up=False, session=ZERO_GUID)] if self.down not in self.sessions else []
            )
            time.sleep(0.2)

    def send(self, packets: Iterable[Packet]) -> list[int | None]:
        """Send all of these as fast as they are answered; gives the answers, None where there was none."""

        async def all_of_them() -> list[int | None]:
            answers: list[int | None] = []
            for batch in _batches(packets):
                answers += await asyncio.gather(*map(self._send, batch))
            return answers

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(PATIENCE)


async def _never() -> int:
    await asyncio.Event().wait()
    return 0


def _batches(packets: Iterable[Packet]) -> Iterable[list[Packet]]:
    iterator = iter(packets)
    while batch := list(itertools.islice(iterator, 64)):
        yield batch
