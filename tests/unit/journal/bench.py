"""A tree, what is known of it, and an examiner of both."""

from __future__ import annotations

import os

from journal import reasons as why
from journal.changes import Aged
from journal.examine import Examiner


class Bench:
    """A tree, its table, and an examiner of both."""

    def __init__(self, top, table, **options):
        self.root = str(top / "root")
        os.mkdir(self.root)
        self.table = table
        self.examiner = Examiner(self.root, table, **options)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, data="x"):
        with open(self.path(name), "w") as f:
            f.write(data)

    def known(self, *names):
        """Make files (folders when the name ends in a slash) and let the table know them; their GUIDs."""
        for name in names:
            if name.endswith("/"):
                os.mkdir(self.path(name))
            else:
                self.write(name)
        for batch in self.examiner.scan():
            self.table.apply_all(batch)
        return [self.guid(name.rstrip("/")) for name in names]

    def guid(self, path):
        return self.table.live()[path].file_guid

    def examine(self, *paths, **reasons):
        """The changes for paths with the reason that fits any: applied, and short."""
        aged = [p if isinstance(p, Aged) else Aged(p, reasons.get(p, why.DATA), False, 1, 1, 0) for p in paths]
        changes = self.examiner.examine(aged)
        self.table.apply_all(changes)
        return changes

    def both(self, *paths):
        """The same by events and, from the same state, by scan: (kind, path) of each."""
        import copy

        before = copy.deepcopy(self.table)
        by_events = self.examine(*paths)
        after, self.examiner._lookup = self.examiner._lookup, before
        by_scan = []
        for batch in self.examiner.scan():
            before.apply_all(batch)
            by_scan += batch
        self.examiner._lookup = after
        assert short(by_scan) == short(by_events)
        return by_events


def short(changes):
    return sorted((c.kind.name, c.path, c.name) for c in changes)


def moved(old, new):
    return Aged(old, why.RENAME_OLD_NAME, False, 1, 1, 0, new)
