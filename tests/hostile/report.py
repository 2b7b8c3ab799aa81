"""The rows of the attacks as a table."""

from __future__ import annotations

import math
from typing import Any

_HEAD = (
    f"{'attack':<17}{'sent':>10} {'answered':<34}{'p50':>6}{'p95':>7}{'MiB':>6}{'staging':>9}{'state':>7}{'log':>7}"
    f"{'fds':>6}{'binds':>7}{'back':>7}  verdict"
)
LEGEND = (
    "p50, p95: latency of honest replication, times that without the attack; MiB: memory above idle; staging, state: "
    "MiB; log: KiB a minute; fds: descriptors; binds: honest associations let in; back: seconds until it went on"
)


def head() -> str:
    """The head of the table."""
    return f"{_HEAD}\n{'-' * len(_HEAD)}"


def line(row: dict[str, Any]) -> str:
    """One row; what is wrong stands below it, a fault a line."""
    if "not_carried_out" in row:
        return f"{row['attack']:<17} NOT CARRIED OUT: {row['not_carried_out']}"
    faults = row["faults"]
    text = (
        f"{row['attack']:<17}{row['sent']:>10} {answers(row['answers']):<34}"
        f"{_times(row['p50_ratio']):>6}{_times(row['p95_ratio']):>7}{row['memory_mib']:>6.0f}{row['staging_mib']:>9.1f}"
        f"{row['state_mib']:>7.1f}{row['log_kib_per_minute']:>7.0f}{row['descriptors']:>6}"
        f"{100 * row['binds_share']:>6.0f}%{_seconds(row['recovered_s']):>7}  {'FAULT' if faults else 'ok'}"
    )
    text += "".join(f"\n{'':<17}- {fault}" for fault in faults)
    if faults:
        text += "".join(f"\n{'':<17}  log of {said}" for said in row["log"])
    told = ", ".join(f"{cause} {count}" for cause, count in sorted(row["incidents"].items()))
    return text + (f"\n{'':<17}  told: {told}" if told else "")


def answers(found: dict[str, int], room: int = 33) -> str:
    """The most frequent answers, as many as there is room for."""
    text = ""
    for how, count in sorted(found.items(), key=lambda item: -item[1]):
        more = f"{', ' if text else ''}{how} {_short(count)}"
        if len(text) + len(more) > room:
            break
        text += more
    return text


def _short(number: int) -> str:
    return str(number) if number < 10_000 else f"{number // 1000}k"


def _times(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"
