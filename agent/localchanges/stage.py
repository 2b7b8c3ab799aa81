"""What a local change needs before the engine hears of it: its object ID on disk, its checksum, its staging file. In
worker threads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.engine import events as ev
from agent.engine.records import UNSTORED
from agent.files.facts import facts_of
from agent.files.fileops import FileOps
from agent.wire import constants as c
from idtable.records import IDRecord
from journal.changes import Change, Kind
from journal.reasons import METADATA
from staging import fsops, smallfiles
from staging.beneath import Entry, open_entry, open_same, same_entry
from staging.errors import NoSpace, StagingError, Swapped
from staging.generate import Staged, generate
from staging.header import FILE_ATTRIBUTE_DIRECTORY
from staging.smallfiles import Source
from staging.unstored import Unstored

_MOST_FOLDER_TIMES: Final = 512

_KINDS: Final = {
    Kind.CREATE: ev.ChangeKind.CREATE,
    Kind.UPDATE: ev.ChangeKind.UPDATE,
    Kind.RENAME: ev.ChangeKind.RENAME,
    Kind.DELETE: ev.ChangeKind.DELETE,
}


class Unsure(StagingError):
    """Worth another look before anything is said of it."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file is; whether it has a staging file now, and whether that is compressed."""

    staged: Staged
    on_disk: bool
    compressed: bool


@dataclass(slots=True)
class Work:
    """A change with everything known about where it goes."""

    change: Change
    guid: bytes
    parent: bytes
    stage_guid: bytes
    event_time: int
    usns: tuple[int, int]
    known: IDRecord | None
    verify: bool = False  # a rename of which only a checksum can say that nothing else changed
    unstored: Unstored | None = None  # of what is known
    content: Content | None = None  # where that was looked at before

    @property
    def to_be_marked(self) -> bool:
        """A new file or folder that has another object ID, or none."""
        change = self.change
        return change.kind is Kind.CREATE and change.file_kind != "symlink" and change.object_id != self.guid

    @property
    def has_content(self) -> bool:
        """What the file is has to be looked at for this change, not only where it is."""
        if self.change.kind is Kind.RENAME:
            return self.verify or (self.change.content_changed and not self.change.temporary)
        return self.change.kind is not Kind.DELETE


