"""The world of the simulated members: a virtual clock, users, faults, and the checks.

One seeded random generator decides everything that a schedule does not say, so a schedule and a seed replay a run.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agent.engine.context import Limits
from agent.wire import constants as c
from agent.wire.filetime import SECOND
from agent.wire.packet import Packet
from tests.simulation.simhost import NoCounters
from tests.simulation.simmember import Member
from tests.simulation.simnet import Network
from tests.simulation.simtree import FILE_MODE, FOLDER_MODE, Node

JOINS = frozenset((c.CMD_NEED_JOIN, c.CMD_START_JOIN, c.CMD_JOINING, c.CMD_JOINED))
START = 133_000_000_000_000_000
NAMES = ("a", "b", "c", "A", "d", "e")
MANY_NAMES = tuple("abcdefghijklABCD")
Step = tuple[object, ...]


def distances(names: str, edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """How many connections each member is away from the first, the primary one."""
    found = {names[0]: 0}
    for _ in names:
        for up, down in edges:
            if up in found:
                found[down] = min(found.get(down, len(names)), found[up] + 1)
    return found


class World:
    def __init__(
        self,
        names: str,
        edges: Sequence[tuple[str, str]],
        seed: int,
        *,
        limits: Limits | None = None,
        minor: int = 9,
        member: type[Member] = Member,
    ) -> None:
        self.random = random.Random(seed)
        self.names = list(names)
        self.edges = list(edges)
        self.limits = limits or Limits()
        self.minor = minor
        self.cxtion_options: dict[str, Any] = {}
        self.priorities: dict[tuple[str, str], int] = {}
        self.file_names = NAMES
        self.sole = False  # only one member has users
        self.counters = NoCounters
        self.brings = False  # small staging files go with their change orders
        self.forgetful = False  # no staging file is in memory only
        self.no_room = 0.3  # how many of a member's own staging files there is no room for, of 1
        self.now = self.began = START
        self.aging = 3 * SECOND
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = 0
        self.nested = 0  # threads that are at work
        self.network = Network(self)
        self.slow, self.cut = self.network.slow, self.network.cut
        self.whole = list(edges)  # the connections as they are in the end
        self.shut: set[frozenset[str]] = set()  # whose schedule is closed
        self.disabled: set[frozenset[str]] = set()
        self.packets = 0
        self.operations = 0
        self.violations: list[str] = []
        self.written: dict[bytes, Member] = {}
        self.discharged: set[bytes] = set()
        self.contents = 0
        self.members = {name: member(self, name, i) for i, name in enumerate(self.names)}
        self.by_guid = {m.guid: m for m in self.members.values()}

    # -- what members use --

    @staticmethod
    def guid_of(*parts: object) -> bytes:
        return hashlib.md5(repr(parts).encode()).digest()

    def new_guid(self) -> bytes:
        return self.random.randbytes(16)

    def violation(self, text: str) -> None:
        self.violations.append(text)

    def after(self, delay: int, work: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (self.now + max(delay, 0), self.serial, work))

    # -- the network --

    def send(self, source: Member, partner: bytes, packet: Packet, *, passed_on: bool = False) -> None:
        if packet.command not in JOINS:
            self.packets += 1
        self.network.send(source, self.by_guid[partner], packet, passed_on=passed_on)

    def break_wires(self, one: Member, other: Member) -> None:
        """The connections between two members break, with what was on them."""
        self.network.break_between(one, other)

    # -- time --

    def run(self, seconds: float) -> None:
        end = self.now + int(seconds * SECOND)
        while self.heap and self.heap[0][0] <= end:
            at, _, work = heapq.heappop(self.heap)
            self.now = max(self.now, at)
            work()
        self.now = max(self.now, end)

    def meanwhile(self) -> None:
        """While a thread is at work: what comes next, comes."""
        if self.nested >= 2:
            return
        self.nested += 1
        end = self.now + self.random.randrange(1, SECOND // 20)
        try:
            while self.heap and self.heap[0][0] <= end:
                at, _, work = heapq.heappop(self.heap)
                self.now = max(self.now, at)
                work()
        finally:
            self.nested -= 1

    def run_until_quiet(self, days: float = 3.0, most: int = 400_000) -> bool:
        """Until nothing is left to do; False when that does not come."""
        end = self.now + int(days * 86400 * SECOND)
        looked = 0
        for number in range(most):
            if not self.heap or self.heap[0][0] > end:
                return not self.pending()
            at, _, work = heapq.heappop(self.heap)
            idle = at > self.now + SECOND
            if idle and number > looked + 20:
                looked = number
                if not self.pending():
                    return True
            self.now = max(self.now, at)
            work()
        self.violation("no end of it: a message storm")
        return False

    def pending(self) -> list[str]:
        found = [f"{m.name}: {text}" for m in self.here() for text in m.pending()]
        found += self.network.pending()
        for m in self.here():
            if m.up:
                states = {x["name"]: x["state"] for x in m.engine.connections()}
                found += [f"{m.name}: {name} is {state}" for name, state in states.items() if state != "joined"]
        return found

    def here(self) -> list[Member]:
        return [m for m in self.members.values() if not m.left]

    # -- users --

    def content(self, member: Member, old: bytes = b"") -> bytes:
        self.contents += 1
        big = b"." * 70_000 if self.contents % 97 == 0 else b""
        text = old + b"<%d>" % self.contents + big
        self.written[text] = member
        return text

    def gives_up(self, node: Node) -> None:
        """A user who saw this file overwrites or deletes it."""
        if not node.is_dir:
            self.discharged.add(node.content)

    def operate(self, member: Member, kind: str, a: int, b: int, c: int) -> None:
        disk = member.disk
        disk.now = self.now
        nodes = list(disk.walk())
        folders = [disk.root] + [n for n in nodes if n.is_dir]
        files = [n for n in nodes if stat.S_ISREG(n.mode)]
        folder = folders[a % len(folders)]
        name = self.file_names[b % len(self.file_names)]
        there = folder.children.get(name)
        file = files[c % len(files)] if files else None
        node = nodes[c % len(nodes)] if nodes else None
        done = True
        if kind == "create" and there is None:
            disk.add(folder, name, is_dir=False, content=self.content(member))
        elif kind == "mkdir" and there is None:
            disk.add(folder, name, is_dir=True)
        elif kind == "write" and file is not None:
            self.gives_up(file)
            disk.write(file, self.content(member))
        elif kind == "append" and file is not None:
            self.gives_up(file)
            disk.write(file, self.content(member, file.content[:200]))
        elif kind == "truncate" and file is not None and file.content:
            self.gives_up(file)
            disk.write(file, b"")
        elif kind == "chmod" and node is not None and not stat.S_ISLNK(node.mode):
            base = FOLDER_MODE if node.is_dir else FILE_MODE
            disk.chmod(node, base ^ (0o022, 0o011, 0)[a % 3])
        elif kind == "move" and node is not None and not disk.below(folder, node):
            self.rename(member, node, folder, name)
        elif kind == "rename" and node is not None and node.parent is not None:
            self.rename(member, node, node.parent, name)
        elif kind == "case" and node is not None and node.parent is not None:
            self.rename(member, node, node.parent, node.name.swapcase())
        elif kind == "swap" and file is not None:
            other = files[a % len(files)]
            if other is not file and file.parent is not None and other.parent is not None:
                disk.exchange(file, other)
        elif kind == "delete" and file is not None:
            self.gives_up(file)
            disk.remove(file)
        elif kind == "rmdir" and len(folders) > 1:
            self.remove_tree(member, folders[1 + c % (len(folders) - 1)])
        elif kind == "save" and file is not None and file.parent is not None:
            # an editor: the new content in a new file, renamed over the old one
            self.gives_up(file)
            disk.replace(file, self.content(member))
        elif kind == "backup" and file is not None and file.parent is not None:
            # an editor that moves the old file away first (vim with backup)
            parent, old = file.parent, file.name
            if old + "~" in parent.children and not parent.children[old + "~"].is_dir:
                self.gives_up(parent.children[old + "~"])
                disk.remove(parent.children[old + "~"])
            if old + "~" not in parent.children:
                disk.move(file, parent, old + "~")
                disk.add(parent, old, is_dir=False, content=self.content(member))
        elif kind == "copy" and file is not None and there is None:
            # cp -a: the Object ID is copied too
            disk.add(folder, name, is_dir=False, content=file.content, oid=file.oid, mtime=file.mtime)
        elif kind == "link" and there is None:
            disk.link(folder, name, "f")
        elif kind == "out" and node is not None:
            for each in (node, *disk.walk(node)):
                self.gives_up(each)
            disk.move_out(node)
        elif kind == "busy" and file is not None:
            disk.busy[file.ino] = self.now + (c % 40) * SECOND
        else:
            done = False
        if done:
            self.operations += 1
            member.touch(self.aging)

    def rename(self, member: Member, node: Node, folder: Node, name: str) -> None:
        disk = member.disk
        there = folder.children.get(name)
        if there is node:
            return
        if there is not None:
            if there.is_dir or node.is_dir:
                return
            self.gives_up(there)
        disk.move(node, folder, name)

    def remove_tree(self, member: Member, top: Node) -> None:
        for node in [*member.disk.walk(top)]:
            self.gives_up(node)
        member.disk.remove(top)

    # -- schedules --

    def step(self, step: Step) -> None:
        kind, *rest = step
        if kind == "run":
            self.run(float(rest[0]))  # type: ignore[arg-type]
            return
        member = self.members[self.names[int(rest[0]) % len(self.names)]]  # type: ignore[call-overload]
        if member.left and not (member.removed and kind in ("op", "add")):
            return
        match kind:
            case "op":
                self.operate(member, str(rest[1]), *(int(x) for x in rest[2:5]))  # type: ignore[call-overload]
            case "while":
                member.while_looking(lambda: self.operate(member, str(rest[1]), *(int(x) for x in rest[2:5])))  # type: ignore[call-overload]
            case "between":
                number, what, *how = rest[1:]
                work = partial(self.operate, member, str(what), *(int(x) for x in how))  # type: ignore[call-overload]
                member.at_call(int(number), work)  # type: ignore[call-overload]
            case "start":
                member.start()
            case "crash":
                member.crash()
            case "crash_soon":
                if member.up:
                    member.crash_in = int(rest[1])  # type: ignore[call-overload]
            case "leave":
                if member.number and len(self.here()) > 2 and self.connected_without(member):
                    self.leave(member)
            case "remove":
                if member.number and len(self.here()) > 2 and self.connected_without(member):
                    member.remove()
                    self.lead_away()
                    self.topology_changed()
            case "add" if member.removed:
                member.add()
                self.topology_changed()
            case "add":
                pass
            case "skew" if member.backup is not None:
                pass  # an old database and a clock set back at once are more than anybody can notice
            case "skew":
                skew = member.skew + int(rest[1]) * SECOND  # type: ignore[call-overload]
                if abs(skew) < self.limits.tombstone_lifetime:  # else all deletions would be forgotten at once
                    member.set_clock(skew)
            case "late" | "deaf":
                member.mishear(float(rest[1]), lost=kind == "deaf")  # type: ignore[arg-type]
            case "full":
                member.disk.full = bool(rest[1])
            case "unwritable":
                member.unwritable = int(rest[1])  # type: ignore[call-overload]
            case "stumble":
                member.stumble()
            case "save_backup":
                if member.skew == 0:
                    member.save_backup()
            case "restore":
                member.restore_backup()
            case _:
                other = self.members[self.names[int(rest[1]) % len(self.names)]]  # type: ignore[call-overload]
                if other is not member:
                    self.between(str(kind), member, other, rest)

    def between(self, kind: str, one: Member, other: Member, rest: Sequence[object]) -> None:
        pair = frozenset((one.name, other.name))
        match kind:
            case "cut":
                self.cut.add(pair)
                self.break_wires(one, other)
            case "heal":
                self.cut.discard(pair)
            case "flap":
                self.network.break_between(one, other, alone=True)
            case "disconnect" | "connect" | "close" | "open" | "disable" | "enable":
                self.change_topology(kind, pair)
            case "slow":
                self.slow[pair] = int(rest[2]) * SECOND // 10  # type: ignore[call-overload]

    def change_topology(self, kind: str, pair: frozenset[str]) -> None:
        """Members learn of it one after the other; one that is down, when it starts."""
        if kind == "disconnect":
            self.edges[:] = [edge for edge in self.edges if frozenset(edge) != pair]
        elif kind == "connect":
            self.edges[:] = [edge for edge in self.whole if edge in self.edges or frozenset(edge) == pair]
        elif kind in ("disable", "enable"):
            (self.disabled.add if kind == "disable" else self.disabled.discard)(pair)
        else:
            (self.shut.add if kind == "close" else self.shut.discard)(pair)
        self.topology_changed()

    def topology_changed(self) -> None:
        for member in self.here():
            if member.up:
                member.after(self.random.randrange(1, 3 * SECOND), member.topology_changed)

    def connected_without(self, member: Member) -> bool:
        """Everybody's changes would still reach everybody."""
        names = [m.name for m in self.here() if m is not member]
        return all(self.reached(names, edges) == set(names) for edges in (self.edges, [e[::-1] for e in self.edges]))

    @staticmethod
    def reached(names: Sequence[str], edges: Sequence[tuple[str, ...]]) -> set[str]:
        seen, stack = {names[0]}, [names[0]]
        while stack:
            at = stack.pop()
            for up, down in edges:
                if up == at and down in names and down not in seen:
                    seen.add(down)
                    stack.append(down)
        return seen

    def leave(self, member: Member) -> None:
        """The member leaves the replica set; the others take note of it with their next start."""
        member.stop_for_ever()
        self.lead_away()
        for other in self.here():
            if other.up:
                other.crash()
                other.start()

    def lead_away(self) -> None:
        """Without those that left."""
        names = "".join(m.name for m in self.here())
        distance = distances(names, [(up, down) for up, down in self.edges if up in names and down in names])
        for (up, down), priority in self.priorities.items():
            if 0 < priority < 5 and distance.get(up, 0) >= distance.get(down, 0):
                self.priorities[up, down] = 5  # what must be waited for leads away from the primary member, as before

    def finish(self) -> None:
        """No more faults: everybody comes back, and everything settles."""
        self.cut.clear()
        self.slow.clear()
        if self.shut or self.disabled or self.edges != self.whole:
            self.shut.clear()
            self.disabled.clear()
            self.edges[:] = self.whole
            self.topology_changed()
            self.run(3)  # all have heard of it, or start below
        for member in self.here():
            member.spare()
            member.disk.full = False
            member.disk.busy.clear()
            member.set_clock(0)
            member.start()
        if not self.run_until_quiet():
            self.violation(f"it does not settle: {self.pending()[:8]}")

    # -- checks --

    def check(self) -> None:
        self.finish()
        if self.violations:
            return
        members = self.here()
        first = members[0].tree()
        for member in members[1:]:
            tree = member.tree()
            if tree != first:
                different = sorted(p for p in {*first, *tree} if first.get(p) != tree.get(p))
                self.violation(f"{members[0].name} and {member.name} differ in {different[:6]}")
        for member in members:
            self.check_member(member)
            member.check()
        self.check_contents()
        self.check_vectors()
        bound = 3000 + 150 * self.operations * max(len(self.edges), 2)
        if self.packets > bound:
            self.violation(f"{self.packets} packets for {self.operations} operations")

    def check_member(self, member: Member) -> None:
        records = {member.store.path_of(r.file_guid): r for r in member.store.all_live() if r.file_guid != member.root}
        if set(records) != set(member.tree()):
            odd = sorted(str(x) for x in set(records) ^ set(member.tree()))
            self.violation(f"{member.name}: its IDTable is not its tree: {odd[:6]}")
        if member.store.name_clashes():
            self.violation(f"{member.name}: two records of one name")
        if member.store.inlog_count():
            self.violation(f"{member.name}: its inbound log is not empty")
        if member.disk.half_received():
            self.violation(f"{member.name}: half a staging file is left")

    def check_contents(self) -> None:
        there = {content for m in self.here() for _, content in m.tree().values()}
        kept = {content for m in self.here() for content in m.disk.contents_kept()}
        for content, author in self.written.items():
            if content in self.discharged or author.left or content in there or content in kept:
                continue
            self.violation(f"{content[:20]!r} written on {author.name} is lost")

    def check_vectors(self) -> None:
        """No record is newer than anybody's version vector says; the records are the same everywhere."""
        members = self.here()
        tables = [{r: m.store.get(r) for r in self.guids(m)} for m in members]
        highest: dict[bytes, int] = {}
        for table in tables:
            for record in table.values():
                assert record is not None
                vsn = highest.get(record.originator_guid, 0)
                highest[record.originator_guid] = max(vsn, record.originator_vsn)
        for member in members:
            own = member.engine.ctx.vv
            for originator, vsn in highest.items():
                if own.get(originator, 0) < vsn:
                    self.violation(f"{member.name}: version vector {own.get(originator, 0)} below a record's {vsn}")
        for member, table in zip(members[1:], tables[1:]):
            for guid, mine in table.items():
                theirs = tables[0].get(guid)
                if mine is None or mine.file_guid in (m.root for m in members):
                    continue
                if theirs is None and mine.deleted:
                    continue  # that tombstone was forgotten before
                what = (mine.version, mine.event_time, mine.originator_guid, mine.originator_vsn, mine.deleted)
                if theirs is None or what != (
                    theirs.version, theirs.event_time, theirs.originator_guid, theirs.originator_vsn, theirs.deleted
                ):  # fmt: skip
                    self.violation(f"{members[0].name} and {member.name}: different versions of {mine.name!r}")

    @staticmethod
    def guids(member: Member) -> list[bytes]:
        return [guid for guid, _, _ in member.store.iter_vvjoin({}) if guid != member.root]
