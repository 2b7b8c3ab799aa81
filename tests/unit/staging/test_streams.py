"""Streams, extended attributes, names and symbolic links: codecs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import attributes
from staging.streams import (
    BACKUP_ALTERNATE_DATA,
    BACKUP_EA_DATA,
    REPARSE_BUFFER_MAX,
    Ea,
    decode_eas,
    decode_symlink,
    encode_eas,
    encode_symlink,
    narrow,
    split,
    stream,
    widen,
)

eas = st.lists(
    st.builds(Ea, st.binary(min_size=1, max_size=254), st.binary(max_size=300), st.sampled_from([0, 0x80])), max_size=8
)


@given(eas)
def test_eas(found):
    data = encode_eas(found)
    assert decode_eas(data) == found


@given(st.binary(max_size=200))
def test_any_bytes_as_eas(data):
    try:
        decode_eas(data)
    except ValueError:
        pass


def test_ea_bytes():
    data = encode_eas([Ea(b"A", b"xy"), Ea(b"BC", b"")])
    assert data.hex() == "0c0000000001020041007879" + "0000000000020000424300"


@given(st.lists(st.tuples(st.integers(1, 10), st.binary(max_size=50), st.integers(0, 9), st.binary(max_size=9))))
def test_split(parts):
    data = b"".join(stream(i, d, a, n) for i, d, a, n in parts)
    assert [(s.stream_id, s.data, s.attributes, s.name) for s in split(data)] == parts


@given(st.binary(max_size=60), st.sampled_from(["", "/", ":/\\\x01"]))
def test_names_come_back(name, forbidden):
    wide = widen(name, frozenset(forbidden))
    assert not set(forbidden) & set(wide)
    assert narrow(wide.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")) == name


@given(st.text(max_size=30))
def test_private_use_names_come_back(text):
    name = ("\uf03a" + text + "\uf0ff").encode()
    assert narrow(widen(name, frozenset(":"))) == name


def test_lone_surrogates_that_are_no_bytes():
    with pytest.raises(ValueError):
        narrow("\ud800")
    with pytest.raises(ValueError):
        narrow("\udc7f")


targets = st.binary(min_size=1, max_size=200).filter(lambda t: b"\0" not in t)


@given(targets)
def test_targets_of_links_come_back(target):
    assert decode_symlink(encode_symlink(target)) == target


@pytest.mark.parametrize(
    "target",
    [b"a\\b", b"/", b"//x", b"..", "\uf05c".encode(), b"\xff\xfe", "ä/日本".encode(), b"x" * 4095, b"/" * 4095],
)
def test_awkward_targets(target):
    buffer = encode_symlink(target)
    assert decode_symlink(buffer) == target
    assert len(buffer) <= REPARSE_BUFFER_MAX


def test_bytes_of_a_link():
    """[MS-FSCC] 2.1.2.4: relative, both names."""
    want = "0c0000a01c000000000008000800080001000000" + 2 * "2e002e005c006100"
    assert encode_symlink(b"../a").hex() == want
    assert encode_symlink(b"/a")[16:20] == bytes(4)


@given(st.binary(max_size=80))
def test_any_bytes_as_links(data):
    try:
        target = decode_symlink(b"\x0c\0\0\xa0" + data)
    except ValueError:
        return
    assert target
    assert b"\0" not in target


names = st.one_of(
    st.sampled_from(
        [b"user.a", b"user.A", b"user.b.c", b"user.with space", b"user.DosStream.s:$DATA", b"user.DosStream.t:$DATA",
         b"user.DosStream.no", b"user.DosStream.a/b:$DATA", b"user.\xff\xfe", b"user.:", "user.\uf000x".encode(),
         "user.DosStream.\uf000user.a:$DATA".encode()]
    ),
    st.binary(min_size=1, max_size=60).filter(lambda n: b"\0" not in n and not n.startswith(b"frs.")).map(
        lambda n: b"user." + n
    ),
)  # fmt: skip
values = st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda v: v + b"\0"))


@given(st.dictionaries(names, values, max_size=8))
@settings(max_examples=300)
def test_attributes_travel_and_come_back(user):
    """Whatever the attributes are: other members read the same ones, and write the same streams again."""
    back = {}
    ids = []
    for part in split(b"".join(attributes.encode(user))):
        ids.append(part.stream_id)
        if part.stream_id == BACKUP_EA_DATA:
            held = [attributes.attribute_of_ea(ea) for ea in decode_eas(part.data)]
        else:
            assert part.stream_id == BACKUP_ALTERNATE_DATA
            held = [attributes.attribute_of_stream(part.name, part.data)]
        for attribute in held:
            assert attribute is not None
            assert attribute[0] not in back
            back[attribute[0]] = attribute[1]
    assert back == user
    assert ids == sorted(ids)
    assert attributes.encode(back) == attributes.encode(user)


def test_order_does_not_matter():
    user = {b"user.b": b"1", b"user.a": b"2", b"user.DosStream.z:$DATA": b"3\0", b"user.DosStream.y:$DATA": b"4\0"}
    assert attributes.encode(user) == attributes.encode(dict(reversed(user.items())))


def test_samba_streams_lose_their_zero():
    (part,) = attributes.encode({b"user.DosStream.Zone.Identifier:$DATA": b"[ZoneTransfer]\0"})
    (found,) = split(part)
    assert found.name.decode("utf-16-le") == ":Zone.Identifier:$DATA"
    assert found.data == b"[ZoneTransfer]"


def test_more_than_64_kib_of_attributes():
    user = {b"user.%02d" % i: bytes([i + 1]) * 30000 for i in range(5)}
    parts = [found for part in attributes.encode(user) for found in split(part)]
    assert [part.stream_id for part in parts] == [2, 4, 4, 4]
    assert parts[0].size <= 0xFFFF


@pytest.mark.parametrize("name", ["frs.object_id", "frs.security_descriptor", "frs.x"])
def test_nobody_sets_the_agents_own_attributes(name):
    assert attributes.attribute_of_ea(Ea(name.encode(), b"x" * 16)) is None
    wide = f":\uf000user.{name}:$DATA".encode("utf-16-le")
    assert attributes.attribute_of_stream(wide, b"x" * 16) is None


@pytest.mark.parametrize("name", ["", ":", ":$DATA", "x", ":x:$INDEX", ":x\0y:$DATA", ":\uf000user.:$DATA"])
def test_stream_names_no_attribute_can_have(name):
    held = attributes.attribute_of_stream(name.encode("utf-16-le"), b"x")
    assert held is None or held[0].startswith(b"user.DosStream.")
    assert attributes.attribute_of_stream(b"\x00\xd8", b"x") is None
