"""Whether a packet is its caller's to send, and who may call at all, by what the configuration says."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest

from agent.partners.identities import Identities
from agent.rpc import constants as rpc
from agent.rpc.interface import CallContext
from agent.rpc.security import Credential, KerberosCredential, Keytab, make_acceptor
from agent.wire import constants as c
from agent.wire.packet import NamedGuid, Packet
from config.keys import new_key, public_key
from config.model import AgentConfig, LocalSet, NtFrsApi, ReplicaSet, Secret
from config.topology import new_replica_set

PRIVATE = {name: new_key() for name in "abcd"}
HOSTS = [(name, "host", 5000 + number) for number, name in enumerate("abcd")]
#: Everybody is everybody's partner in the first, only neighbours are in the second, a ring.
DOCS, RING = new_replica_set("Docs", HOSTS, "full-mesh"), new_replica_set("ring", HOSTS, "ring")


def keyed(replica_set: ReplicaSet, names: str) -> ReplicaSet:
    """With the keys of these members in it."""
    members = {
        name: dataclasses.replace(member, key=public_key(PRIVATE[name]) if name in names else None)
        for name, member in replica_set.members.items()
    }
    return dataclasses.replace(replica_set, members=members)


def config(names: str = "abcd", *, secret: bool = False, **options: Any) -> AgentConfig:
    """That of the member a, whose topology has the keys of `names`."""
    options = {"key": PRIVATE["a"]} | options
    sets = tuple(
        LocalSet(one, one.members["a"], Path("root"), Path("state")) for one in (keyed(DOCS, names), keyed(RING, names))
    )
    return AgentConfig(
        path=Path("agent.toml"),
        topology_path=Path("topology.toml"),
        secret_path=Path("secret.toml") if secret else None,
        member_name="a",
        listen_host="host",
        port=5000,
        state_dir=Path("state"),
        sets=sets,
        credential=Secret("FRS", "frs", "password") if secret else None,
        **options,
    )


def caller(member: str = "") -> CallContext:
    """One that has authenticated by its key, or by the secret."""
    return CallContext("192.0.2.1", 1, member or "frs", "" if member else "FRS", rpc.LEVEL_PRIVACY, 1, member)


def packet(replica_set: ReplicaSet, sender: str, key: str, **changes: Any) -> Packet:
    """A packet to a on this connection, as its sender would make it; `changes` are of its fields."""
    to, member = replica_set.members["a"], replica_set.members[sender]
    guid = next(one.guid for one in replica_set.connections if one.key == key)
    fields = {
        "command": c.CMD_NEED_JOIN,
        "to": NamedGuid(to.guid, "a"),
        "from_": NamedGuid(member.guid, sender),
        "replica": NamedGuid(to.guid, replica_set.name.upper()),
        "cxtion": NamedGuid(guid, key),
    }
    return Packet(**(fields | changes))


def test_members_are_taken_for_what_their_keys_say() -> None:
    identities = Identities(config())
    for replica_set in (DOCS, RING):
        for sender in "bd":
            for cxtion in (f"a->{sender}", f"{sender}->a"):
                assert identities.refusal(caller(sender), packet(replica_set, sender, cxtion)) is None


FOREIGN = NamedGuid(uuid.uuid4().bytes_le, "x")
REFUSED = {
    "another member's name": (packet(DOCS, "b", "b->a"), "names b as its sender"),
    "our own name": (packet(DOCS, "a", "a->b"), "names a as its sender"),
    "nobody's name": (packet(DOCS, "c", "c->a", from_=FOREIGN), "does not have"),
    "its name in another set": (
        packet(DOCS, "c", "c->a", from_=NamedGuid(RING.members["c"].guid, "c")),
        "does not have",
    ),
    "another's connection": (packet(DOCS, "c", "b->a"), "a connection of the set docs that is not one with c"),
    "one that leads elsewhere": (packet(DOCS, "c", "c->d"), "not one with c"),
    "another set by name": (packet(DOCS, "c", "c->a", replica=NamedGuid(DOCS.members["a"].guid, "ring")), "another"),
    "another set by GUID": (packet(DOCS, "c", "c->a", replica=NamedGuid(RING.members["a"].guid, "DOCS")), "another"),
    "the sender's GUID for the set": (
        packet(DOCS, "c", "c->a", replica=NamedGuid(DOCS.members["c"].guid, "DOCS")),
        "another",
    ),
    "a set in which it is no partner": (packet(RING, "c", "a->b"), "not one with c"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_member_with_a_valid_key_of_its_own_is_refused(what: str) -> None:
    """c has authenticated as c. What it sends names something that is not its own."""
    sent, says = REFUSED[what]
    refusal = Identities(config()).refusal(caller("c"), sent)
    assert refusal is not None
    assert says in refusal


def test_a_member_is_its_own_administrator_and_not_its_own_partner() -> None:
    """For `frs ntfrsutl` on its own host its key is taken, where NtFrsApi is served, and for nothing else."""
    here = Identities(config(ntfrsapi=NtFrsApi((), ("a",), {})))
    assert "a" in here.store().members.values()
    assert "a" not in Identities(config()).store().members.values()
    refusal = here.refusal(caller("a"), packet(DOCS, "a", "a->b"))
    assert refusal is not None
    assert "names a as its sender" in refusal


def test_the_set_may_be_named_by_its_guid() -> None:
    """2.2.3.5 has it so, and the captures the receiver's."""
    sent = packet(DOCS, "c", "c->a", replica=NamedGuid(DOCS.guid, "docs"))
    assert Identities(config()).refusal(caller("c"), sent) is None


