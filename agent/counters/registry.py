"""The FileReplicaSet and FileReplicaConn counters, [MS-FRS1] 2.4.1 and 2.4.2, and what is counted beyond them.

All of them stand in ``counters.tsv`` beside this module, with type, section, the name of the metric and what is
counted; docs/counters.md and the metrics are made of it. They are the two tables of section 2.4, spelled as the
specification spells them (also where it spells one meaning in two ways, see ``SET_NAME_OF_CONN_NAME``), and at the end
those of this agent alone, whose section is "frs".

Windows keeps a PERF_COUNTER_COUNTER in 32 bits and lets it wrap; here every counter is a Python int that
never wraps, so a reader that wants the Windows value takes it modulo 2**32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final

log = logging.getLogger(__name__)

SET_OBJECT: Final = "FileReplicaSet"
CONN_OBJECT: Final = "FileReplicaConn"

PERF_COUNTER_COUNTER: Final = "PERF_COUNTER_COUNTER"
PERF_COUNTER_BULK_COUNT: Final = "PERF_COUNTER_BULK_COUNT"
PERF_COUNTER_LARGE_RAWCOUNT: Final = "PERF_COUNTER_LARGE_RAWCOUNT"

#: What the names of those raw counts end in that are an age: of several the longest counts, not the sum.
AGE_ENDS: Final = " in Seconds"

Snapshot = dict[str, dict[str, dict[str, int]]]
"""``{object: {instance: {counter: value}}}``; a connection is ``"SET/UPSTREAM->DOWNSTREAM"`` there."""


@dataclass(frozen=True, slots=True)
class Described:
    """A counter: ``section`` of [MS-FRS1], or "frs"; ``metric`` without what stands before and after it; ``help``: what
    is counted."""

    object_name: str
    counter: str
    type: str
    section: str
    metric: str
    help: str


Gauge = Callable[[], int]
Amounts = Callable[[], Mapping[str, Mapping[str, int]]]
"""``{connection: {counter: value}}``; those of the set are at ""."""

# One meaning, spelled differently in 2.4.1 (key) and 2.4.2 (value).
_SPELLED_DIFFERENTLY: Final = {
    "Communication Timeouts": "Communication Time Outs",
    "Local Change Orders Sent at Join": "Local Change Orders Sent At Join",
}


@cache
def described() -> tuple[Described, ...]:
    """All counters, in the order of ``counters.tsv``."""
    text = resources.files(__package__).joinpath("counters.tsv").read_text(encoding="utf-8")
    return tuple(Described(*line.split("\t")) for line in text.splitlines()[1:])


@cache
def counter_types() -> Mapping[str, Mapping[str, str]]:
    """``{object: {counter: type}}`` of every counter, in the order of ``counters.tsv``."""
    types: dict[str, dict[str, str]] = {SET_OBJECT: {}, CONN_OBJECT: {}}
    for one in described():
        types[one.object_name][one.counter] = one.type
    return MappingProxyType({name: MappingProxyType(counters) for name, counters in types.items()})


_TYPES: Final = counter_types()
_SET_NAMES: Final = _TYPES[SET_OBJECT]
_CONN_NAMES: Final = _TYPES[CONN_OBJECT]

SET_NAME_OF_CONN_NAME: Final[Mapping[str, str]] = MappingProxyType(
    {name: _SPELLED_DIFFERENTLY.get(name, name) for name in _CONN_NAMES}
)
"""The FileReplicaSet counter that means the same as a FileReplicaConn counter: every one has such a twin."""

# What inc_both accepts: either spelling -> (FileReplicaConn name, FileReplicaSet name).
_BOTH: Final[dict[str, tuple[str, str]]] = {
    spelling: (conn_name, set_name)
    for conn_name, set_name in SET_NAME_OF_CONN_NAME.items()
    for spelling in (conn_name, set_name)
}


def is_raw_count(object_name: str, counter: str) -> bool:
    """Whether a counter is a present amount (PERF_COUNTER_LARGE_RAWCOUNT), not a sum since the start."""
    return _TYPES.get(object_name, {}).get(counter) == PERF_COUNTER_LARGE_RAWCOUNT


class Counters:
    """All counters of one agent process, zero at its start.

    Counting is a plain dictionary add (well below a microsecond) and may be done from several threads:
    CPython with its interpreter lock switches threads at calls and jumps, and there is neither between the
    read and the write of one add. Every method that takes a counter name raises ``KeyError`` on a name that
    that object does not have, and on a set or connection that was never added.
    """

    __slots__ = ("_amounts", "_conns", "_gauges", "_live_conns", "_live_sets", "_sets")

    def __init__(self) -> None:
        self._sets: dict[str, dict[str, int]] = {}
        self._conns: dict[str, dict[str, dict[str, int]]] = {}
        self._gauges: dict[tuple[str, str], Gauge] = {}
        self._amounts: dict[str, Amounts] = {}
        self._live_sets: dict[str, None] = {}
        self._live_conns: dict[tuple[str, str], None] = {}

    def add_set(self, set_name: str) -> None:
        """Begin counting for a replica set. Adding one that is there already changes nothing."""
        if set_name not in self._live_sets:
            self._sets[set_name] = dict.fromkeys(_SET_NAMES, 0)
            self._conns.setdefault(set_name, {})
            self._live_sets[set_name] = None

    def add_cxtion(self, set_name: str, cxtion_name: str) -> None:
        """Begin counting for a connection (``"upstream->downstream"``) of a set that was added before."""
        conns = self._conns[set_name]
        if (set_name, cxtion_name) not in self._live_conns:
            conns[cxtion_name] = dict.fromkeys(_CONN_NAMES, 0)
            self._live_conns[set_name, cxtion_name] = None

    def remove_set(self, set_name: str) -> None:
        """Leave a set and its connections out of later snapshots; work still under way may go on counting."""
        self._live_sets.pop(set_name, None)
        self._amounts.pop(set_name, None)
        for key in [key for key in self._live_conns if key[0] == set_name]:
            self._live_conns.pop(key, None)
        for gauge_key in [key for key in self._gauges if key[0] == set_name]:
            self._gauges.pop(gauge_key, None)

    def remove_cxtion(self, set_name: str, cxtion_name: str) -> None:
        """Leave a connection out of later snapshots; work still under way may go on counting."""
        self._live_conns.pop((set_name, cxtion_name), None)

    def inc_set(self, set_name: str, counter: str, n: int = 1) -> None:
        """Add ``n`` to a FileReplicaSet counter."""
        self._sets[set_name][counter] += n

    def inc_cxtion(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None:
        """Add ``n`` to a FileReplicaConn counter only."""
        self._conns[set_name][cxtion_name][counter] += n

    def inc_both(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None:
        """Add ``n`` to a FileReplicaConn counter and to the FileReplicaSet counter of the same meaning.

        ``counter`` may be spelled as either object spells it.
        """
        conn_counter, set_counter = _BOTH[counter]
        self._conns[set_name][cxtion_name][conn_counter] += n
        self._sets[set_name][set_counter] += n

    def set_value(self, set_name: str, counter: str, value: int | Gauge) -> None:
        """Set a FileReplicaSet counter (a raw count), or give a function to ask at each snapshot.

        A function that raises is logged and leaves the value of the snapshot before.
        """
        values = self._sets[set_name]
        if counter not in values:
            raise KeyError(counter)
        if callable(value):
            self._gauges[set_name, counter] = value
        else:
            self._gauges.pop((set_name, counter), None)
            values[counter] = value

    def set_amounts(self, set_name: str, amounts: Amounts | None) -> None:
        """Give a function (None: there is none any more) to ask, at each snapshot, for raw counts of a set and of its
        connections. Connections that were not added are passed over.

        One that raises, or names a counter that is not there, is logged and leaves the values of the snapshot before.
        """
        if set_name not in self._sets:
            raise KeyError(set_name)
        if amounts is None:
            self._amounts.pop(set_name, None)
        else:
            self._amounts[set_name] = amounts

    def _ask(self, set_name: str) -> None:
        for cxtion, amounts in self._amounts[set_name]().items():
            values = self._conns[set_name].get(cxtion) if cxtion else self._sets[set_name]
            if values is None:
                continue
            if not amounts.keys() <= values.keys():
                raise KeyError(*(amounts.keys() - values.keys()))
            values |= amounts

    def snapshot(self) -> Snapshot:
        """A copy of every counter of every live set and connection, all names present."""
        for set_name in list(self._amounts):
            try:
                self._ask(set_name)
            except Exception:
                log.exception("13506 the amounts of %r failed", set_name)
        for (set_name, counter), gauge in list(self._gauges.items()):
            try:
                self._sets[set_name][counter] = int(gauge())
            except Exception:
                log.exception("13506 the gauge %r of %r failed", counter, set_name)
        return {
            SET_OBJECT: {name: dict(self._sets[name]) for name in list(self._live_sets)},
            CONN_OBJECT: {
                f"{set_name}/{cxtion}": dict(self._conns[set_name][cxtion])
                for set_name, cxtion in list(self._live_conns)
            },
        }
