"""All that one member needs to know of the topology, as a snapshot that never changes, and what differs between two.

A view is a flat mapping of directory objects ([MS-FRS1] 2.3.1) by their identity, whatever source they were read from:
the replica sets that the member takes part in, all members of these, its own connections, its subscriptions, and by
what it authenticates. `compare` tells what happened to which object between two views, `applied` makes the second view
of the first and that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from config.model import DEFAULT_STAGING_QUOTA, AgentConfig, Connection, LocalSet, Member, ReplicaSet, Secret

Kind = Literal["set", "member", "connection", "subscription", "authentication"]


class Key(NamedTuple):
    """The identity of a directory object: its replica set, its kind, its own GUID. A subscription has the GUID of the
    member that it refers to (fRSMemberReference), what this member authenticates by has none."""

    set: bytes
    kind: Kind
    guid: bytes


AUTHENTICATION = Key(b"", "authentication", b"")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where a replica set is on this computer (2.3.1.9), and how much room it may take there. `state_dir` is the set's
    own folder, in which its staging area lies."""

    root: Path
    state_dir: Path
    staging_quota_bytes: int = DEFAULT_STAGING_QUOTA

    @property
    def staging(self) -> Path:
        """The folder under which the staging files are."""
        return self.state_dir / "staging"


@dataclass(frozen=True, slots=True)
class Authentication:
    """By what this member authenticates: its private key, its keytab, and the secret, for partners without a key or
    principal, or for all."""

    key: bytes | None = field(repr=False)
    secret: Secret | None
    secret_for_all: bool = False
    keytab: Path | None = None


Value = ReplicaSet | Member | Connection | Subscription | Authentication


@dataclass(frozen=True, slots=True)
class DirectoryObject:
    """One object as a source gave it. A replica set stands without its members and connections, which are objects of
    their own. `generation` grows with every change that is made to the object at its source; it is no part of what the
    object says."""

    value: Value
    generation: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A snapshot. Two are equal when they say the same, in whatever order."""

    objects: Mapping[Key, DirectoryObject]

    def __post_init__(self) -> None:
        object.__setattr__(self, "objects", MappingProxyType(dict(self.objects)))

    def __hash__(self) -> int:
        return hash(frozenset(self.objects))

    @property
    def set_guids(self) -> list[bytes]:
        """The replica sets in it."""
        return [key.guid for key in self.objects if key.kind == "set"]

    def local_sets(self) -> tuple[LocalSet, ...]:
        """The replica sets that this computer subscribes to, put together."""
        members: dict[bytes, dict[bytes, Member]] = {guid: {} for guid in self.set_guids}
        connections: dict[bytes, list[Connection]] = {guid: [] for guid in members}
        for key, found in self.objects.items():
            if isinstance(found.value, Member):
                members[key.set][key.guid] = found.value
            elif isinstance(found.value, Connection):
                connections[key.set].append(found.value)
        return tuple(
            LocalSet(
                set=dataclasses.replace(
                    _set(self.objects[Key(key.set, "set", key.set)]),
                    members=MappingProxyType({member.name: member for member in members[key.set].values()}),
                    connections=tuple(connections[key.set]),
                ),
                member=members[key.set][key.guid],
                root=found.value.root,
                state_dir=found.value.state_dir,
                staging_quota_bytes=found.value.staging_quota_bytes,
            )
            for key, found in self.objects.items()
            if isinstance(found.value, Subscription)
        )

    def keeping(self, other: DirectoryView, sets: Iterable[bytes]) -> DirectoryView:
        """This view, with these replica sets as `other` has them."""
        kept = frozenset(sets)
        objects = {key: found for key, found in self.objects.items() if key.set not in kept}
        objects |= {key: found for key, found in other.objects.items() if key.set in kept}
        return DirectoryView(objects)

    def older_than(self, other: DirectoryView) -> list[Key]:
        """The objects that `other` has from a later generation."""
        return [
            key
            for key, found in self.objects.items()
            if key in other.objects and found.generation < other.objects[key].generation
        ]


def view_of(config: AgentConfig) -> DirectoryView:
    """The view of a configuration that was read from files: all objects of one generation, the topology's serial."""
    authentication = Authentication(config.key, config.credential, config.secret_for_all, config.keytab)
    return view_of_sets(config.sets, authentication, config.serial)


