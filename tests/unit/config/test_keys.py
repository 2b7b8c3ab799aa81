"""Members' keys in the files of a member: what is read, what is refused, and what `frs key` changes in them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from config.check import check_roots
from config.errors import ConfigError
from config.keys import decode_key, decode_public_key, key_text, new_key, public_key
from config.load import load_agent_config
from config.topology import new_replica_set
from config.topologyfile import load_topology, parse_file, parse_topology
from config.write import key_file_text, topology_text, with_key_file, with_public_key, write_file
from config.writers import warnings
from tests.unit.config.member_files import AGENT, TOPOLOGY, fault, write

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

OTHER = public_key(bytes(range(32)))  # the same in all processes that collect the tests
KEYED = AGENT.replace('secret = "secret.toml"', 'key = "key.toml"')


def keyed(topology: str, **members: bytes) -> str:
    """That topology with public keys in the entries of members."""
    for name, public in members.items():
        topology = topology.replace(f'name = "{name}"\n', f'name = "{name}"\nkey = "{key_text(public)}"\n')
    return topology


def make(folder: Path, private: bytes, *, agent: str = KEYED, topology: str | None = None) -> Path:
    """A member with that key, and no secret in its configuration."""
    text = topology if topology is not None else keyed(TOPOLOGY, a=public_key(private), b=OTHER)
    path = write(folder, agent=agent, topology=text)
    write_file(folder / "key.toml", key_file_text(private, "a"), 0o600)
    return path


def test_a_key_is_read(tmp_path: Path) -> None:
    private = new_key()
    config = load_agent_config(make(tmp_path, private))
    assert (config.key, config.key_path) == (private, tmp_path / "key.toml")
    assert (config.secret_path, config.credential, config.secret_for_all) == (None, None, False)
    members = config.sets[0].set.members
    assert (members["a"].key, members["b"].key) == (public_key(private), OTHER)
    assert repr(private) not in repr(config)


def test_keys_beside_a_secret(tmp_path: Path) -> None:
    agent = AGENT.replace("secret =", 'key = "key.toml"\nsecret_for_all = true\nsecret =')
    config = load_agent_config(make(tmp_path, new_key(), agent=agent, topology=TOPOLOGY))
    assert config.credential is not None
    assert config.secret_for_all
    assert config.sets[0].member.key is None


def test_a_topology_with_keys_is_read_back(tmp_path: Path) -> None:
    one = new_replica_set("one", [("a", "host", 5000), ("b", "host", 5001)], "full-mesh")
    members = {"a": dataclasses.replace(one.members["a"], key=OTHER), "b": one.members["b"]}
    one = dataclasses.replace(one, members=members)
    write_file(tmp_path / "topology.toml", topology_text([one], "with keys"))
    assert load_topology(tmp_path / "topology.toml") == (one,)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = make(tmp_path, new_key())
    (tmp_path / "key.toml").chmod(mode)
    error = fault(path)
    assert error.file == tmp_path / "key.toml"
    assert f"chmod 600 {tmp_path / 'key.toml'}" in error.message


@as_root
def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, new_key())
    os.chown(tmp_path / "key.toml", 65534, 0)
    assert "the key belongs to the user 65534" in fault(path).message


def test_a_key_that_is_a_link_or_no_file_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, new_key())
    (tmp_path / "key.toml").rename(tmp_path / "real.toml")
    (tmp_path / "key.toml").symlink_to("real.toml")
    assert "is a symbolic link" in fault(path).message
    (tmp_path / "key.toml").unlink()
    os.mkfifo(tmp_path / "key.toml", 0o600)
    assert "regular file" in fault(path).message


def test_a_key_in_a_root_is_refused_and_one_that_others_can_write_is_told(tmp_path: Path) -> None:
    path = make(tmp_path, new_key(), agent=KEYED.replace('"key.toml"', '"root/key.toml"'))
    (tmp_path / "key.toml").rename(tmp_path / "root" / "key.toml")
    with pytest.raises(ConfigError, match="contains the key"):
        check_roots(load_agent_config(path))
    (tmp_path / "root").chmod(0o777)
    assert any("the key" in line for line in warnings(load_agent_config(path)))


WRONG = {
    "nothing to be known by": (AGENT.replace('secret = "secret.toml"\n', ""), None, "key", "frs key --config"),
    "no such file": (KEYED.replace("key.toml", "none.toml"), None, "key", "does not exist; run: frs key"),
    "for all, of nothing": (f"secret_for_all = true\n{KEYED}", None, "secret_for_all", "there is no secret"),
    "not in the topology": (KEYED, TOPOLOGY, "", "has no key for the member a"),
    "another in the topology": (KEYED, keyed(TOPOLOGY, a=OTHER), "", "has another key for the member a"),
    "only in the topology": (AGENT, keyed(TOPOLOGY, a=OTHER), "", "whose configuration names none"),
    "no key at all": (KEYED, keyed(TOPOLOGY, a=b"short"), "set[0].member[0].key", "44 characters"),
    "a key of nobody": (KEYED, keyed(TOPOLOGY, a=bytes(32)), "set[0].member[0].key", "nobody can have"),
    "a key of two": (KEYED, keyed(TOPOLOGY, a=OTHER, b=OTHER), "set[0].member[1].key", 'the member "a" has this key'),
}


def principals(topology: str, **members: str) -> str:
    """That topology with principals in the entries of members."""
    for name, principal in members.items():
        topology = topology.replace(f'name = "{name}"\n', f'name = "{name}"\nprincipal = "{principal}"\n')
    return topology


KERBEROS = AGENT.replace('secret = "secret.toml"', 'keytab = "a.keytab"')
A, B = "A$@EXAMPLE.ORG", "B$@EXAMPLE.ORG"


def in_realm(folder: Path, topology: str, mode: int = 0o600) -> Path:
    """A member with a keytab alone."""
    path = write(folder, agent=KERBEROS, topology=topology)
    (folder / "a.keytab").write_bytes(b"\5\2")
    (folder / "a.keytab").chmod(mode)
    return path


def test_a_member_of_a_realm_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    config = load_agent_config(in_realm(tmp_path, principals(TOPOLOGY, a=A, b=B)))
    assert (config.keytab, config.key, config.credential) == (tmp_path / "a.keytab", None, None)
    members = config.sets[0].set.members
    assert (members["a"].principal, members["b"].principal) == (A, B)
    text = topology_text([config.sets[0].set], "again")
    assert parse_topology(Path("topology.toml"), text)[0].members == members
    (tmp_path / "a.keytab").unlink()
    assert "the keytab does not exist; kadmin" in fault(tmp_path / "agent.toml").message


@pytest.mark.parametrize(
    ("topology", "mode", "message"),
    [
        (principals(TOPOLOGY, b=B), 0o600, "has no principal for the member a"),
        (principals(TOPOLOGY, a=A, b=A), 0o600, 'the member "a" has this principal, too'),
        (principals(TOPOLOGY, a=A, b=A.lower()), 0o600, 'the member "a" has this principal, too'),
        (principals(TOPOLOGY, a="A$"), 0o600, "a Kerberos principal with its realm"),
        (principals(TOPOLOGY, a="A $@X"), 0o600, "a Kerberos principal with its realm"),
        (principals(TOPOLOGY, a=A), 0o640, "has mode 0640, so others may read it"),
    ],
)
def test_what_cannot_work_in_a_realm_is_named(
    tmp_path: Path, topology: str, mode: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert message in fault(in_realm(tmp_path, topology, mode)).message


def test_a_keytab_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "frs-agent[kerberos]" in fault(in_realm(tmp_path, principals(TOPOLOGY, a=A))).message


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_work_is_named(tmp_path: Path, what: str) -> None:
    agent, topology, key, message = WRONG[what]
    error = fault(make(tmp_path, new_key(), agent=agent, topology=topology))
    assert error.key == key
    assert message in error.message


def test_a_member_has_one_key_in_all_sets() -> None:
    second = TOPOLOGY.replace('"docs"', '"more"').replace("11111111", "22222222")
    text = keyed(TOPOLOGY, a=OTHER) + second
    with pytest.raises(ConfigError, match="another key, or none, in an earlier set"):
        parse_topology(Path("topology.toml"), text)
    parse_topology(Path("topology.toml"), keyed(TOPOLOGY, a=OTHER) + keyed(second, a=OTHER))


@pytest.mark.parametrize("text", ["", "x", "AAAA", key_text(OTHER)[:-1], key_text(OTHER) + "A", "ä" * 44, "-" * 44])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(ValueError, match="44 characters"):
        decode_key(text)


#: All points of low order, among them those that are no number below the prime (libsodium's list, which is that of
#: https://cr.yp.to/ecdh.html#validate).
LOW = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("point", LOW)
def test_points_of_low_order_are_nobodys(point: str) -> None:
    with pytest.raises(ValueError, match="nobody can have"):
        decode_public_key(key_text(bytes.fromhex(point)))


def test_a_public_key_is_the_one_of_the_rfc() -> None:
    """RFC 7748, section 6.1: Bob's keys."""
    private = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert public_key(private).hex() == public


