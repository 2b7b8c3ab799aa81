"""`frs status`: what a running member does, and with whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from agent.cli.common import ask, config_option, json_option
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode
from agent.reporting.health import stopped
from agent.reporting.shown import shown


@click.command()
@config_option
@json_option
def status(config_file: Path, as_json: bool) -> int:
    """Show replica sets, connections with their join state and backlog, staging space and the last error.

    Exit code 1 where a set does not replicate: it has stopped, or none of its connections is joined whose schedule is
    open.
    """
    answer = ask(config_file, "status")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        for line in describe(answer):
            say(shown(line))
    return ExitCode.NEGATIVE if stopped(answer) else ExitCode.OK


def describe(answer: dict[str, Any]) -> Iterator[str]:
    """The lines that show a status answer to a person."""
    yield f"member {answer['member']}, pid {answer['pid']}, version {answer['version']}"
    yield f"started {answer['started']}"
    if directory := answer.get("directory"):
        yield from describe_directory(directory)
    for line in stopped(answer):
        yield f"does not replicate: {line}"
    for entry in answer["sets"]:
        yield f"set {entry['name']}: {entry['state']}, {entry['root']}"
        if entry["error"]:
            yield f"  error: {entry['error']}"
        if frozen := entry.get("frozen"):
            yield (
                f"  20115 frozen since {frozen['since']} by {frozen['by']}: installs wait until `frs ntfrsutl thaw` "
                f"or the next start of the agent"
            )
        if originator := entry.get("originator_guid"):
            yield f"  originator GUID: {originator}"
        table, staging, pending = entry["idtable"], entry["staging"], entry["pending"]
        yield f"  {table['files']} files, {table['folders']} folders, {table['tombstones']} tombstones"
        yield (
            f"  staging: {staging['used_kib']} KiB used, {staging['free_kib']} KiB free, "
            f"quota {staging['quota_kib']} KiB"
        )
        yield (
            f"  pending: {pending['aging']} aging, {pending['local']} local, {pending['inbound']} inbound, "
            f"{pending['outbound']} outbound"
        )
        if (lost := entry.get("conflicts", {})).get("kept"):
            yield f"  kept of conflicts: {lost['kept']}, {lost['used_kib']} KiB, the last {lost['newest']}"
        if (kept := entry.get("deleted", {})).get("files"):
            yield f"  kept of what others deleted: {kept['files']} files, {kept['used_kib']} of {kept['quota_kib']} KiB"
        if scan := entry.get("scan"):
            yield _scan_line(scan)
        if unstored := entry.get("unstored"):
            told = ", ".join(f"{name} of {files} files" for name, files in unstored.items())
            yield f"  not kept in the tree here, remembered for the others: {told}"
        for mass in entry.get("mass_deletions", []):
            who = "this member" if mass["this_member"] else mass["by"] or mass["originator_guid"]
            yield f"  mass deletion: {mass['files']} files by {who}, {mass['began']} to {mass['last']}"
        if last := entry["last_error"]:
            yield f"  last error: {last['time']} {last['text']}"
        for waiting in entry.get("waiting", []):
            yield describe_waiting(waiting)
        for connection in entry["connections"]:
            yield _connection_line(connection)
    for partner in answer.get("partners", []):
        how = {
            "key": "is called by its key",
            "secret": "is called by the secret",
            "former secret": "is called by the former secret: copy the secret file there",
            "Kerberos": "is called by Kerberos",
        }
        none = "has not been called, or not let this member in"
        yield f"partner {partner['name']} (set {partner['set']}) {how.get(partner['called_by'], none)}"
    if (store := answer.get("samples_store")) and store["problem"]:
        yield f"samples: since {store['since']}: {store['problem']}"
    for cause, count in sorted(answer.get("incidents", {}).items()):
        yield f"incident: {cause}: {count} times since the start"


def describe_directory(directory: dict[str, Any]) -> Iterator[str]:
    """The lines that tell what is wrong with the configuration, what it will lead to, and from which
    directory it comes; none where all is well and there is none."""
    for problem in directory["problems"]:
        yield f"configuration: 13562 cannot be used, what was in force stays: {problem['text']}"
    for leaving in directory["leaving"]:
        yield (
            f"configuration: 20107 this member is no longer in the set {leaving['set']}, and leaves it in "
            f"{leaving['in_s']:.0f} s if that is read once more; `frs leave --set '{leaving['set']}'` does it now"
        )
    if directory["restart"]:
        yield f"configuration: 20106 takes effect at the next start: {', '.join(directory['restart'])}"
    if reading := directory.get("reading"):
        yield f"directory: read from {reading['server']}, generation {reading['generation']}"
        if reading["answered"]:
            since = f"so since {reading['since']}, " if reading["since"] else ""
            yield f"directory: {since}last answer {reading['answered']}"
        if reading["problem"]:
            yield f"directory: {reading['problem']}"
        for one in reading["servers"]:
            if one["problem"] and not reading["problem"]:
                yield f"directory: {one['server']} could not be used, tried {one['tried']}: {one['problem']}"
        for what in reading["kept"]:
            yield f"directory: 20119 it does not have {what}, nor says that it was deleted: it is kept"
    if "server" in directory:
        server = directory["server"]
        yield (
            f"directory server {server['name']} in this process, generation {server['generation']}"
            if server is not None
            else f"directory server: 20101 does not run: {directory['server_problem']}"
        )
    if active := directory.get("active_directory"):
        read = f"read {active['read']} from {active['server']}" if active["read"] else "not read since the start"
        yield f"Active Directory: {active['domain']}, {read}, again in {active['next_in_s']:.0f} s"
        if active["problem"]:
            yield f"Active Directory: 20359 the topology stays as it is: {active['problem']}"
        for passed in active["passed_over"]:
            yield f"Active Directory: passed over {passed}"
        for what in active["kept"]:
            yield f"Active Directory: 20142 it {what}"
        for fault in active["faults"]:
            yield f"Active Directory: 20141 {fault}"


def _scan_line(scan: dict[str, Any]) -> str:
    every = f"every {scan['interval_s']:g} s" + (", one is under way" if scan["running"] else "")
    if scan["ended"] is None:
        return f"  scan of the tree: none since the start ({every})"
    line = f"  last scan of the tree: {scan['ended']}, {scan['entries']} entries in {scan['seconds']:g} s ({every}); "
    if not scan["found"]:
        return line + "nothing that no event had told of"
    more = ", ..." if scan["found"] > len(scan["examples"]) else ""
    found = ", ".join(map(repr, scan["examples"]))
    return line + f"found {scan['found']} changes that no event had told of: {found}{more}"


def describe_waiting(waiting: dict[str, Any]) -> str:
    """The line that shows a person what a change order waits for."""
    detail = f" ({waiting['detail']})" if waiting["detail"] else ""
    line = f"  waits: {waiting['event']} {waiting['path']!r} of {waiting['sender']}: {waiting['reason']}{detail}"
    line += f", since {waiting['since']}, attempt {waiting['attempts']}, next in {waiting['retry_in_s']:.0f} s"
    line += f"; on {waiting['file_system']}"
    if waiting["held_by"]:
        line += "; open in " + ", ".join(f"{holder['name']} (pid {holder['pid']})" for holder in waiting["held_by"])
    return f"{line}; {waiting['advice']}"


def _connection_line(connection: dict[str, Any]) -> str:
    line = f"  {connection['name']} ({connection['direction']}): {connection['state']}"
    line += f", backlog {connection['backlog']}"
    if size := connection.get("backlog_bytes"):
        line += f" ({size} bytes)"
    if oldest := connection.get("oldest"):
        line += f" since {oldest}"
    if connection["last_error"]:
        line += f"; {connection['last_error']}"
    if connection["retry_in_s"] is not None:
        line += f"; retry in {connection['retry_in_s']:.0f} s"
    return line
