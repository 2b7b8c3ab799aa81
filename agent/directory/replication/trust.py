"""What one server may have another one change: what is in the directory, and not who its servers are.

A request comes from a server that has authenticated, and that may be taken over. Servers come and go, and own what
they own, by the word of an administrator at the owner itself; but a server may ask for a site that it is to own itself,
which its administrator has it do (`frs directory promote --site`).
"""

from __future__ import annotations

from typing import Final

from agent.directory.objects.model import MQ_ERROR_ACCESS_DENIED, DirectoryError, type_of_change
from agent.directory.objects.table import SERVICE_BSC, SERVICE_PEC, SERVICE_PSC, Type
from agent.directory.replication.common import E_PECNAME, QM_PLACE, QM_SERVICE, S_EPOCH, S_PLACE, S_PSC
from agent.directory.replication.content import type_of_deletion
from agent.directory.replication.messages import CREATE, DELETE, DirectoryChange
from agent.directory.replication.ports import Store

_QM_NAME: Final = 203
_SERVER: Final = SERVICE_BSC | SERVICE_PSC | SERVICE_PEC


def refuse(store: Store, sender: str, requester: str, change: DirectoryChange) -> None:
    """Raises DirectoryError where a change is not one that `requester` may ask for by a message of `sender`."""
    given = dict(change.properties)
    made = type_of_deletion(given) if change.command == DELETE else type_of_change(given)
    old = store.get(change.guid) if change.guid is not None else store.find(made, change.name) if made else None
    type_ = old.type if old is not None else made
    whole = change.command in (CREATE, DELETE)
    match type_:
        case Type.ENTERPRISE:
            refused = whole or E_PECNAME in given
        case Type.SITE:
            ours = sender == requester == given.get(S_PSC)
            refused = whole or (not given.keys().isdisjoint((S_PSC, S_EPOCH, *S_PLACE)) and not ours)
        case Type.MACHINE:
            service = given.get(QM_SERVICE, 0)
            server = bool(isinstance(service, int) and service & _SERVER) or not given.keys().isdisjoint(QM_PLACE)
            was = old is not None and bool(old.number(QM_SERVICE) & _SERVER)
            says = not given.keys().isdisjoint((_QM_NAME, QM_SERVICE))
            refused = server or (was and (whole or says))
        case _:
            refused = False
    if refused:
        raise DirectoryError(MQ_ERROR_ACCESS_DENIED, f"{requester} may not say who the servers are")
