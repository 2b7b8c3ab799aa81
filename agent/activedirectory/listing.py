"""Whether an account is shown all objects that are directly below another ([MS-ADTS] 5.1.3.3.6): those that are not
shown could else not be told from those that are not there. No I/O.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Final

#: The right to list what is below an object, and the generic ones that hold it.
_LIST: Final = 0x00000004 | 0x10000000 | 0x80000000
#: The identities that each account has which was authenticated; those that it may have, whatever the server says.
_EVERYBODY: Final = frozenset(("S-1-1-0", "S-1-5-11"))
_PERHAPS: Final = frozenset(("S-1-5-10", "S-1-3-4"))


def identities(sids: Collection[bytes]) -> frozenset[str] | None:
    """The identities of an account, of the tokenGroups that the root of a controller names; None where it names
    none that can be read."""
    from bonsai.active_directory import SID

    try:
        return frozenset(str(SID(bytes_le=one)) for one in sids) | _EVERYBODY if sids else None
    except (ValueError, TypeError, IndexError):
        return None


@functools.lru_cache(maxsize=1024)
def is_listed(descriptor: bytes | None, account: frozenset[str] | None) -> bool:
    """Whether the nTSecurityDescriptor of an object surely lets an account of these identities list what is below it.
    None: they are not known, and whatever is denied to anybody counts as denied to it."""
    from bonsai.active_directory import ACEFlag, SecurityDescriptor

    try:
        found = SecurityDescriptor.from_binary(descriptor or b"")
    except (ValueError, TypeError, IndexError, OverflowError):
        return False
    for one in found.dacl.aces if found.dacl is not None else ():
        if ACEFlag.INHERIT_ONLY in one.flags or not one.mask & _LIST:
            continue
        sid = str(one.trustee_sid)
        if one.type.is_access_denied and (account is None or sid in account | _PERHAPS):
            return False
        if one.type.short_name in ("A", "OA") and one.object_type is None and sid in (account or _EVERYBODY):
            return True
    return False
