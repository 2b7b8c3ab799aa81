"""The directory that the topology comes from, as one looks at it: the servers that this member reads from, how far
other members are, and the directory server in the process of this agent. What is wrong with it, and rows for the page.

All of it is of the status of this member (`frs status --json`), whose ``"directory"`` has under ``"reading"`` what the
member knows of its servers, and under ``"server"`` the answer of `frs directory status` of a server beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

#: Seconds: servers tell each other every 20 minutes how far they are; so long may two members have other generations, a
#: host one that is not its server's, and a server not all; so long is it of interest that a server could not be used.
SILENT_S: Final = 3600.0
APART_S: Final = 120.0
RECENT_S: Final = 900.0
#: Rows of each table, and names in a sentence, at most.
MOST_ROWS: Final = 50
_NAMED: Final = 3
_STAYS: Final = "cannot be used, what was in force stays:"


class Wrong(NamedTuple):
    """Something that is wrong with the directory. `what` begins with the number of its event."""

    who: str
    what: str
    since: str | None


def wrong(status: Mapping[str, Any], now: float) -> Iterator[Wrong]:
    """What is wrong at `now` (Unix seconds), where the topology comes from a directory or a server of one runs here."""
    directory = status.get("directory") or {}
    reading = directory.get("reading") or {}
    if problem := reading.get("problem"):
        failing = [one["failing_since"] for one in reading.get("servers") or [] if one["failing_since"]]
        yield Wrong("the directory", f"20347 {_STAYS} {problem}", min(failing, default=None))
    else:
        yield from _first_server(reading)
        yield from _older_here(status, reading, now)
    yield from _older_there(status, reading, now)
    if "server" in directory:
        if directory["server"] is None:
            yield Wrong("the directory server here", f"20101 does not run: {directory.get('server_problem')}", None)
        else:
            yield from _wrong_server(directory["server"], now)


def _first_server(reading: Mapping[str, Any]) -> Iterator[Wrong]:
    """It is tried again every few minutes while another one is read from."""
    servers = reading.get("servers") or []
    other = next((one["server"] for one in servers if one["read"]), None)
    if servers and other is not None and servers[0]["problem"]:
        first = servers[0]
        what = f"20348 cannot be used by this member, which reads from {other}: {first['problem']}"
        yield Wrong(f"the directory server {first['server']}", what, first["failing_since"])


# -- generations of members --


def _number(generation: str | None) -> tuple[int, ...]:
    """Of a generation as it is written, for comparison; nothing for "none"."""
    try:
        return tuple(int(part) for part in (generation or "").split("."))
    except ValueError:
        return ()


def _others(status: Mapping[str, Any], reading: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Partners that read from the same enterprise, as they say."""
    return [
        {"name": one["member"], **one["directory"]}
        for one in status.get("told") or []
        if one.get("directory") and one["directory"]["enterprise"] == reading.get("enterprise")
    ]


def _older_there(status: Mapping[str, Any], reading: Mapping[str, Any], now: float) -> Iterator[Wrong]:
    mine, taken = reading.get("in_force"), reading.get("taken")
    if not _ago(taken, APART_S, now):
        return
    behind = [one for one in _others(status, reading) if _number(one["generation"]) < _number(mine)]
    if behind:
        who = _names([one["name"] for one in behind])
        has = f"has generation {behind[0]['generation']}" if len(behind) == 1 else "have older generations"
        yield Wrong(who, f"20352 {has} of the directory, and this member {mine}", taken)


def _older_here(status: Mapping[str, Any], reading: Mapping[str, Any], now: float) -> Iterator[Wrong]:
    mine = _number(reading.get("in_force"))
    ahead = [one for one in _others(status, reading) if _number(one["generation"]) > mine]
    ahead = [one for one in ahead if _ago(one["since"], APART_S, now)]
    if mine and ahead:
        first = max(ahead, key=lambda one: _number(one["generation"]))
        what = (
            f"20352 has generation {reading['in_force']} of the directory, and {first['name']}, which reads from "
            f"{first['server']}, {first['generation']}"
        )
        yield Wrong(str(status.get("member")), what, first["since"])


# -- a server in this process --


def partition_name(one: Mapping[str, Any]) -> str:
    """As people call a partition."""
    if not any(bytes.fromhex(one["id"])):
        return "the enterprise"
    return f"the site {one.get('name') or one['id'][:8]}"


