"""Whether an account is shown all that is in a folder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.activedirectory.listing import identities, is_listed
from tests.unit.activedirectory.entries import (
    ALLOWED,
    ALLOWED_OBJECT,
    AUTHENTICATED,
    DENIED,
    DENIED_CALLBACK,
    DENIED_OBJECT,
    READ,
    rights,
)

TOKEN = frozenset(("S-1-5-21-1-2-3-1103", "S-1-5-21-1-2-3-515", AUTHENTICATED, "S-1-1-0"))
OTHER = "S-1-5-21-9-9-9-999"
RIGHTS: dict[str, tuple[bytes, bool, bool]] = {
    "by default": (rights((ALLOWED, 0, READ, AUTHENTICATED)), True, True),
    "to all, by a generic right": (rights((ALLOWED, 0, 0x80000000, "S-1-1-0")), True, True),
    "to its group": (rights((ALLOWED, 0, 0x4, "S-1-5-21-1-2-3-515")), True, False),
    "to its group, as an entry for one kind": (rights((ALLOWED_OBJECT, 0, 0x4, "S-1-5-21-1-2-3-515")), True, False),
    "to others": (rights((ALLOWED, 0, 0xF01FF, OTHER)), False, False),
    "only to read": (rights((ALLOWED, 0, 0x10, AUTHENTICATED)), False, False),
    "only below": (rights((ALLOWED, 0x0A, READ, AUTHENTICATED)), False, False),
    "only of one kind": (rights((ALLOWED_OBJECT, 0, 0x4, AUTHENTICATED, bytes(16))), False, False),
    "denied first": (rights((DENIED, 0, 0x4, AUTHENTICATED), (ALLOWED, 0, READ, AUTHENTICATED)), False, False),
    "denied after": (rights((ALLOWED, 0, READ, AUTHENTICATED), (DENIED, 0, 0x4, AUTHENTICATED)), True, True),
    "denied to its group": (
        rights((DENIED, 0, 0x10000000, "S-1-5-21-1-2-3-515"), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "denied to others": (rights((DENIED, 0, 0x4, OTHER), (ALLOWED, 0, READ, AUTHENTICATED)), True, False),
    "denied below": (rights((DENIED, 0x0A, 0x4, AUTHENTICATED), (ALLOWED, 0, READ, AUTHENTICATED)), True, True),
    "denied in part": (
        rights((DENIED_OBJECT, 0, 0x4, AUTHENTICATED, bytes(16)), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "denied on a condition": (
        rights((DENIED_CALLBACK, 0, 0x4, AUTHENTICATED), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "denied to the object itself": (
        rights((DENIED, 0, 0x4, "S-1-5-10"), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "to nobody": (rights(), False, False),
    "not to be read": (b"", False, False),
    "cut short": (rights((ALLOWED, 0, READ, AUTHENTICATED))[:-3], False, False),
    "of a type that is none": (rights((77, 0, 0x4, AUTHENTICATED)), False, False),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHTS)
def test_who_may_list_a_folder(name: str) -> None:
    """By its security descriptor, for an account of these identities, and for one of which they are not known."""
    descriptor, known, unknown = RIGHTS[name]
    assert (is_listed(descriptor, TOKEN), is_listed(descriptor, None)) == (known, unknown)


@given(st.binary(max_size=120), st.booleans())
def test_no_octets_break_the_rights(octets: bytes, whole: bool) -> None:
    good = rights((ALLOWED, 0, READ, AUTHENTICATED))
    is_listed(good[:20] + octets if whole else octets, TOKEN)
    identities([octets])
