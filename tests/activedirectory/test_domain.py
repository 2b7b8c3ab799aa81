"""Members whose topology comes from a real Active Directory: the first scenarios of the campaign (script/domain)."""

from __future__ import annotations

from pathlib import Path

from tests.activedirectory.fleet import Fleet
from tests.activedirectory.scenarios import SHORT
from tests.activedirectory.threemembers import site_of


def test_members_get_everything_from_it(fleet: Fleet, tmp_path: Path) -> None:
    """Three members begin with nothing but their keytabs; sets of both kinds; a change that arrives when they are told
    to poll, and by itself. Then the controller is away, and hides half of what it has: nothing changes, the status says
    why, and files go on."""
    with site_of(fleet, tmp_path).running() as site:
        for scenario in SHORT:
            scenario(site)