class LocalStage:
    """Prepares local changes. `first` says whether the initial scan of a primary member is going on, `local_error`
    takes what went wrong, for people."""

    def __init__(self, files: FileOps, first: Callable[[], bool], local_error: Callable[[str], None]) -> None:
        self._files = files
        self._first = first
        self._local_error = local_error
        self._folder_times: dict[str, int] = {}  # seen once, see _be_sure

    def mark(self, works: list[Work]) -> None:
        """Give new files their object IDs, before any is staged: that moves their ctimes. Small files get them then."""
        for work in works:
            if not self._is_small(work):
                self._mark(work)

    def _mark(self, work: Work) -> None:
        if not work.to_be_marked:
            return
        seen = work.change.fingerprint
        with contextlib.suppress(OSError, StagingError), self._files.root.parent(work.change.path) as at:
            fd = open_entry(at.fd, at.name) if seen is None else open_same(at.fd, at.name, seen)
            try:
                if os.fstat(fd).st_nlink == 1 or work.change.file_kind == "folder":
                    fsops.object_id_set(fd, work.guid)
                # else hard links share attributes: the IDTable alone holds their object IDs
            finally:
                os.close(fd)

    def stage_all(self, works: list[Work], compression: bytes) -> list[ev.LocalChange | tuple[Work, StagingError]]:
        """The events for the engine; in the place of one, what went wrong. What is no change is left out."""
        small = self._stage_small([work for work in works if self._is_small(work)], compression)
        done = (small.get(work.stage_guid) or self._stage(work, compression) for work in works)
        return [event for event in done if event is not None]

    def _is_small(self, work: Work) -> bool:
        """Whether it may be staged with others, see staging.smallfiles: without a look at what it was before."""
        change, found = work.change, work.change.fingerprint
        return (
            smallfiles.native is not None
            and change.kind in (Kind.CREATE, Kind.UPDATE)
            and change.file_kind == "file"
            and found is not None
            and found.size <= smallfiles.MOST
            and work.content is None
            and work.unstored is None
            and not _looks_the_same(work)
            and not self._first()
        )

    def _stage_small(self, works: list[Work], compression: bytes) -> dict[bytes, ev.LocalChange]:
        """The events for what could be staged, by the GUIDs of their staging files. What else there is has its object
        ID, if there is to be one."""
        folders: dict[str, list[Work]] = {}
        for work in works:
            folders.setdefault(work.change.path.rpartition("/")[0], []).append(work)
        done: dict[bytes, ev.LocalChange] = {}
        for folder, group in folders.items():
            with contextlib.suppress(StagingError, OSError):  # told of each when it is staged by itself
                self._stage_folder(folder, group, compression, done)
        for work in works:
            if work.stage_guid not in done:
                self._mark(work)
        return done

    def _stage_folder(
        self, folder: str, works: list[Work], compression: bytes, done: dict[bytes, ev.LocalChange]
    ) -> None:
        sources = [
            Source(os.fsencode(work.change.name), work.guid, work.to_be_marked, work.change.fingerprint)
            for work in works
            if work.change.fingerprint is not None
        ]
        with self._files.root.parent(works[0].change.path) as at:
            found = smallfiles.generate_all(at.fd, sources, compression)
            if not self._files.root.holds(at.fd, folder):
                return
        right = [(work, one) for work, one in zip(works, found) if one is not None]
        stored = self._files.area.store_all([(work.stage_guid, one) for work, one in right])
        for (work, one), there in zip(right, stored):
            if there:
                compressed = compression != c.COMPRESSION_NONE
                done[work.stage_guid] = self._event(work, one.staged, staged=True, compressed=compressed)

    def _stage(self, work: Work, compression: bytes) -> ev.LocalChange | tuple[Work, StagingError] | None:
        if not work.has_content:
            return self._event(work, None, staged=False, compressed=False)
        try:
            content = work.content or self.content_of(work, compression)
        except StagingError as error:
            return work, error
        rename = work.change.kind is Kind.RENAME and not work.change.content_changed
        if rename and not content.on_disk and work.known is not None and content.staged.md5 == work.known.md5:
            return self._event(work, None, staged=False, compressed=False)
        return self._event(work, content.staged, staged=content.on_disk, compressed=content.compressed)

    def content_of(self, work: Work, compression: bytes) -> Content:
        """Looks at the file and stages it. Raises StagingError."""
        with self._files.root.parent(work.change.path) as at:
            staged, on_disk = self._generate(work, at.name, at.fd, compression)
            wrong = self._wrong(work.change, staged, at)
        if wrong:
            if on_disk:
                self._files.area.remove(work.stage_guid)
            raise Swapped(wrong)
        return Content(staged, on_disk, on_disk and compression != c.COMPRESSION_NONE)

    def _wrong(self, change: Change, staged: Staged, at: Entry) -> str:
        """What was staged must be what the examiner saw, and in the tree to the end: nothing else is sent."""
        if staged.kind != change.file_kind:
            return f"{change.path!r} was a {change.file_kind} a moment ago, and is a {staged.kind} now"
        if change.fingerprint is not None and not same_entry(staged.fingerprint, change.fingerprint):
            return f"another {staged.kind} is at {change.path!r} now than a moment ago"
        if not self._files.root.holds(at.fd, change.path.rpartition("/")[0]):
            return f"the folder of {change.path!r} left the tree"
        return ""

    def _generate(self, work: Work, name: str, fd: int, compression: bytes) -> tuple[Staged, bool]:
        """Stage the file; when there is no room, or nobody will ask soon, only its checksum is computed and the
        staging file made when it is asked for."""
        if work.known is not None and _looks_the_same(work):
            staged = self._checksum(work, name, fd)
            if work.known.flags & UNSTORED and work.unstored is None:
                # Recorded by an earlier version, which did not remember what could not be kept: it cannot be told.
                staged = dataclasses.replace(staged, md5=work.known.md5)
            if staged.md5 == work.known.md5:
                self._be_sure(work, staged)
                return staged, False
        if not self._first():
            try:
                return (
                    self._files.area.stage(
                        work.stage_guid,
                        name,
                        object_id=work.guid,
                        compression=compression,
                        dir_fd=fd,
                        unstored=work.unstored,
                    ),
                    True,
                )
            except NoSpace as error:
                self._local_error(f"20411 {work.change.path!r} is not staged yet: {error}")
        return self._checksum(work, name, fd), False

    def _checksum(self, work: Work, name: str, fd: int) -> Staged:
        """Generates no staging file. Where the checksum that was announced cannot be had here, the one that was had
        instead counts for it."""
        staged = generate(name, None, object_id=work.guid, dir_fd=fd, unstored=work.unstored)
        if work.unstored is None or work.known is None or staged.md5 != work.unstored.made:
            return staged
        return dataclasses.replace(staged, md5=work.known.md5, remember=work.unstored)

    def _be_sure(self, work: Work, staged: Staged) -> None:
        """A folder of which only the time differs, and was perhaps set: installs of ours move it for a moment and set
        it back. Only a time that stays was set by somebody; nor was the one that a folder has since an entry came or
        went, where it was us that something was told of. Raises Unsure at the first look."""
        known, found = work.known, staged.fingerprint.mtime_ns
        if work.change.kind is not Kind.UPDATE or known is None or not known.is_dir or known.mtime_ns == found:
            return
        if not work.change.reasons & METADATA:
            return
        if found == self._files.root.changed_ns(staged.fingerprint) != staged.fingerprint.ctime_ns:
            work.change = dataclasses.replace(work.change, reasons=work.change.reasons & ~METADATA)
            return
        if self._folder_times.pop(work.change.path, None) != found:
            if len(self._folder_times) > _MOST_FOLDER_TIMES:
                self._folder_times.clear()
            self._folder_times[work.change.path] = found
            raise Unsure(work.change.path)

    def _event(self, work: Work, content: Staged | None, *, staged: bool, compressed: bool) -> ev.LocalChange:
        change = work.change
        found = content.fingerprint if content is not None else change.fingerprint
        is_dir = change.file_kind == "folder"
        return ev.LocalChange(
            kind=_KINDS[change.kind],
            file_guid=work.guid,
            parent_guid=work.parent,
            name=change.name,
            is_dir=is_dir,
            file_kind=content.kind if content is not None else change.file_kind,
            event_time=work.event_time,
            reasons=change.reasons,
            facts=facts_of(found) if found is not None else None,
            md5=content.md5 if content is not None else bytes(16),
            attributes=content.info.file_attributes
            if content is not None
            else (FILE_ATTRIBUTE_DIRECTORY if is_dir else c.FILE_ATTRIBUTE_ARCHIVE),
            size=content.info.allocation_size if content is not None else 0,
            stage_guid=work.stage_guid,
            stage_size=content.stage_size if content is not None else 0,
            staged=staged,
            compressed=compressed,
            usns=work.usns,
            temporary=change.temporary,
            unstored=content.remember.encode() if content is not None else b"",
        )


def _looks_the_same(work: Work) -> bool:
    """Nothing but the ctime moved, most likely by an install of ours: worth a checksum before it is staged."""
    known, found = work.known, work.change.fingerprint
    if known is None or found is None:
        return False
    return known.is_dir or (known.mtime_ns == found.mtime_ns and known.fsize == found.size)
