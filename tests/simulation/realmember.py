"""A simulated member whose installs are real ones: agent.files, staging and agent.conflicts as they are, on a folder of
this host's. Its threads, clock, network and database are simulated, so a schedule and a seed replay a run; and users
do something, or its process ends, between any two system calls of an install.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.facts import facts_of
from agent.files.fileops import Event, FileOps
from agent.files.installing import ResolvedInstall
from agent.files.lookups import opened
from agent.files.underway import UnderWay
from agent.tree.identity import Identity
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import SECOND
from journal.changes import Change, Kind
from journal.system import LINUX
from staging import fsops, openat2
from staging.area import LOCAL, StagingArea
from staging.beneath import READ
from staging.errors import NoSpace, StagingError
from staging.fsops import Fingerprint
from staging.generate import Staged, generate
from staging.header import FILE_ATTRIBUTE_ARCHIVE, FILE_ATTRIBUTE_DIRECTORY
from staging.unstored import Unstored
from staging.writer import StageWriter
from tests.simulation.realdisk import RealDisk
from tests.simulation.simhost import Told
from tests.simulation.simkernel import SimSystem
from tests.simulation.simloop import Dead
from tests.simulation.simmember import Member
from tests.simulation.simwatch import SimWatch

if TYPE_CHECKING:
    from tests.simulation.simworld import World

_ROOM: Final = 1 << 30
_CALLS: Final = (
    "chmod", "fchmod", "fchown", "link", "listdir", "mkdir", "open", "rename", "rmdir", "scandir", "setxattr", "stat",
    "unlink", "utime", "write",
)  # fmt: skip
_KINDS: Final = {kind: ev.ChangeKind[kind.name] for kind in Kind}
_USERS: Final = 0.03  # how often one comes between two system calls
_END: Final = 0.01  # how often a process that is to end does so between two of them


@contextlib.contextmanager
def watched(member: RealMember) -> Iterator[None]:
    """Between any two of the system calls that are made meanwhile, something may happen to the member; once its process
    has ended, none has any effect any more."""
    before: list[tuple[Any, str, Any]] = []

    def watch(module: Any, name: str) -> None:
        call = getattr(module, name)
        before.append((module, name, call))

        def watched_call(*args: Any, **more: Any) -> Any:
            member.between_calls()
            return call(*args, **more)

        setattr(module, name, watched_call)

    for name in _CALLS:
        watch(os, name)
    watch(fsops, "_renameat2")
    watch(openat2, "_openat2")
    try:
        yield
    finally:
        for module, name, call in before:
            setattr(module, name, call)


class RealArea(StagingArea):
    """Now and then there is no room for a file of this member's own."""

    def __init__(self, member: RealMember) -> None:
        self._member = member
        super().__init__(member.disk.area, _ROOM)

    def stage(self, co_guid: bytes, path: str, *, owner: bytes = LOCAL, **more: Any) -> Staged:
        world = self._member.world
        if self._member.disk.full or (owner == LOCAL and world.random.random() < world.no_room):
            raise NoSpace("full")
        return super().stage(co_guid, path, owner=owner, **more)

    def hold(self, co_guid: bytes, data: bytes, owner: bytes) -> bool:
        world = self._member.world
        return world.brings and not world.forgetful and super().hold(co_guid, data, owner)

    def open_writer(self, co_guid: bytes, size: int = 0, owner: bytes = LOCAL, **more: Any) -> StageWriter:
        if self._member.disk.full:
            raise NoSpace("full")
        return super().open_writer(co_guid, size, owner, **more)


class RealFiles(FileOps):
    """Of one process of a member."""

    def __init__(self, member: RealMember, under_way: UnderWay) -> None:
        self._member, disk, self._closed = member, member.disk, False
        self._kept = KeptStore(disk.store, _ROOM, durable=False)
        area = RealArea(member)
        area.sweep()
        super().__init__(
            disk.place,
            disk.state,
            area,
            self._kept,
            durable=False,
            compressions=(c.COMPRESSION_NONE,),
            root_key=member.identity.root_key,
            report=Told(member).report,
            made=under_way.made,
            lent=under_way.lent,
        )

    def close(self) -> None:
        super().close()
        self._kept.close()
        self._closed = True

    def end(self) -> None:
        """The process has ended: what it had open is closed, and nothing else."""
        if not self._closed:
            for fd in (self.root.fd, self._preinstall.fd, self._preinstall._state_fd):
                os.close(fd)
            self._kept.close()

    def read_stage(
        self, action: ev.ReadStage, path: str | None, unstored: Unstored | None = None, size: int | None = None
    ) -> Event:
        with self._member.at_work():
            return super().read_stage(action, path, unstored, size)

    def make_stages(self, wanted: Sequence[tuple[ev.MakeStage, str]]) -> list[tuple[ev.MakeStage, bytes | None]]:
        return super().make_stages(wanted) if self._member.world.brings else [(action, None) for action, _ in wanted]

    def to_go_with(self, co: ChangeOrder, compressions: Collection[bytes]) -> bytes | None:
        return super().to_go_with(co, compressions) if self._member.world.brings else None

    def install_all(self, installs: list[ResolvedInstall]) -> list[Any]:
        """In a worker thread. A disk that is full takes no content."""
        member = self._member
        full = [item for item in installs if member.disk.full and _has_content(item)]
        with member.at_work():
            done = super().install_all([item for item in installs if item not in full])
        by_guid = {item.action.co_guid: item.action for item in installs}
        for event in done:
            assert isinstance(event, ev.Installed)
            member.installed(by_guid[event.co_guid], event)
        return done + [ev.Installed(item.action.co_guid, ev.Outcome.NO_SPACE) for item in full]


