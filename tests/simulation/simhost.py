"""What a simulated member's replica set has for ports (agent.replica.ports): a store that outlives a crash and can fail
at each commit, staging files and a tree on the simulated disk, and a log that takes note.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from agent.engine import events as ev
from agent.files.fileops import Event, FileOps
from agent.files.installing import ResolvedInstall
from agent.files.stages import Stages
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from idtable.records import IDRecord
from idtable.store import Store
from staging.area import LOCAL, StagingArea
from staging.beneath import Entry
from staging.errors import NoSpace, Vanished
from staging.generate import Staged
from staging.header import NetworkOpenInformation
from staging.rootdir import RootDir
from staging.unstored import Unstored
from tests.simulation.simdisk import PART, stage_of
from tests.simulation.simkernel import SimSystem, fingerprint
from tests.simulation.simtree import Node

if TYPE_CHECKING:
    from tests.simulation.simmember import Member


class Stumble(Exception):
    """A fault of an engine, on purpose."""


class NoCounters:
    """Counting is tested elsewhere; here it would only cost time."""

    def add_set(self, set_name: str) -> None: ...
    def add_cxtion(self, set_name: str, cxtion_name: str) -> None: ...
    def remove_cxtion(self, set_name: str, cxtion_name: str) -> None: ...
    def set_value(self, set_name: str, counter: str, value: object) -> None: ...
    def set_amounts(self, set_name: str, amounts: object) -> None: ...
    def inc_set(self, set_name: str, counter: str, n: int = 1) -> None: ...
    def inc_cxtion(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None: ...
    def inc_both(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None: ...


class Tally(NoCounters):
    """What a process of a member has counted in FileReplicaSet."""

    def __init__(self) -> None:
        self.values = Counter[str]()

    def inc_set(self, set_name: str, counter: str, n: int = 1) -> None:
        self.values[counter] += n

    def inc_both(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None:
        self.values[counter] += n


class Nothing:
    """Incidents in the tree, and the whereabouts of the root, are tested elsewhere: nothing is missing."""

    def object_id(self, path: str, owner: str) -> None: ...
    def reserved_name(self, name: str) -> None: ...
    def taken_for_a_member(self, path: str) -> None: ...
    def close(self) -> None: ...
    def holds(self, enough: int) -> bool:
        return True


class Told:
    """The log and the incidents of a member. An error that nobody foresaw is a violation."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def of(self, set_name: str) -> Told:
        """The same, for a set: it is the only one."""
        return self

    def report(self, cause: Cause, source: str, text: str, *, level: str = "warning") -> None:
        self._add(ev.Report(level, text, cause, source), None)

    def info(self, text: str, *arguments: object) -> None:
        self._add(ev.Report("info", text % arguments), None)

    def warning(self, text: str, *arguments: object) -> None:
        self._add(ev.Report("warning", text % arguments), None)

    def error(self, text: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        self._add(ev.Report("error", text % arguments), exc_info)

    def _add(self, report: ev.Report, error: BaseException | None) -> None:
        member = self._member
        member.reports.append(report)
        if error is not None and not member.loop.over and not isinstance(error, Stumble):
            where = "".join(traceback.format_exception(error, limit=-4)[1:])
            member.world.violation(f"{member.name}: {report.text}: {type(error).__name__}: {error}\n{where}")


class SimStore(Store):
    """A store whose transactions the member hears of. What was committed outlives a crash."""

    def __init__(self, member: Member) -> None:
        super().__init__(":memory:")
        self._member = member
        self._put: list[IDRecord] = []

    def begin(self) -> None:
        self._put.clear()
        super().begin()
        self._member.begun()

    def put(self, record: IDRecord) -> None:
        self._put.append(record)
        super().put(record)

    def commit(self) -> None:
        self._member.commit(super().commit, self._put)

    def close(self) -> None:
        """It is the process that ends: the next one opens the same store."""


class SimWriter:
    """A staging file that is being received."""

    def __init__(self, member: Member, co_guid: bytes) -> None:
        self._member, self._guid = member, co_guid
        member.disk.stages[PART + co_guid] = b""

    def write(self, offset: int, data: bytes) -> None:
        """Raises NoSpace."""
        stages, part = self._member.disk.stages, PART + self._guid
        assert offset == len(stages[part]), "blocks are stored in order"
        if self._member.disk.full:
            raise NoSpace("full")
        stages[part] += bytes(data)

    def finish(self) -> None:
        self._member.disk.stages[self._guid] = self._member.disk.stages.pop(PART + self._guid)

    def abort(self) -> None:
        self._member.disk.stages.pop(PART + self._guid, None)


class SimArea:
    """The staging area: now and then there is no room for a file of this member's own."""

    used_bytes = free_bytes = 0

    def __init__(self, member: Member, system: SimSystem) -> None:
        self._member, self._system = member, system

    def divide(self, quota_bytes: int, owners: Collection[bytes]) -> None: ...

    def guids(self) -> list[bytes]:
        return [guid for guid in self._member.disk.stages if not guid.startswith(PART)]

    def size_of(self, co_guid: bytes) -> int | None:
        data = self._member.disk.stages.get(co_guid)
        return None if data is None else len(data)

    def read_block(self, co_guid: bytes, offset: int, size: int) -> bytes:
        """Raises Vanished."""
        data = self._member.disk.stages.get(co_guid)
        if data is None:
            raise Vanished(co_guid.hex())
        return data[offset : offset + size]

    def read_cached(self, co_guid: bytes, most: int) -> bytes | None:
        """Memory has some of them."""
        data = self._member.disk.stages.get(co_guid)
        cached = data is not None and len(data) <= most and (data[-1] % 2 or self._member.world.brings)
        return data if cached else None

    def hold(self, co_guid: bytes, data: bytes, owner: bytes) -> bool:
        """In memory, where a file is for as long as the process lasts."""
        world, stages = self._member.world, self._member.disk.stages
        if not world.brings or world.forgetful or co_guid in stages:
            return False
        stages[co_guid] = data
        self._member.in_memory.add(co_guid)
        return True

    def open_writer(self, co_guid: bytes, size: int, owner: bytes, *, on_dropped: object = None) -> SimWriter:
        return SimWriter(self._member, co_guid)

    def stage(
        self, co_guid: bytes, name: str, *, object_id: bytes, dir_fd: int, owner: bytes = LOCAL, **more: object
    ) -> Staged:
        """Raises NoSpace, Vanished."""
        disk = self._member.disk
        self._member.meanwhile()
        node = self.find(dir_fd, name)
        if disk.full or (owner == LOCAL and self._member.world.random.random() < self._member.world.no_room):
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
        self._member.disk.stages.pop(co_guid, None)


def generated(node: Node, guid: bytes) -> Staged:
    """What staging.generate says of a file."""
    info = NetworkOpenInformation(allocation_size=len(node.content), file_attributes=0x10 if node.is_dir else 0x20)
    kind = cast("Any", node.kind)
    size = len(stage_of(node, guid))
    return Staged(node.md5(guid), size, len(node.content), info, fingerprint(node), kind, Unstored())


class SimRoot(RootDir):
    """The root of the tree by simulated descriptors, which remembers what is of our doing as a real one does."""

    def __init__(self, member: Member, system: SimSystem) -> None:
        self._member, self._system = member, system
        self._lock = threading.RLock()
        self._ours = OrderedDict()

    def unmark(self) -> None:
        """Trees bear no marks here."""

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
        return self._member.disk.below(self._system.node(dir_fd), self._member.disk.root)


class SimFiles(FileOps):
    """The file system side: staging files by the real rules (agent.files.stages), the tree by those of simdisk."""

    def __init__(self, member: Member, system: SimSystem) -> None:
        self._member = member
        self.root = SimRoot(member, system)
        self.area = cast("StagingArea", SimArea(member, system))
        self._stages = Stages(self.root, self.area, (c.COMPRESSION_NONE,), lambda event: None)

    def close(self) -> None: ...
    def check(self) -> None: ...
    def give_times_back(self, folders: Iterable[tuple[str, IDRecord]]) -> None: ...

    def read_stage(
        self, action: ev.ReadStage, path: str | None, unstored: Unstored | None = None, size: int | None = None
    ) -> Event:
        """Who makes a staging file has a lock, for which nobody can wait here: only users come between."""
        before, self._member.has_lock = self._member.has_lock, True
        try:
            return super().read_stage(action, path, unstored, size)
        finally:
            self._member.has_lock = before

    def make_stages(self, wanted: Sequence[tuple[ev.MakeStage, str]]) -> list[tuple[ev.MakeStage, bytes | None]]:
        made = []
        for action, path in wanted if self._member.world.brings else ():
            node = self._member.disk.look(path)
            right = node is not None and node.md5(action.file_guid) == action.md5
            made.append((action, stage_of(node, action.file_guid) if node is not None and right else None))
        return made

    def to_go_with(self, co: ChangeOrder, compressions: Collection[bytes]) -> bytes | None:
        return super().to_go_with(co, compressions) if self._member.world.brings else None

    def install_all(self, installs: list[ResolvedInstall]) -> list[Any]:
        return [self._member.install(item) for item in installs]
