"""Every row of 3.3.4.1.x, 3.3.4.4.4.1.x, 3.3.4.4.6.1 and 3.3.4.4.6.2: the flags as the specification lists them."""

from __future__ import annotations

import pytest

from agent.engine import flags as fl
from agent.wire import constants as c

LOCAL, LOCATION, CONTENT = 0x20, 0x8, 0x4
COMPRESSED, NEW, VVJOIN, ACTIVATED = 0x01000000, 0x400, 0x40000, 0x2


@pytest.mark.parametrize(
    ("is_dir", "content", "compressed", "flags"),
    [
        (False, True, False, LOCAL | LOCATION | CONTENT),  # 3.3.4.1.1, created
        (False, False, False, LOCAL | LOCATION),  # 3.3.4.1.1, created, of size zero
        (False, True, True, COMPRESSED | LOCAL | LOCATION | CONTENT),
        (False, False, True, COMPRESSED | LOCAL | LOCATION),
        (True, False, False, LOCAL | LOCATION),  # 3.3.4.1.4, created
        (True, True, False, LOCAL | LOCATION),
        (True, False, True, COMPRESSED | LOCAL | LOCATION),
    ],
)
def test_created(is_dir: bool, content: bool, compressed: bool, flags: int) -> None:
    assert fl.local_created(is_dir=is_dir, has_content=content, compressed=compressed) == flags


@pytest.mark.parametrize(("compressed", "more"), [(False, 0), (True, COMPRESSED)])
def test_updated_and_renamed(compressed: bool, more: int) -> None:
    assert fl.local_updated(compressed=compressed) == LOCAL | CONTENT | more
    assert fl.local_renamed(compressed=compressed, moved=False) == LOCAL | CONTENT | more  # 3.3.4.1.3, 3.3.4.1.6
    assert fl.local_renamed(compressed=compressed, moved=True) == LOCAL | CONTENT | LOCATION | more


def test_removed_and_vvjoin() -> None:
    assert fl.LOCAL_REMOVED == 0x28  # 3.3.4.1.2, 3.3.4.1.5; ruling 15
    assert fl.VVJOIN == 0x40028  # 3.3.4.4.4.1.2, 3.3.4.4.4.1.3; ruling 15


def test_location_commands() -> None:
    assert fl.location(c.CO_LOCATION_CREATE, False) == 0
    assert fl.location(c.CO_LOCATION_CREATE, True) == 1
    assert fl.location(c.CO_LOCATION_DELETE, False) == 2
    assert fl.location(c.CO_LOCATION_DELETE, True) == 3
    assert (fl.NO_COMMAND_FILE, fl.NO_COMMAND_FOLDER) == (0xE, 0xF)


@pytest.mark.parametrize(
    ("initial", "is_dir", "rename", "new", "compressed", "flags"),
    [
        (True, False, False, True, True, VVJOIN | COMPRESSED | NEW | LOCATION | CONTENT),
        (True, False, False, True, False, VVJOIN | NEW | LOCATION | CONTENT),
        (False, False, False, True, True, COMPRESSED | NEW | LOCATION | CONTENT),
        (False, False, False, False, True, COMPRESSED | LOCATION | CONTENT),
        (False, False, False, True, False, NEW | LOCATION | CONTENT),
        (False, False, False, False, False, LOCATION | CONTENT),
        (False, False, True, False, True, COMPRESSED | CONTENT),
        (False, False, True, False, False, CONTENT),
        (True, True, False, True, False, VVJOIN | NEW | LOCATION),
        (True, True, False, True, True, VVJOIN | NEW | LOCATION),
        (False, True, False, True, True, COMPRESSED | NEW | LOCATION),
        (False, True, False, False, True, COMPRESSED | LOCATION),
        (False, True, False, True, False, NEW | LOCATION),
        (False, True, False, False, False, LOCATION),
        (False, True, True, False, True, COMPRESSED | CONTENT),
        (False, True, True, False, False, CONTENT),
    ],
)
def test_request(initial: bool, is_dir: bool, rename: bool, new: bool, compressed: bool, flags: int) -> None:
    """3.3.4.4.6.1"""
    found = fl.request(initial=initial, is_dir=is_dir, rename=rename, new=new, compressed=compressed)
    assert found == flags


