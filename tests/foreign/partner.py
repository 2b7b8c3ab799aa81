"""The partner: what it says and hears, and how it joins, fetches, serves and acknowledges."""

from __future__ import annotations

import os
import threading
import time
import uuid
from types import TracebackType
from typing import Any

from tests.foreign import packets, stages
from tests.foreign.association import Account, Caller, Endpoint
from tests.foreign.packets import ChangeOrder
from tests.foreign.site import PATIENCE, Member, Names

BLOCK = 0x10000
NEVER = 1


def now() -> int:
    """FILETIME."""
    return time.time_ns() // 100 + 116444736000000000


class Partner:
    """One end of both connections, of a minor version. Its server runs in threads of its own, which only take in what
    the member says; all else is done by the test's thread."""

    def __init__(self, known: Names, minor: int) -> None:
        self.minor = minor
        self.me = packets.guid(known.partner_guid), known.partner
        self.member = packets.guid(known.member_guid), known.member
        self.set_name = known.set_name.upper()
        self.up, self.down = packets.guid(known.up), packets.guid(known.down)
        self.originator = os.urandom(16)
        self.heard: list[tuple[int, dict[str, Any]]] = []  # all of it, with the minor version of the member
        self._unread: list[dict[str, Any]] = []
        self._news = threading.Condition()
        account = Account(Member.domain, Member.user, Member.password)
        self._endpoint = Endpoint(0, account, self._received)
        self.port = self._endpoint.port
        self._account = account
        self._caller: Caller | None = None
        #: what this calls a connection
        self.calls = {cxtion: str(uuid.UUID(bytes_le=cxtion)).upper() for cxtion in (self.up, self.down)}
        self.sessions: dict[bytes, bytes] = {}
        self.join_times: dict[bytes, int] = {}

    def __enter__(self) -> Partner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._caller is not None:
            self._caller.close()
        self._endpoint.close()
        if error is not None:
            said = [f"{packet['command']:#x}" for _, packet in self.heard]
            error.add_note(f"heard: {' '.join(said)}; faults: {self._endpoint.faults!r}")
        else:
            assert not self._endpoint.faults, self._endpoint.faults

    def call(self, port: int) -> None:
        """From now on the member is on this port. It has said by then that it wants to join: its set is open."""
        self.hear(packets.NEED_JOIN)
        if self._caller is not None:
            self._caller.close()
        self._caller = Caller(port, self._account)

    # -- saying and hearing --

    def _received(self, minor: int, pkt: bytes) -> int:
        packet = packets.parse(pkt)
        self._check(minor, packet)
        with self._news:
            self.heard.append((minor, packet))
            self._unread.append(packet)
            self._news.notify_all()
        return 0

    def _check(self, minor: int, packet: dict[str, Any]) -> None:
        """All that every packet of a member has to be (2.2.3.5, 3.3.4.4.1)."""
        assert minor <= 9
        assert packet["to"] == self.me
        assert packet["from"] == self.member
        assert packet["replica"] == (self.me[0], self.set_name)
        assert packet["cxtion"][0] in (self.up, self.down)
        wanted = set(packets.CONTENT[packet["command"]])
        if packets.EXTENSION in wanted:
            wanted.remove(packets.EXTENSION)
            wanted.add("co_ext_win2k" if min(minor, self.minor) <= 3 else "co_extension_2")
        if min(minor, self.minor) < 4:
            wanted.discard("compression_guid")
        assert set(packet) - set(packets.ALWAYS) == wanted, f"{packet['command']:#x} has {sorted(packet)}"

    def hear(self, command: int, **fields: Any) -> dict[str, Any]:
        """Waits for a packet with these elements."""
        deadline = time.monotonic() + PATIENCE

        def found() -> dict[str, Any] | None:
            for packet in self._unread:
                if packet["command"] == command and all(packet.get(name) == value for name, value in fields.items()):
                    return packet
            return None

        with self._news:
            while (packet := found()) is None:
                assert not self._endpoint.faults, self._endpoint.faults
                assert self._news.wait(min(1.0, deadline - time.monotonic())) or time.monotonic() < deadline, (
                    f"{command:#x} never came"
                )
            self._unread.remove(packet)
            return packet

    def unread(self, command: int) -> list[dict[str, Any]]:
        """What came of a command and was not waited for."""
        with self._news:
            return [packet for packet in self._unread if packet["command"] == command]

    def say(self, command: int, cxtion: bytes, **elements: Any) -> None:
        """A packet, which the member takes."""
        assert self._caller is not None
        base = {
            "bop": 0, "command": command, "to": self.member, "from": self.me,
            "replica": (self.member[0], self.set_name), "cxtion": (cxtion, self.calls[cxtion]),
            "join_guid": self.sessions.get(cxtion, bytes(16)), "last_join_time": self.join_times.get(cxtion, NEVER),
            "eop": 0xFFFFFFFF,
        }  # fmt: skip
        assert self._caller.send(packets.build(base | elements), self.minor) == 0

    def extension(self, checksum: bytes) -> dict[str, bytes]:
        """The extension in the form of this partner."""
        if self.minor <= 3:
            return {"co_ext_win2k": packets.win2k(checksum)}
        return {"co_extension_2": packets.extension(checksum)}

    # -- the downstream side --

    def join_below(self, vvector: list[tuple[int, bytes]] | None = None, last: int = NEVER) -> dict[str, Any]:
        """Join as the downstream partner, whichever of the two begins; the member's CMD_JOINED."""
        self.say(packets.NEED_JOIN, self.down, join_guid=bytes(16), last_join_time=NEVER)
        self.hear(packets.START_JOIN)
        self.sessions[self.down] = os.urandom(16)
        offered = {"compression_guid": [bytes(16), stages.LZNT1]} if self.minor >= 4 else {}
        self.say(
            packets.JOINING, self.down, last_join_time=last, vvector=vvector or [(0, self.originator)],
            join_time=now(), replica_version_guid=self.originator, **offered,
        )  # fmt: skip
        joined = self.hear(packets.JOINED, join_guid=self.sessions[self.down])
        self.join_times[self.down] = joined["last_join_time"]
        return joined

    def fetch(self, offer: dict[str, Any]) -> stages.Stage:
        """The staging file of a change order, block by block (3.3.4.4.6.1)."""
        order = offer["remote_co"]
        data, size = b"", 0
        while not data or len(data) < size:
            self.say(
                packets.SEND_STAGE, self.down, block_size=0, file_size=size, file_offset=len(data),
                co_guid=order["change_order_guid"], co_sequence_number=0,
                remote_co=order.but(sequence_number=1, state=6, flags=order["flags"] & ~0x20 | 0x400),
                **self.extension(bytes(16)),
            )  # fmt: skip
            block = self.hear(packets.RECEIVING_STAGE, co_guid=order["change_order_guid"], file_offset=len(data))
            assert block["block_size"] == len(block["block"]) > 0
            assert block["co_sequence_number"] == 0
            assert size in (0, block["file_size"])
            size = block["file_size"]
            assert len(block["block"]) == min(BLOCK, size - len(data))
            data += block["block"]
        return stages.parse(data)

    def done(self, offer: dict[str, Any]) -> None:
        """CMD_REMOTE_CO_DONE (3.3.4.4.6.2)."""
        order = offer["remote_co"]
        self.say(
            packets.REMOTE_CO_DONE, self.down, block_size=0, file_size=0, file_offset=0,
            gvsn=(order["frs_vsn"], order["originator_guid"]), co_guid=order["change_order_guid"],
            co_sequence_number=order["partner_ack_seq_number"],
            remote_co=order.but(flags=order["flags"] & ~0x20 | 0x402, iflags=1, state=0x16),
            **self.extension(bytes(16)),
        )  # fmt: skip

    # -- the upstream side --

    def join_above(self) -> dict[str, Any]:
        """Join as the upstream partner; the member's CMD_JOINING."""
        self.say(packets.START_JOIN, self.up, join_guid=bytes(16), last_join_time=NEVER)
        joining = self.hear(packets.JOINING)
        self.sessions[self.up], self.join_times[self.up] = joining["join_guid"], now()
        self.say(packets.JOINED, self.up)
        return joining

    def offer(self, order: ChangeOrder, checksum: bytes) -> None:
        """CMD_REMOTE_CO (3.3.4.1)."""
        self.say(packets.REMOTE_CO, self.up, remote_co=order, **self.extension(checksum))

    def serve(self, co_guid: bytes, data: bytes) -> dict[str, Any]:
        """Answer the member's requests for a staging file, block by block, until it has all; the last request."""
        at = 0
        while at < len(data):
            asked = self.hear(packets.SEND_STAGE, co_guid=co_guid, file_offset=at)
            assert asked["block_size"] == 0
            assert asked["file_size"] == (len(data) if at else 0)
            block = data[at : at + BLOCK]
            self.say(
                packets.RECEIVING_STAGE, self.up, block=block, block_size=len(block), file_size=len(data),
                file_offset=at, co_guid=co_guid, co_sequence_number=0,
            )  # fmt: skip
            at += len(block)
        return asked
