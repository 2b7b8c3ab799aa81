"""The messages of [MC-MQDSRP] 2.2 as bytes: laid out by hand from the text, and nothing of the wire believed."""

from __future__ import annotations

import random

import pytest

from agent.directory.replication import messages as m
from agent.directory.replication.numbers import MAX_SEQ, epoch_of, following, number, reign_of
from agent.wire.errors import WireError

SITE = bytes.fromhex("33221100554477668899aabbccddeeff")
HEAD = "00" + SITE.hex()
SEQ = "0000000000000014"


def text(value: str) -> str:
    return (value + "\0").encode("utf-16-le").hex()


CHANGE = m.DirectoryChange(m.UPDATE, b"g" * 16, SITE, 1, 2, 0, ((104, 1), (108, "ab")))
CHANGE_HEX = (
    "01" "01" + "67" * 16 + SITE.hex() + "0000000000000001" "0000000000000002" "0000000000000000"
    "02" "68000000" "6c000000" "01" + text("ab")
)  # fmt: skip
BY_NAME = m.DirectoryChange(m.DELETE, None, SITE, 0, 0, 0, ((1403, 1), (1404, 1)), "pc\\q")
BY_NAME_HEX = (
    "02" "00" + text("pc\\q") + SITE.hex() + "00" * 24 + "02" "7b050000" "7c050000" "01" "01"
)  # fmt: skip

MESSAGES = [
    (m.AlreadyPurged(SITE, SITE, 20), HEAD + "05" + SITE.hex() + SEQ),
    (m.Propagation(SITE), HEAD + "000000000000"),
    (
        m.Propagation(SITE, (CHANGE,), "PEC0", (m.PartitionNumbers(bytes(16), 20, 5),), True),
        HEAD + "00010100" + CHANGE_HEX + "0100" + text("PEC0") + "00" * 16 + SEQ + "0000000000000005",
    ),
    (
        m.ChangeRequest(SITE, SITE, 7, "BSC21", BY_NAME, "PSC2"),
        HEAD + "01" + SITE.hex() + "0700000006000000" + text("BSC21") + text("PSC2") + BY_NAME_HEX,
    ),
    (
        m.ChangeRequest(SITE, SITE, 7, "PSC2", CHANGE),
        HEAD + "01" + SITE.hex() + "0700000000000000" + text("PSC2") + CHANGE_HEX,
    ),
    (
        m.SyncRequest(SITE, SITE, 20, MAX_SEQ, 5, True, False, "BSC01"),
        HEAD + "02" + SITE.hex() + SEQ + "ff" * 8 + "00000000000000050100" + text("BSC01"),
    ),
    (
        m.SyncReply(SITE, SITE, 1, 20, 0, 2, (CHANGE,)),
        HEAD + "03" + SITE.hex() + "0000000000000001" + SEQ + "00" * 8 + "0100000002000000" + CHANGE_HEX,
    ),
    (m.ChangeReply(SITE, 7, 0xC00E0001, "BSC21"), HEAD + "040700000001000ec0" + text("BSC21")),
    (m.PscAck(SITE, SITE, bytes(16), 20, "PSC1"), HEAD + "06" + SITE.hex() + "00" * 16 + SEQ + text("PSC1")),
    (m.BscAck(SITE, b"i" * 16, "BSC01"), HEAD + "07" + "69" * 16 + text("BSC01")),
]


@pytest.mark.parametrize(("message", "data"), MESSAGES, ids=[type(one).__name__ for one, _ in MESSAGES])
def test_messages_are_laid_out_as_the_text_says(message: m.Message, data: str) -> None:
    assert m.encode_message(message).hex() == data
    assert m.decode_message(bytes.fromhex(data)) == message


def test_the_length_of_an_already_purged_message_is_that_of_the_text() -> None:
    """2.2.6.8: 18 bytes of header, 16 of partition, 8 of number."""
    assert len(m.encode_message(m.AlreadyPurged(SITE, SITE, 20))) == 42


@pytest.mark.parametrize(("message", "data"), MESSAGES, ids=[type(one).__name__ for one, _ in MESSAGES])
def test_what_is_cut_short_or_too_long_is_refused(message: m.Message, data: str) -> None:
    whole = bytes.fromhex(data)
    for end in range(len(whole)):
        with pytest.raises(WireError):
            m.decode_message(whole[:end])
    with pytest.raises(WireError):
        m.decode_message(whole + b"\0")


def test_no_bytes_at_all_are_believed() -> None:
    rng = random.Random(11)
    for _ in range(20_000):
        data = bytearray(bytes.fromhex(rng.choice(MESSAGES)[1]))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            again = m.decode_message(bytes(data))
        except WireError:
            continue
        assert m.decode_message(m.encode_message(again)) == again


@pytest.mark.parametrize(
    "data",
    [
        "01" + SITE.hex() + "00" "00" "0000" "0000",  # version
        HEAD + "08",  # operation
        HEAD + "00" "02" "0000" "0000",  # Flush
        HEAD + "02" + SITE.hex() + SEQ + "ff" * 8 + "0000000000000005" "0200" + text("BSC01"),  # IsSync0
        HEAD + "02" + SITE.hex() + SEQ + "ff" * 8 + "0000000000000005" "0102" + text("BSC01"),  # Scope
        HEAD + "00" "00" "ffff",  # changes that are not there
        HEAD + "00" "00" "0000" "ffff" + text("x"),  # partitions that are not there
        HEAD + "03" + SITE.hex() + "00" * 24 + "ffffffff" "00000000",
        HEAD + "03" + SITE.hex() + "00" * 24 + "00000000" "03000000",  # CompleteSync0
        HEAD + "05" + SITE.hex() + "80" + "00" * 7,  # a number that nobody gives
        HEAD + "00" "00" "0100" + CHANGE_HEX.replace("68000000", "e7030000") + "0000",  # an unknown property
        HEAD + "00" "00" "0100" + CHANGE_HEX.replace("68000000", "6c000000") + "0000",  # the same twice
        HEAD + "00" "00" "0100" "04" + CHANGE_HEX[2:] + "0000",  # command
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(data: str) -> None:
    with pytest.raises(WireError):
        m.decode_message(bytes.fromhex(data))


def test_numbers_are_never_given_twice() -> None:
    first = following(0, 0, 100)
    assert first == number(0, 100, 1)
    assert following(first, 0, 100) == first + 1
    assert following(first, 0, 99) == first + 1, "a clock that went back"
    assert following(first, 0, 101) == number(0, 101, 1)
    assert following(first, 1, 5) == number(1, 5, 1) > number(0, (1 << 32) - 1, (1 << 20) - 1)
    assert (epoch_of(number(3, 7, 9)), reign_of(number(3, 7, 9))) == (3, 7)
    assert number((1 << 11) - 1, (1 << 32) - 1, (1 << 20) - 1) < 1 << 63
    with pytest.raises(OverflowError):
        following(number((1 << 11) - 1, (1 << 32) - 1, (1 << 20) - 1), 1 << 11, 0)
