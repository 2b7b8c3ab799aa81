"""What a simulated member's local watch works with: the real journal with its turns taken by the world, and as much of
the root, the files and the staging area as it asks for, on the simulated tree.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from agent.localchanges.stage import LocalStage, Work
from agent.wire.filetime import SECOND
from journal.journal import Journal
from journal.system import System
from staging.beneath import same_entry
from staging.errors import StagingError
from staging.generate import Staged
from tests.simulation.simhost import SimArea, generated
from tests.simulation.simkernel import SimSystem, fingerprint
from tests.simulation.simloop import Dead


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
        self._begun = self._taking = self._over = False
        self._at = 0

    @property
    def idle(self) -> bool:
        """Nothing is to be done but to wait for time to pass."""
        return self._queue.empty() and not self._taking and not self._tree.next_idle()

    def _start_turns(self) -> threading.Thread:
        self._turn_in(1)
        return threading.Thread()  # which is never started

    def stop(self) -> None:
        """No turn is taken any more."""
        self._over = True

    def _turn_in(self, delay: int) -> None:
        at = self._member.world.now + delay
        if self._at and self._at <= at:
            return
        self._at = at

        def fire() -> None:
            if self._at == at and not self._over:
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
