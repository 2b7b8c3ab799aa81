"""A simulated member that finds local changes as a real one does: by the real journal, aging cache, examiner and local
watch, on a simulated system (simkernel) and event loop (simloop).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from agent.engine import events as ev
from agent.engine.entry import Stage
from agent.files.fileops import FileOps
from agent.files.underway import UnderWay
from agent.localchanges.missing import MissingFiles, TooMuchMissing
from agent.localchanges.watch import LocalWatch
from agent.tree.incidents import TreeIncidents
from agent.wire import constants as c
from agent.work.bysize import LargeFileThreads
from agent.work.supervise import Supervisor
from journal.changes import join
from journal.log import JournalLog
from tests.simulation.simjournal import SimFiles, SimJournal, SimStage
from tests.simulation.simkernel import SimInotify, SimSystem, fingerprint
from tests.simulation.simloop import Dead, SimLoop
from tests.simulation.simmember import SECOND, Member
from tests.simulation.simtree import Node

if TYPE_CHECKING:
    from tests.simulation.simworld import World

ROOT = "/simulated"


class JournalMember(Member):
    """A member with a journal. What differs from Member is where local changes come from."""

    inotify: SimInotify

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.records = JournalLog(":memory:")  # what of it was committed outlives a crash
        self.records.next_usn = 1  # and not by the host's clock
        self.host: Host | None = None
        self.identities: dict[int, bytes] = {}  # what inodes were known as
        self.moments: list[list[Any]] = []
        self.users: list[Callable[[], None]] = []  # who do something while the agent looks at the tree

    # -- life

    def start(self) -> None:
        if not self.up and not self.left:
            self.host = Host(self)  # before the engine is there
        super().start()

    def crash(self) -> None:
        super().crash()
        self.close()

    def close(self) -> None:
        """The process ends, or the world."""
        host, self.host = self.host, None
        if host is not None:
            host.end()

    def mishear(self, seconds: float, *, lost: bool) -> None:
        if self.host is not None and self.host.watch is not None:
            self.inotify.hold(int(seconds * SECOND), full=lost)

    def watch(self) -> None:
        assert self.host is not None
        if any(e.stage is Stage.INSTALLING for e in self.engine.inbound.entries.values()) or self.events:
            self.after(SECOND // 20, self.watch)
            return
        if self.host.watch is None:
            self.host.begin()

    def while_looking(self, work: Callable[[], None]) -> None:
        self.users.append(work)
        self.world.after(self.world.random.randrange(1, 8 * SECOND), lambda: self.use(work))

    def use(self, work: Callable[[], None]) -> None:
        if work in self.users:
            self.users.remove(work)
            work()

    def at(self, call: str, path: str, work: Callable[[], None], *, time: int = 1) -> None:
        """Have a user do something right before the agent calls this for the path, for the so many-th time."""
        self.moments.append([call, path, time, work])

    def meanwhile(self, call: str = "", folder: Node | None = None, name: str = "") -> None:
        """A thread of this member looks at the tree: others come between."""
        host, rng = self.host, self.world.random
        if self.moments and folder is not None:
            self._moment(call, join(folder.path(), name) if name else folder.path())
        if self.users and rng.random() < 0.2:
            self.use(self.users[0])
        if rng.random() < 0.02:
            self.world.meanwhile()
        if host is None or host is not self.host:
            raise Dead

    def announced(self, ino: int, event: ev.LocalChange) -> None:
        """A new file: of an inode that was none before, unless somebody else had a say in that."""
        was = self.identities.get(ino)
        if self.world.sole and was not in (None, event.file_guid) and self.backup is None:
            self.world.violation(f"{self.name}: {event.name!r} is taken for new, and was known as {was.hex()}")

    def _moment(self, call: str, path: str) -> None:
        for moment in list(self.moments):
            if moment[:2] == [call, path]:
                moment[2] -= 1
                if not moment[2]:
                    self.moments.remove(moment)
                    moment[3]()

    # -- events and actions

    def touch(self, delay: int) -> None:
        """The tree tells of what users do."""

    def run_batch(self) -> None:
        facts = [e.facts for e in list(self.events)[:8] if isinstance(e, ev.LocalChange | ev.Installed)]
        super().run_batch()
        for each in facts:
            if each is not None and self.up:
                for record in self.store.by_local_key(each.dev, each.ino, each.btime_ns):
                    self.identities[each.ino] = record.file_guid
        if self.host is not None and self.settled:
            self.host.tell_settled()

    @property
    def settled(self) -> bool:
        return not self.events

    def act(self, action: ev.Action) -> None:
        host = self.host
        assert host is not None
        if isinstance(action, ev.Examine):
            if host.watch is not None:
                place = self.resolve(action.parent_guid, action.name)
                if place is not None:
                    host.watch.touch(place[0])
        elif isinstance(action, ev.WentOnline) and host.watch is not None:
            host.watch.rescan("this member was seeded again")
        else:
            super().act(action)

    def queue_install(self, action: ev.Install) -> None:
        assert self.host is not None
        files = (action.file_guid, *(step.file_guid for step in action.steps))
        places = ((step.parent_guid, step.name) for step in action.steps)
        self.host.under_way.begin(action.co_guid, files, places)
        super().queue_install(action)

    # -- telling

    def check(self) -> None:
        """Whatever happens next is heard, where it happens."""
        if self.host is None or self.host.watch is None:
            return
        watched = self.host.watch.journal._tree
        for node in self.disk.walk():
            if node.is_dir and self.inotify.watch_of(node) != watched.node_for(node.path()).wd:
                self.world.violation(f"{self.name}: {node.path()} is not watched")

    def pending(self) -> list[str]:
        found = super().pending()
        if self.up and self.host is not None:
            found += self.host.pending()
        found += ["users"] * bool(self.users)
        return found


class Host:
    """What a local watch needs of a replica (agent.localchanges.watch.Host): one process of a member."""

    def __init__(self, member: JournalMember) -> None:
        self.member = member
        self.store = member.store
        self.lock = threading.RLock()
        self.workers = cast("Any", None)
        self.large = LargeFileThreads(1)
        self.root_guid = member.root
        self.member_guids = frozenset(m.guid for m in member.world.members.values())
        self.originator_guid = member.world.guid_of("originator", member.name)
        self.told = cast("TreeIncidents", NothingToTell())
        self.supervisor = Supervisor(self._failed)
        self.under_way = UnderWay()
        self.loop = SimLoop(member)
        self.system = SimSystem(member)
        self.files = cast("FileOps", SimFiles(member, self.system))
        self.missing = MissingFiles(
            self.store, self.lock, cast("Any", None), root=ROOT, set_name="S", config_path="c", limit=1000
        )
        self.watch: LocalWatch | None = None
        self._settled: list[Callable[[], None]] = []
        disk = member.disk
        disk.on_made = lambda co_guid, node: self.under_way.made(co_guid, fingerprint(node)[:3])
        disk.on_entered = self.files.root.ours  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Begin to watch, as Replica does; once the tree is known, packets are taken."""
        self.watch = LocalWatch(
            self,
            ROOT,
            ROOT,
            aging_s=self.member.world.aging / SECOND,
            excluded=self._excluded,
            root_key=(1, 1),
            system=self.system,
            journal=SimJournal,
            stage=SimStage,
        )
        self.loop.run(self._begin(self.watch))

    async def _begin(self, watch: LocalWatch) -> None:
        await watch.start(first=False)
        await watch.scanned.wait()
        await self.settled()
        if not self.member.started:
            self.member.begin()

    def end(self) -> None:
        self.member.disk.ears = None
        self.loop.end()

    def pending(self) -> list[str]:
        found = []
        if self.watch is not None:
            if self.watch.pending() or self.watch.scanning or self.watch._comparing:
                found.append("local changes")
            if not self.member.inotify.idle or not cast("SimJournal", self.watch.journal).idle:
                found.append("events of the tree")
        if self.loop.busy:
            found.append("work")
        return found

    # -- what the local watch asks for

    def post(self, event: ev.Event) -> None:
        if self.loop.over:
            return
        if isinstance(event, ev.LocalChange) and event.kind is ev.ChangeKind.CREATE and event.facts is not None:
            self.member.announced(event.facts.ino, event)
        self.member.post(event)

    def look(self) -> UnderWay:
        self.under_way.look(self.member.engine.installing())
        return self.under_way

    def count(self, counter: str, n: int = 1) -> None: ...

    def local_error(self, text: str) -> None: ...

    def stop_for(self, text: str) -> None:
        self._failed("the set", RuntimeError(text))

    def root_gone(self, text: str) -> None:
        self._failed("the root", RuntimeError(text))

    def hold(self, why: TooMuchMissing) -> None:
        self._failed("the set", why)

    def outbound_compressions(self) -> frozenset[bytes]:
        return frozenset((c.COMPRESSION_NONE,))

    def new_guid(self) -> bytes:
        return self.member.world.new_guid()

    async def settled(self) -> None:
        if not self.member.settled:
            future = self.loop.create_future()
            self._settled.append(lambda: None if future.done() else future.set_result(None))
            await future

    def tell_settled(self) -> None:
        waiting, self._settled = self._settled, []
        for tell in waiting:
            tell()

    def _failed(self, what: str, error: BaseException) -> None:
        if not self.loop.over:
            self.member.world.violation(f"{self.member.name}: {what} has failed: {error!r}")

    def _excluded(self, path: str, folder: bool | None) -> bool:
        node: Node | None = self.member.disk.root
        for name in path.split("/"):
            node = node.children.get(name) if node is not None else None
            if node is not None and node.excluded:
                return True
        return False


class NothingToTell:
    """Incidents in the tree are tested elsewhere."""

    def object_id(self, path: str, owner: str) -> None: ...
    def reserved_name(self, name: str) -> None: ...
