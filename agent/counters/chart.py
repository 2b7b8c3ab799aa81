"""The charts of a summary, drawn by matplotlib as static SVG.

They are drawn where the summary is made and only shown by the dashboards: a replica host needs no chart
library, and the page no script for them. Each chart comes twice, for a light and for a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

CHARTS: Final = {"light": "chart-light.svg", "dark": "chart-dark.svg"}

# (counter, heading, whether it counts bytes)
_PANELS: Final = (
    ("Files Installed", "Files installed per second", False),
    ("Packets Received in Bytes", "Data received, {unit} per second", True),
)
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
# Okabe and Ito's colours, told apart with every kind of colour vision; those too pale or too dark for a
# background are changed for it.
_THEMES: Final[dict[str, dict[str, Any]]] = {
    "light": {
        "text": "#1b2530", "muted": "#56626f", "grid": "#dfe4ea",
        "lines": ("#0072b2", "#d55e00", "#008a63", "#a8507f", "#2f8fc4", "#a36a00", "#333a42"),
    },
    "dark": {
        "text": "#e6ebf1", "muted": "#9eabb9", "grid": "#2c3641",
        "lines": ("#56b4e9", "#e69f00", "#2bc29a", "#dd8fbc", "#f0e442", "#e8743b", "#c3ccd6"),
    },
}  # fmt: skip
_OTHERS: Final = "others"
_DASHES: Final = ("-", "--", ":", "-.")

Courses = dict[str, list[float]]

_dates: Any = matplotlib.dates  # it has no annotations


def draw(summary: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw the charts of a summary into ``folder``; returns the file name for each theme.

    At most seven lines a panel: where there are more members, the smaller ones are added up as "others".
    """
    series = summary["series"]
    start = datetime.fromisoformat(series["start"])
    panels = [_courses(series, counter) for counter, _heading, _bytes in _PANELS]
    labels = sorted({label for panel in panels for label in panel}, key=lambda label: (label == _OTHERS, label))
    for theme, name in CHARTS.items():
        _figure(theme, panels, labels, start, series["bucket_s"], folder / name)
    return dict(CHARTS)


def _courses(series: Mapping[str, Any], counter: str) -> Courses:
    rows = [row for row in series["rows"] if row["counter"] == counter]
    many_sets = len({row["set"] for row in series["rows"]}) > 1
    many_fleets = len({row["fleet"] for row in series["rows"]}) > 1
    width = series["bucket_s"]
    courses: Courses = {}
    for row in rows:
        label = f"{row['fleet']}/{row['member']}" if many_fleets else row["member"]
        label = _printable(f"{label} ({row['set']})" if many_sets else label)
        while label in courses:  # the same names, other GUIDs
            label += "'"
        courses[label] = [value / width for value in row["values"]]
    most = len(_THEMES["light"]["lines"])
    if len(courses) > most:
        ordered = sorted(courses, key=lambda label: -sum(courses[label]))
        kept = {label: courses[label] for label in ordered[: most - 1]}
        rest = [courses[label] for label in ordered[most - 1 :]]
        kept[_OTHERS] = [sum(values) for values in zip(*rest, strict=True)]
        return kept
    return courses


def _printable(label: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in label)[:48]


def _figure(theme: str, panels: list[Courses], labels: list[str], start: datetime, bucket_s: int, path: Path) -> None:
    colours = _THEMES[theme]
    options: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "frs",
        "font.family": ["sans-serif"],
        "font.sans-serif": ["system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 10,
        "text.parse_math": False,
    }
    with mpl.rc_context(options):
        figure = Figure(figsize=(10.4, 5.6), layout=ConstrainedLayoutEngine(hspace=0.08))
        figure.patch.set_alpha(0)
        axes = figure.subplots(len(_PANELS), 1, sharex=True)
        lines: dict[str, Any] = {}
        for axis, (_counter, heading, in_bytes), courses in zip(axes, _PANELS, panels, strict=True):
            highest = max((value for values in courses.values() for value in values), default=0.0)
            power = min(int(math.log(highest, 1024)), len(_UNITS) - 1) if in_bytes and highest > 1 else 0
            _style(axis, heading.format(unit=_UNITS[power]), colours)
            for number, label in enumerate(labels):
                if label in courses:
                    values = [value / 1024**power for value in courses[label]]
                    times = [start + timedelta(seconds=bucket_s * i) for i in range(len(values) + 1)]
                    (lines[label],) = axis.plot(
                        times,
                        [*values, values[-1]],
                        drawstyle="steps-post",
                        linewidth=1.7,
                        color=colours["lines"][number % len(colours["lines"])],
                        linestyle=_DASHES[number % len(_DASHES)],
                        label=label,
                    )
            if not courses:
                axis.text(
                    0.5, 0.5, "nothing in this time", transform=axis.transAxes, ha="center", va="center",
                    color=colours["muted"],
                )  # fmt: skip
                axis.set_yticks([])
            axis.set_ylim(bottom=0)
        locator = _dates.AutoDateLocator(tz=UTC, minticks=4, maxticks=9)
        axes[-1].xaxis.set_major_locator(locator)
        axes[-1].xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator, tz=UTC))
        axes[-1].set_xlabel("time (UTC)", color=colours["muted"])
        axes[-1].xaxis.get_offset_text().set_color(colours["muted"])
        if lines:
            shown = [label for label in labels if label in lines]
            figure.legend(
                [lines[label] for label in shown],
                shown,
                loc="outside upper right",
                ncols=min(4, len(shown)),
                frameon=False,
                labelcolor=colours["text"],
            )
        temporary = path.with_name(f"{path.name}.tmp")
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
        temporary.replace(path)


def _style(axis: Axes, heading: str, colours: Mapping[str, Any]) -> None:
    axis.set_title(heading, loc="left", color=colours["text"], fontsize=11, fontweight="bold")
    axis.patch.set_alpha(0)
    axis.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=colours["muted"], length=0)
    axis.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.4g}"))
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colours["grid"])


__all__ = ["CHARTS", "draw"]
