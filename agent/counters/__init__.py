"""Performance counters of [MS-FRS1] 2.4, their samples on disk, and the Spark summary of many members.

``registry`` counts, ``samples`` writes what was counted to the state folder, ``summary`` reads those samples
back with PySpark. Only ``summary`` needs PySpark, and nothing imports it but the ``summarize`` command.
"""

from __future__ import annotations

from agent.counters.registry import CONN_OBJECT, SET_OBJECT, Counters, Snapshot, counter_types

__all__ = ["CONN_OBJECT", "SET_OBJECT", "Counters", "Snapshot", "counter_types"]
