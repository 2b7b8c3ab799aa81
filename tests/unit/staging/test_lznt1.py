"""LZNT1: the captures, round trips, C against Python, damaged and hostile input."""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import lznt1

native = pytest.mark.skipif(lznt1.IMPLEMENTATION != "c", reason="the extension in C is not built")

# what compresses at all: few different bytes, long repetitions, far repetitions
texts = st.one_of(
    st.binary(max_size=3000),
    st.lists(st.sampled_from([b"a", b"bc", b"the quick", bytes(40), b"\xff" * 300]), max_size=900).map(b"".join),
    st.builds(
        lambda a, n, b: (a * n + b)[:20000], st.binary(min_size=1, max_size=50), st.integers(1, 900), st.binary()
    ),
)


@pytest.mark.parametrize("section", ["4.5.2.3", "4.5.4.3", "4.5.6.3"])
def test_captures_decompress(captures, section):
    stage = captures[section]
    packed, plain = bytes.fromhex(stage["compressed_hex"]), bytes.fromhex(stage["streams_hex"])
    assert lznt1.decompress(packed) == plain
    assert lznt1.py_expand(packed, 0, 4096) == (plain, len(packed))
    assert lznt1.decompress(lznt1.compress(plain)) == plain


@pytest.mark.parametrize("section", ["4.4.7", "4.5.1.3"])
def test_start_of_partial_captures(captures, section):
    """What is printed of these is cut off; a chunk header of its own makes the printed part a whole."""
    stage = captures[section]
    printed = stage.get("compressed_prefix_hex") or stage["compressed_template_hex"].split("??")[0]
    body = bytes.fromhex(printed)[2:]
    template = stage.get("streams_prefix_hex") or stage["streams_template_hex"]
    for cut in (len(body), len(body) - 1):  # the last element may be half a token
        chunk = (0xB000 | cut - 1).to_bytes(2, "little") + body[:cut]
        try:
            plain = lznt1.decompress(chunk).hex()
        except ValueError:
            continue
        assert len(plain) > 160
        assert all(a in (b, "?") for a, b in zip(template, plain))
        return
    raise AssertionError("neither way decoded")


@given(texts)
@settings(max_examples=200)
def test_round_trip(data):
    packed = lznt1.compress(data)
    assert lznt1.decompress(packed, len(data)) == data
    assert len(packed) <= len(data) + 2 * ((len(data) + 4095) // 4096)
    python = lznt1.py_compress(data)
    assert lznt1.decompress(python) == data
    assert lznt1.py_expand(packed, 0, len(data) + 4096) == (data, len(packed))


@given(texts)
@settings(max_examples=50)
def test_blocks_are_independent(data):
    data = (data * 40)[:200_000]
    blocks = [data[i : i + 0x10000] for i in range(0, len(data), 0x10000)]
    assert b"".join(map(lznt1.compress, blocks)) == lznt1.compress(data)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 17, 18, 4095, 4096, 4097, 8192, 65535, 65536, 65537])
def test_sizes(size):
    rng = random.Random(size)
    for data in (bytes(size), rng.randbytes(size), bytes(rng.choices(b"abcd", k=size))):
        assert lznt1.decompress(lznt1.compress(data)) == data


def test_longest_run_is_one_token():
    assert lznt1.compress(bytes(4096)) == bytes.fromhex("03b00200fc0f")  # literal 0, then 4095 times the same
    assert lznt1.decompress(bytes.fromhex("03b00200fc0f")) == bytes(4096)


def test_no_end_marker_but_one_is_read():
    packed = lznt1.compress(b"abc" * 100)
    assert not packed.endswith(b"\0\0")
    assert lznt1.decompress(packed + bytes(2) + packed + bytes(2)) == b"abc" * 200


def test_data_that_does_not_compress_is_stored():
    data = random.Random(1).randbytes(4096)
    assert lznt1.compress(data) == b"\xff\x3f" + data


@pytest.mark.parametrize(
    "packed",
    [
        b"\x00",  # half a header
        b"\x03\xb0\x02\x00\xfc",  # cut inside a chunk
        b"\xff\x3fabc",  # a stored chunk cut short
        b"\x02\xb0\x01\x00\x00",  # a token before any byte
        b"\x03\xb0\x02\x00\xfd\x0f",  # one byte more than a chunk holds
        b"\x03\xb0\x02\x00\x00\x10",  # further back than there are bytes
        b"\x02\xb0\x02\x00\xfc",  # half a token
        b"\x02\x90\x00\x00\x00",  # another signature
        b"\x02\xf0\x00\x00\x00",
    ],
)
def test_damaged(packed):
    with pytest.raises(ValueError):
        lznt1.decompress(packed)
    with pytest.raises(ValueError):
        out, used = lznt1.py_expand(packed, 0, 8192)
        if used < len(packed):
            raise ValueError(out)


@given(st.binary(max_size=5000), st.integers(4096, 20000))
@settings(max_examples=300)
def test_any_bytes_give_the_same_in_c_and_python(data, room):
    assert outcome(lznt1.expand, data, room) == outcome(lznt1.py_expand, data, room)


@given(texts, st.data())
@settings(max_examples=300)
def test_flipped_bytes(data, draw):
    packed = bytearray(lznt1.compress(data))
    for _ in range(draw.draw(st.integers(1, 4))):
        if packed:
            packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(packed[: draw.draw(st.integers(0, len(packed)))])
    assert outcome(lznt1.expand, cut, 1 << 20) == outcome(lznt1.py_expand, cut, 1 << 20)


def outcome(expand, data, room):
    try:
        out, used = expand(data, 0, room)
    except ValueError as error:
        return str(error)
    assert len(out) <= room
    assert used <= len(data)
    return out, used


def test_never_more_than_asked_for():
    bomb = lznt1.compress(bytes(1 << 20))
    assert len(bomb) < 2000
    with pytest.raises(ValueError):
        lznt1.decompress(bomb, (1 << 20) - 1)
    assert len(lznt1.decompress(bomb, 1 << 20)) == 1 << 20
    out, used = lznt1.expand(bomb, 0, 10000)
    assert len(out) == 8192
    assert lznt1.expand(bomb, used, 4096)[0] == bytes(4096)


@native
@pytest.mark.parametrize(("start", "room"), [(-1, 4096), (5, 4096), (0, 4095), (0, -1)])
def test_bad_bounds(start, room):
    with pytest.raises(ValueError):
        lznt1.expand(b"abcd", start, room)


@native
def test_buffers_of_all_kinds():
    data = b"hello hello hello"
    assert lznt1.compress(memoryview(data)) == lznt1.compress(bytearray(data)) == lznt1.compress(data)
    with pytest.raises(TypeError):
        lznt1.compress("text")
    with pytest.raises(BufferError):
        lznt1.compress(memoryview(bytearray(100))[::2])


def test_without_the_extension_a_warning_says_so(monkeypatch, caplog):
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "staging._lznt1", None)
    with caplog.at_level(logging.WARNING):
        spec = importlib.util.find_spec("staging.lznt1")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    assert module.IMPLEMENTATION == "python"
    assert "slow" in caplog.text
    assert module.decompress(module.compress(b"abc" * 999)) == b"abc" * 999
