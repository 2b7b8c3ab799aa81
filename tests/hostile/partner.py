"""The hostile partner's place in the topology: its sessions with both honest members, and its own server.

Left alone it is a good partner: it joins, takes and acknowledges every change order, and sends what it is asked for.
An attack changes what it wants of that: `hooks` take packets before the good partner does, `mute` leaves all calls of
the honest members unanswered.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from agent.engine import flags as fl
from agent.rpc.errors import RpcAuthError, RpcError, RpcFault, RpcTimeout
from agent.rpc.frsrpc import OP_SEND_COMM_PKT, FrsPartner, frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.security import CredentialStore, KeyCredential, KeyPair
from agent.rpc.server import RpcServer
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.comm_packet import CommPacket, encode_send_comm_pkt
from agent.wire.errors import WireError
from agent.wire.guid import ZERO_GUID, guid_text, new_guid
from agent.wire.packet import Gvsn, NamedGuid, Packet, decode_packet, encode_packet
from agent.work.clock import filetime_now
from config.model import Member, ReplicaSet
from tests.hostile.tally import Tally

NEVER: Final = c.INVALID_JOIN_TIME
CALL_S: Final = 60.0
#: Calls under way to one member before the attack waits for answers.
WINDOW: Final = 512

#: Takes a packet of a member; True when the good partner is not to.
Hook = Callable[["Line", Packet], bool]


class Line:
    """One honest member, as the partner sees it. `up` is the connection on which the partner sends changes, `down` the
    one on which it receives them; `up_join` and `down_join` are the GUIDs of the sessions, None without one."""

    def __init__(self, partner: Partner, member: Member, up: bytes, down: bytes) -> None:
        self.partner = partner
        self.name, self.guid = member.name, member.guid
        self.host, self.port = member.host, member.port
        self.up, self.down = up, down
        assert member.key is not None
        self.key = KeyCredential(partner.own, member.key)
        self.client = FrsPartner(member.host, member.port, None, key=self.key, max_in_flight=2 * WINDOW)
        self.up_join: bytes | None = None
        self.down_join: bytes | None = None
        self._wanted_join = ZERO_GUID
        self.originator = ZERO_GUID  # of the member, once it has said so
        self.vvector: list[Gvsn] = []
        self.offered: dict[bytes, ChangeOrder] = {}  # by file: the last change order that the member sent
        self.heard: Counter[int] = Counter()  # packets of the member, by command
        self.outstanding = 0
        self._room = asyncio.Event()
        self._room.set()

    # -- sending --

    def packet(self, command: int, *, up: bool, join: bytes | None = None, last_join_time: int = NEVER) -> Packet:
        """A packet of one of the two connections; `join` by default the GUID of its session."""
        cxtion = self.up if up else self.down
        if join is None:
            join = (self.up_join if up else self.down_join) or ZERO_GUID
        me = self.partner.member
        return Packet(
            command=command,
            to=NamedGuid(self.guid, self.name),
            from_=NamedGuid(me.guid, me.name),
            replica=NamedGuid(self.guid, self.partner.set.name.upper()),
            cxtion=NamedGuid(cxtion, guid_text(cxtion).upper()),
            join_guid=join,
            last_join_time=last_join_time,
        )

    def post(self, packet: Packet) -> None:
        """Send a packet behind those sent before; how it is answered is counted."""
        self.post_stub(encode_send_comm_pkt(encode_packet(packet)))

    def post_stub(self, stub: bytes) -> None:
        """As post(), for a packet that is encoded."""
        tally = self.partner.tally
        tally.send(len(stub))
        self.outstanding += 1
        if self.outstanding >= WINDOW:
            self._room.clear()
        try:
            future = self.client.submit(OP_SEND_COMM_PKT, stub, CALL_S)
        except RpcError as error:
            self._ended(how(error))
            return
        future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[bytes]) -> None:
        if future.cancelled():
            self._ended("cancelled")
            return
        error = future.exception()
        if error is not None:
            self._ended(how(error))
            return
        status = int.from_bytes(future.result()[:4], "little")
        self._ended("taken" if status == 0 else f"refused {status:#x}")

    def _ended(self, answer: str) -> None:
        self.partner.tally.answer(answer)
        self.outstanding -= 1
        if self.outstanding < WINDOW:
            self._room.set()

    async def room(self) -> None:
        """Wait while too many calls are under way."""
        if self.outstanding >= WINDOW:
            await self._room.wait()

    # -- sessions --

    def ask_up(self) -> None:
        """Have the member join the connection on which the partner sends."""
        self.post(self.packet(c.CMD_START_JOIN, up=True, join=ZERO_GUID))

    def ask_down(self) -> None:
        """Ask to join the connection on which the partner receives."""
        self.post(self.packet(c.CMD_NEED_JOIN, up=False, join=ZERO_GUID))

    def joining(self, **changes: Any) -> Packet:
        """CMD_JOINING of a new session in which the partner receives, some fields changed."""
        self._wanted_join = new_guid()
        packet = self.packet(c.CMD_JOINING, up=False, join=self._wanted_join)
        packet.vvector = [Gvsn(self.partner.last_vsn, self.partner.originator)]
        packet.join_time = filetime_now()
        packet.replica_version_guid = self.partner.originator
        packet.compression_guids = [c.COMPRESSION_NONE, c.COMPRESSION_LZNT1, c.COMPRESSION_ZSTD]
        for name, value in changes.items():
            setattr(packet, name, value)
        return packet

    def take(self, packet: Packet) -> None:
        """A packet of the member."""
        self.heard[packet.command] += 1
        hook = self.partner.hooks.get(packet.command)
        if hook is not None and hook(self, packet):
            return
        handler = _HANDLERS.get(packet.command)
        if handler is not None:
            handler(self, packet)

    def _on_need_join(self, packet: Packet) -> None:
        self.ask_up()

    def _on_start_join(self, packet: Packet) -> None:
        self.post(self.joining())

    def _on_joining(self, packet: Packet) -> None:
        self.up_join = packet.join_guid
        self.originator = packet.replica_version_guid or ZERO_GUID
        self.vvector = list(packet.vvector)
        self.post(self.packet(c.CMD_JOINED, up=True, last_join_time=filetime_now()))
        self.post(self.packet(c.CMD_VVJOIN_DONE, up=True))

    def _on_joined(self, packet: Packet) -> None:
        if packet.join_guid == self._wanted_join:
            self.down_join = packet.join_guid

    def _on_unjoin(self, packet: Packet) -> None:
        if packet.cxtion.guid == self.up:
            self.up_join = None
        else:
            self.down_join = None

    def _on_remote_co(self, packet: Packet) -> None:
        co = packet.remote_co
        assert co is not None
        self.offered[co.file_guid] = co
        self.down_join = packet.join_guid
        self.post(self.acknowledgement(co))

    def acknowledgement(self, co: ChangeOrder) -> Packet:
        """CMD_REMOTE_CO_DONE for a change order of the member."""
        packet = self.packet(c.CMD_REMOTE_CO_DONE, up=False)
        packet.block_size = packet.file_size = packet.file_offset = 0
        packet.gvsn = Gvsn(co.frs_vsn, co.originator_guid)
        packet.co_guid = co.change_order_guid
        packet.co_sequence_number = co.partner_ack_seq_number
        packet.remote_co = co.replace(state=fl.STATE_DONE, iflags=c.CO_IFLAG_VVRETIRE_EXEC)
        packet.co_extension_2 = CoExtension2(bytes(16))
        return packet

    def _on_send_stage(self, packet: Packet) -> None:
        data = self.partner.stages.get(packet.co_guid or b"")
        if data is not None:
            offset = packet.file_offset or 0
            self.post(self.block(packet.co_guid or b"", offset, data[offset : offset + c.MAX_BLOCK], len(data)))

    def block(self, co_guid: bytes, offset: int, data: bytes, size: int) -> Packet:
        """CMD_RECEIVING_STAGE: `data` at `offset` of a staging file of `size` bytes."""
        packet = self.packet(c.CMD_RECEIVING_STAGE, up=True)
        packet.block = data or None
        packet.block_size = len(data)
        packet.file_size = size
        packet.file_offset = offset
        packet.co_guid = co_guid
        packet.co_sequence_number = 0
        return packet

    def offer(self, co: ChangeOrder, checksum: bytes = bytes(16)) -> None:
        """CMD_REMOTE_CO."""
        packet = self.packet(c.CMD_REMOTE_CO, up=True)
        packet.remote_co = co
        packet.co_extension_2 = CoExtension2(checksum)
        self.post(packet)


_HANDLERS: Final[dict[int, Callable[[Line, Packet], None]]] = {
    c.CMD_NEED_JOIN: Line._on_need_join,
    c.CMD_START_JOIN: Line._on_start_join,
    c.CMD_JOINING: Line._on_joining,
    c.CMD_JOINED: Line._on_joined,
    c.CMD_UNJOIN_REMOTE: Line._on_unjoin,
    c.CMD_REMOTE_CO: Line._on_remote_co,
    c.CMD_SEND_STAGE: Line._on_send_stage,
}


class Partner:
    """Holds the place of `name` in the topology: has its private key, and sessions with all others."""

    def __init__(self, replica_set: ReplicaSet, key: bytes, name: str) -> None:
        self.set = replica_set
        self.member = replica_set.members[name]
        self.own = KeyPair(key)
        self.tally = Tally()
        self.originator = new_guid()
        self.last_vsn = filetime_now()
        self.stages: dict[bytes, bytes] = {}  # staging files by change order
        self.hooks: dict[int, Hook] = {}
        self.mute = False  # calls of the members are never answered
        guids = {connection.key: connection.guid for connection in replica_set.connections}
        self.lines = [
            Line(self, other, guids[f"{name}->{other.name}"], guids[f"{other.name}->{name}"])
            for other in replica_set.members.values()
            if other.name != name
        ]
        self._by_guid = {line.guid: line for line in self.lines}
        keys = {line.key.partner: line.name for line in self.lines}
        self._server = RpcServer([frsrpc_interface(self._received)], CredentialStore(key=self.own, members=keys))
        _speak_from(asyncio.get_running_loop(), self.member.host)

    def next_vsn(self) -> int:
        """A VSN as an honest member would give its next change."""
        self.last_vsn += 1
        return self.last_vsn

    async def start(self) -> None:
        """Listen at the partner's place. Raises OSError."""
        await self._server.start(self.member.host, self.member.port)

    async def close(self) -> None:
        """Go away."""
        for line in self.lines:
            await line.client.close()
        await self._server.close()

    def _received(self, context: CallContext, comm: CommPacket) -> int | Awaitable[int]:
        try:
            packet = decode_packet(comm.pkt)
        except WireError:
            return c.ERROR_INVALID_PARAMETER
        line = self._by_guid.get(packet.from_.guid)
        if line is None:
            return c.ERROR_INVALID_PARAMETER
        if self.mute:
            return self._never()
        asyncio.get_running_loop().call_soon(line.take, packet)
        return 0

    async def _never(self) -> int:
        while self.mute:
            await asyncio.sleep(1)
        return 0

    async def join(self, patience: float, *, up: bool = True, down: bool = True) -> bool:
        """Have sessions with both members; False when that is not so after `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            missing = False
            for line in self.lines:
                if up and line.up_join is None:
                    missing = True
                    line.ask_up()
                if down and line.down_join is None:
                    missing = True
                    line.ask_down()
            if not missing:
                return True
            if time.monotonic() > until:
                return False
            await asyncio.sleep(1.0)


def how(error: BaseException) -> str:
    """A failed call in a few words."""
    if isinstance(error, RpcFault):
        return f"fault {error.status:#x}"
    if isinstance(error, RpcTimeout):
        return "no answer"
    if isinstance(error, RpcAuthError):
        return "authentication refused"
    return "closed"


def _speak_from(loop: asyncio.AbstractEventLoop, host: str) -> None:
    """Connections of this loop come from the partner's own address."""
    connect = loop.create_connection

    def from_here(*arguments: Any, **options: Any) -> Any:
        options.setdefault("local_addr", (host, 0))
        return connect(*arguments, **options)

    loop.create_connection = from_here  # type: ignore[method-assign]
