"""Which bytes of a file are left out of its staging file because they are zero.

The answer depends on the content alone, never on where a file system keeps holes: a file of at least 1 MiB is
staged in sparse form when at least half of its blocks of 64 KiB hold only zeros. In sparse form, every 64 KiB block
(at multiples of 64 KiB) that holds only zeros is left out. Holes are only used to find zeros without reading them:
what is read of a file is at most 32 times what it takes on disk, however long it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from staging import interrupt
from staging.errors import Torn

BLOCK: Final = 0x10000
WINDOW: Final = 0x100000
SMALLEST: Final = 0x100000
_PEEK: Final = 4096
_AHEAD: Final = 4 * WINDOW  # is asked of the disk in one go
_ZEROS: Final = bytes(BLOCK)


def is_zero(data: bytes | bytearray | memoryview) -> bool:
    """Whether at most 64 KiB hold only zeros."""
    n = len(data)
    return data[:16] == _ZEROS[: min(n, 16)] and bytes(data) == (_ZEROS if n == BLOCK else _ZEROS[:n])


def _zero_at(fd: int, offset: int, size: int) -> bool:
    first = os.pread(fd, min(size, _PEEK), offset)
    return is_zero(first) and (len(first) == size or is_zero(os.pread(fd, size, offset)))


def wanted(fd: int, size: int) -> bool:
    """Whether a file of this size is staged in sparse form."""
    if size < SMALLEST:
        return False
    blocks = (size + BLOCK - 1) // BLOCK
    number = zeros = ahead = 0
    while number < blocks:
        found = _data_from(fd, number * BLOCK, size) // BLOCK
        zeros += found - number
        number = found
        if 2 * zeros >= blocks:
            return True
        if number < blocks:
            offset = number * BLOCK
            if offset >= ahead:
                interrupt.check()
                ahead = offset + _AHEAD
                os.posix_fadvise(fd, offset, _AHEAD, os.POSIX_FADV_WILLNEED)
            zeros += _zero_at(fd, offset, min(BLOCK, size - offset))
            number += 1
        if 2 * (number - zeros) > blocks:
            return False
    return 2 * zeros >= blocks


def _data_from(fd: int, offset: int, size: int) -> int:
    """Where the first block with data begins from this block on; `size`, rounded up to a block, where there is none."""
    try:
        found = os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        found = size  # ENXIO: nothing but a hole until the end
    return -(-size // BLOCK) * BLOCK if found >= size else max(offset, found // BLOCK * BLOCK)


def runs(fd: int, size: int) -> Iterator[tuple[int, memoryview]]:
    """The runs of blocks to send, as (offset, data); none crosses a multiple of 1 MiB.

    The data is valid until the next one is asked for. Raises Torn when the file has become shorter.
    """
    buffer = memoryview(bytearray(WINDOW))
    offset = 0
    while (offset := _data_from(fd, offset, size)) < size:
        end = min(size, (offset // WINDOW + 1) * WINDOW)
        interrupt.check()
        window = buffer[: end - offset]
        got = 0
        while got < len(window):
            n = os.preadv(fd, [window[got:]], offset + got)
            if n == 0:
                raise Torn("the file became shorter while it was read")
            got += n
        start = None
        for at in range(0, len(window), BLOCK):
            if is_zero(window[at : at + BLOCK]):
                if start is not None:
                    yield offset + start, window[start:at]
                    start = None
            elif start is None:
                start = at
        if start is not None:
            yield offset + start, window[start:]
        offset = end
