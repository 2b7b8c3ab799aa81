"""`frs conflicts`: what was taken out of the tree and kept, and how to have it back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from agent.cli import CommandFailed
from agent.cli.common import config_option, json_option
from agent.cli.output import printable, say
from agent.reporting.exit_codes import ExitCode
from config.state import read_state_dir


@click.group()
def conflicts() -> None:
    """List, show, restore and discard what was taken out of the tree and kept.

    Kept is what lost a conflict, what was in the way of an initial sync, and what was edited while it was replaced; and
    for a while, in groups, what other members deleted. It works while the agent runs and while it does not.
    """


_id_argument = click.argument("item_id", metavar="ID")


@conflicts.command("list")
@config_option
@json_option
@click.option("--deleted", is_flag=True, help="List what other members deleted, a line for each group.")
def list_items(config_file: Path, as_json: bool, deleted: bool) -> None:
    """List what is kept, the newest first: conflicts, or with --deleted what other members deleted."""
    answer = _ask(config_file, action="list-deleted" if deleted else "list")
    items = answer["groups" if deleted else "items"]
    while "next" in answer:
        answer = _ask(config_file, action="list", after=answer["next"])
        items += answer["items"]
    if as_json:
        click.echo(json.dumps(items, indent=2))
        return
    several = len({item["set"] for item in items}) > 1
    for item in items:
        where = f"{item['set']}  " if several else ""
        what = _group_line(item) if deleted else f"{printable(item['path'])}  ({printable(item['reason'])})"
        say(f"{item['id']}  {item['size']:>12}  {where}{what}")
    if not deleted and (count := answer["deleted"]["groups"]):
        groups = "1 group" if count == 1 else f"{count} groups"
        say(f"frs: kept besides: {groups} of files that others deleted, see --deleted", err=True)


def _group_line(group: dict[str, Any]) -> str:
    files = "1 file" if group["files"] == 1 else f"{group['files']:,} files"
    not_kept = f", {group['not_kept']:,} more not kept for want of room" if group["not_kept"] else ""
    return f"{files} deleted by {printable(group['by'] or group['originator'])} until {group['last']}{not_kept}"


@conflicts.command()
@_id_argument
@config_option
@json_option
def show(item_id: str, config_file: Path, as_json: bool) -> None:
    """Show all that is known of an item, and where its content is, to look at it; of a group, its files."""
    answer = _ask(config_file, action="show", id=item_id)
    if "group" not in answer:
        if as_json:
            click.echo(json.dumps(answer["item"], indent=2))
            return
        for line in describe(answer["item"]):
            say(line)
        return
    group, files = answer["group"], _files(config_file, item_id, answer)
    if as_json:
        click.echo(json.dumps(group | {"contents": list(files)}, indent=2))
        return
    say(f"id       {group['id']}\nset      {group['set']}\ndeleted  {_group_line(group)}")
    for file in files:
        say(f"{file['id']}  {file['size']:>12}  {printable(file['path'])}")


def _files(config_file: Path, item_id: str, answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The files of a group, which are asked for page by page."""
    while True:
        for file in answer["files"]:
            yield {key: value for key, value in file.items() if key != "number"}
        if not answer["more"]:
            return
        answer = _ask(config_file, action="show", id=item_id, after=answer["files"][-1]["number"])


@conflicts.command()
@_id_argument
@config_option
@click.option("--to", metavar="PATH", help="Where in the tree: relative to its root, or absolute. It must be free.")
def restore(item_id: str, config_file: Path, to: str | None) -> int:
    """Put an item back into the tree, as a new file, and print its path; or all files of a group.

    It gets its old path when that is free, else its name with `.kept-ID` after it. Nothing is ever overwritten. Of a
    group, the folders that were deleted with the files come back, too.
    """
    answer = _ask(config_file, action="restore", id=item_id, to=to)
    if "files" in answer:
        return _tell_group(answer)
    say(printable(os.path.join(answer["root"], answer["path"])))
    if answer.get("excluded"):
        say("frs: a filter of the set excludes that name: it stays on this member only", err=True)
    return ExitCode.OK


def _tell_group(answer: dict[str, Any]) -> int:
    say(f"{answer['files']:,} files restored in {printable(answer['root'])}")
    for old, new in answer["beside"]:
        say(f"  {printable(old)} is taken: restored as {printable(new)}")
    for path, why in answer["failed"]:
        say(f"frs: {printable(path)} is not restored, and still kept: {printable(why)}", err=True)
    return ExitCode.FAILURE if answer["failed"] else ExitCode.OK


