"""The four names that all packets of a connection bear are read and written once; what is remembered is bounded."""

from __future__ import annotations

import pytest

from agent.wire import constants as c
from agent.wire import elements
from agent.wire.errors import WireError
from agent.wire.packet import NamedGuid, Packet, decode_packet, encode_packet


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "_seen", {})


def packet(*names: str) -> Packet:
    return Packet(c.CMD_NEED_JOIN, *(NamedGuid(bytes([at]) * 16, name) for at, name in enumerate(names)))


def test_names_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, read = elements._read_named, []

    def counted(buf: elements.Buffer, pos: int, length: int) -> NamedGuid:
        read.append(pos)
        return real(buf, pos, length)

    monkeypatch.setattr(elements, "_read_named", counted)
    one, other = packet("a", "b", "set", "b to a"), packet("a", "b", "set", "b to c")
    for _ in range(10):
        assert decode_packet(encode_packet(one)) == one
        assert decode_packet(bytearray(encode_packet(other))) == other
    assert len(read) == 5


def test_a_name_that_is_none_is_never_one() -> None:
    good = encode_packet(packet("aa", "b", "set", "b to a"))
    bad = good.replace("aa".encode("utf-16-le"), "a\0".encode("utf-16-le"))
    for _ in range(3):
        assert decode_packet(good).to.name == "aa"
        with pytest.raises(WireError, match="COMM_TO"):
            decode_packet(bad)
        with pytest.raises(WireError, match="NUL"):
            encode_packet(packet("a\0", "b", "set", "c"))


def test_what_is_remembered_is_bounded() -> None:
    """However many names a partner makes up, and however long they are."""
    for number in range(2000):
        made_up = packet(f"{number}", f"{number}" * 100, "set", "x")
        assert decode_packet(encode_packet(made_up)) == made_up
    assert len(elements._seen) <= 256
    assert sum(map(len, elements._seen)) <= 256 * 256
