"""How a simulated member finds local changes: by comparing its tree with the IDTable, by state.

The rules are those of journal/settle.py (an inode in its place, an inode that moved, a successor at a name), and the
order is made by the real journal.order.
"""

from __future__ import annotations

from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import Change, Kind
from journal.order import Orderer
from staging.fsops import Fingerprint
from tests.simulation.simdisk import Disk
from tests.simulation.simtree import Node

Place = bytes | str


def fingerprint(node: Node) -> Fingerprint:
    f = node.facts()
    return Fingerprint(1, f.ino, f.btime_ns, f.fsize, f.mtime_ns, f.ctime_ns, f.mode, 0, 0, 1)


def _differs(record: IDRecord, node: Node) -> bool:
    if record.mode != node.mode:
        return True
    return not node.is_dir and (record.fsize != len(node.content) or record.mtime_ns != node.mtime)


class Scan:
    """One comparison of a whole tree."""

    def __init__(self, disk: Disk, store: Store, root_guid: bytes) -> None:
        self.disk, self.store, self.root = disk, store, root_guid
        self.nodes = list(disk.walk())
        self.on_disk = {n.ino: n for n in self.nodes}
        self.live = [r for r in store.all_live() if r.file_guid != root_guid]
        self.by_ino = {r.ino: r for r in self.live if r.ino is not None}
        self.names = {(r.parent_guid, r.name): r for r in self.live}
        self.claimed: dict[bytes, Node] = {}
        self.found: dict[Node, tuple[IDRecord | None, str]] = {}

    def changes(self) -> list[Change]:
        for node in self.nodes:
            if node.is_dir:
                self._folder(node)
        files = [n for n in self.nodes if not n.is_dir]
        for node in files:
            there = self._there(node)
            if there is not None and there.kind == "file" and there.ino in (None, node.ino):
                self._claim(node, there, "place")
        for node in files:
            if node not in self.found:
                self._moved(node)
        for node in files:
            if node in self.found:
                continue
            there = self._there(node)
            if there is not None and there.kind == "file" and there.file_guid not in self.claimed:
                self._claim(node, there, "succeeds")
            else:
                self.found[node] = (None, "")
        out: list[Change] = []
        records: dict[bytes, IDRecord] = {}
        for node in self.nodes:
            change = self._change(node, records)
            if change is not None:
                out.append(change)
        for record in self.live:
            if record.file_guid not in self.claimed:
                records[record.file_guid] = record
                path = self.store.path_of(record.file_guid) or record.name
                out.append(
                    Change(
                        Kind.DELETE, path, record.file_guid, record.parent_guid, path.rpartition("/")[0], record.name,
                        record.kind, None,
                    )
                )  # fmt: skip
        return Orderer(self.store, self.root, records).order(out)

    def _folder(self, node: Node) -> None:
        there = self._there(node)
        if there is not None and there.kind == "folder" and there.ino in (None, node.ino):
            self._claim(node, there, "place")
            return
        if self._moved(node):
            return
        gone = there is not None and there.ino not in self.on_disk
        if there is not None and there.kind == "folder" and gone and there.file_guid not in self.claimed:
            self._claim(node, there, "succeeds")
        else:
            self.found[node] = (None, "")

    def _claim(self, node: Node, record: IDRecord, how: str) -> None:
        if record.file_guid in self.claimed:
            return
        self.found[node] = (record, how)
        self.claimed[record.file_guid] = node

    def _moved(self, node: Node) -> bool:
        record = self.by_ino.get(node.ino)
        if record is None or record.file_guid in self.claimed or record.kind != node.kind:
            return False
        self._claim(node, record, "moved")
        return True

    def _place(self, node: Node) -> Place:
        assert node.parent is not None
        if node.parent is self.disk.root:
            return self.root
        record, _ = self.found[node.parent]
        return node.parent.path() if record is None else record.file_guid

    def _there(self, node: Node) -> IDRecord | None:
        place = self._place(node)
        return self.names.get((place, node.name)) if isinstance(place, bytes) else None

    def _change(self, node: Node, records: dict[bytes, IDRecord]) -> Change | None:
        assert node.parent is not None
        record, how = self.found[node]
        place = self._place(node)
        guid, changed = None, True
        if record is None:
            kind = Kind.CREATE
        else:
            guid = record.file_guid
            changed = how == "succeeds" or _differs(record, node)
            if how == "moved" and (record.parent_guid, record.name) != (place, node.name):
                kind = Kind.RENAME
                records[guid] = record
            elif how == "place" and not changed:
                return None
            else:
                kind = Kind.UPDATE
        return Change(
            kind,
            node.path(),
            guid,
            None if isinstance(place, str) else place,
            node.parent.path(),
            node.name,
            node.kind,
            fingerprint(node),
            0x100 if kind is Kind.CREATE else 0,
            changed,
            node.oid,
        )
