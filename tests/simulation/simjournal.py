"""What a simulated member's local watch works with: the real journal with its turns taken by the world, and as much of
the root, the files and the staging area as it asks for, on the simulated tree.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from agent.localchanges.stage import LocalStage, Work
from agent.wire import constants as c
from journal.journal import Journal
from journal.system import System
from staging.area import StagingArea
from staging.beneath import Entry, same_entry
from staging.errors import NoSpace, StagingError, Vanished
from staging.generate import Staged
from staging.header import NetworkOpenInformation
from staging.rootdir import RootDir
from staging.unstored import Unstored
from tests.simulation.simdisk import stage_of
from tests.simulation.simkernel import SimSystem, fingerprint
from tests.simulation.simloop import Dead
from tests.simulation.simmember import SECOND
from tests.simulation.simtree import Node

if TYPE_CHECKING:
    from tests.simulation.journalmember import JournalMember


class Turns:
    """The journal's queue: whoever puts something into it has a turn taken."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._items: deque[object] = deque()
        self._wake = wake

    def put(self, item: object) -> None:
        self._items.append(item)
        self._wake()

    def get(self, timeout: float | None = None) -> object:
        return self.get_nowait()

    def get_nowait(self) -> object:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class SimJournal(Journal):
    """The journal, its turns taken when the world says so."""

    def __init__(self, *args: Any, system: System, **more: Any) -> None:
        super().__init__(*args, system=system, **more)
        assert isinstance(system, SimSystem)
        self._member = system._member
        self._queue = cast("Any", Turns(lambda: self._turn_in(self._member.world.random.randrange(1, 50_000))))
        self._begun = self._taking = False
        self._at = 0

    @property
    def idle(self) -> bool:
        """Nothing is to be done but to wait for time to pass."""
        return self._queue.empty() and not self._taking and not self._tree.next_idle()

    def _start_turns(self) -> threading.Thread:
        self._turn_in(1)
        return threading.Thread()  # which is never started

    def _turn_in(self, delay: int) -> None:
        at = self._member.world.now + delay
        if self._at and self._at <= at:
            return
        self._at = at

        def fire() -> None:
            if self._at == at:
                self._at = 0
                self._take_turn()

        self._member.after(delay, fire)

    def _take_turn(self) -> None:
        if self._taking:  # that thread is at work
            self._turn_in(SECOND // 1000)
            return
        self._taking = True
        try:
            if not self._begun:
                self._begin()
                self._begun = True
            self._turn()
        except Dead:
            return
        finally:
            self._taking = False
        timeout = self._timeout()
        if not self._queue.empty():
            self._turn_in(1)
        elif timeout is not None:
            self._turn_in(int(timeout * SECOND) + 1)


class SimRoot(RootDir):
    """The root of the tree by simulated descriptors, which remembers what is of our doing as a real one does."""

    def __init__(self, member: JournalMember, system: SimSystem) -> None:
        self._member, self._system = member, system
        self._lock = threading.RLock()
        self._ours = OrderedDict()

    def ours(self, folder: Node, ctime_ns: int) -> None:
        """We put something into a folder, or took it away."""
        f = fingerprint(folder)
        self._remember((f.dev, f.ino), ctime_ns, f.ctime_ns)

    @contextlib.contextmanager
    def parent(self, relpath: str, key: object = None) -> Iterator[Entry]:
        above, _, name = relpath.rpartition("/")
        folder = self._member.disk.look(above)
        if folder is None or not folder.is_dir:
            raise Vanished(relpath)
        fd = self._system.opened(folder)
        try:
            yield Entry(fd, name, relpath)
        finally:
            self._system.close(fd)

    def holds(self, dir_fd: int, relpath: str | None = None) -> bool:
        node = self._system.node(dir_fd)
        return self._member.disk.below(node, self._member.disk.root)


class SimFiles:
    """As much of FileOps as finding local changes needs."""

    def __init__(self, member: JournalMember, system: SimSystem) -> None:
        self._member, self._system = member, system
        self.root = SimRoot(member, system)
        self.area = cast("StagingArea", SimArea(member, system))

    def drop(self, co_guid: bytes) -> None:
        self._member.drop_stage(co_guid)

    def choose(self, allowed: Iterable[bytes]) -> bytes:
        return c.COMPRESSION_NONE


class SimArea:
    """As much of a staging area: now and then there is no room."""

    def __init__(self, member: JournalMember, system: SimSystem) -> None:
        self._member, self._system = member, system

    def stage(self, co_guid: bytes, name: str, *, object_id: bytes, dir_fd: int, **more: object) -> Staged:
        disk = self._member.disk
        self._member.meanwhile()
        node = self.find(dir_fd, name)
        if disk.full or self._member.world.random.random() < 0.3:
            raise NoSpace("full")
        disk.stages[co_guid] = stage_of(node, object_id)
        staged = generated(node, object_id)
        self._member.meanwhile()
        return staged

    def find(self, fd: int, name: str) -> Node:
        """Raises Vanished."""
        found = self._system.node(fd).children.get(name)
        if found is None:
            raise Vanished(name)
        return found

    def remove(self, co_guid: bytes) -> None:
        self._member.drop_stage(co_guid)


def generated(node: Node, guid: bytes) -> Staged:
    """What staging.generate says of a file."""
    info = NetworkOpenInformation(allocation_size=len(node.content), file_attributes=0x10 if node.is_dir else 0x20)
    kind = cast("Any", node.kind)
    return Staged(node.md5(guid), 0, len(node.content), info, fingerprint(node), kind, Unstored())


class SimStage(LocalStage):
    """Staging from the simulated tree; when, and what for, is the real one's."""

    def _is_small(self, work: Work) -> bool:
        """There is nothing here that C could open."""
        return False

    def mark(self, works: list[Work]) -> None:
        for work in works:
            self._area._member.meanwhile()
            with contextlib.suppress(StagingError), self._files.root.parent(work.change.path) as at:
                node = self._area.find(at.fd, at.name)
                seen = work.change.fingerprint
                if seen is not None and same_entry(fingerprint(node), seen) and work.change.object_id != work.guid:
                    self._area._member.disk.mark(node, work.guid)

    @property
    def _area(self) -> SimArea:
        return cast("SimArea", self._files.area)

    def _checksum(self, work: Work, name: str, fd: int) -> Staged:
        self._area._member.meanwhile()
        staged = generated(self._area.find(fd, name), work.guid)
        self._area._member.meanwhile()
        return staged
