"""A partner that knows the secret and sends more than anybody can use: the others replicate as before, it costs bounded
memory and disk, and when it leaves nothing needs to be mended.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from agent.reporting.causes import Cause
from agent.wire import constants as c
from staging import sd
from staging.compression import COMPRESSION_NONE, COMPRESSION_ZSTD, compressor
from staging.header import FILE_ATTRIBUTE_SPARSE_FILE, StageHeader
from staging.streams import stream, stream_header
from tests.system.demo import Demo
from tests.system.rogue import Rogue

MIB = 1 << 20
#: What a member may take above what it takes when idle.
MEMORY_MOST = 150 * MIB
DISK_MOST = 150 * MIB


def memory(demo: Demo, name: str, what: str = "VmHWM") -> int:
    """Bytes of memory of a member's process: now (VmRSS), or at most so far."""
    for line in Path(f"/proc/{demo.pid(name)}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(what)


def on_disk(*folders: Path) -> int:
    """Bytes that all below these folders take."""
    total = 0
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
    return total


def replicates(demo: Demo, number: int) -> None:
    """What is written on a comes to b, and the other way round."""
    a, b = demo.members["a"].root, demo.members["b"].root
    (a / f"from a {number}").write_bytes(b"a%d" % number)
    (b / f"from b {number}").write_bytes(b"b%d" % number)
    demo.until("a has it", lambda: _holds(a / f"from b {number}", b"b%d" % number))
    demo.until("b has it", lambda: _holds(b / f"from a {number}", b"a%d" % number))


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def stage_of(
    file_guid: bytes, streams: bytes, size: int, attributes: int = 0x20, compression: bytes = COMPRESSION_NONE
) -> bytes:
    """A staging file with these streams."""
    header = StageHeader(object_id=file_guid, compression=compression)
    header.info.end_of_file, header.info.file_attributes = size, attributes
    security = stream(3, sd.build(sd.Posix(stat.S_IFREG | 0o640, os.geteuid(), os.getegid())), 2)
    packer = compressor(compression)
    return header.encode() + bytes(packer.block(security + streams)) + packer.finish()


def hole(size: int) -> bytes:
    return stream(1, b"", 8) + stream(9, size.to_bytes(8, "little"), 8)


def claims(rogue: Rogue) -> None:
    """Staging files as large as the staging area, of which only the beginning comes."""
    orders = [rogue.change_order(f"claim {number}") for number in range(20)]
    for co in orders:
        rogue.stage(co, stage_of(co.file_guid, bytes(c.MAX_BLOCK), 1 << 32)[: c.MAX_BLOCK], 4 << 30)
    rogue.send(map(rogue.offer, orders))


def odd_blocks(rogue: Rogue) -> None:
    """Blocks of 64 KiB for a file that is being received, at offsets that nobody asked for."""
    co = rogue.change_order("odd")
    first = stage_of(co.file_guid, bytes(c.MAX_BLOCK), 1 << 32)[: c.MAX_BLOCK]
    rogue.stage(co, first, 64 * MIB)
    rogue.send([rogue.offer(co)])
    block = os.urandom(c.MAX_BLOCK)
    offsets = [c.MAX_BLOCK + 1 + number for number in range(4000)] + [1 << 63, (1 << 63) - 1, (1 << 64) - 1]
    rogue.send(rogue.block(co, offset, block, 64 * MIB) for offset in offsets)


def bombs(rogue: Rogue) -> None:
    """Staging files of a few KiB for files of any size, and of streams without end."""
    sparse = 0x20 | FILE_ATTRIBUTE_SPARSE_FILE
    made: list[tuple[str, bytes, int, int, bytes]] = [
        ("allocated", hole(1200 * MIB), 1200 * MIB, 0x20, COMPRESSION_NONE),
        ("beyond any file", hole((1 << 63) - 1), (1 << 63) - 1, sparse, COMPRESSION_NONE),
        ("zeros", stream_header(1, 256 * MIB) + bytes(256 * MIB), 256 * MIB, 0x20, COMPRESSION_ZSTD),
        ("links", stream(1, b"") + stream(5, b"") * 400_000, 0, 0x20, COMPRESSION_ZSTD),
    ]
    for name, streams, size, attributes, compression in made:
        co = rogue.change_order(f"bomb {name}")
        rogue.stage(co, stage_of(co.file_guid, streams, size, attributes, compression))
        rogue.send([rogue.offer(co)])


def flood(rogue: Rogue) -> None:
    """More change orders than a window allows; their staging files never come."""
    rogue.send(rogue.offer(rogue.change_order(f"flood {number}")) for number in range(6000))


def requests(rogue: Rogue) -> None:
    """Blocks of a large file, of which not one is taken. It may have been offered again with each join."""
    co = next(co for co in rogue.offered if co.file_name == "large")
    rogue.mute = True
    rogue.send(rogue.request(co, at % 256 * c.MAX_BLOCK) for at in range(6000))


@pytest.mark.slow
def test_more_than_anybody_can_use(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=3, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        (a.root / "large").write_bytes(os.urandom(16 * MIB))
        demo.wait_converged()
        demo.kill9("c")
        idle, disk = memory(demo, "a"), on_disk(a.state, a.root)
        with Rogue(demo, "c", "a") as rogue:
            for number, attack in enumerate((claims, odd_blocks, bombs, flood, requests)):
                rogue.join()
                attack(rogue)
                replicates(demo, number)
                status = demo.status("a")
                assert status["sets"][0]["state"] == "online", attack
                assert memory(demo, "a") - idle < MEMORY_MOST, attack
                assert on_disk(a.state, a.root) - disk < DISK_MOST, attack
                if attack is flood:
                    (backlog,) = (x["backlog"] for x in status["sets"][0]["connections"] if x["name"] == "c->a")
                    assert 0 < backlog <= 4096
            incidents: dict[str, Any] = demo.status("a")["incidents"]
            assert incidents[Cause.FLOOD.value] > 0
            assert incidents[Cause.STAGING_FILE.value] > 0
        said = [line for line in a.log.read_text().splitlines() if "bomb beyond any file" in line]
        assert "cannot be held here" in said[0]
        assert str((1 << 63) - 1) in said[0]
        demo.restart("c")
        replicates(demo, 99)
        (b.root / "to all").write_bytes(b"to all")
        demo.until("c has it", lambda: _holds(demo.members["c"].root / "to all", b"to all"))