def view_of_sets(sets: Iterable[LocalSet], authentication: Authentication, generation: int = 0) -> DirectoryView:
    """The view of these sets, all objects of one `generation`."""
    objects: dict[Key, DirectoryObject] = {AUTHENTICATION: DirectoryObject(authentication)}
    for local in sets:
        objects |= set_objects(local.set, local.member.name, generation)
        subscription = Subscription(local.root, local.state_dir, local.staging_quota_bytes)
        objects[Key(local.set.guid, "subscription", local.member.guid)] = DirectoryObject(subscription)
    return DirectoryView(objects)


def set_objects(replica_set: ReplicaSet, member: str | None, generation: int = 0) -> dict[Key, DirectoryObject]:
    """What `member` needs of a replica set: of the connections, those that it has a part in. None: all there is."""
    guid = replica_set.guid
    bare = dataclasses.replace(replica_set, members=MappingProxyType({}), connections=())
    objects: dict[Key, DirectoryObject] = {Key(guid, "set", guid): DirectoryObject(bare, generation)}
    for one in replica_set.members.values():
        objects[Key(guid, "member", one.guid)] = DirectoryObject(one, generation)
    for connection in replica_set.connections:
        if member in (None, connection.upstream, connection.downstream):
            objects[Key(guid, "connection", connection.guid)] = DirectoryObject(connection, generation)
    return objects


def whole(sets: Iterable[ReplicaSet], member: str | None = None) -> DirectoryView:
    """All there is of these sets; or what `member` needs of those that it is in."""
    objects: dict[Key, DirectoryObject] = {}
    for replica_set in sets:
        if member is None or member in replica_set.members:
            objects |= set_objects(replica_set, member)
    return DirectoryView(objects)


# -- what differs --


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object: it came (`before` is None), it went (`after` is None), or it says something else."""

    key: Key
    before: DirectoryObject | None
    after: DirectoryObject | None

    @property
    def fields(self) -> tuple[str, ...]:
        """What the object says differently; empty where it came or went."""
        if self.before is None or self.after is None:
            return ()
        was, now = self.before.value, self.after.value
        return tuple(one.name for one in dataclasses.fields(now) if getattr(was, one.name) != getattr(now, one.name))

    def __str__(self) -> str:
        """The change in words, without the name of the set."""
        found = self.after or self.before
        assert found is not None
        name = _named(found.value)
        if self.before is None:
            return f"{name} is new"
        if self.after is None:
            return f"{name} is gone"
        return f"{name}: {', '.join(_differs(self.before.value, self.after.value, one) for one in self.fields)}"


def compare(old: DirectoryView, new: DirectoryView) -> tuple[Change, ...]:
    """What happened between two views. What comes stands in an order in which it can be made: a set before what is in
    it; what goes, the other way round."""
    gone = [Change(key, found, None) for key, found in old.objects.items() if key not in new.objects]
    there = [
        Change(key, old.objects.get(key), found)
        for key, found in new.objects.items()
        if key not in old.objects or old.objects[key] != found
    ]
    return (*reversed(gone), *there)


def applied(view: DirectoryView, changes: Iterable[Change]) -> DirectoryView:
    """The view after these changes."""
    objects = dict(view.objects)
    for change in changes:
        if change.after is None:
            del objects[change.key]
        else:
            objects[change.key] = change.after
    return DirectoryView(objects)


def by_set(changes: Iterable[Change]) -> dict[bytes, list[Change]]:
    """The changes of each set; those of no set have b""."""
    found: dict[bytes, list[Change]] = {}
    for change in changes:
        found.setdefault(change.key.set, []).append(change)
    return found


def _set(found: DirectoryObject) -> ReplicaSet:
    assert isinstance(found.value, ReplicaSet)
    return found.value


def _named(value: Value) -> str:
    match value:
        case ReplicaSet():
            return f"the set {value.name}"
        case Member():
            return f"the member {value.name}"
        case Connection():
            return f"the connection {value.key}"
        case Subscription():
            return f"the root {value.root}"
        case Authentication():
            return "authentication"


#: What is said of without its value: it is long, or to be known to nobody.
_WITHOUT_VALUE = ("schedule", "secret", "guid", "key")


def _differs(was: Value, now: Value, name: str) -> str:
    words = name.removesuffix("_bytes").replace("_", " ")
    if name in _WITHOUT_VALUE:
        return f"another {words}"
    return f"{words} {_shown(getattr(was, name))} becomes {_shown(getattr(now, name))}"


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, tuple) else str(value)
