"""LZNT1 on 10 MiB of C headers: MiB/s and ratio, beside foreign implementations where they are installed.

    python bench/lznt1.py [MIB]

Medians of five runs; the foreign ones, which are written in Python, get one run over 1 MiB.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable

from staging import lznt1

MIB = 1 << 20
RUNS = 5


def corpus(size: int) -> bytes:
    """C headers of this host in the order of their paths, repeated only if there are not enough of them."""
    data = bytearray()
    for top in ("/usr/include", "/usr/lib", "/usr/local/include"):
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".h") and len(data) < size:
                    try:
                        with open(os.path.join(folder, name), "rb") as f:
                            data += f.read()
                    except OSError:
                        pass
    if not data:
        raise SystemExit("no C headers on this host")
    while len(data) < size:
        data += data[: size - len(data)]
    return bytes(data[:size])


def speed(action: Callable[[], bytes], size: int, runs: int = RUNS) -> tuple[float, bytes]:
    """Median MiB/s of `size` bytes, and what the last run returned."""
    times = []
    result = b""
    for _ in range(runs):
        start = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - start)
    return size / MIB / statistics.median(times), result


def foreign(module: str, name: str) -> Callable[..., bytes] | None:
    """A function of a package that may be missing."""
    try:
        found: Callable[..., bytes] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return found


def main() -> None:
    size = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else 10 * MIB
    data = corpus(size)
    print(
        f"{len(data)} bytes of C headers, {os.cpu_count()} processors, this project's LZNT1 in {lznt1.IMPLEMENTATION}"
    )
    print(f"{'implementation':<28}{'compress MiB/s':>16}{'ratio':>8}{'decompress MiB/s':>18}")
    packing, packed = speed(lambda: lznt1.compress(data), size)
    unpacking, plain = speed(lambda: lznt1.decompress(packed), size)
    assert plain == data
    ours = f"staging.lznt1 ({lznt1.IMPLEMENTATION})"
    print(f"{ours:<28}{packing:>16.1f}{len(packed) / size:>8.4f}{unpacking:>18.1f}")

    some = data[:MIB]
    some_packed = lznt1.compress(some)
    packing, python = speed(lambda: lznt1.py_compress(some), len(some), 1)
    unpacking, plain = speed(lambda: lznt1.py_expand(some_packed, 0, len(some))[0], len(some), 1)
    assert plain == some
    print(f"{'staging.lznt1 (python)':<28}{packing:>16.1f}{len(python) / len(some):>8.4f}{unpacking:>18.1f}")

    if unpack := foreign("pyfwnt", "lznt1_decompress"):
        unpacking, plain = speed(lambda: unpack(packed, size), size)
        assert plain == data
        print(f"{'libfwnt (pyfwnt)':<28}{'-':>16}{'-':>8}{unpacking:>18.1f}")
    if unpack := foreign("dissect.util.compression.lznt1", "decompress"):
        unpacking, plain = speed(lambda: bytes(unpack(some_packed)), len(some), 1)
        assert plain == some
        print(f"{'dissect.util':<28}{'-':>16}{'-':>8}{unpacking:>18.1f}")
    pack, unpack = (foreign("ntcompress.ntdll.lznt1", name) for name in ("compress", "decompress"))
    if pack and unpack:
        packing, theirs = speed(lambda: bytes(pack(some)), len(some), 1)
        unpacking, plain = speed(lambda: bytes(unpack(some_packed)), len(some), 1)
        assert plain == some == lznt1.decompress(theirs)
        print(f"{'ntcompress':<28}{packing:>16.1f}{len(theirs) / len(some):>8.4f}{unpacking:>18.1f}")


if __name__ == "__main__":
    main()
