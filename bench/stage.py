"""What staging costs: microseconds for a small file, MiB/s for a large one.

    python bench/stage.py [FOLDER] [MIB]

Small: 4 KiB each, medians over 1000 files, without fsync. Large: once per compression, with and without writing.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from staging import smallfiles
from staging.compression import COMPRESSION_LZNT1, COMPRESSION_NONE, COMPRESSION_ZSTD
from staging.fsops import Fingerprint, fingerprint
from staging.generate import generate
from staging.install import InstallResult, install
from staging.preinstall import Preinstall
from staging.restore import restore
from staging.rootdir import RootDir

MIB = 1 << 20
OBJECT_ID = bytes(range(16))
FILES = 1000
COMPRESSIONS = {"stored": COMPRESSION_NONE, "LZNT1": COMPRESSION_LZNT1, "zstd": COMPRESSION_ZSTD}


def micros(action: Callable[[int], object]) -> float:
    """Median microseconds over FILES calls."""
    times = []
    for i in range(FILES):
        start = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def small(folder: Path) -> None:
    source = folder / "small"
    source.mkdir()
    text = Path(__file__).read_bytes()
    for i in range(FILES):
        (source / str(i)).write_bytes((text * 9)[i : i + 4096])
    os.mkdir(folder / "root")
    os.mkdir(folder / "state")
    root = RootDir(str(folder / "root"))
    area = Preinstall(root, str(folder / "state"))
    print(f"{FILES} files of 4 KiB, us each (median)")
    print(f"  {'checksum only':<24}{micros(lambda i: generate(f'{source}/{i}', None, object_id=OBJECT_ID)):>8.1f}")
    for name, compression in COMPRESSIONS.items():

        def stage(i: int, name: str = name, compression: bytes = compression) -> None:
            generate(f"{source}/{i}", f"{folder}/{name}.{i}", object_id=OBJECT_ID, compression=compression)

        def back(i: int, name: str = name) -> None:
            restore(f"{folder}/{name}.{i}", f"{name}.{i}", dir_fd=area.fd, durable=False)

        print(f"  {'generate, ' + name:<24}{micros(stage):>8.1f}")
        print(f"  {'restore, ' + name:<24}{micros(back):>8.1f}")
    done = []

    def put(name: str, i: int, expected: Fingerprint | None = None) -> InstallResult:
        with root.parent(str(i)) as at:
            return install(area.entry(f"{name}.{i}"), root, at, expected)

    new = micros(lambda i: done.append(put("stored", i)))
    over = micros(lambda i: put("LZNT1", i, done[i].fingerprint))
    print(f"  {'install, new name':<24}{new:>8.1f}")
    print(f"  {'install over a file':<24}{over:>8.1f}")
    if smallfiles.native is not None:
        many(folder, source, root, area)
    area.close()
    root.close()


def many(folder: Path, source: Path, root: RootDir, area: Preinstall) -> None:
    """The same in batches, in C: a file's share."""
    names = [str(i).encode() for i in range(FILES)]
    staged, to = folder / "staged", folder / "root" / "many"
    staged.mkdir()
    to.mkdir()
    fds = [os.open(path, os.O_RDONLY) for path in (source, staged, to)]
    source_fd, staged_fd, to_fd = fds

    def stage(part: list[bytes]) -> None:
        seen = [fingerprint(os.fsdecode(name), dir_fd=source_fd) for name in part]
        sources = [smallfiles.Source(name, OBJECT_ID, False, one) for name, one in zip(part, seen)]
        made = smallfiles.generate_all(source_fd, sources, COMPRESSION_ZSTD)
        smallfiles.write_all(staged_fd, [(name, one.head, one.body) for name, one in zip(part, made) if one])

    def put(part: list[bytes], durable: bool) -> None:
        read = smallfiles.plain_all(smallfiles.read_files(staged_fd, part))
        wanted = [(name, one) for name, one in zip(part, read) if one]
        built = [one for one in smallfiles.build_all(area.fd, wanted, durable=durable) if one]
        smallfiles.place_all(area.fd, to_fd, [(one, one.name + (b"d" if durable else b"")) for one in built])
        smallfiles.close_all(built)

    for text, action in (
        ("many: generate, zstd", stage),
        ("many: to a new name", lambda part: put(part, False)),
        ("many: and with fsync", lambda part: put(part, True)),
    ):
        began = time.process_time()
        for start in range(0, FILES, 32):
            action(names[start : start + 32])
        print(f"  {text:<24}{(time.process_time() - began) / FILES * 1e6:>8.1f}   of the processor")
    assert len(os.listdir(to)) == 2 * FILES
    for fd in fds:
        os.close(fd)


def large(folder: Path, size: int) -> None:
    path = folder / "large"
    with open(path, "wb") as f:
        block = b"".join(b"%d lines of text, %x\n" % (i, i * i) for i in range(40_000))[:MIB]
        for _ in range(size):
            f.write(block)
    print(f"one file of {size} MiB, MiB/s")

    def rate(action: Callable[[], object]) -> float:
        start = time.perf_counter()
        action()
        return size / (time.perf_counter() - start)

    print(f"  {'checksum only':<24}{rate(lambda: generate(str(path), None, object_id=OBJECT_ID)):>8.1f}")
    for name, compression in COMPRESSIONS.items():
        stage, copy = f"{folder}/{name}", f"{folder}/{name}.copy"
        made = rate(lambda: generate(str(path), stage, object_id=OBJECT_ID, compression=compression))  # noqa: B023
        ratio = os.stat(stage).st_size / size / MIB
        back = rate(lambda: restore(stage, copy, durable=False))  # noqa: B023
        print(f"  {'generate, ' + name:<24}{made:>8.1f}   ratio {ratio:.3f}")
        print(f"  {'restore, ' + name:<24}{back:>8.1f}")
        os.unlink(stage)
        os.unlink(copy)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else None
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    with tempfile.TemporaryDirectory(dir=base) as name:
        small(Path(name))
        large(Path(name), size)


if __name__ == "__main__":
    main()
