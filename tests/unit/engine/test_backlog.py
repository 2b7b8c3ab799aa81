"""What a connection has still to carry of the outbound log, row by row and never the whole again."""

from __future__ import annotations

from agent.engine import flags as fl
from agent.engine.backlog import MOST, Tally, Waits, content_bytes
from agent.engine.flow import InFlight
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder

ME, OTHER = b"m" * 16, b"o" * 16
CREATE = fl.location(c.CO_LOCATION_CREATE, False)


def written(size: int) -> ChangeOrder:
    return ChangeOrder(
        flags=c.CO_FLAG_LOCATION_CMD | c.CO_FLAG_CONTENT_CMD, content_cmd=c.REASON_FILE_CREATE, location_cmd=CREATE,
        file_attributes=0x20, file_version_number=0xFFFFFFFF, partner_ack_seq_number=0xFFFFFFFF, file_size=size,
    )  # fmt: skip


class Log:
    """Rows that are numbered from 1 on; row n is of time 1000 + n. What was read is counted."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes, int, bytes]] = []
        self.read = 0

    def add(self, co: ChangeOrder, from_members: bytes = b"") -> None:
        number = len(self.rows) + 1
        self.rows.append((number, from_members, 1000 + number, co.encode()))

    @property
    def head(self) -> int:
        return self.rows[-1][0]

    def outlog_heads(self, after_seq: int, upto_seq: int, size: int, limit: int) -> list[tuple[int, bytes, int, bytes]]:
        found = [row for row in self.rows if after_seq < row[0] <= upto_seq][:limit]
        self.read += len(found)
        return [(*row[:3], row[3][:size]) for row in found]


def test_content_that_goes_out_is_counted_and_nothing_else() -> None:
    assert content_bytes(written(2**40)) == 2**40
    assert content_bytes(written(5).replace(location_cmd=CREATE | 1)) == 0, "a folder"
    removed = ChangeOrder(
        flags=c.CO_FLAG_LOCATION_CMD, location_cmd=fl.location(c.CO_LOCATION_DELETE, False), file_size=5
    )
    assert content_bytes(removed) == 0
    renamed = ChangeOrder(
        flags=c.CO_FLAG_CONTENT_CMD, content_cmd=c.REASON_RENAME_NEW_NAME, location_cmd=0, file_size=5
    )
    assert content_bytes(renamed) == 0


def test_what_waits_is_told_as_the_log_grows_and_goes_out() -> None:
    log, tally = Log(), Tally()
    log.add(written(1))
    log.add(written(10), OTHER + ME)
    log.add(written(100), OTHER)
    log.add(written(1000))

    def look(leading: int) -> Waits:
        return tally.look(log, leading, log.head, ME)

    assert look(0) == (3, 1101, 1001)
    assert look(1) == (2, 1100, 1003), "the second came from that partner"
    log.add(written(10_000))
    assert look(3) == (2, 11_000, 1004)
    assert look(1) == (3, 11_100, 1003), "a session ended, and goes on where all is acknowledged"
    assert look(5) == (0, 0, 0)
    assert look(0) == (4, 11_101, 1001)
    log.rows = log.rows[3:]
    tally.forget()
    assert look(0) == (2, 11_000, 1004), "rows went that are older than the history"


def test_a_long_log_is_read_once() -> None:
    log, tally = Log(), Tally()
    for _ in range(MOST + 500):
        log.add(written(2))
    assert tally.look(log, 0, log.head, ME).many == MOST, "a part at a time"
    assert tally.look(log, 0, log.head, ME) == (MOST + 500, 2 * (MOST + 500), 1001)
    before = log.read
    for _ in range(100):
        tally.look(log, 0, log.head, ME)
    assert log.read == before, "nothing came, and nothing went"
    log.add(written(2))
    assert tally.look(log, 3, log.head, ME).many == MOST + 500 + 1 - 3
    assert log.read - before <= 4 + 64


def test_what_is_in_flight_is_added_up() -> None:
    flight = InFlight()
    flight.send(1, b"1", 70, size=5, since=60)
    flight.send(2, b"2", 80, size=7)
    assert flight.waits == (2, 12, 60)
    flight.send(2, b"2", 90, size=8)
    flight.acknowledge(1)
    flight.acknowledge(1)
    assert flight.waits == (1, 8, 90)
    flight.end()
    assert flight.waits == (0, 0, 0)