def test_the_key_is_put_into_a_topology_and_nothing_else_is_changed() -> None:
    """But for `serial`: whoever has the key that was replaced has an older file."""
    path, second = Path("topology.toml"), TOPOLOGY.replace('"docs"', '"more"').replace("11111111", "22222222")
    text = f"# a comment\nserial = 7\n{TOPOLOGY}{second}"
    later = keyed(text, b=OTHER).replace("serial = 7", "serial = 8")
    assert with_public_key(path, text, "b", OTHER) == later
    assert with_public_key(path, later, "b", OTHER) == later
    assert parse_file(path, with_public_key(path, TOPOLOGY, "b", OTHER)).serial == 1
    another = public_key(new_key())
    with pytest.raises(ConfigError, match="has another key; to change it: frs key --replace"):
        with_public_key(path, keyed(text, b=another), "b", OTHER)
    assert with_public_key(path, keyed(text, b=another), "b", OTHER, replace=True) == later


def test_a_topology_that_no_program_can_change_is_left_alone() -> None:
    """An entry on one line."""
    guid = "11111111-0000-4000-8000-00000000000"
    member = f'{{name = "a", guid = "{guid}a", host = "h", port = 1}}'
    text = f'[[set]]\nname = "docs"\nguid = "{guid}1"\nprimary = "a"\nmember = [{member}]\n'
    parse_topology(Path("topology.toml"), text)
    with pytest.raises(ConfigError, match="add here: key = "):
        with_public_key(Path("topology.toml"), text, "a", OTHER)


def test_the_key_file_is_named_in_a_configuration() -> None:
    path = Path("agent.toml")
    text = f"# a comment\n{AGENT}"
    assert with_key_file(path, text, "key.toml") == text.replace('member = "a"\n', 'member = "a"\nkey = "key.toml"\n')
    with pytest.raises(ConfigError, match="add below: key = "):
        with_key_file(path, text.replace('member = "a"', 'member = """\\\na"""'), "key.toml")
