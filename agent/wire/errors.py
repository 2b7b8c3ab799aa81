"""The one error that the codecs of this package raise."""

from __future__ import annotations


class WireError(ValueError):
    """Bytes that are not what their specification allows, or values that cannot be put on the wire.

    ``element`` names the structure, element or field at fault as the specification spells it.
    ``offset`` is the byte offset of the fault in the buffer being decoded, -1 while encoding.
    """

    def __init__(self, element: str, offset: int, message: str) -> None:
        super().__init__(element, offset, message)
        self.element = element
        self.offset = offset
        self.message = message

    def __str__(self) -> str:
        where = f" at byte {self.offset}" if self.offset >= 0 else ""
        return f"{self.element}{where}: {self.message}"
