"""Names that Windows cannot hold, on the wire. The pairs are those of the kernel's fs/smb/client/cifs_unicode.h (SFM_*)
and of Samba's vfs_fruit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wire.windows_names import from_wire, to_wire

PAIRS = [
    ("a:b", "a\uf022b"),
    ('"*:<>?\\|', "\uf020\uf021\uf022\uf023\uf024\uf025\uf026\uf027"),
    ("\x01\x1f", "\uf001\uf01f"),
    ("ends. ", "ends.\uf028"),
    ("ends .", "ends \uf029"),
    ("...", "..\uf029"),
    ("plain.txt", "plain.txt"),
    ("ä日\udcff", "ä日\udcff"),
    ("its own \uf022", "its own \udcef\udc80\udca2"),
    (" .a", " .a"),
    ("CON", "CON"),
]
any_name = st.text(
    st.one_of(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]),
              st.characters(min_codepoint=0xF000, max_codepoint=0xF030),
              st.sampled_from('":*.\\ \x01')),
    min_size=1, max_size=20,
)  # fmt: skip


@pytest.mark.parametrize(("name", "wire"), PAIRS)
def test_names(name: str, wire: str) -> None:
    assert to_wire(name, exact=False) == wire
    assert from_wire(wire) == name


def test_a_partner_that_can_hold_any_name_gets_it_as_it_is() -> None:
    assert to_wire("a:b. ", exact=True) == "a:b. "
    assert to_wire("\uf022", exact=True) == "\udcef\udc80\udca2"


@given(any_name, st.booleans())
def test_every_name_comes_back_and_windows_can_hold_it(name: str, exact: bool) -> None:
    wire = to_wire(name, exact=exact)
    assert from_wire(wire) == name
    if not exact:
        assert not re.search(r'[\x01-\x1f"*:<>?\\|]|[ .]\Z', wire)


@given(st.binary(min_size=1, max_size=30).filter(lambda raw: not {0, 0x2F} & set(raw)), st.booleans())
def test_bytes_come_back(raw: bytes, exact: bool) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    assert from_wire(to_wire(name, exact=exact)) == name
