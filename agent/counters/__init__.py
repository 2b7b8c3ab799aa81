"""Performance counters of [MS-FRS1] 2.4, their samples on disk, and the Spark summary of many members.

``registry`` counts, ``samples`` writes what was counted to the state folder, ``archive`` turns that into Parquet,
``summary`` reads it with PySpark. Nothing that the agent imports needs pyarrow or PySpark.
"""

from __future__ import annotations

from agent.counters.registry import CONN_OBJECT, SET_OBJECT, Counters, Snapshot, counter_types

__all__ = ["CONN_OBJECT", "SET_OBJECT", "Counters", "Snapshot", "counter_types"]
