"""The REASON flags of [MS-FRS1] 2.2.3.2 (ContentCmd), and which of them a kernel event stands for."""

from __future__ import annotations

from typing import Final

DATA_OVERWRITE: Final = 0x00000001
DATA_EXTEND: Final = 0x00000002
DATA_TRUNCATION: Final = 0x00000004
NAMED_DATA_OVERWRITE: Final = 0x00000010
NAMED_DATA_EXTEND: Final = 0x00000020
NAMED_DATA_TRUNCATION: Final = 0x00000040
FILE_CREATE: Final = 0x00000100
FILE_DELETE: Final = 0x00000200
EA_CHANGE: Final = 0x00000400
SECURITY_CHANGE: Final = 0x00000800
RENAME_OLD_NAME: Final = 0x00001000
RENAME_NEW_NAME: Final = 0x00002000
BASIC_INFO_CHANGE: Final = 0x00008000
HARD_LINK_CHANGE: Final = 0x00010000
COMPRESSION_CHANGE: Final = 0x00020000
ENCRYPTION_CHANGE: Final = 0x00040000
OBJECT_ID_CHANGE: Final = 0x00080000
REPARSE_POINT_CHANGE: Final = 0x00100000
STREAM_CHANGE: Final = 0x00200000

DATA: Final = DATA_OVERWRITE | DATA_EXTEND
"""What a write means here: the kernel does not say whether it overwrote or extended."""

CONTENT: Final = (
    DATA
    | DATA_TRUNCATION
    | NAMED_DATA_OVERWRITE
    | NAMED_DATA_EXTEND
    | NAMED_DATA_TRUNCATION
    | EA_CHANGE
    | SECURITY_CHANGE
    | BASIC_INFO_CHANGE
    | REPARSE_POINT_CHANGE
    | STREAM_CHANGE
)
"""Reasons after which data or metadata of a file may differ, as against its place or existence."""

METADATA: Final = EA_CHANGE | SECURITY_CHANGE | BASIC_INFO_CHANGE | REPARSE_POINT_CHANGE | STREAM_CHANGE
"""Reasons after which a change of a folder's times alone is looked into."""