def _wrong_server(server: Mapping[str, Any], now: float) -> Iterator[Wrong]:
    if ahead := server.get("ahead_s"):
        days = f"{ahead // 86_400} days ahead of the clock of {server['name']}"
        what = f"20350 has a generation that is {days}, so no host believes it; with the clock right, promote its owner"
        yield Wrong("the enterprise in the directory", what, None)
    settled = _ago(server.get("started"), APART_S, now)
    for one in server["partitions"]:
        who = f"{partition_name(one)} in the directory"
        if one["disputed"]:
            what = f"20349 is disputed: {one['owner']} is its owner, and others have changes that it never made"
            yield Wrong(who, f"{what}; it takes no changes", None)
        elif not one["complete"] and settled:
            what = f"20350 is not complete on {server['name']}, so no host believes it: its owner is {one['owner']}"
            yield Wrong(who, what, None)
    for one in server["servers"]:
        if found := _wrong_other(server, one, now):
            yield found[1]
    late = [one for one in server.get("reading") or [] if _is_late(server, one, now)]
    if late:
        there = late[0]["generation"]
        has = "has no generation" if there == "none" else f"has generation {there}"
        has = has if len(late) == 1 else "have other generations"
        what = f"20352 {has} of the directory, and {server['name']}, which is asked, has had {server['generation']}"
        yield Wrong(_names([one["name"] for one in late]), f"{what} for long", late[0]["since"])


def _wrong_other(server: Mapping[str, Any], one: Mapping[str, Any], now: float) -> tuple[str, Wrong] | None:
    """Another server: it cannot be reached, says nothing, or does not acknowledge; in a word, and as it is told."""
    who = f"the directory server {one['name']}"
    if one["problem"]:
        waits = "1 message for it waits" if one["waiting"] == 1 else f"{one['waiting']} messages for it wait"
        what = f"20351 cannot be reached by {server['name']}, {waits}: {one['problem']}"
        return "cannot be reached", Wrong(who, what, one.get("since"))
    quiet = one.get("heard") or server.get("started")
    if one.get("expected") and _ago(quiet, SILENT_S, now):
        return "says nothing", Wrong(who, f"20351 can be reached by {server['name']}, and says nothing", quiet)
    for partition in server["partitions"]:
        count = partition["behind"].get(one["name"], 0) if partition["mine"] else 0
        last = (partition.get("acknowledged_at") or {}).get(one["name"]) or server.get("started")
        if count and _ago(last, SILENT_S, now):
            many = f"{count} changes" if count != 1 else "a change"
            return "behind", Wrong(who, f"20351 does not acknowledge {many} of {partition_name(partition)}", last)
    return None


def _is_late(server: Mapping[str, Any], host: Mapping[str, Any], now: float) -> bool:
    changed = server.get("generation_since") or server.get("started")
    there = host["asks"] and not host["current"] and server["complete"]  # else it must not be believed
    return bool(there and _ago(host["since"], APART_S, now) and _ago(changed, APART_S, now))


# -- the page --


def seen(status: Mapping[str, Any], now: float) -> dict[str, Any] | None:
    """What the page shows of it at `now`; None where the topology comes from no directory, and no server runs here.

    Each row has ``"state"`` ("good", "busy", "bad", "idle") and that in ``"words"``; of each list there are MOST_ROWS
    at most, and ``left_out`` says how many more there are.
    """
    directory = status.get("directory") or {}
    reading = directory.get("reading")
    if reading is None and "server" not in directory:
        return None
    found = list(wrong(status, now))
    count = len(found)
    words = f"{count} wrong" if count else "all well"
    return {
        "state": "bad" if count else "good",
        "words": words,
        "reading": _reading(status, reading, now) if reading is not None else None,
        "server": _server(directory, now) if "server" in directory else None,
    }


def _reading(status: Mapping[str, Any], reading: Mapping[str, Any], now: float) -> dict[str, Any]:
    servers = [
        {"server": one["server"], "site": one["site"], "since": one["since"], "answered": one["answered"],
         "problem": one["problem"], **_place_state(one, now)}
        for one in reading.get("servers") or []
    ]  # fmt: skip
    own = {"name": status.get("member"), "server": reading.get("server"), "generation": reading.get("in_force"),
           "since": reading.get("taken")}  # fmt: skip
    others = _others(status, reading)
    newest = max((_number(one["generation"]) for one in [own, *others]), default=())
    members = [one | _member_state(_number(one["generation"]), newest) for one in [own, *others]] if others else []
    members.sort(key=lambda one: one["state"] == "good")
    return {
        "from": next((one["server"] for one in servers if one["state"] == "good"), None),
        "problem": reading["problem"],
        **{key: reading.get(key) for key in ("in_force", "since", "taken", "answered")},
        "servers": _rows(servers),
        "members": _rows([
            {key: one[key] for key in ("name", "server", "generation", "since", "state", "words")} for one in members
        ]),
    }  # fmt: skip


