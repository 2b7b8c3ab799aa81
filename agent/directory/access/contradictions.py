"""What no host can use in the topology of a directory, in the words of its objects: their members and sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from config.errors import ConfigError
from config.model import Member, ReplicaSet
from config.topologyfile import parse_file

#: What is to be done about it.
ADVICE: Final = (
    "No member takes anything over before that is changed there, by `frs topology` or `frs directory import` with the "
    "directory.toml of a server"
)


class Contradicts(ConfigError):
    """The directory has a topology that no host can use; nothing stands in a file of this one."""

    def __str__(self) -> str:
        return self.message


def refuse_contradictions(path: Path, sets: Sequence[ReplicaSet], text: str) -> None:
    """Raises Contradicts where `text`, the topology.toml of these sets, is none that `path` could hold."""
    try:
        parse_file(path, text)
    except ConfigError as error:
        wrong = "; ".join(contradictions(sets)) or f"{error.key}: {error.message}"
        raise Contradicts(path, None, "", f"the directory's topology cannot be used: {wrong}. {ADVICE}") from None


def contradictions(sets: Iterable[ReplicaSet]) -> list[str]:
    """What contradicts itself in these sets, each in a sentence without its end."""
    return list(dict.fromkeys(line for one in _all(list(sets)) for line in one))


def _all(sets: list[ReplicaSet]) -> Iterator[Iterator[str]]:
    names: dict[str, bytes] = {}
    first: dict[str, tuple[str, Member]] = {}
    keys: dict[bytes, str] = {}
    for one in sets:
        yield _of_set(one, names)
        for member in one.members.values():
            yield _of_member(one.name, member, first, keys)


def _of_set(one: ReplicaSet, names: dict[str, bytes]) -> Iterator[str]:
    if names.setdefault(one.name, one.guid) != one.guid:
        yield f"two sets have the name {one.name}"
    if one.primary not in one.members:
        yield f"the set {one.name} has no primary member: set one of its members as primary"
    places: dict[tuple[str, int], str] = {}
    for member in one.members.values():
        place = (member.host.lower(), member.port or member.endpoint_mapper)
        other = places.setdefault(place, member.name)
        if other != member.name:
            yield (
                f"the members {other} and {member.name} of the set {one.name} have one address, "
                f"{member.host}:{place[1]}: remove one of them, or give it another"
            )
    pairs: set[str] = set()
    for cxtion in one.connections:
        if cxtion.upstream == cxtion.downstream:
            yield f"{cxtion.upstream} is its own partner in the set {one.name}: remove the connection {cxtion.key}"
        if cxtion.key in pairs:
            yield f"the set {one.name} has two connections {cxtion.key}: remove one of them"
        pairs.add(cxtion.key)


def _of_member(
    set_name: str, member: Member, first: dict[str, tuple[str, Member]], keys: dict[bytes, str]
) -> Iterator[str]:
    elsewhere, was = first.setdefault(member.name, (set_name, member))
    for what, one, other in (
        ("address", (was.host.lower(), was.port), (member.host.lower(), member.port)),
        ("key", was.key, member.key),
        ("principal", was.principal, member.principal),
    ):
        if one != other:
            yield (
                f"the member {member.name} has another {what} in the set {set_name} than in the set {elsewhere}: it "
                "needs the same in both"
            )
    if member.key is not None and keys.setdefault(member.key, member.name) != member.name:
        yield f"the members {keys[member.key]} and {member.name} have one key: each needs its own (`frs key`)"
