"""Asks as agent.activedirectory.asking does, a controller that gives no more than a page at once: python -m
tests.activedirectory.inpages SIZE. Samba gives all to whoever asks for no pages, however few it is told to give; of a
controller of Windows (MaxPageSize) that would be an error, and is one here.
"""

from __future__ import annotations

import sys
from typing import Any

import bonsai

from agent.activedirectory import asking


def main(size: int) -> None:
    """Read one request, and answer it."""
    search = bonsai.LDAPConnection.search

    def limited(*asked: Any, **more: Any) -> Any:
        found = search(*asked, **more)
        if len(found) > size:
            raise bonsai.errors.SizeLimitError(f"more than {size} at once")
        return found

    bonsai.LDAPConnection.search = limited
    asking._PAGE = size
    asking.main()


if __name__ == "__main__":
    main(int(sys.argv[1]))
