"""Who partners are: by what they are called, who may call, and whether a packet is its caller's to send."""

from __future__ import annotations

from dataclasses import dataclass

from agent.directory.notification.interface import SERVER_PREFIX
from agent.rpc.interface import CallContext
from agent.rpc.security import (
    Account,
    Credential,
    CredentialStore,
    KerberosCredential,
    KeyCredential,
    KeyPair,
    Keytab,
)
from agent.wire.packet import Packet
from config.model import AgentConfig, LocalSet, Member


@dataclass(frozen=True, slots=True)
class _Set:
    """What packets are held against. `partners`: the member at the other end of each connection, by its GUID; None
    where this member is at neither end."""

    name: str
    guids: tuple[bytes, bytes]
    members: dict[bytes, Member]
    partners: dict[bytes, Member | None]


class Identities:
    """What `config` says of keys, of Kerberos and of the secret.

    A partner with a key in the topology is called by keys, one with a principal alone by Kerberos, and both may call by
    what they have there; one with neither, or with `secret_for_all` every one, by the secret, if there is one.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._own = KeyPair(config.key) if config.key is not None else None
        self._keytab: Keytab | None = None
        if config.keytab is not None and config.sets:
            self._keytab = Keytab(str(config.keytab), config.sets[0].member.principal or "")
        secret = config.credential
        self._secret: Credential | None = None
        if secret is not None:
            self._secret = Credential(secret.domain, secret.user, secret.password, secret.former)
        self._sets = {local.member.guid: _of(local) for local in config.sets}

    def store(self) -> CredentialStore:
        """Who may authenticate here: partners, and for NtFrsApi whoever has the key of this member itself."""
        own = self._config.ntfrsapi is None
        mine = {local.member.guid for local in self._config.sets if own}
        members = [m for local in self._config.sets for m in local.set.members.values() if m.guid not in mine]
        keys = {member.key: member.name for member in members if member.key is not None}
        if self._config.directory is not None:  # they may notify, and as no member's name begins like that, no more
            servers = self._config.directory.servers
            keys = {key: f"{SERVER_PREFIX}{host}:{port}" for host, port, key in servers} | keys
        principals = {m.principal: m.name for m in members if m.principal is not None}
        by_secret = any(self._takes_secret(member) for member in members)
        accounts = [self._secret] if self._secret is not None and by_secret else []
        return CredentialStore(
            accounts,
            key=self._own,
            members=keys,
            raw_ntlm=self._config.raw_ntlm,
            keytab=self._keytab,
            principals=principals,
        )

    def credentials(self, partner: Member) -> tuple[Account | None, KeyCredential | None]:
        """By what a partner is called: the secret, the keys, both where it may choose, Kerberos, or nothing."""
        secret = self._secret if self._takes_secret(partner) else None
        if self._own is not None and partner.key is not None:
            return secret, KeyCredential(self._own, partner.key)
        if self._keytab is not None and partner.principal is not None:
            return KerberosCredential(self._keytab, partner.principal.rpartition("@")[2]), None
        return secret, None

    def missing(self, partner: Member) -> str | None:
        """Why this partner can neither be called nor call, and what to do; None where it can."""
        if self.credentials(partner) != (None, None):
            return None
        if self._own is None:
            lacking, where = "this member has no key", str(self._config.path)
        else:
            lacking, where = f"it has no key in {self._config.topology_path}", "its configuration"
        return (
            f"20311 nothing is exchanged with {partner.name}: {lacking}; run frs key with {where}, put the key that it "
            "prints into the topology of all members"
        )

    def compare(self, partner: Member) -> str:
        """What to compare when authentication with this partner fails."""
        name, topology = partner.name, self._config.topology_path
        account, _ = self.credentials(partner)
        if isinstance(account, KerberosCredential):
            return (
                f"compare the principals of {name} and of this member in {topology} with those in the keytabs of both; "
                f"that of {name} needs the service {account.service(partner.host)}"
            )
        if self._takes_secret(partner):
            return f"most likely the secrets differ: compare {self._config.secret_path} with the secret file of {name}"
        return (
            f"most likely the topologies have other keys: compare the key of {name} and that of this member in "
            f"{topology} with those that frs key prints on both, and have the same topology on both"
        )

    def refusal(self, context: CallContext, packet: Packet) -> str | None:
        """Why this packet is not its caller's to send: all that it names must be the caller's own. None where it is, or
        where what it names is not here at all (3.3.4.4.1)."""
        here = self._sets.get(packet.to.guid)
        if here is None:
            return None
        sender = here.members.get(packet.from_.guid)
        if sender is None:
            return f"it names as its sender a member that the set {here.name} does not have"
        if sender.guid == packet.to.guid or not self.may_speak_as(context, sender):
            return f"it names {sender.name} as its sender"
        replica = packet.replica
        if replica.guid not in here.guids or replica.name.casefold() != here.name:
            return f"it is to the set {here.name}, and names another"
        if here.partners.get(packet.cxtion.guid, sender) is not sender:
            return f"it names a connection of the set {here.name} that is not one with {sender.name}"
        return None

    def _takes_secret(self, member: Member) -> bool:
        return self._secret is not None and (self._config.secret_for_all or not self._is_known_alone(member))

    def _is_known_alone(self, member: Member) -> bool:
        """Whether the member has something of its own, by which it is told from all others."""
        return member.key is not None or (self._keytab is not None and member.principal is not None)

    def may_speak_as(self, context: CallContext, member: Member) -> bool:
        """Whether the caller has shown to be that member, as far as it has to."""
        return context.member == member.name if context.member else self._takes_secret(member)


def _of(local: LocalSet) -> _Set:
    replica_set, me = local.set, local.member.name
    partners: dict[bytes, Member | None] = {}
    for connection in replica_set.connections:
        ends = {connection.upstream, connection.downstream}
        partners[connection.guid] = replica_set.members[(ends - {me}).pop()] if me in ends else None
    members = {member.guid: member for member in replica_set.members.values()}
    return _Set(replica_set.name.casefold(), (local.member.guid, replica_set.guid), members, partners)