def _has_content(item: ResolvedInstall) -> bool:
    return any(step.step.step is ev.InstallStep.CONTENT for step in item.steps or ())


class RealWatch(SimWatch):
    """Compares a real tree with the IDTable."""

    _member: RealMember

    def __init__(self, member: RealMember, *where: Any, **more: Any) -> None:
        host, _, *others = where
        super().__init__(member, LINUX, host, member.disk.place, *others, **more)

    def _local_change(self, change: Change, guid: bytes, parent: bytes) -> ev.LocalChange | None:
        content = found = None
        stage, staged = self._world.new_guid(), False
        if change.kind is not Kind.DELETE:
            try:
                content, found, staged = self._look(change, guid, stage)
            except (StagingError, OSError):
                return None
            finally:
                self._member.disk.refresh()
        is_dir = change.file_kind == "folder"
        attributes = FILE_ATTRIBUTE_DIRECTORY if is_dir else FILE_ATTRIBUTE_ARCHIVE
        return ev.LocalChange(
            _KINDS[change.kind],
            guid,
            parent,
            change.name,
            is_dir,
            change.file_kind,
            self._member.now - self._world.random.randrange(SECOND),
            change.reasons or (c.REASON_FILE_DELETE if change.kind is Kind.DELETE else c.REASON_DATA_EXTEND),
            facts_of(found) if found is not None else None,
            content.md5 if content is not None else bytes(16),
            content.info.file_attributes if content is not None else attributes,
            content.info.allocation_size if content is not None else 0,
            stage,
            staged=staged,
            stage_size=content.stage_size if content is not None else 0,
            temporary=change.temporary,
            unstored=content.remember.encode() if content is not None else b"",
        )

    def _look(self, change: Change, guid: bytes, stage: bytes) -> tuple[Staged | None, Fingerprint, bool]:
        """What is staged of a file that is not what it was, what is there, and whether there is a staging file. Raises
        StagingError, OSError."""
        files = self._member.files
        with files.root.parent(change.path) as at:
            if change.kind is Kind.CREATE and change.file_kind in ("file", "folder"):
                with opened(openat2.open_beneath, at, READ) as fd:
                    fsops.object_id_set(fd, guid)
            elif change.kind is Kind.RENAME and not change.content_changed:
                return None, fsops.fingerprint(at.name, dir_fd=at.fd), False
            try:
                content, staged = files.area.stage(stage, at.name, object_id=guid, dir_fd=at.fd), True
            except NoSpace:
                content, staged = generate(at.name, None, object_id=guid, dir_fd=at.fd), False
            return content, content.fingerprint, staged


class RealMember(Member):
    """A member with a tree on this host."""

    disk: RealDisk
    files: RealFiles

    _open: RealFiles | None = None

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.users: list[Callable[[], None]] = []  # who do something while the agent is at work
        self.calls = 0  # of the system, by its threads that change or read the tree
        self.moments: dict[int, Callable[[], None]] = {}  # what happens right before the so many-th of them
        self._among_users = False

    # -- life

    def make_disk(self) -> RealDisk:
        world = self.world
        return RealDisk(lambda: world.now, lambda at, work: world.after(at - world.now, work))

    def _know_nothing(self) -> None:
        super()._know_nothing()
        found = os.stat(self.disk.place)
        self.identity = Identity(self.identity.originator_guid, self.root, (found.st_dev, found.st_ino))

    def make_files(self, system: SimSystem, under_way: UnderWay) -> FileOps:
        self.end_process()
        self.files = self._open = RealFiles(self, under_way)
        self.disk.refresh()
        return self.files

    def watch_maker(self, system: SimSystem) -> Callable[..., Any]:
        return partial(RealWatch, self)

    def end_process(self) -> None:
        """What the last process had open is closed."""
        if self._open is not None:
            self._open.end()
            self._open = None

    def close(self) -> None:
        super().close()
        self.end_process()
        self.disk.busy.clear()
        self.disk.close()

    # -- between system calls

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """A thread of the present process changes or reads the tree."""
        self._generation = self.generation
        try:
            with watched(self):
                yield
        finally:
            self.disk.refresh()

    def between_calls(self) -> None:
        """Raises Dead where the process has ended, or ends now."""
        if self._among_users:
            return
        if not self.up or self.generation != self._generation:
            raise Dead
        self.calls += 1
        if work := self.moments.pop(self.calls, None):
            self._use(work)
        rng = self.world.random
        if self.users and rng.random() < _USERS:
            self._use(self.users.pop(0))
        if self.crash_in is not None and rng.random() < _END:
            self.crash_in = None
            self._use(self.crash)
        if not self.up or self.generation != self._generation:
            raise Dead

    def at_call(self, number: int, work: Callable[[], None]) -> None:
        self.moments[self.calls + number] = work

    def spare(self) -> None:
        super().spare()
        self.moments.clear()

    def while_looking(self, work: Callable[[], None]) -> None:
        self.users.append(work)
        self.world.after(self.world.random.randrange(1, 8 * SECOND), lambda: self._late(work))

    def _late(self, work: Callable[[], None]) -> None:
        if work in self.users:
            self.users.remove(work)
            self._use(work)

    def _use(self, work: Callable[[], None]) -> None:
        """Somebody else's turn."""
        before, self._among_users = self._among_users, True
        try:
            self.disk.refresh()
            work()
        except Exception as error:
            self.world.violation(f"{self.name}: a user fails: {error!r}")
        finally:
            self._among_users = before

    def pending(self) -> list[str]:
        return super().pending() + ["users"] * bool(self.users)