def _place_state(one: Mapping[str, Any], now: float) -> dict[str, str]:
    if one["read"]:
        return _state("good", "read from")
    if not one["problem"]:
        return _state("busy", "is called") if one["chosen"] else _state("idle", "not read from")
    if one["chosen"] or not _ago(one["tried"], RECENT_S, now):
        return _state("bad", "cannot be used")
    return _state("idle", "could not be used")


def _member_state(number: tuple[int, ...], newest: tuple[int, ...]) -> dict[str, str]:
    return _state("good", "the newest") if number == newest else _state("busy", "older")


def _server(directory: Mapping[str, Any], now: float) -> dict[str, Any]:
    server = directory["server"]
    if server is None:
        return {"name": None, "problem": directory.get("server_problem") or "", **_state("bad", "does not run")}
    partitions = [
        {"name": partition_name(one), "owner": one["owner"], "last": one["last"], "purged": one["purged"],
         **_partition_state(one)}
        for one in server["partitions"]
    ]  # fmt: skip
    others = [_other(server, one, now) for one in server["servers"]]
    hosts = [
        {"name": one["name"], "generation": one["generation"], "since": one["since"], "asked": one["asked"],
         **_host_state(server, one, now)}
        for one in server.get("reading") or []
    ]  # fmt: skip
    bad = any(one["state"] == "bad" for one in [*partitions, *others, *hosts]) or bool(server.get("ahead_s"))
    more = _rows(hosts)
    more["left_out"] += server.get("reading_left_out", 0)
    return {
        "name": server["name"],
        "problem": "",
        **_state(*(("bad", "wrong") if bad else ("good", "complete"))),
        **{key: server.get(key) for key in ("generation", "generation_since", "started", "members", "reading_count")},
        "partitions": _rows(_worst_first(partitions)),
        "others": _rows(_worst_first(others)),
        "hosts": more,
    }


def _partition_state(one: Mapping[str, Any]) -> dict[str, str]:
    if one["disputed"]:
        return _state("bad", "disputed")
    if not one["complete"]:
        return _state("bad", "not complete")
    if one["state"] != "normal":
        return _state("busy", "a copy, of which all is taken anew")
    return _state("good", "owned here" if one["mine"] else "a copy")


def _other(server: Mapping[str, Any], one: Mapping[str, Any], now: float) -> dict[str, Any]:
    own = [partition for partition in server["partitions"] if partition["mine"]]
    told = [partition for partition in own if one["name"] in partition["acknowledged"]]
    when = [(partition.get("acknowledged_at") or {}).get(one["name"]) for partition in told]
    problem = _wrong_other(server, one, now)
    if problem is not None:
        state = _state("bad", problem[0])
    elif one["waiting"]:
        state = _state("busy", "is told")
    elif one.get("heard") or one["delivered"]:
        state = _state("good", "reached")
    else:
        state = _state("idle", "not spoken with")
    return {
        "name": one["name"],
        "address": one["address"],
        "waiting": one["waiting"],
        "behind": sum(partition["behind"][one["name"]] for partition in told) if told else None,
        "acknowledged": ", ".join(f"{partition_name(p)} {p['acknowledged'][one['name']]}" for p in told[:_NAMED]),
        "acknowledged_at": max((at for at in when if at), default=None),
        "heard": one.get("heard"),
        "problem": one["problem"],
        **state,
    }


def _host_state(server: Mapping[str, Any], one: Mapping[str, Any], now: float) -> dict[str, str]:
    if not one["asks"]:
        return _state("idle", "asks here no more")
    if one["current"]:
        return _state("good", "has the newest")
    if not server["complete"]:
        return _state("busy", "does not believe it")
    return _state("bad", "does not take it") if _is_late(server, one, now) else _state("busy", "takes the newest")


# -- pieces --


def _state(state: str, words: str) -> dict[str, str]:
    return {"state": state, "words": words}


def _worst_first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: ("bad", "busy", "good", "idle").index(one["state"]))


def _rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": rows[:MOST_ROWS], "left_out": max(len(rows) - MOST_ROWS, 0)}


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _ago(when: str | None, seconds: float, now: float) -> bool:
    """Whether that is known to be longer ago."""
    return when is not None and now - datetime.fromisoformat(when).timestamp() > seconds
