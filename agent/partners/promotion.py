"""FrsRpcStartPromotionParent ([MS-FRS1] 3.3.4.2): a domain controller that is new asks for a volatile connection, over
which its SYSVOL is seeded before both know the connections of the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from agent.engine.context import Cxtion
from agent.wire.comm_packet import StartPromotionParent
from agent.wire.guid import ZERO_GUID, guid_text
from agent.wire.packet import NamedGuid
from config.model import LocalSet, Member

#: ReplicaSetType, and the type of the set in the configuration.
TYPES: Final = {"domain": "sysvol", "enterprise": "enterprise"}
#: PartnerAuthLevel: encrypted Kerberos, no authentication. The calls themselves are as secure as all others either way.
_AUTH_LEVELS: Final = (0, 1)


class Refused(Exception):
    """The request is not valid: ERROR_INVALID_PARAMETER. The text says why."""


def promoted(
    request: StartPromotionParent,
    sets: Iterable[LocalSet],
    may_speak_as: Callable[[Member], bool],
    volatile: Mapping[bytes, bytes],
) -> tuple[LocalSet, Cxtion]:
    """The set that the caller is to be seeded with, and the connection for that. Raises Refused.

    Which computers are domain controllers is what the set says: one of type sysvol or enterprise has no other members.
    `may_speak_as` says whether the caller has shown to be that member; `volatile` has the member that each volatile
    connection is with, by its GUID.
    """
    given = request.cxtion_name, request.partner_name, request.partner_princ_name
    guids = request.cxtion_guid, request.partner_guid, request.parent_guid
    if request.replica_set_name is None or None in given or None in guids:
        raise Refused("a parameter is missing")
    if request.partner_auth_level not in _AUTH_LEVELS:
        raise Refused(f"PartnerAuthLevel is {request.partner_auth_level}")
    kind = TYPES.get((request.replica_set_type or "").lower())
    name = request.replica_set_name.casefold()
    local = next((one for one in sets if one.name.casefold() == name and one.set.type == kind), None)
    if local is None:
        raise Refused(f"there is no set {request.replica_set_name!r} of the type {request.replica_set_type!r} here")
    assert request.cxtion_guid is not None
    assert request.partner_guid is not None
    member = next((one for one in local.set.members.values() if one.guid == request.partner_guid), None)
    if member is None or member.guid == local.member.guid or not may_speak_as(member):
        raise Refused(f"the caller is not the member {guid_text(request.partner_guid)} of the set {local.name}")
    cxtion = request.cxtion_guid
    configured = any(one.guid == cxtion for one in local.set.connections)
    if cxtion == ZERO_GUID or configured or volatile.get(cxtion, member.guid) != member.guid:
        raise Refused(f"the connection {guid_text(cxtion)} is another one's")
    return local, Cxtion(
        guid=cxtion,
        key=f"{local.member.name}->{member.name} (volatile)",
        wire_name=guid_text(cxtion).upper(),
        partner=NamedGuid(member.guid, member.name),
        inbound=False,
        volatile=True,
    )
