"""What is not well, by the hours of a day: rules over counters of section 2.4 and those beside them, as DataFrame
expressions. They are those of contrib/prometheus, as far as samples tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.counters.series import WHOSE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Rule: when it holds in an hour, and the value that says so. ``rising``: more than at the end of the hour before.
RULES: Final = {
    "backlog": ("backlog > 100 AND backlog > coalesce(backlog_before, backlog_least)", "backlog"),
    "backlog in bytes": (
        f"level = 'connection' AND bytes > {1 << 30}L AND bytes > coalesce(bytes_before, bytes_least)",
        "bytes",
    ),
    "waits long": ("level = 'connection' AND oldest_least > 3600 AND coalesce(unjoined_least, 0) = 0", "oldest"),
    "journal lag": ("lag_least > 300", "lag"),
    "retries": ("retried > 10 AND retried > 0.1 * coalesce(issued, 0)", "retried"),
    "staging full": ("free < 0.05 * (free + used)", "round(100D * used / (free + used), 1)"),
    "not joined": ("unjoined_least = 1", "unjoined_least"),
    "errors": ("errors > 0", "errors"),
}
#: What an administrator does about it.
ADVICE: Final = {
    "backlog": "the partner takes fewer changes than come in, or is away: look at it, and at the line to it",
    "backlog in bytes": "the partner takes less than comes in, or is away: look at it, and at the line to it",
    "waits long": "`frs status` at both ends shows what the oldest change order waits for",
    "journal lag": "files there change all the time, cannot be read, or are more than that host reads: see its log",
    "retries": "`frs status` there shows what the changes wait for",
    "staging full": "raise set.staging_quota in agent.toml, or find the partner that is away",
    "not joined": "its schedule is open: `frs status` there shows the last error of the connection",
    "errors": "`frs status` there, and its log, name the files and why",
    "clock": "have NTP set the clock of that host",
    "silent": "the agent does not run, or its samples do not arrive: look at that host",
}
#: The events (docs/events.md) that have more of it.
EVENTS: Final = {"not joined": 13508, "staging full": 13570, "clock": 13548}
ORDER: Final = (*WHOSE, "rule", "time")

_NUMBERS: Final = {
    "backlog": ("Backlog", "last"),
    "backlog_least": ("Backlog", "min"),
    "bytes": ("Backlog in Bytes", "last"),
    "bytes_least": ("Backlog in Bytes", "min"),
    "oldest": ("Age of Oldest Change Order in Seconds", "last"),
    "oldest_least": ("Age of Oldest Change Order in Seconds", "min"),
    "lag": ("Journal Lag in Seconds", "last"),
    "lag_least": ("Journal Lag in Seconds", "min"),
    "retried": ("Change Orders Retried", "total"),
    "issued": ("Change Orders Issued", "total"),
    "free": ("KB of Staging Space Free", "last"),
    "used": ("KB of Staging Space In Use", "last"),
    "unjoined_least": ("Unjoined", "min"),
    "errors": ("Files Installed with Error", "total"),
}


def findings(hours: DataFrame) -> DataFrame:
    """A row for each hour, instance and rule that holds: ``rule``, ``value``, ``time``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    numbers = (
        hours.where("level IN ('connection', 'replica')")
        .groupBy(*WHOSE, "time")
        .agg(*(F.max(F.expr(f"CASE WHEN counter = '{counter}' THEN {column} END")).alias(name)
               for name, (counter, column) in _NUMBERS.items()))
        .withColumns({f"{one}_before": F.lag(one).over(Window.partitionBy(*WHOSE).orderBy("time"))
                      for one in ("backlog", "bytes")})
    )  # fmt: skip
    cases = ", ".join(
        f"CASE WHEN {holds} THEN struct('{rule}' AS rule, double({value}) AS value) END"
        for rule, (holds, value) in RULES.items()
    )
    found = numbers.withColumn("found", F.explode(F.expr(f"array({cases})"))).where("found IS NOT NULL")
    return found.select(*WHOSE, "time", "found.rule", "found.value")
