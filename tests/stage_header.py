"""STAGE_HEADER (2.2.3.10) with its change order decoded, for comparing both with what was captured.

``staging.header`` knows the layout and keeps ChangeOrderCommand as 0x318 opaque bytes; here they get their
meaning.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from agent.wire.change_order import Buffer, ChangeOrder
from agent.wire.errors import WireError
from staging.errors import StagingError
from staging.header import HEADER_SIZE, StageHeader

# Major, Minor, DataHigh, DataLow, Compression, NotUsed and Attributes lie before it
_CHANGE_ORDER = 0x50


@dataclass(slots=True)
class ChangeOrderStageHeader:
    """A staging file's header and the change order in it; ``header.change_order`` is not looked at."""

    header: StageHeader
    change_order: ChangeOrder

    def encode(self) -> bytes:
        """The 0x400 bytes; WireError if a value does not fit."""
        change_order = self.change_order.encode()
        try:
            return dataclasses.replace(self.header, change_order=change_order).encode()
        except StagingError as error:
            raise WireError("STAGE_HEADER", -1, str(error)) from None

    @classmethod
    def decode(cls, buf: Buffer) -> ChangeOrderStageHeader:
        """Read the header at the start of ``buf``; WireError if it is cut or is none."""
        if len(buf) < HEADER_SIZE:
            raise WireError("STAGE_HEADER", len(buf), f"{len(buf)} of 0x400 bytes")
        head = bytes(buf[:HEADER_SIZE])
        try:
            header = StageHeader.decode(head)
        except StagingError as error:
            raise WireError("STAGE_HEADER", 0, str(error)) from None
        return cls(header, ChangeOrder.decode(head, _CHANGE_ORDER))


def stage_change_order(change_order: ChangeOrder) -> bytes:
    """The 0x318 bytes of ChangeOrderCommand for a staging file: Extension and all spare fields are 0."""
    return change_order.replace().encode()
