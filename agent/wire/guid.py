"""GUIDs as 16 bytes in wire order ([MS-DTYP] 2.3.4.2, little-endian first three fields)."""

from __future__ import annotations

import uuid
from collections.abc import Callable

ZERO_GUID = bytes(16)


def guid_text(guid: bytes) -> str:
    """The usual lower-case text of a GUID in wire order; ValueError unless it has 16 bytes."""
    return str(uuid.UUID(bytes_le=bytes(guid)))


def guid_from_text(text: str) -> bytes:
    """Wire order bytes of a GUID written as text, with or without braces; ValueError if it is none."""
    return uuid.UUID(text).bytes_le


def new_guid(random_bytes: Callable[[int], bytes] | None = None) -> bytes:
    """A random (version 4) GUID in wire order.

    ``random_bytes(16)`` supplies the randomness, so that a simulation can be repeated; the operating
    system does when it is None.
    """
    if random_bytes is None:
        return uuid.uuid4().bytes_le
    return uuid.UUID(bytes=random_bytes(16), version=4).bytes_le


def short_guid(guid: bytes) -> str:
    """The first eight digits of the text form, for log lines; "-" for the zero GUID."""
    return guid[3::-1].hex() if guid != ZERO_GUID else "-"
