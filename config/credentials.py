"""How members know each other: the key, the secret and the keytab that an agent.toml names."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

from config.document import Document, resolve
from config.errors import ConfigError
from config.keys import public_key
from config.model import LocalSet, Secret
from config.private import check_private, read_private
from config.schema import AgentFile, KeyFile, SecretFile


def load_key(path: Path) -> bytes:
    """The private key in `path`, a regular file of our user or root that nobody else can read; raises ConfigError."""
    text = read_private(path, "the key", "`frs key` makes one")
    return Document(path, text).validate(KeyFile).private


def load_secret(path: Path) -> Secret:
    """The secret in `path`, a regular file of our user or root that nobody else can read; raises ConfigError."""
    text = read_private(path, "the secret", "copy it from another member, with mode 0600")
    table = Document(path, text).validate(SecretFile)
    former = table.former
    if former is None or former.until.timestamp() <= time.time():
        return Secret(table.domain, table.user, table.password)
    return Secret(table.domain, table.user, table.password, former.password, former.until.timestamp())


def key_file(document: Document, table: AgentFile) -> Path | None:
    """The file of the member's key, if it has one; raises ConfigError where it needs one and has none."""
    if table.key is None:
        if table.secret is None and table.keytab is None:
            raise document.fail(
                ("key",),
                f"is missing: nobody could tell that this is the member {table.member}; "
                f"run: frs key --config {document.path}",
            )
        return None
    path = resolve(document.path, table.key)
    if not path.exists():
        raise document.fail(("key",), f"the key {path} does not exist; run: frs key --config {document.path}")
    return path


def secret_file(document: Document, table: AgentFile) -> Path | None:
    """The file of the secret, if the configuration names one; raises ConfigError where it is not there."""
    if table.secret is None:
        if table.secret_for_all:
            raise document.fail(("secret_for_all",), "there is no secret: remove this line, or name the secret")
        return None
    path = resolve(document.path, table.secret)
    if not path.exists():
        raise document.fail(
            ("secret",), f"the secret {path} does not exist; copy it from another member, with mode 0600"
        )
    return path


def check_own_key(
    topology: Path, table: AgentFile, path: Path | None, key: bytes | None, local: tuple[LocalSet, ...]
) -> None:
    """Partners must be able to know this member by what the topology has of it; raises ConfigError where they could
    not. `key` is the private key in `path`, if the configuration names one."""
    found = next((one.member.key for one in local if one.member.key is not None), None)
    if key is None or path is None:
        if found is not None and not table.secret_for_all:
            raise ConfigError(
                topology, None, "", f"has a key for the member {table.member}, whose configuration names none; "
                "name the key file there"
            )  # fmt: skip
    elif found is None:
        if table.secret is None and table.keytab is None and local:
            raise ConfigError(
                topology, None, "", f"has no key for the member {table.member}, so nobody would let it in; "
                "run frs key with its configuration, and copy the topology to the other members"
            )  # fmt: skip
    elif found != public_key(key):
        raise ConfigError(
            topology, None, "", f"has another key for the member {table.member} than that of {path}; "
            "nobody would let it in. Put the right key file there, or take the new key over on all members: frs key "
            "--replace"
        )  # fmt: skip


def keytab_file(document: Document, table: AgentFile, topology: Path, local: tuple[LocalSet, ...]) -> Path | None:
    """The keytab, whose principal must be that of this member, and which needs the extra `kerberos`; raises
    ConfigError."""
    if table.keytab is None:
        return None
    path = resolve(document.path, table.keytab)
    if importlib.util.find_spec("gssapi") is None:
        raise document.fail(("keytab",), "needs the extra kerberos of this program: pip install 'frs-agent[kerberos]'")
    check_private(path, "the keytab", "kadmin, or samba-tool domain exportkeytab, make one")
    if local and local[0].member.principal is None:
        raise ConfigError(
            topology, None, "", f"has no principal for the member {table.member}, whose configuration names a keytab; "
            "add it to the entry of the member"
        )  # fmt: skip
    return path
