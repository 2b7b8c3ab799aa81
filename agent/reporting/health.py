"""Whether a member replicates, and who does not and why: what its exit code, `/healthz` and the dashboard tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agent.reporting.events import number_of

#: A clock that is, or was, wrong by more seconds is told of.
WRONG_CLOCK_S: Final = 120
#: What sessions are in whose connection is joined.
JOINED = ("joined", "vvjoin")


def problems(sets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is wrong in these sets, of a status: ``{"set", "connection", "partner", "stops", "why", "event"}``.

    ``stops``: the set does not replicate at all, since it has stopped, or has joined none of its connections whose
    schedule is open. The others are single connections (``connection`` and ``partner``, else None) that should be
    joined, and what hinders them.
    """
    return [problem | {"event": number_of(problem["why"])} for one in sets for problem in _of_set(one)]


def stopped(status: Mapping[str, Any]) -> list[str]:
    """Which sets of a status do not replicate, and why; a line each."""
    return [f"set {p['set']}: {p['why']}" for p in status.get("problems", []) if p["stops"]]


def replicates(one: Mapping[str, Any]) -> bool:
    """Whether a set of a status replicates."""
    return not any(problem["stops"] for problem in _of_set(one))


def _of_set(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    whole = {"set": one["name"], "connection": None, "partner": None, "stops": True}
    if one["state"] == "stopped":
        return [whole | {"why": one["error"]}]
    wanted = [conn for conn in one["connections"] if conn["scheduled"]]
    apart = [conn for conn in wanted if conn["state"] not in JOINED]
    hindered = [
        {"set": one["name"], "connection": conn["name"], "partner": conn["partner"], "stops": False}
        | {"why": conn["last_error"]}
        for conn in apart
        if conn["last_error"]
    ]
    if not apart or len(apart) < len(wanted):
        return hindered
    if one["state"] == "starting":
        return [whole | {"why": "13566 it is starting: its tree is read before it joins its partners"}]
    why = f"13508 it has joined none of its {len(wanted)} connections"
    if len(wanted) == 1:
        why = f"13508 its connection with {wanted[0]['partner']} is not joined"
    return [whole | {"why": why}, *hindered]
