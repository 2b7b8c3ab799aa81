"""Who uses how much of a staging area, and who makes room for whom.

Every owner (a partner, or LOCAL for what is staged here before anybody asks for it) is guaranteed a share, and may use
what the others do not use. A request within the share of its owner always succeeds. What makes room for it, in this
order:

1. complete staging files, the least recently used first: those that can be made anew (of LOCAL), and those of owners
   that use more than their share;
2. files half received that have made no progress for a while, whoever owns them;
3. files half received of owners that use more than their share, the latest begun first;
4. files half received of the owner itself that were begun later, and complete ones of its own.

So of two half-received files that fill the area together one goes on, and whoever claims much and falls silent gives
way to whoever needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from staging.errors import NoSpace

LOCAL: Final = b""
#: The share of LOCAL, as a part of the quota.
_LOCAL_PART: Final = 8
#: A file half received that has made no progress for so many seconds gives way to anybody.
STALLED_S: Final = 60.0


class ShareUsed(NoSpace):
    """The owner uses all that it may: its share, and what others leave unused."""


@dataclass(slots=True)
class Receiving:
    """A file half received: `begun` counts up, `moved` is when it last grew, in seconds."""

    owner: bytes
    size: int
    begun: int
    moved: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete staging file."""

    owner: bytes
    size: int


Item = bytes | Receiving  # the change order of a complete staging file, or a file half received


class Shares:
    """The accounts of one staging area; not safe to use from several threads. Sizes are bytes."""

    def __init__(self, quota: int, owners: Collection[bytes]) -> None:
        self.stored: dict[bytes, Stored] = {}  # by change order, least recently used first
        self.receiving: dict[int, Receiving] = {}  # by `begun`
        self.used = 0
        self._usage: Counter[bytes] = Counter()
        self._kept: Counter[bytes] = Counter()  # of that, in complete files
        self._begun = 0
        self.divide(quota, owners)

    def divide(self, quota: int, owners: Collection[bytes]) -> None:
        """The quota and the owners are these from now on. What is too much gives way to what comes."""
        self.quota = quota
        self._local = quota // _LOCAL_PART if owners else quota
        self._shares = dict.fromkeys(owners, (quota - self._local) // max(len(owners), 1))

    def share(self, owner: bytes) -> int:
        """What the owner is guaranteed; nothing for one that is not known (any more)."""
        return self._local if owner == LOCAL else self._shares.get(owner, 0)

    def usage(self, owner: bytes) -> int:
        """What the owner uses."""
        return self._usage[owner]

    # -- taking account --

    def store(self, guid: bytes, owner: bytes, size: int) -> None:
        """A complete staging file is there, the most recently used one, in the place of any other of that GUID."""
        self.drop(guid)
        self.stored[guid] = Stored(owner, size)
        self._kept[owner] += size
        self._add(owner, size)

    def drop(self, guid: bytes) -> None:
        """A complete staging file is gone, if it was there."""
        found = self.stored.pop(guid, None)
        if found is not None:
            self._kept[found.owner] -= found.size
            self._add(found.owner, -found.size)

    def touch(self, guid: bytes) -> None:
        """A complete staging file is used."""
        if guid in self.stored:
            self.stored[guid] = self.stored.pop(guid)

    def begin(self, owner: bytes, now: float) -> Receiving:
        """A file begins to be received."""
        self._begun += 1
        self.receiving[self._begun] = found = Receiving(owner, 0, self._begun, now)
        return found

    def grow(self, receiving: Receiving, size: int, now: float) -> None:
        """It gets `size` bytes more."""
        receiving.size += size
        receiving.moved = now
        self._add(receiving.owner, size)

    def end(self, receiving: Receiving) -> None:
        """It is complete, or given up."""
        if self.receiving.pop(receiving.begun, None) is not None:
            self._add(receiving.owner, -receiving.size)

    def _add(self, owner: bytes, size: int) -> None:
        self.used += size
        self._usage[owner] += size

    # -- making room --

    def make_room(self, owner: bytes, size: int, now: float, *, but: Item | None = None) -> list[Item]:
        """What has to go, so that the owner may use `size` bytes more; `but` is what they are for. Raises ShareUsed
        or NoSpace. Nothing is taken account of here: that is the caller's, as he removes it."""
        missing = size - (self.quota - self.used)
        if missing <= 0:
            return []
        going = []
        for item, freed in self._yielding(owner, size, now, but):
            going.append(item)
            missing -= freed
            if missing <= 0:
                return going
        if size > self.quota or self._usage[owner] + size <= self.share(owner):
            raise NoSpace(f"{size} bytes do not fit into the quota of {self.quota} bytes of the staging area")
        whom = "what is staged here" if owner == LOCAL else "this partner"
        raise ShareUsed(
            f"{size} bytes more do not fit: {self._usage[owner]} of the {self.quota} bytes of the staging area are "
            f"used for {whom}, {self.share(owner)} are guaranteed, and others use the rest"
        )

    def obtainable(self, owner: bytes, now: float) -> int:
        """The most that the owner could have now by make_room(), or somewhat less."""
        beyond = self.quota - self.used + self._kept[LOCAL]
        for other, kept in self._kept.items():
            if other == owner != LOCAL:
                beyond += kept
            elif other != LOCAL:
                beyond += max(min(kept, self._usage[other] - self.share(other)), 0)
        beyond += sum(r.size for r in self.receiving.values() if now - r.moved >= STALLED_S)
        return max(beyond, self.share(owner) - self._usage[owner], 0)

    def _yielding(self, owner: bytes, size: int, now: float, but: Item | None) -> Iterator[tuple[Item, int]]:
        """What gives way to the owner's request, in order, and the bytes that each of it frees."""
        usage = self._usage.copy()
        usage[owner] += size
        within = usage[owner] <= self.share(owner)
        gone: set[int | bytes] = {but if isinstance(but, bytes) else but.begun} if but is not None else set()

        def over(other: bytes) -> bool:
            return usage[other] > self.share(other)

        def leaves(key: int | bytes, item: Stored | Receiving) -> tuple[Item, int]:
            gone.add(key)
            usage[item.owner] -= item.size
            return (key if isinstance(item, Stored) else item), item.size  # type: ignore[return-value]

        for guid, stored in self.stored.items():
            if guid not in gone and (stored.owner == LOCAL or over(stored.owner)):
                yield leaves(guid, stored)
        half = [r for r in self.receiving.values() if r.begun not in gone]
        for r in sorted(half, key=lambda r: r.moved):
            if now - r.moved >= STALLED_S and r.size:
                yield leaves(r.begun, r)
        for r in reversed(half):
            if within and r.begun not in gone and r.size and over(r.owner) and r.owner != owner:
                yield leaves(r.begun, r)
        for r in reversed(half):
            later = isinstance(but, Receiving) and r.begun > but.begun
            if later and r.begun not in gone and r.size and r.owner == owner:
                yield leaves(r.begun, r)
        for guid, stored in self.stored.items():
            if guid not in gone and stored.owner == owner:
                yield leaves(guid, stored)