@conflicts.command()
@_id_argument
@config_option
def discard(item_id: str, config_file: Path) -> None:
    """Delete an item, or a group of deleted files, for good."""
    _ask(config_file, action="discard", id=item_id)


#: How long an agent may take to answer what takes it no time.
_PATIENCE_S = 30.0
#: The actions that change nothing.
_LOOKING = ("list", "list-deleted", "show")


def describe(item: dict[str, Any]) -> Iterator[str]:
    """The lines that show an item to a person."""
    yield f"id       {item['id']}"
    yield f"set      {item['set']}"
    yield f"path     {printable(item['path'])}"
    yield f"reason   {printable(item['reason'])}"
    yield f"kept     {item['time']}"
    yield f"kind     {item['kind']}, {item['size']} bytes, {item['mode'] or 'gone'}, changed {item['mtime'] or '?'}"
    if item["md5"] is not None:
        yield f"md5      {item['md5']}"
    for which in ("winner", "loser"):
        if item[which] is not None:
            yield f"{which:<8} {', '.join(_pairs(item[which]))}"
    yield f"content  {printable(item['place'])}"
    if item["error"] is not None:
        yield f"error    {printable(item['error'])}"


def _pairs(values: Mapping[str, object]) -> Iterator[str]:
    for key, value in values.items():
        if key == "this_member":
            continue
        mark = " (this member)" if key == "originator" and values.get("this_member") is True else ""
        yield f"{printable(key)} {printable(value if isinstance(value, str) else json.dumps(value))}{mark}"


def _ask(config_file: Path, **arguments: Any) -> dict[str, Any]:
    """The answer of the running agent, or without one of the store itself. Raises CommandFailed, ConfigError."""
    import asyncio

    from agent.service.control import ControlError, ControlUnreachable

    state_dir = read_state_dir(config_file)
    try:
        answer = asyncio.run(_of_agent(state_dir, arguments))
    except ControlUnreachable as error:
        answer = _without_agent(config_file, state_dir, str(error), arguments)
    except ControlError as error:
        raise CommandFailed(f"the agent answered: {error}", ExitCode.FAILURE) from None
    if isinstance(refused := answer.get("refused"), str):
        raise CommandFailed(printable(refused), ExitCode.USAGE)
    return answer


async def _of_agent(state_dir: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    from agent.service.control import request

    if arguments["action"] in _LOOKING:
        return await request(state_dir, "conflicts", reply_timeout=_PATIENCE_S, **arguments)
    # Copying a folder to another file system may take its time; but an agent that answers nothing does nothing.
    await request(state_dir, "conflicts", reply_timeout=_PATIENCE_S, action="list")
    return await request(state_dir, "conflicts", reply_timeout=None, **arguments)


def _without_agent(config_file: Path, state_dir: Path, unreachable: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Does it on the state directory itself, holding its lock; only looks where the lock cannot be had."""
    from agent.conflicts.kept import KeptStore
    from agent.conflicts.keptcontrol import DELETED_NAME, KEPT_NAME, KeptOf, conflicts, deleted_store
    from agent.engine.originator import FORMER, ORIGINATOR, own_originators
    from agent.tree.excluded import Excluded
    from config.load import load_agent_config
    from config.state import known_sets
    from idtable.errors import StateLocked
    from idtable.lock import StateLock
    from idtable.peek import peek_meta

    config = load_agent_config(config_file, known=known_sets(state_dir))
    with ExitStack() as stack:
        read_only = False
        try:
            stack.enter_context(StateLock(state_dir))
        except StateLocked as error:
            if arguments["action"] not in _LOOKING:
                raise CommandFailed(f"{unreachable}, but {error}", ExitCode.UNREACHABLE) from None
            read_only = True
        except FileNotFoundError:
            read_only = True  # it has never run
        sets = []
        for local in config.sets:
            path = os.path.join(local.state_dir, KEPT_NAME)
            store = KeptStore(
                path,
                config.kept_quota_bytes,
                durable=config.fsync,
                read_only=read_only or not os.path.isdir(path),
            )
            database = local.state_dir / "frs.db"
            originators = own_originators(peek_meta(database, ORIGINATOR), peek_meta(database, FORMER))
            excluded = Excluded(local.set.file_filter, local.set.directory_filter)
            ino = peek_meta(database, "root_ino")
            root_key = None if ino is None else (None, int(ino))
            stack.enter_context(store)
            one = KeptOf(
                local.name, str(local.root), store, originators=originators, excluded=excluded, root_key=root_key
            )
            looking = read_only or not os.path.isdir(os.path.join(local.state_dir, DELETED_NAME))
            sets.append(one._replace(deleted=stack.enter_context(deleted_store(config, local, read_only=looking))))
        return conflicts(sets, arguments)
