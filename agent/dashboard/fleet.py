"""A fleet as one looks at it: what is wrong and since when, who has joined whom, and how each partner does.

Put together of what this member knows at the moment (its status and counters) and of what the last summary says of all
(`summary.json`): of its own connections this member knows best. The page shows it, and `frs top`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agent.counters.registry import CONN_OBJECT, Snapshot
from agent.dashboard import directory
from agent.dashboard.behind import Behind, Late
from agent.dashboard.eventspage import remedies
from agent.engine.latency import quantile
from agent.reporting.events import number_of
from agent.reporting.health import JOINED, WRONG_CLOCK_S

#: What a summary says of itself, in its folder.
SUMMARY_FILE: Final = "summary.json"
#: Rows and columns of the matrix, at most: those of whom something is wrong come first.
MOST_MEMBERS: Final = 24
#: Of what is wrong, at most.
MOST_WRONG: Final = 50
_NAMED: Final = 3
_CLOCK_EVENT: Final = 13548
_BEHIND_ADVICE: Final = (
    "the line to it is slow, or that host has too much to do: its own page shows what it fetches, and how fast"
)


def fleet(
    status: Mapping[str, Any] | None,
    counters: Snapshot | None,
    summary: Mapping[str, Any] | None,
    now: float,
    behind: Behind | None = None,
) -> dict[str, Any]:
    """What there is to see of the fleet at `now` (Unix seconds); whatever is None is not known. Whoever looks again and
    again gives the same `behind` each time. Where the status has ``"members"``, those of the topology, no other name
    takes the place of one of them.

    Returns ``{"state": "bad" | "busy" | "good", "sentence", "wrong": [{"who", "what", "since", "live", "event",
    "advice"}], "wrong_left_out": n, "members": [NAME], "left_out": n, "matrix": {FROM: {TO: cell}}, "partners":
    [{"partner", "joined", "wanted", "backlog_in", "backlog_out", "bytes_in", "bytes_out", "oldest", "since",
    "latency_p50_s", "latency_p95_s", "clock_offset_s", "connections": [cell]}], "directory"}``, the last as
    ``agent.dashboard.directory.seen`` has it, a cell being ``{"set", "connection",
    "live", "joined", "scheduled", "state", "backlog", "since", "latency_p50_s", "latency_p95_s", "why", "event"}``, an
    own one also with ``"backlog_bytes", "oldest"``. Times are in ISO 8601, or None where they are not known, but for
    ``oldest`` of a partner: for how long the oldest of its change orders waits, as one says it. ``live``: known at the
    moment, by this member.
    """
    told = (status or {}).get("told") or []
    own = _as_they_arrive(own_cells(status or {}, counters or {}), told)
    clocks = {one["name"]: one["clock_offset_s"] for one in (status or {}).get("partners") or []}
    known = {(one["set"], one["connection"]) for one in own}
    others = _told(told, known)
    cells = [*own, *others, *_summarised(summary or {}, known | {(one["set"], one["connection"]) for one in others})]
    wrong = [*wrong_itself(status or {}, own, now), *_wrong_partners(status or {}, own, now), *_wrong_clocks(clocks)]
    wrong += [_one(one["member"], it["what"], it["since"], it) for one in told for it in one["wrong"]]
    wrong += _late(behind.look(own, now), {one["who"] for one in wrong}) if behind is not None else ()
    wrong += _wrong_there(summary or {})
    members = _members(status or {}, summary or {}, cells, wrong)
    shown = members[:MOST_MEMBERS]
    matrix: dict[str, dict[str, Any]] = {}
    for cell in cells:
        upstream, downstream = _ends(cell["connection"])
        if upstream in shown and downstream in shown:
            before = matrix.setdefault(upstream, {}).get(downstream)
            matrix[upstream][downstream] = cell if before is None else _worse(before, cell)
    return {
        "state": "bad" if wrong else "busy" if any(_is_busy(cell) for cell in own) else "good",
        "sentence": _sentence(wrong, own, members, now),
        "wrong": wrong[:MOST_WRONG],
        "wrong_left_out": max(len(wrong) - MOST_WRONG, 0),
        "members": sorted(shown),
        "left_out": len(members) - len(shown),
        "matrix": matrix,
        "partners": _partners(own, clocks, now),
        "directory": directory.seen(status or {}, now),
    }


def _is_busy(cell: Mapping[str, Any]) -> bool:
    return bool(cell["scheduled"] and not cell["joined"]) or bool(cell["backlog"])


def for_how_long(since: str | None, now: float) -> str:
    """As one says it: "4 min"; empty where it is not known."""
    if since is None:
        return ""
    return _long(max(now - datetime.fromisoformat(since).timestamp(), 0))


def _long(seconds: float) -> str:
    for bound, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < bound:
            return f"{seconds // unit:.0f} {name}"
    return f"{seconds // 86_400:.0f} days"


def own_cells(status: Mapping[str, Any], counters: Snapshot) -> list[dict[str, Any]]:
    values = counters.get(CONN_OBJECT, {})
    return [
        {
            "set": one["name"], "connection": conn["name"], "partner": conn["partner"],
            "inbound": conn["direction"] == "inbound", "live": True, "joined": conn["state"] in JOINED,
            "scheduled": conn["scheduled"], "state": conn["state"], "backlog": conn["backlog"],
            "since": conn.get("since"), "why": conn["last_error"], "event": conn.get("event"),
            "last_join_time": conn.get("last_join_time"), "retry_in_s": conn.get("retry_in_s"),
            "backlog_bytes": conn.get("backlog_bytes"), "oldest": conn.get("oldest"),
        }
        | _latency(values.get(f"{one['name']}/{conn['name']}", {}))
        for one in status.get("sets") or []
        for conn in one["connections"]
    ]  # fmt: skip


def _latency(totals: Mapping[str, int]) -> dict[str, float | None]:
    return {f"latency_p{share}_s": quantile(totals, share / 100) for share in (50, 95)}


def _as_they_arrive(own: Iterable[dict[str, Any]], told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Own connections; how long changes take to a partner is told by that."""
    there = {
        (cell["set"], cell["connection"]): {name: cell[name] for name in ("latency_p50_s", "latency_p95_s")}
        for one in told
        for cell in one["cells"]
        if one["member"] == _ends(cell["connection"])[1]
    }
    return [one if one["inbound"] else one | there.get((one["set"], one["connection"]), {}) for one in own]


