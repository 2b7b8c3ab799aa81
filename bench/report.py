"""Turning results into Markdown tables and JSON."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import Peer
from bench.scenarios import SCENARIOS, Result
from bench.trees import Sizes


def machine(folder: Path) -> dict[str, Any]:
    """What the figures were taken on."""
    model = "?"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    ask = ["findmnt", "-no", "FSTYPE", "--target", os.fspath(folder)]
    kind = subprocess.run(ask, capture_output=True, text=True, check=False)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30), 1),
        "file_system": kind.stdout.strip() or "?",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def titles(sizes: Sizes) -> dict[str, str]:
    """The heading of each scenario's row."""
    big = sizes.big_bytes
    amount = f"{big / (1 << 30):g} GiB" if big >= 1 << 30 else f"{big / (1 << 20):g} MiB"
    return {
        "cold": f"{sizes.files:,} small files, A starts with them",
        "join": f"{sizes.files:,} small files, B starts for the first time",
        "drop": f"{sizes.files:,} small files, dropped into running A",
        "latency": f"one change visible at B (median of {sizes.latency_rounds})",
        "idle": f"nothing happens for {sizes.idle_s:g} s",
        "renames": f"{sizes.renames:,} renames",
        "big": f"one file of {amount}, A starts with it",
        "patch": f"4 KiB changed inside a file of {amount}",
    }


@dataclass(frozen=True)
class Cell:
    """What one peer took for one scenario: seconds (median, least and most of so many runs), processor seconds of both
    ends together (median), peak memory; ``p95`` where many changes were measured one by one (median of the runs)."""

    seconds: float
    least: float
    most: float
    runs: int
    cpu_s: float
    peak_mib: float
    p95: float


def summary(results: Iterable[Result]) -> dict[tuple[str, str], Cell | str]:
    """(peer, scenario) -> what it took, or what went wrong."""
    runs: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        runs[result.peer, result.scenario].append(result)
    cells: dict[tuple[str, str], Cell | str] = {}
    for key, group in runs.items():
        wrong = next((one.outcome for one in group if one.seconds is None), None)
        if wrong:
            cells[key] = wrong
            continue
        times = [one.seconds for one in group if one.seconds is not None]
        cells[key] = Cell(
            statistics.median(times),
            min(times),
            max(times),
            len(times),
            statistics.median(one.cpu_s or 0.0 for one in group),
            max(one.peak_mib or 0.0 for one in group),
            statistics.median(one.extra.get("p95_s", 0.0) for one in group),
        )
    return cells


def seconds(value: float) -> str:
    """Seconds with three significant digits or so."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def show(cell: Cell | str | None) -> str:
    """A cell of the first table."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return "**DIFFERENT**" if cell == "DIFFERENT" else "failed"
    spread = f" ({seconds(cell.least)}-{seconds(cell.most)})" if cell.runs > 1 else ""
    late = f", 95 % {seconds(cell.p95)} s" if cell.p95 else ""
    processor = f", cpu {seconds(cell.cpu_s)} s" if cell.cpu_s else ""
    memory = f", {cell.peak_mib:.0f} MiB" if cell.peak_mib else ""
    return f"{seconds(cell.seconds)} s{spread}{late}{processor}{memory}"


def line(result: Result) -> str:
    """One result as it comes in."""
    figure = "" if result.seconds is None else f" {show(summary([result])[result.peer, result.scenario])}"
    return f"{result.peer}, {result.scenario}:{figure} {result.outcome[:300]}"


def ratio(ours: Cell | str | None, theirs: Cell | str | None) -> str:
    """A cell of the second table: our seconds, processor seconds and memory over theirs."""
    if not isinstance(ours, Cell) or not isinstance(theirs, Cell):
        return "-"
    processor = f", cpu {ours.cpu_s / theirs.cpu_s:.2f}" if ours.cpu_s and theirs.cpu_s else ""
    memory = f", {ours.peak_mib / theirs.peak_mib:.1f} x" if ours.peak_mib and theirs.peak_mib else ""
    return f"{ours.seconds / theirs.seconds:.2f}{processor}{memory}"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def tables(results: Sequence[Result], peers: Sequence[Peer], sizes: Sizes, repeats: int) -> str:
    """The Markdown of one run: seconds and peak memory, then each of our columns over each peer's."""
    cells = summary(results)
    labels = [peer.label for peer in peers]
    present = [name for name in SCENARIOS if any((label, name) in cells for label in labels)]
    heading = titles(sizes)
    nature = [
        f"{peer.label}: {'fsyncs' if peer.fsyncs else 'no fsync'}, "
        f"{'sealed' if peer.seals else 'in the clear'}, "
        f"{'runs on both ends' if peer.live else 'a command run after the change'}"
        for peer in peers
    ]
    how = f"median of {repeats} runs (least-most)" if repeats > 1 else "one run"
    lines = [
        f"Wall seconds, {how}; processor seconds (user and system) and peak resident memory of both ends together. "
        "Every figure is of trees equal by SHA-256.",
        "",
        row(["", *labels]),
        row(["---"] * (len(labels) + 1)),
    ]
    lines += [row([heading[name], *(show(cells.get((label, name))) for label in labels)]) for name in present]
    lines += ["", *(f"- {text}" for text in nature)]
    ours = [peer for peer in peers if peer.key == "frs"]
    others = [peer for peer in peers if peer.key != "frs"]
    for mine in ours:
        if not others:
            break
        lines += [
            "",
            f"{mine.label} over each peer: seconds, processor seconds, peak memory (below 1: better than it).",
            "",
        ]
        lines += [row(["", *(peer.label for peer in others)]), row(["---"] * (len(others) + 1))]
        lines += [
            row([heading[n], *(ratio(cells.get((mine.label, n)), cells.get((p.label, n))) for p in others)])
            for n in present
        ]
    wrong = [one for one in results if one.seconds is None]
    if wrong:
        lines += ["", "What went wrong:", ""]
        lines += [f"- {one.peer}, {one.scenario}: {one.outcome[:300]}" for one in wrong]
    return "\n".join(lines) + "\n"
