"""Changes a topology.toml as a person would: comments and layout stay, and nothing changes but what was asked for.

Every change is read back before it counts. Refused is what would leave the file wrong, cut a member off, or leave a set
without a primary member.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from config.document import read_text
from config.keys import key_text
from config.model import ReplicaSet
from config.topology import cut_off, new_guid
from config.topologyfile import parse_file, parse_topology
from config.view import Key, compare, whole

Address = tuple[str, int | None]


class Refused(Exception):
    """The change would do harm, or there is nothing to change; the text says which."""


class Edit:
    """One change of a topology file: any of the methods below, then `result`."""

    def __init__(self, path: Path, text: str | None = None, *, contradictory: bool = False) -> None:
        """Of that text, or what stands in the file. Raises ConfigError where it is wrong already; `contradictory`: it
        may contradict itself, and the change has to mend that."""
        self._path = path
        text = text if text is not None else read_text(path, "the topology", "copy it from another member")
        self.before = parse_file(path, text, contradictory=contradictory)
        self._document = tomlkit.parse(text)
        self._touched: set[Key] = set()

    @property
    def sets(self) -> tuple[ReplicaSet, ...]:
        """The replica sets as they were."""
        return self.before.sets

    def chosen(self, set_name: str | None) -> ReplicaSet:
        """The set of that name, or the only one. Raises Refused."""
        if set_name is None and len(self.sets) == 1:
            return self.sets[0]
        names = ", ".join(f'"{one.name}"' for one in self.sets)
        for one in self.sets:
            if one.name == set_name:
                return one
        if set_name is None:
            raise Refused(f"{self._path} has several sets, {names}: choose one with --set")
        raise Refused(f'{self._path} has no set "{set_name}", only {names}')

    # -- members --

    def add_member(
        self, to: ReplicaSet, name: str, address: Address, partners: Iterable[str], **known_by: str | None
    ) -> None:
        """A new member, connected both ways with `partners`. `known_by`: its public `key`, as text, or its `principal`;
        a member that is in another set has these here, too."""
        if name in to.members:
            raise Refused(f'the set "{to.name}" has a member "{name}" already')
        guid, table = new_guid(), tomlkit.table()
        for known in (one.members[name] for one in self.sets if name in one.members):
            key = key_text(known.key) if known.key is not None else None
            known_by = {"key": key, "principal": known.principal} | {n: v for n, v in known_by.items() if v is not None}
        _put(table, {"name": name, "guid": _text(guid), "host": address[0], "port": address[1], **known_by})
        self._array(to, "member").append(table)
        self._touched.add(Key(to.guid, "member", guid))
        for partner in partners:
            self._known(to, partner)
            self._add_connection(to, partner, name, {})
            self._add_connection(to, name, partner, {})

    def remove_member(self, of: ReplicaSet, name: str, primary: str | None) -> None:
        """A member goes, and its connections. `primary`: which member is the primary one then."""
        guid = self._known(of, name)
        if len(of.members) == 1:
            raise Refused(f'{name} is the last member of the set "{of.name}": remove the set itself from {self._path}')
        if of.primary == name and primary is None:
            raise Refused(
                f'{name} is the primary member of the set "{of.name}", which needs one: name another with --primary'
            )
        if primary is not None:
            self.set_values(of, {"primary": primary})
        self._remove(of, "member", lambda one: one["name"] == name)
        self._touched.add(Key(of.guid, "member", guid))
        for connection in of.connections:
            if name in (connection.upstream, connection.downstream):
                self._touched.add(Key(of.guid, "connection", connection.guid))
        self._remove(of, "connection", lambda one: name in (one["upstream"], one["downstream"]))

    # -- connections --

    def connect(self, of: ReplicaSet, upstream: str, downstream: str, values: Mapping[str, Any]) -> None:
        """A connection, or one that is disabled is enabled; with these values."""
        self._known(of, upstream), self._known(of, downstream)
        for connection in of.connections:
            if (connection.upstream, connection.downstream) == (upstream, downstream):
                if connection.enabled and not values:
                    raise Refused(f"{connection.key} is connected already")
                self.set_connection(of, upstream, downstream, {"enabled": True, **values})
                return
        self._add_connection(of, upstream, downstream, values)

    def disconnect(self, of: ReplicaSet, upstream: str, downstream: str) -> None:
        """A connection goes."""
        found = self._connection(of, upstream, downstream)
        self._touched.add(found)
        self._remove(of, "connection", lambda one: (one["upstream"], one["downstream"]) == (upstream, downstream))

    # -- values; None: the default, for which no key stands there --

    def set_values(self, of: ReplicaSet, values: Mapping[str, Any]) -> None:
        """Values of the set itself. Its schedule is that of the connections without one."""
        self._touched.add(Key(of.guid, "set", of.guid))
        if "schedule" in values:
            self._touched.update(Key(of.guid, "connection", one.guid) for one in of.connections)
        _put(self._table(of), values)

    def set_member(self, name: str, values: Mapping[str, Any]) -> None:
        """Values of a member, in all sets that it is in: one agent listens at one address."""
        if not any(name in one.members for one in self.sets):
            raise Refused(f'{self._path} has no member "{name}"')
        for of in self.sets:
            for table in self._array(of, "member"):
                if table["name"] == name:
                    self._touched.add(Key(of.guid, "member", of.members[name].guid))
                    _put(table, values)

    def set_connection(self, of: ReplicaSet, upstream: str, downstream: str, values: Mapping[str, Any]) -> None:
        """Values of a connection."""
        self._touched.add(self._connection(of, upstream, downstream))
        for table in self._array(of, "connection"):
            if (table["upstream"], table["downstream"]) == (upstream, downstream):
                _put(table, values)

    # -- the end --

    def result(self) -> tuple[str, tuple[ReplicaSet, ...]]:
        """The text with the change, and what stands in it. Raises Refused, ConfigError."""
        after = parse_topology(self._path, tomlkit.dumps(self._document))
        changes = compare(whole(self.sets), whole(after))
        if not changes:
            raise Refused("that is how it is already; nothing was changed")
        beyond = {change.key for change in changes} - self._touched
        if beyond:
            raise Refused(f"{self._path} is laid out in a way that cannot be changed safely; change it by hand")
        self._refuse_cut_off(after)
        self._document["serial"] = self.before.serial + 1
        text = tomlkit.dumps(self._document)
        if parse_topology(self._path, text) != after:
            raise Refused(f"{self._path} is laid out in a way that cannot be changed safely; change it by hand")
        return text, after

    def _refuse_cut_off(self, after: tuple[ReplicaSet, ...]) -> None:
        before = {(one.guid, name) for one in self.sets for name in cut_off(one)}
        for one in after:
            names = [name for name in cut_off(one) if (one.guid, name) not in before]
            if names:
                raise Refused(
                    f'{", ".join(names)} would be cut off from {one.primary} in the set "{one.name}": no connections '
                    "that are enabled, and open at some time, would lead there and back; connect it with others first"
                )

    # -- finding --

    def _known(self, of: ReplicaSet, name: str) -> bytes:
        if name not in of.members:
            raise Refused(f'the set "{of.name}" has no member "{name}", only {", ".join(of.members)}')
        return of.members[name].guid

    def _connection(self, of: ReplicaSet, upstream: str, downstream: str) -> Key:
        self._known(of, upstream), self._known(of, downstream)
        for one in of.connections:
            if (one.upstream, one.downstream) == (upstream, downstream):
                return Key(of.guid, "connection", one.guid)
        raise Refused(f'the set "{of.name}" has no connection {upstream}->{downstream}')

    def _table(self, of: ReplicaSet) -> Any:
        tables: Any = self._document["set"]
        return next(table for table in tables if uuid.UUID(str(table["guid"])).bytes_le == of.guid)

    def _array(self, of: ReplicaSet, name: str) -> Any:
        table = self._table(of)
        if name not in table:
            table.add(name, tomlkit.aot())
        return table[name]

    def _remove(self, of: ReplicaSet, name: str, gone: Callable[[Any], bool]) -> None:
        array = self._array(of, name)
        for index in reversed([index for index, one in enumerate(array) if gone(one)]):
            del array[index]
        if not len(array):
            del self._table(of)[name]

    def _add_connection(self, of: ReplicaSet, upstream: str, downstream: str, values: Mapping[str, Any]) -> None:
        guid, table = new_guid(), tomlkit.table()
        for key, value in (("guid", _text(guid)), ("upstream", upstream), ("downstream", downstream)):
            table.add(key, value)
        _put(table, values)
        self._array(of, "connection").append(table)
        self._touched.add(Key(of.guid, "connection", guid))


def _put(table: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if value is not None:
            table[key] = value
        elif key in table:
            del table[key]


def _text(guid: bytes) -> str:
    return str(uuid.UUID(bytes_le=guid))