def _told(told: Iterable[Mapping[str, Any]], known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Connections as their ends tell: the backlog is that of the upstream member, the latency the downstream's."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in told:
        for cell in one["cells"]:
            place = cell["set"], cell["connection"]
            if place in known:
                continue
            more = {"live": True, "state": None, "why": None, "event": None}
            before = found.setdefault(place, cell | more | {"backlog": None})
            before["joined"] = before["joined"] and cell["joined"]
            if one["member"] == _ends(cell["connection"])[0]:
                before["backlog"] = cell["backlog"]
            else:
                before |= {name: cell[name] for name in ("latency_p50_s", "latency_p95_s")}
    return list(found.values())


def _summarised(summary: Mapping[str, Any], known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Connections by the summary: their backlog is that of the upstream member, their latency the downstream's."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in summary.get("connections") or []:
        place = entry["set"], entry["connection"]
        if place in known:
            continue
        upstream, _ = _ends(entry["connection"])
        raw, derived = entry.get("raw") or {}, entry.get("derived") or {}
        unjoined = (raw.get("Unjoined") or {}).get("last")
        cell = found.setdefault(place, {
            "set": entry["set"], "connection": entry["connection"], "live": False, "joined": None, "scheduled": True,
            "state": None, "backlog": None, "since": None, "why": None, "event": None,
            "latency_p50_s": None, "latency_p95_s": None,
        })  # fmt: skip
        if unjoined is not None:
            cell["joined"] = not unjoined and cell["joined"] is not False
        if entry["member"] == upstream:
            cell["backlog"] = (raw.get("Backlog") or {}).get("last")
        else:
            cell |= {name: derived.get(name) for name in ("latency_p50_s", "latency_p95_s")}
    return list(found.values())


def wrong_itself(status: Mapping[str, Any], own: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """What is wrong with this member at ``now``, as in ``fleet``, but for clocks; ``own`` are its connections."""
    found = []
    for problem in status.get("problems") or []:
        if problem["partner"] is None:
            away = [one for one in own if one["set"] == problem["set"] and one["scheduled"] and not one["joined"]]
            found.append(_one(f"set {problem['set']}", f"does not replicate: {_why(problem)}", _latest(away), problem))
    for one in status.get("sets") or []:
        error = one.get("last_error")
        if one["state"] != "stopped" and error is not None and error.get("event") not in (None, _CLOCK_EVENT):
            why = _why({"why": error["text"]})
            found.append(_one(f"set {one['name']}", f"has not done all: {why}", error["time"], error))
    found += _wrong_configuration(status.get("directory") or {})
    for who, what, since in directory.wrong(status, now):
        found.append(_one(who, _why({"why": what}), since, {"event": number_of(what)}))
    return found


def _wrong_configuration(directory: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What hinders this member in following the topology, whatever that comes from."""
    stays = "cannot be used, what was in force stays:"
    for one in directory.get("problems") or []:
        yield _one("the configuration", f"{stays} {one['text']}", None, {"event": 13562})
    for one in directory.get("leaving") or []:
        what = "is about to be left: the topology does not have it here"
        yield _one(f"set {one['set']}", what, None, {"event": 20107})
    if problem := (directory.get("active_directory") or {}).get("problem"):
        yield _one("Active Directory", f"{stays} {problem}", None, {"event": 20359})


def _wrong_partners(status: Mapping[str, Any], own: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """What hinders connections of this member, a partner's together."""
    found = []
    partners: dict[str, list[dict[str, Any]]] = defaultdict(list)
    by_name = {(one["set"], one["connection"]): one for one in own}
    for problem in status.get("problems") or []:
        if problem["partner"] is not None:
            partners[problem["partner"]].append(problem)
    for partner, problems in partners.items():
        away = [by_name[problem["set"], problem["connection"]] for problem in problems]
        found.append(
            _one(partner, f"is not joined{_waits(away, now)}: {_why(problems[0])}", _earliest(away), problems[0])
        )
    return found


def _waits(cells: Iterable[Mapping[str, Any]], now: float) -> str:
    """As in "is not joined, 152 changes (3.1 MiB) wait, the oldest for 3 min": what is behind "joined"."""
    with_some = [one for one in cells if one["backlog"]]
    many = sum(one["backlog"] for one in with_some)
    if not many:
        return ""
    size = sum(one["backlog_bytes"] or 0 for one in with_some)
    told = f" ({_size(size)})" if size else ""
    text = f", {many} changes{told} wait" if many != 1 else f", 1 change{told} waits"
    oldest = for_how_long(_oldest(with_some), now)
    return f"{text}, {'the oldest ' if many != 1 else ''}for {oldest}" if oldest else text


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError


def _oldest(cells: Iterable[Mapping[str, Any]]) -> str | None:
    return min((one["oldest"] for one in cells if one["oldest"]), default=None)


def _wrong_clocks(clocks: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Joins are refused from half an hour on; long before that it is doubtful which of two changes was the later."""
    told = {name: offset for name, offset in clocks.items() if offset is not None and abs(offset) > WRONG_CLOCK_S}
    found = []
    for name, offset in sorted(told.items()):
        which = "ahead of" if offset > 0 else "behind"
        what = f"has a clock that is {_long(abs(offset))} {which} that of this host"
        found.append(_one(name, what, None, {"event": _CLOCK_EVENT}))
    return found


def _late(found: Iterable[Late], known: set[str]) -> Iterator[dict[str, Any]]:
    """Partners that are behind, but for those of whom something else is `known` to be wrong."""
    for partner, changes, since in found:
        if partner not in known:
            waits = f"{changes} change{'s wait' if changes != 1 else ' waits'}"
            when = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}"
            what = f"is behind, {waits}: others have {'them' if changes != 1 else 'it'} already"
            yield _one(partner, what, when, {}) | {"advice": _BEHIND_ADVICE}


def _one(who: str, what: str, since: str | None, problem: Mapping[str, Any]) -> dict[str, Any]:
    event = problem.get("event")
    advice = remedies()[event][1] if event in remedies() else None
    return {"who": who, "what": what, "since": since, "live": True, "event": event, "advice": advice}


def _why(problem: Mapping[str, Any]) -> str:
    """Without the number, which stands beside it."""
    why = str(problem["why"])
    return why if number_of(why) is None else why.partition(" ")[2]


def _wrong_there(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "who": one["member"], "what": f"{one['rule']}: {' '.join(filter(None, (one['set'], one['connection'])))}",
            "since": one["since"], "live": False, "event": one.get("event"), "advice": one["advice"],
        }
        for one in summary.get("health") or []
    ]  # fmt: skip


def _members(
    status: Mapping[str, Any], summary: Mapping[str, Any], cells: list[dict[str, Any]], wrong: list[dict[str, Any]]
) -> list[str]:
    """All that are known: those of this member's own topology, and of the summary, before names that somebody else told
    of; among them those first of whom something is wrong, or who are not joined."""
    names = {entry["member"] for entry in summary.get("sets") or []} | {name for c in cells for name in _ends(_name(c))}
    names |= {status["member"]} if status.get("member") else set()
    known = {*(status.get("members") or ()), status.get("member")}
    known |= {conn["partner"] for one in status.get("sets") or [] for conn in one["connections"]}
    known |= {entry["member"] for part in ("sets", "connections") for entry in summary.get(part) or []}
    unwell = {one["who"] for one in wrong} | {n for c in cells if c["joined"] is False for n in _ends(_name(c))}
    return sorted(names, key=lambda name: (name not in known, name not in unwell, name))


def _name(cell: Mapping[str, Any]) -> str:
    return str(cell["connection"])


def _ends(connection: str) -> tuple[str, str]:
    upstream, _, downstream = connection.partition("->")
    return upstream, downstream


def _worse(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of two sets between the same members: that one of which there is more to say."""
    rank = lambda cell: (cell["joined"] is False and bool(cell["scheduled"]), cell["backlog"] or 0)  # noqa: E731
    return max(one, other, key=rank)


def _partners(own: list[dict[str, Any]], clocks: Mapping[str, float | None], now: float) -> list[dict[str, Any]]:
    found = []
    by_partner: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in own:
        by_partner[one["partner"]].append(one)
    for name, mine in sorted(by_partner.items()):
        wanted = [one for one in mine if one["scheduled"]]
        away = [one for one in wanted if not one["joined"]]
        coming = [one for one in mine if one["inbound"]]
        row = {
            "partner": name,
            "joined": len(wanted) - len(away),
            "wanted": len(wanted),
            "backlog_in": sum(one["backlog"] or 0 for one in coming),
            "backlog_out": sum(one["backlog"] or 0 for one in mine if not one["inbound"]),
            "bytes_in": sum(one["backlog_bytes"] or 0 for one in coming),
            "bytes_out": sum(one["backlog_bytes"] or 0 for one in mine if not one["inbound"]),
            "oldest": for_how_long(_oldest(mine), now) or None,
            "since": _earliest(away or wanted),
            "clock_offset_s": clocks.get(name),
            "connections": mine,
        }
        for key in ("latency_p50_s", "latency_p95_s"):
            row[key] = max((one[key] for one in coming if one[key] is not None), default=None)
        found.append(row)
    return found


def _earliest(cells: Iterable[Mapping[str, Any]]) -> str | None:
    return min((one["since"] for one in cells if one["since"]), default=None)


def _latest(cells: Iterable[Mapping[str, Any]]) -> str | None:
    """Since when all of them."""
    return max((one["since"] for one in cells if one["since"]), default=None)


def _sentence(wrong: list[dict[str, Any]], own: list[dict[str, Any]], members: list[str], now: float) -> str:
    if wrong:
        first, more = wrong[0], len(wrong) - 1
        what = first["what"].partition(": ")[0] if first["live"] else first["what"]
        head, _, tail = what.partition(",")
        lasting = for_how_long(first["since"], now)
        since = f" for {lasting}" if lasting else ""
        others = [one["who"] for one in wrong[1:] if one["who"] != first["who"]]
        named = ", ".join(dict.fromkeys(others[:_NAMED]))
        rest = f"; {more} more {'things are' if more > 1 else 'thing is'} wrong" + (f" ({named})" if named else "")
        return f"{first['who']} {head}{since}{f',{tail}' if tail else ''}{rest if more else ''}."
    wanted = [one for one in own if one["scheduled"]]
    waiting = sum(one["backlog"] or 0 for one in own)
    waits = f"{waiting} change{'s are' if waiting != 1 else ' is'} on the way" if waiting else "nothing waits"
    if not wanted:
        return f"Nothing is known to be wrong with {len(members)} members." if members else "Nothing is known yet."
    partners = {one["partner"] for one in wanted}
    return f"All is well: {len(partners)} partner{'s' if len(partners) != 1 else ''} joined, {waits}."
