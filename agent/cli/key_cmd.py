"""`frs key`: the key of a member, made where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import click

from agent.cli.common import config_option
from agent.cli.output import say
from config.credentials import load_key
from config.document import resolve

KEY_NAME = "key.toml"


@click.command()
@config_option
@click.option("--replace", is_flag=True, help="Make a new key in the place of the one that is there.")
def key(config_file: Path, replace: bool) -> None:
    """Print the public key of a member, and make a key where there is none.

    The private key stays in key.toml beside agent.toml, which is made to name it. The public key is put into
    topology.toml; the topology of all other members must have it, too.
    """
    from config.document import Document, read_text
    from config.keys import key_text, public_key
    from config.schema import AgentFile
    from config.write import with_key_file, with_public_key, write_file

    config_file = Path(os.path.abspath(config_file))
    text = read_text(config_file, "the configuration", "`frs init` makes one")
    table = Document(config_file, text).validate(AgentFile)
    path = resolve(config_file, table.key if table.key is not None else KEY_NAME)
    topology_file = resolve(config_file, table.topology)
    shared = read_text(topology_file, "the topology", "copy it from another member")
    private = load_or_make(path, table.member, replace=replace, write=False)
    # Everything is known to be possible before anything is written.
    with_key = with_public_key(topology_file, shared, table.member, public_key(private), replace=replace)
    named = with_key_file(config_file, text, path.name) if table.key is None else text
    changed = []
    if replace or not path.exists():
        store_key(path, private, table.member)
        changed.append(path)
    for file, before, after in ((topology_file, shared, with_key), (config_file, text, named)):
        if after != before:
            write_file(file, after)
            changed.append(file)
    say(f"key of {table.member}: {key_text(public_key(private))}")
    if changed:
        say(f"wrote {', '.join(map(str, changed))}")
        say("next:")
        say(f"  put this key into the entry of {table.member} in the topology.toml of all other members:")
        say(f'    key = "{key_text(public_key(private))}"')


def load_or_make(path: Path, member: str, *, replace: bool = False, write: bool = True) -> bytes:
    """The private key in `path`, or a new one, which is written there where `write`. Raises ConfigError."""
    from config.keys import new_key

    if path.exists() and not replace:
        return load_key(path)
    private = new_key()
    if write:
        store_key(path, private, member)
    return private


def store_key(path: Path, private: bytes, member: str) -> None:
    """Write a key file. Raises ConfigError."""
    from config.write import SECRET_MODE, key_file_text, write_file

    write_file(path, key_file_text(private, member), SECRET_MODE)
