"""What the rules and the database cost for one new small file, at each end: ``python -m bench.rules``.

Two members in one thread: real engines, real stores on disk, packets encoded and decoded; no files, no network, no
other threads. So many events go into one transaction (``--batch``). Printed for each member: processor microseconds a
file by event and packet, and SQL statements a file. Those are the same on each machine and in each run.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.wire import constants as c
from agent.wire.filetime import SECOND
from agent.wire.packet import Packet, decode_packet, encode_packet
from idtable.records import IDRecord
from idtable.store import Store
from staging.header import StageHeader
from tests.simulation.simworld import World

T = TypeVar("T")
STAGE_BYTES = 5600
STATEMENT = re.compile(
    r"(?P<verb>SELECT|INSERT|UPDATE|DELETE|COMMIT)\b(?:.*?\b(?:FROM|INTO|UPDATE) (?P<table>\w+))?", re.S
)


@dataclass
class Costs:
    """Of one member: seconds by what they were spent on, how often, and statements."""

    seconds: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    statements: Counter[str] = field(default_factory=Counter)

    def take(self, what: str, action: Callable[[], T]) -> T:
        began = time.thread_time()
        done = action()
        self.seconds[what] += time.thread_time() - began  # type: ignore[assignment]
        self.times[what] += 1
        return done

    def statement(self, text: str) -> None:
        """SQLite is about to run this."""
        if found := STATEMENT.match(text):
            self.statements[" ".join(filter(None, (found["verb"], found["table"])))] += 1


class End:
    """One of the two members."""

    def __init__(self, world: World, name: str, folder: Path) -> None:
        self.member = world.members[name]
        self.costs = Costs()
        self.queue: deque[ev.Event] = deque([ev.Started(frozenset())])
        self.store = Store(folder / f"{name}.db")
        counters = Counters()
        counters.add_set("S")
        for cxtion in self.member.config().cxtions:
            counters.add_cxtion("S", cxtion.key)
        with self.store.transaction():
            self.store.put(IDRecord(self.member.root, bytes(16), "", True, kind="folder"))
            self.engine = Engine(self.member.config(), self.store, counters, lambda: os.urandom(16))

    @property
    def joined(self) -> bool:
        sides = self.engine.in_sessions, self.engine.out_sessions
        return all(session.joined for side in sides for session in side.sessions.values())


class Pair:
    """Both, and the wire between them."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.batch = batch
        self.now = 0
        world = World("ab", [("a", "b"), ("b", "a")], 1)
        self.now = world.now
        self.ends = {name: End(world, name, folder) for name in "ab"}
        self.by_guid = {end.member.guid: end for end in self.ends.values()}
        self.block = StageHeader(compression=c.COMPRESSION_ZSTD).encode()
        self.block += os.urandom(STAGE_BYTES - len(self.block))

    def settle(self) -> None:
        """Until nothing is queued."""
        while any(end.queue for end in self.ends.values()):
            for end in self.ends.values():
                if end.queue:
                    self._transaction(end)

    def join(self) -> None:
        """Until all connections are joined."""
        self.settle()
        while not all(end.joined for end in self.ends.values()):
            self.now += SECOND
            for end in self.ends.values():
                end.queue.append(ev.Tick())
            self.settle()

    def _transaction(self, end: End) -> None:
        self.now += SECOND // 100
        actions: list[ev.Action] = []
        end.costs.take("begin", end.store.begin)
        for _ in range(min(self.batch, len(end.queue))):
            event = end.queue.popleft()
            what = (
                f"{event.packet.command_name} comes" if isinstance(event, ev.PacketReceived) else type(event).__name__
            )
            actions += end.costs.take(what, lambda event=event: end.engine.handle(event, self.now))  # type: ignore[misc]
        end.costs.take("commit", end.store.commit)
        for action in actions:
            self._act(end, action)

    def _act(self, end: End, action: ev.Action) -> None:
        if isinstance(action, ev.Send):
            to = self.by_guid[action.partner]
            if action.brings is not None and action.packet.remote_co is not None:
                action.packet.block, action.packet.block_size = self.block, len(self.block)
            data = end.costs.take("encoding", lambda: encode_packet(action.packet))
            packet: Packet = to.costs.take("decoding", lambda: decode_packet(data))
            if to.engine.check(packet) == 0:
                to.queue.append(ev.PacketReceived(packet, 9))
        elif isinstance(action, ev.ReadStage):
            end.queue.append(ev.StageBlock(action, self.block, STAGE_BYTES, 0))
        elif isinstance(action, ev.StoreBlock):
            end.queue.append(ev.FetchStored(action.co_guid, action.last, action.offset + len(action.data)))
        elif isinstance(action, ev.Install):
            inode = int.from_bytes(action.co_guid[:4], "little")
            facts = ev.Facts(1, inode, 1, 2, 3, 4, 0o100644, 0, 0)
            kind = "folder" if action.is_dir else "file"
            end.queue.append(ev.Installed(action.co_guid, ev.Outcome.DONE, facts, action.md5, 0x20, kind))

    def carry(self, files: int) -> None:
        """New files at a, until b has them; as many at a time as go into a transaction."""
        a = self.ends["a"]
        for end in self.ends.values():
            end.costs = Costs()
            end.store._conn.set_trace_callback(end.costs.statement)
        for number in range(files):
            a.queue.append(
                ev.LocalChange(
                    ev.ChangeKind.CREATE, os.urandom(16), a.member.root, f"file{number:06d}", False, "file",
                    self.now - SECOND, c.REASON_DATA_EXTEND, ev.Facts(1, number + 10, 1, 2, 3, 8500, 0o100644, 0, 0),
                    os.urandom(16), 0x20, 8192, os.urandom(16), staged=True, stage_size=STAGE_BYTES, compressed=True,
                )
            )  # fmt: skip
            if len(a.queue) == self.batch or number == files - 1:
                self.settle()


def report(pair: Pair, files: int) -> str:
    """Markdown."""
    lines = []
    for name, end in pair.ends.items():
        costs = end.costs
        total = sum(costs.seconds.values()) * 1e6 / files
        lines += [
            "",
            f"{name.upper()}: {total:.0f} us a file",
            "",
            "| what | us a file | a file |",
            "| --- | --- | --- |",
        ]
        for what, seconds in costs.seconds.most_common():
            lines.append(f"| {what} | {seconds * 1e6 / files:.1f} | {costs.times[what] / files:.2f} |")
        lines += ["", "| statement | a file |", "| --- | --- |"]
        lines += [f"| {what} | {n / files:.2f} |" for what, n in costs.statements.most_common() if n / files >= 0.005]
    return "\n".join(lines[1:])


def run(files: int, batch: int, folder: Path | None = None) -> Pair:
    """Both members, after so many files."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        pair = Pair(Path(name), batch)
        pair.join()
        pair.carry(files)
        for end in pair.ends.values():
            end.store.close()
    return pair


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--files", type=int, default=3000, metavar="N", help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="events a transaction (%(default)s)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="databases below this folder")
    args = parser.parse_args()
    print(report(run(args.files, args.batch, args.dir), args.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
