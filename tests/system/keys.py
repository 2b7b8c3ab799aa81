"""The keys of members: with other ones, or none, what is in the files of a demo is changed, and nothing is started."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from config.keys import new_key, public_key
from config.model import ReplicaSet
from config.write import SECRET_MODE, key_file_text, with_public_key, write_file


def keyed(one: ReplicaSet, other: ReplicaSet) -> ReplicaSet:
    """The set, whose members have the keys that they have in the other one."""
    members = {name: dataclasses.replace(member, key=other.members[name].key) for name, member in one.members.items()}
    return dataclasses.replace(one, members=members)


class OtherKey:
    """Another key of the member `name` of the demo in `folder`, with a topology of its own that has it; that of the
    others has the right one. The files are made at once, and named in its configuration by `use`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.config = folder / name / "agent.toml"
        self.topology = folder / name / "topology.toml"
        self._right = self.config.read_text()
        private = new_key()
        write_file(folder / name / "other.toml", key_file_text(private, name), SECRET_MODE)
        shared = folder / "topology.toml"
        text = with_public_key(shared, shared.read_text(), name, public_key(private), replace=True)
        write_file(self.topology, text)

    def use(self) -> None:
        """From the next start on."""
        other = self._right.replace('"key.toml"', '"other.toml"').replace('"../topology.toml"', '"topology.toml"')
        assert other.count("other.toml") == other.count('"topology.toml"') == 1
        self.config.write_text(other)

    def give_up(self) -> None:
        """The right one again, likewise."""
        self.config.write_text(self._right)
