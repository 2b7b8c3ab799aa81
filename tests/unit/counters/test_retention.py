"""What a week of samples of a member with a hundred busy partners takes, under the quota that there is by default."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent.counters import parquet
from agent.counters.archive import Policy, archive
from agent.counters.instances import Instance, Origin
from agent.counters.registry import Counters
from agent.counters.samples import SampleWriter, file_bytes
from config.model import DEFAULT_SAMPLES_QUOTA
from tests.unit.counters.test_archive import DAY

PARTNERS: Final = 100
INTERVAL_S: Final = 5
SAMPLES: Final = 48
DAY_SAMPLES: Final = 86_400 // INTERVAL_S
#: What changes with each change that comes, of the connection that it comes on; and with each that is sent.
CAME: Final = {
    "Packets Sent": 2, "Packets Sent in Bytes": 700, "Fetch Requests Sent": 1, "Fetch Blocks Received": 1,
    "Fetch Blocks Received in Bytes": 3_100, "Remote Change Orders Received": 1, "Replication Latency up to 5 s": 1,
    "Replication Latency in ms": 2_600,
}  # fmt: skip
WENT: Final = {
    "Packets Sent": 1, "Packets Sent in Bytes": 4_200, "Fetch Blocks Sent": 1, "Fetch Blocks Sent in Bytes": 3_100,
    "Fetch Requests Received": 1, "Local Change Orders Sent": 1,
}  # fmt: skip


async def busy(state: Path) -> Path:
    """The journal of four minutes in which something comes from and goes to each partner between any two samples."""
    rng, seconds, counters, gauges = random.Random(1), 0.0, Counters(), dict[str, dict[str, int]]()
    counters.add_set("docs")
    of_set = ("docs", str(uuid.UUID(int=1)), str(uuid.UUID(int=2)))
    connections = [pair for n in range(PARTNERS) for pair in ((f"p{n:02d}->a", CAME), (f"a->p{n:02d}", WENT))]
    instances = {"docs": Instance(*of_set)}
    for number, (name, _) in enumerate(connections):
        counters.add_cxtion("docs", name)
        instances[f"docs/{name}"] = Instance(*of_set, name, str(uuid.UUID(int=100 + number)))

    def nanoseconds() -> int:
        return 1_768_003_200 * 10**9 + int(seconds * 1e9)  # DAY

    writer = SampleWriter(
        counters, state, Origin("hq", "files1", "a"), lambda: instances, INTERVAL_S, gauges=lambda: gauges,
        clock_ns=nanoseconds, monotonic_ns=nanoseconds,
    )  # fmt: skip
    for _ in range(SAMPLES):
        seconds += INTERVAL_S
        for name, moved in connections:
            changes = rng.randrange(1, 9)
            for counter, each in moved.items():
                counters.inc_both("docs", name, counter, changes * each + (rng.randrange(each) if each > 9 else 0))
            gauges[f"docs/{name}"] = {"Backlog": rng.randrange(40)}
        await writer._sample(force=False)
    [journal] = writer.folder.glob("*.jsonl")
    return journal


async def test_a_week_of_a_hundred_busy_partners_is_within_the_quota(tmp_path: Path) -> None:
    journal = await busy(tmp_path)
    folder, written = journal.parent, journal.stat().st_size
    assert parquet.Journal(journal).lines > 2 * PARTNERS * SAMPLES
    # one that grows, and those that are not archived yet
    journals = 2 * file_bytes(DEFAULT_SAMPLES_QUOTA)
    assert written * (3600 // INTERVAL_S) // SAMPLES < 8 * file_bytes(DEFAULT_SAMPLES_QUOTA), "an hour of them"

    assert archive(folder, "", Policy(1, 30, 365, DEFAULT_SAMPLES_QUOTA), DAY) == []
    [taken] = folder.rglob("*.parquet")
    day = taken.stat().st_size * DAY_SAMPLES // SAMPLES
    (folder / f"date={DAY + timedelta(days=1)}").mkdir()  # a day later
    assert archive(folder, "", Policy(1, 30, 365, DEFAULT_SAMPLES_QUOTA), DAY + timedelta(days=1)) == []
    [thinned] = folder.rglob("*.parquet")
    assert thinned.name.endswith(".minutes.parquet")
    by_minutes = thinned.stat().st_size * DAY_SAMPLES // SAMPLES
    # today and yesterday, which is thinned with the first file of today, and five days by minutes
    week = journals + 2 * day + 5 * by_minutes
    print(f"an hour of journal {written * 15 >> 20} MiB, a day {day >> 20} MiB, by minutes {by_minutes >> 20} MiB, "
          f"a week {week >> 20} MiB")  # fmt: skip
    assert week < DEFAULT_SAMPLES_QUOTA
