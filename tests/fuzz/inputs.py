"""Inputs that are nearly right: parts of real ones, changed. The input of a number is always the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 24, 0x7F, 0x80, 0xFF, 0x100, 0x400, 0x7FFF, 0x8000, 0xFFFF, 0x10000,
          0x40000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # fmt: skip
_Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def _flip(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def _number(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data))
    if rng.randrange(2):
        at &= -size
    value = rng.choice(_EDGES) if rng.randrange(3) else len(data) + rng.randrange(-8, 9)
    data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _step(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    size = rng.choice((1, 2, 4))
    at = rng.randrange(len(data))
    value = int.from_bytes(data[at : at + size], "little") + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8))
    data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _cut(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 4, 8, 16, len(data)))]


def _double(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    piece = data[at : at + rng.choice((1, 2, 4, 8, 16, 64, 256))]
    into = rng.randrange(len(data))
    data[into:into] = piece * rng.choice((1, 1, 1, 2, 16))


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    at = rng.randrange(len(data))
    begin = at if rng.randrange(2) else rng.randrange(len(other) + 1)
    piece = other[begin : begin + rng.choice((4, 16, 64, 1024, len(other)))]
    data[at : at + (len(piece) if rng.randrange(2) else 0)] = piece


_CHANGES: tuple[_Change, ...] = (_flip, _byte, _number, _number, _step, _cut, _double, _splice)
_LONGEST = 0x20000


def made(seed: int, number: int, seeds: Sequence[bytes]) -> bytes:
    """The input of this number; the first ones are `seeds` as they are."""
    if number < len(seeds):
        return seeds[number]
    rng = random.Random(seed << 40 | number)
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 9))):
        if not data:
            data += rng.randbytes(rng.randrange(1, 40))
        rng.choice(_CHANGES)(rng, data, seeds)
    return bytes(data[:_LONGEST])
