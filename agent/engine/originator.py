"""What this member is, and was, known by in version vectors (OriginatorGuid, [MS-FRS1] 3.1.1.11).

A member has one originator GUID, until its VSNs have come to an end (see mending). What it made as another originator
before that is its own all the same: records, conflicts and deletions go on to name the former GUID.
"""

from __future__ import annotations

from typing import Final

#: Where the store keeps the present originator GUID, and the former ones, one after another.
ORIGINATOR: Final = "originator_guid"
FORMER: Final = "former_originator_guids"


def own_originators(present: bytes | None, former: bytes | None) -> frozenset[bytes]:
    """All that the store's values of ORIGINATOR and FORMER name; none where there is no identity yet."""
    values = (present or b"") + (former or b"")
    return frozenset(values[i : i + 16] for i in range(0, len(values), 16))
