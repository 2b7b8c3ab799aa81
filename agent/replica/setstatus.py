"""A replica set as `frs status` and the dashboard show it, whether it runs or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.localchanges.missing import Loss
from agent.reporting.events import number_of
from agent.wire.filetime import SECOND
from agent.wire.guid import guid_text
from agent.work.clock import filetime_now, iso_time
from config.model import LocalSet

State = Literal["online", "starting", "seeding", "stopped"]


def set_status(
    local: LocalSet,
    state: State,
    error: str | None,
    *,
    originator_guid: bytes | None = None,
    counts: tuple[int, int, int] = (0, 0, 0),
    staging: tuple[int, int] | None = None,
    pending: Mapping[str, int] | None = None,
    last_error: tuple[int, str] | None = None,
    connections: list[dict[str, Any]] | None = None,
    missing: Loss | None = None,
    kept: KeptStore | None = None,
    deleted: DeletedStore | None = None,
    mass_deletions: list[dict[str, Any]] | None = None,
    scan: dict[str, Any] | None = None,
    unstored: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The set's part of `frs status`. `originator_guid` is None while it is not known; `counts` are files, folders
    (with the root) and tombstones; `staging` bytes used and free; `connections` as the engine tells of them; `missing`
    is what the set waits for; `kept` what lost a conflict; `deleted` what is kept of what others deleted;
    `mass_deletions` as the engine tells of them; `scan` as the periodic scan tells of itself, None where there is none;
    `unstored`: of how many files what is remembered for the others, since it cannot be kept in the tree here."""
    files, folders, tombstones = counts
    used, free = staging if staging is not None else (0, local.staging_quota_bytes)
    return {
        "name": local.name,
        "guid": guid_text(local.set.guid),
        "originator_guid": None if originator_guid is None else guid_text(originator_guid),
        "root": str(local.root),
        "type": local.set.type,
        "state": state,
        "error": error,
        "event": number_of(error),
        "idtable": {"files": files, "folders": max(folders - 1, 0), "tombstones": tombstones},
        "staging": {"used_kib": used >> 10, "free_kib": free >> 10, "quota_kib": local.staging_quota_bytes >> 10},
        "pending": {"aging": 0, "local": 0, "inbound": 0, "outbound": 0} | dict(pending or {}),
        "last_error": None if last_error is None else _error(*last_error),
        "missing": None if missing is None else missing.as_json(),
        "conflicts": kept.tally() if kept is not None else {"kept": 0, "used_kib": 0, "newest": None},
        "deleted": {
            "files": deleted.count() if deleted is not None else 0,
            "used_kib": deleted.used_bytes >> 10 if deleted is not None else 0,
            "quota_kib": deleted.quota_bytes >> 10 if deleted is not None else 0,
        },
        "unstored": dict(unstored or {}),
        "mass_deletions": [
            one | {"began": iso_time(one["began"]), "last": iso_time(one["last"])} for one in mass_deletions or []
        ],
        "scan": scan,
        "connections": [_connection(one) for one in connections or []],
    }


def _error(time: int, text: str) -> dict[str, Any]:
    return {"time": iso_time(time), "text": text, "event": number_of(text)}


def _connection(told: dict[str, Any]) -> dict[str, Any]:
    deadline, joined = told["deadline"], told["last_join_time"]
    shown = {key: value for key, value in told.items() if key not in ("deadline", "join_guid")}
    shown["event"] = number_of(told["last_error"])
    shown["retry_in_s"] = None if deadline is None else max(round((deadline - filetime_now()) / SECOND, 1), 0.0)
    shown["since"] = None if told["since"] is None else iso_time(told["since"])
    shown["oldest"] = None if told["oldest"] is None else iso_time(told["oldest"])
    shown["last_join_time"] = None if joined is None else iso_time(joined)
    return shown
