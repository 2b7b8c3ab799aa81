"""Change orders as the logs of the store hold them."""

from __future__ import annotations

from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.errors import WireError
from idtable.records import InlogRow, OutlogRow


class Unreadable(Exception):
    """What a log holds is no change order: the store is damaged. The text says which row."""


def change_order_of(row: InlogRow | OutlogRow) -> ChangeOrder:
    """The change order of a row. Raises Unreadable."""
    try:
        return ChangeOrder.decode(row.co)
    except WireError as error:
        raise Unreadable(f"the change order {row.co_guid.hex()} of a log cannot be read: {error}") from error


def extension_of(row: InlogRow | OutlogRow) -> CoExtension2:
    """The extension of a row's change order. Raises Unreadable."""
    try:
        return CoExtension2.decode(row.ext)
    except WireError as error:
        raise Unreadable(f"the extension of the change order {row.co_guid.hex()} cannot be read: {error}") from error