def test_what_is_not_here_is_left_to_others() -> None:
    """A connection, or a member, that is not here at all (3.3.4.4.1)."""
    identities = Identities(config())
    assert identities.refusal(caller("c"), packet(DOCS, "c", "c->a", cxtion=FOREIGN)) is None
    assert identities.refusal(caller("c"), packet(DOCS, "c", "c->a", to=FOREIGN)) is None


@pytest.mark.parametrize(
    ("keys", "for_all", "may"),
    [("abcd", False, ""), ("ab", False, "cd"), ("", False, "bcd"), ("abcd", True, "bcd")],
)
def test_for_whom_the_secret_is_good(keys: str, for_all: bool, may: str) -> None:
    """A holder of the secret passes as members without a key, and as all only where that is asked for."""
    identities = Identities(config(keys, secret=True, secret_for_all=for_all))
    for sender in "bcd":
        refusal = identities.refusal(caller(), packet(DOCS, sender, f"{sender}->a"))
        assert (refusal is None) == (sender in may)
        called_by, _ = identities.credentials(identities._config.sets[0].set.members[sender])
        assert (called_by is not None) == (sender in may)
    assert identities.store().has_accounts == bool(may)


@pytest.mark.parametrize("raw", [True, False])
def test_ntlm_without_spnego_is_asked_for(raw: bool) -> None:
    """Auth type 10, in which nothing but NTLM can be meant."""
    store = Identities(config("ab", secret=True, raw_ntlm=raw)).store()
    make_acceptor(rpc.AUTH_SPNEGO, store)
    with contextlib.nullcontext() if raw else pytest.raises(KeyError):
        make_acceptor(rpc.AUTH_NTLM, store)


def test_who_may_authenticate() -> None:
    """The others by their keys, and this member not at itself."""
    store = Identities(config()).store()
    assert store.members == {public_key(PRIVATE[name]): name for name in "bcd"}
    assert not store.has_accounts
    gone = dataclasses.replace(DOCS, members={k: v for k, v in keyed(DOCS, "abcd").members.items() if k != "c"})
    fewer = dataclasses.replace(config(), sets=(dataclasses.replace(config().sets[0], set=gone),))
    assert set(Identities(_connected(fewer)).store().members.values()) == {"b", "d"}


def _connected(one: AgentConfig) -> AgentConfig:
    (local,) = one.sets
    kept = tuple(x for x in local.set.connections if {x.upstream, x.downstream} <= set(local.set.members))
    return dataclasses.replace(
        one, sets=(dataclasses.replace(local, set=dataclasses.replace(local.set, connections=kept)),)
    )


def test_a_partner_is_called_by_keys_where_both_have_one() -> None:
    both = Identities(config("ab", secret=True, secret_for_all=True))
    members = both._config.sets[0].set.members
    secret, key = both.credentials(members["b"])
    assert secret is not None
    assert key is not None
    assert key.partner == public_key(PRIVATE["b"])
    assert both.credentials(members["c"])[1] is None
    assert both.missing(members["c"]) is None


def with_principals(one: AgentConfig, names: str) -> AgentConfig:
    """With principals of these members, in every set."""
    sets = []
    for local in one.sets:
        members = {
            name: dataclasses.replace(member, principal=f"{name.upper()}$@EXAMPLE.ORG" if name in names else None)
            for name, member in local.set.members.items()
        }
        known = dataclasses.replace(local.set, members=members)
        sets.append(dataclasses.replace(local, set=known, member=members["a"]))
    return dataclasses.replace(one, sets=tuple(sets))


def test_a_partner_with_a_principal_alone_is_called_by_kerberos() -> None:
    """Keys go first. Whoever is known alone needs no secret, and where this member has no keytab no principal counts.
    A principal may call by it even where there is a key."""
    plain = with_principals(config("ab", secret=True, keytab=Path("/etc/krb5.keytab")), "abc")
    identities = Identities(plain)
    members = plain.sets[0].set.members
    account, key = identities.credentials(members["b"])
    assert account is None
    assert key is not None
    account, key = identities.credentials(members["c"])
    assert account == KerberosCredential(Keytab("/etc/krb5.keytab", "A$@EXAMPLE.ORG"), "EXAMPLE.ORG")
    assert key is None
    account, key = identities.credentials(members["d"])
    assert isinstance(account, Credential)
    store = identities.store()
    assert store.principals == {"B$@EXAMPLE.ORG": "b", "C$@EXAMPLE.ORG": "c"}
    assert store.keytab == Keytab("/etc/krb5.keytab", "A$@EXAMPLE.ORG")
    assert identities.refusal(caller(), packet(DOCS, "c", "c->a")) is not None, "the secret is not for c"
    assert identities.refusal(caller(), packet(DOCS, "d", "d->a")) is None
    assert identities.refusal(caller("c"), packet(DOCS, "c", "c->a")) is None
    assert "the service NtFrs-88f5d2bd-b646-11d2-a6d3-00c04fc9b232/host@EXAMPLE.ORG" in identities.compare(members["c"])
    without = Identities(dataclasses.replace(plain, keytab=None))
    assert isinstance(without.credentials(members["c"])[0], Credential)
    assert without.store().keytab is None


def test_what_is_missing_is_said() -> None:
    members = config("ab").sets[0].set.members
    why = Identities(config("ab")).missing(members["c"])
    assert why is not None
    assert "nothing is exchanged with c: it has no key in topology.toml" in why
    assert Identities(config("ab")).missing(members["b"]) is None
    why = Identities(config("b", secret=True, key=None)).missing(members["b"])
    assert why is not None
    assert "this member has no key; run frs key with agent.toml" in why
