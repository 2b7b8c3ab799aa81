"""A simulated member that finds local changes as a real one does: by the real journal, aging cache, examiner and local
watch, on a simulated system (simkernel) and event loop (simloop).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from agent.engine import events as ev
from agent.localchanges.watch import LocalWatch
from agent.wire.filetime import SECOND
from idtable.records import IDRecord
from journal.changes import join
from journal.log import JournalLog
from tests.simulation.simjournal import SimJournal, SimStage
from tests.simulation.simkernel import SimInotify, SimSystem
from tests.simulation.simloop import Dead
from tests.simulation.simmember import Member
from tests.simulation.simtree import Node

if TYPE_CHECKING:
    from tests.simulation.simworld import World


class JournalMember(Member):
    """A member with a journal. What differs from Member is where local changes come from."""

    inotify: SimInotify
    system: SimSystem

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.records = JournalLog(":memory:")  # what of it was committed outlives a crash
        self.records.next_usn = 1  # and not by the host's clock
        self.identities: dict[int, bytes] = {}  # what inodes were known as
        self.moments: list[list[Any]] = []
        self.users: list[Callable[[], None]] = []  # who do something while the agent looks at the tree

    # -- life

    @property
    def local_watch(self) -> LocalWatch | None:
        return self.replica.watching.watch

    def watch_maker(self, system: SimSystem) -> Callable[..., Any]:
        self.system = system

        def make(*where: Any, **more: Any) -> LocalWatch:
            return LocalWatch(*where, **more, system=system, journal=SimJournal, stage=SimStage)

        return make

    def mishear(self, seconds: float, *, lost: bool) -> None:
        if self.up and self.local_watch is not None:
            self.inotify.hold(int(seconds * SECOND), full=lost)

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
        generation, rng = self.generation, self.world.random
        if self.moments and folder is not None:
            self._moment(call, join(folder.path(), name) if name else folder.path())
        if self.users and rng.random() < 0.2:
            self.use(self.users[0])
        if rng.random() < 0.02 and not self.has_lock:
            self.world.meanwhile()
        if generation != self.generation or not self.up:
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

    # -- its process asks for something

    def posted(self, event: ev.Event) -> ev.Event:
        if isinstance(event, ev.LocalChange) and event.kind is ev.ChangeKind.CREATE and event.facts is not None:
            self.announced(event.facts.ino, event)
        return event

    def committed(self, records: Sequence[IDRecord]) -> None:
        self.identities |= {r.ino: r.file_guid for r in records if r.ino is not None and not r.deleted}

    def touch(self, delay: int) -> None:
        """The tree tells of what users do."""

    # -- telling

    def check(self) -> None:
        """Whatever happens next is heard, where it happens."""
        super().check()
        if not self.up or self.local_watch is None:
            return
        watched = self.local_watch.journal._tree
        for node in self.disk.walk():
            if node.is_dir and self.inotify.watch_of(node) != watched.node_for(node.path()).wd:
                self.world.violation(f"{self.name}: {node.path()} is not watched")

    def pending(self) -> list[str]:
        found = super().pending()
        watch = self.local_watch if self.up else None
        if watch is not None:
            if watch._comparing:
                found.append("local changes")
            if not self.inotify.idle or not cast("SimJournal", watch.journal).idle:
                found.append("events of the tree")
        found += ["users"] * bool(self.users)
        return found
