"""Sparse files: their MD5 depends on the content alone, and their holes come back."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from staging import sparse
from staging.compression import SUPPORTED
from staging.generate import generate
from staging.header import HEADER_SIZE
from staging.restore import restore
from staging.streams import split

MIB = 1 << 20
OBJECT_ID = bytes(range(16))


def make(path, size, pieces, *, holes):
    """A file of zeros with data here and there, with holes or without."""
    with open(path, "wb") as f:
        if holes:
            f.truncate(size)
        else:
            for _ in range(0, size, MIB):
                f.write(bytes(min(MIB, size - f.tell())))
        for offset, data in pieces:
            f.seek(offset)
            f.write(data)


CASES = {
    "all zero": (4 * MIB, []),
    "one byte": (8 * MIB + 5, [(5 * MIB + 3, b"x")]),
    "start and end": (8 * MIB + 5, [(0, b"x" * 70000), (8 * MIB, b"end!!")]),
    "odd size": (3 * MIB + 77, [(MIB - 1, b"ab")]),
    "many": (16 * MIB, [(i * MIB + i * 1000, b"y" * 3000) for i in range(16)]),
    "small": (MIB - 1, [(0, b"x")]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compression", SUPPORTED)
def test_the_same_with_and_without_holes(place, name, compression):
    size, pieces = CASES[name]
    make(place / "holes", size, pieces, holes=True)
    make(place / "full", size, pieces, holes=False)
    one, two = (
        generate(str(place / n), str(place / n) + ".s", object_id=OBJECT_ID, compression=compression)
        for n in ("holes", "full")
    )
    assert one.md5 == two.md5
    assert one.stage_size == two.stage_size
    want = (place / "full").read_bytes()
    for n in ("holes", "full"):
        restored = restore(str(place / n) + ".s", str(place / n) + ".copy", durable=False)
        copy = place / (n + ".copy")
        assert copy.read_bytes() == want
        assert restored.md5 == one.md5
        assert restored.exact
        assert generate(str(copy), None, object_id=OBJECT_ID).md5 == one.md5
    for n in ("holes.copy", "full.copy"):  # zeros take no room, wherever they came from
        taken = os.stat(place / n).st_blocks * 512
        assert taken <= os.stat(place / "holes").st_blocks * 512 + 2 * sparse.BLOCK * len(pieces)


def test_a_file_with_few_zeros_is_not_sparse(tmp_path):
    data = random.Random(1).randbytes(8 * MIB)
    make(tmp_path / "f", 9 * MIB, [(MIB, data)], holes=True)
    staged = generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID)
    assert staged.stage_size > 9 * MIB
    ids = [s.stream_id for s in split((tmp_path / "s").read_bytes()[HEADER_SIZE:])]
    assert ids == [3, 1, 7]
    restore(str(tmp_path / "s"), str(tmp_path / "t"))
    assert (tmp_path / "t").read_bytes() == (tmp_path / "f").read_bytes()
    assert os.stat(tmp_path / "t").st_blocks * 512 < 9 * MIB  # its hole comes back all the same


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize(("data_blocks", "is_sparse"), [(128, True), (129, False)])
@pytest.mark.parametrize("first", [0, 10, 127])
def test_half_of_the_blocks_decide(tmp_path, first, data_blocks, is_sparse, holes):
    pieces = [((first + i) * sparse.BLOCK + 5000, b"x") for i in range(data_blocks)]
    make(tmp_path / "f", 16 * MIB, pieces, holes=holes)
    with open(tmp_path / "f", "rb") as f:
        assert sparse.wanted(f.fileno(), 16 * MIB) is is_sparse


@pytest.mark.parametrize("size", [16 * MIB - 1, 16 * MIB + 1])
def test_the_last_block_counts_as_one(tmp_path, size):
    blocks = -(-size // sparse.BLOCK)
    make(tmp_path / "f", size, [(i * sparse.BLOCK, b"x") for i in range(blocks // 2 + 1)], holes=True)
    with open(tmp_path / "f", "rb+") as f:
        assert not sparse.wanted(f.fileno(), size)
        os.pwrite(f.fileno(), bytes(1), 0)
        assert sparse.wanted(f.fileno(), size)


def test_data_in_many_places_of_a_hole_does_not_have_the_hole_read(tmp_path, monkeypatch):
    """Somebody who may write to the tree chooses where the data is, such as one byte in each 16th part."""
    size = 8 << 40
    blocks = size // sparse.BLOCK
    make(tmp_path / "f", size, [(i * blocks // 64 * sparse.BLOCK, b"x") for i in range(64)], holes=True)
    read = 0
    pread, preadv = os.pread, os.preadv

    def counted(fd, what, offset, how=None):
        nonlocal read
        got = pread(fd, what, offset) if how is None else preadv(fd, what, offset)
        read += len(got) if how is None else got
        return got

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: counted(fd, buffers, offset, preadv))
    staged = generate(str(tmp_path / "f"), None, object_id=OBJECT_ID)
    assert staged.file_size == size
    assert read <= 64 * 2 * MIB


def test_streams_of_a_sparse_file(tmp_path):
    make(tmp_path / "f", 4 * MIB, [(MIB - 10, b"z" * 20), (3 * MIB, b"z")], holes=True)
    generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID)
    found = list(split((tmp_path / "s").read_bytes()[HEADER_SIZE:]))
    assert [(s.stream_id, s.attributes, s.size) for s in found[1:]] == [
        (1, 8, 0),
        (9, 8, 8 + 0x10000),
        (9, 8, 8 + 0x10000),
        (9, 8, 8 + 0x10000),
        (9, 8, 8),
        (7, 0, 64),
    ]
    offsets = [int.from_bytes(s.data[:8], "little") for s in found if s.stream_id == 9]
    assert offsets == [MIB - 0x10000, MIB, 3 * MIB, 4 * MIB]


def test_a_terabyte_of_nothing(tmp_path):
    path = tmp_path / "f"
    make(path, 1 << 40, [((1 << 39) + 5, b"here")], holes=True)
    staged = generate(str(path), str(tmp_path / "s"), object_id=OBJECT_ID)
    assert staged.stage_size < 100_000
    restored = restore(str(tmp_path / "s"), str(tmp_path / "t"))
    assert restored.md5 == staged.md5
    with open(tmp_path / "t", "rb") as f:
        assert f.seek(0, os.SEEK_END) == 1 << 40
        f.seek((1 << 39) + 5)
        assert f.read(4) == b"here"


def test_copies_of_other_programs(tmp_path, shm):
    """cp with and without holes, from disk to tmpfs."""
    path = tmp_path / "f"
    make(path, 20 * MIB, [(3 * MIB, b"q" * MIB), (10 * MIB, b"r" * 5)], holes=True)
    want = generate(str(path), None, object_id=OBJECT_ID).md5
    for how in ("always", "never"):
        subprocess.run(["cp", "-p", f"--sparse={how}", path, shm / how], check=True)
        assert generate(str(shm / how), None, object_id=OBJECT_ID).md5 == want
