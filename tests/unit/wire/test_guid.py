"""GUIDs in wire order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from wire_samples import guids

from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID, guid_from_text, guid_text, new_guid, short_guid


@given(guids)
def test_text(guid: bytes) -> None:
    text = guid_text(guid)
    assert guid_from_text(text) == guid_from_text("{" + text.upper() + "}") == guid
    assert short_guid(guid) == (text[:8] if guid != ZERO_GUID else "-")


def test_wire_order() -> None:
    """2.2.3.6.12 gives the GUID as text, the capture of 4.4.3 as bytes."""
    assert c.COMPRESSION_LZNT1.hex() == "d2f7d26495266d4388308d3c58701e15"
    assert guid_text(c.COMPRESSION_LZNT1) == "64d2f7d2-2695-436d-8830-8d3c58701e15"


@pytest.mark.parametrize("text", ["", "64d2f7d2", "64d2f7d2-2695-436d-8830-8d3c58701e1g"])
def test_no_guid(text: str) -> None:
    with pytest.raises(ValueError):
        guid_from_text(text)


def test_new_guid() -> None:
    assert new_guid() != new_guid()
    made = new_guid(random.Random(1).randbytes)
    assert made == new_guid(random.Random(1).randbytes)
    assert guid_text(made)[14] == "4"
    assert guid_text(made)[19] in "89ab"