@pytest.mark.parametrize(
    ("initial", "is_dir", "rename", "delete", "new", "compressed", "flags"),
    [
        (True, False, False, False, True, True, VVJOIN | COMPRESSED | NEW | LOCATION | CONTENT | ACTIVATED),
        (True, False, False, False, True, False, VVJOIN | NEW | LOCATION | CONTENT | ACTIVATED),
        (False, False, False, False, True, True, COMPRESSED | NEW | LOCATION | CONTENT | ACTIVATED),
        (False, False, False, False, False, True, COMPRESSED | LOCATION | CONTENT | ACTIVATED),
        (False, False, False, False, True, False, NEW | LOCATION | CONTENT | ACTIVATED),
        (False, False, False, False, False, False, LOCATION | CONTENT | ACTIVATED),
        (False, False, True, False, False, True, COMPRESSED | CONTENT | ACTIVATED),
        (False, False, True, False, False, False, LOCATION | ACTIVATED),
        (False, True, True, False, False, True, COMPRESSED | CONTENT | ACTIVATED),
        (False, True, True, False, False, False, LOCATION | ACTIVATED),
        (True, True, False, False, True, True, VVJOIN | COMPRESSED | NEW | LOCATION | ACTIVATED),
        (True, True, False, False, True, False, VVJOIN | NEW | LOCATION | ACTIVATED),
        (False, True, False, False, True, True, COMPRESSED | NEW | LOCATION | ACTIVATED),
        (False, True, False, False, False, True, COMPRESSED | LOCATION | ACTIVATED),
        (False, True, False, False, True, False, NEW | LOCATION | ACTIVATED),
        (False, True, False, False, False, False, LOCATION | ACTIVATED),
        (False, False, False, True, False, False, 0xA),
        (False, True, False, True, False, True, 0xA),
    ],
)
def test_done(initial: bool, is_dir: bool, rename: bool, delete: bool, new: bool, compressed: bool, flags: int) -> None:
    """3.3.4.4.6.2, neither dampened nor lost"""
    found = fl.done(initial=initial, is_dir=is_dir, rename=rename, delete=delete, new=new, compressed=compressed)
    assert found == flags


@pytest.mark.parametrize(("compressed", "more"), [(False, 0), (True, COMPRESSED)])
def test_dampened_and_lost(compressed: bool, more: int) -> None:
    assert fl.done_dampened(compressed=compressed) == 0x02000000 | 0x2000 | 0x40 | CONTENT | ACTIVATED | 0x1 | more
    assert fl.done_lost(compressed=compressed) == CONTENT | ACTIVATED | 0x1 | more
    assert (fl.STATE_DONE_DAMPENED, fl.STATE_DONE_LOST, fl.STATE_DONE) == (8, 0, 0x16)
    assert (fl.STATE_REQUEST_INITIAL, fl.STATE_REQUEST_NORMAL, fl.STATE_OUTBOUND_REQUEST) == (5, 6, 0x14)


@pytest.mark.parametrize(
    ("command", "flags", "content", "needed"),
    [
        (c.CO_LOCATION_CREATE, LOCATION, 0, True),
        (c.CO_LOCATION_MOVEIN, LOCATION, 0, True),
        (c.CO_LOCATION_MOVEIN2, LOCATION, 0, True),
        (c.CO_LOCATION_DELETE, LOCATION | CONTENT, 1, False),
        (c.CO_LOCATION_MOVEOUT, LOCATION | CONTENT, 1, False),
        (c.CO_LOCATION_MOVERS, LOCATION, 0, False),
        (c.CO_LOCATION_MOVEDIR, LOCATION, 0x2000, True),
        (c.CO_LOCATION_NO_CMD, LOCATION | CONTENT, 2, True),
        (c.CO_LOCATION_NO_CMD, CONTENT, 2, True),
        (c.CO_LOCATION_NO_CMD, CONTENT, 0, False),
        (c.CO_LOCATION_NO_CMD, 0, 2, False),
        (c.CO_LOCATION_DELETE, CONTENT, 2, True),  # without CO_FLAG_LOCATION_CMD the command does not count
    ],
)
def test_staging_file_needed(command: int, flags: int, content: int, needed: bool) -> None:
    """3.3.4.4.6"""
    assert fl.needs_staging_file(fl.location(command, False), flags, content) == needed


def test_folder_delete_rename() -> None:
    assert fl.is_folder(1, LOCATION, 0)
    assert not fl.is_folder(0, LOCATION, 0x10)
    assert fl.is_folder(0, 0, 0x10)
    assert not fl.is_folder(1, 0, 0x20)
    assert fl.is_delete(2, LOCATION)
    assert fl.is_delete(fl.location(c.CO_LOCATION_MOVEOUT, False), LOCATION)
    assert not fl.is_delete(2, 0)
    assert fl.is_rename(0xE, CONTENT, 0x2000)
    assert not fl.is_rename(0xE, 0, 0x2000)
    assert not fl.is_rename(0xE, CONTENT, 0x2001)
    assert not fl.is_rename(2, LOCATION | CONTENT, 0x2000)
