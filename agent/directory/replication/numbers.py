"""Sequence numbers ([MC-MQDSRP] 2.2.2): 8 bytes, big-endian, and compared as such.

The text counts changes, so a server that is restored from a backup, or one that takes over, gives the same number to
another change. Here a number is never given twice: it has the epoch (12 bits, one more with each `promote`), the reign
(32 bits, another each time a database is opened; the seconds since 1970 serve for it), and the count (20 bits).
"""

from __future__ import annotations

from typing import Final

MIN_SEQ: Final = 0
MAX_SEQ: Final = (1 << 64) - 1
_COUNT_BITS: Final = 20
_REIGN_BITS: Final = 32
MAX_REIGN: Final = (1 << _REIGN_BITS) - 1
#: No number is believed whose reign is so many seconds ahead of the clock: no later one would be news any more.
AHEAD_S: Final = 86_400
MAX_EPOCH: Final = (1 << 11) - 1  # so that a number is positive in 64 bits with a sign, too
#: How many epochs a partition may move on in 12 hours: each `promote` is one, and who could claim the last of all would
#: own the partition for ever.
MOST_EPOCHS_AHEAD: Final = 8


def number(epoch: int, reign: int, count: int) -> int:
    """The number of these parts. Raises OverflowError."""
    if not (0 <= epoch <= MAX_EPOCH and 0 <= reign < 1 << _REIGN_BITS and 0 <= count < 1 << _COUNT_BITS):
        raise OverflowError(f"no sequence number has epoch {epoch}, reign {reign}, count {count}")
    return (epoch << _REIGN_BITS | reign) << _COUNT_BITS | count


def epoch_of(seq: int) -> int:
    """The epoch: each owner of a partition has a higher one than the one before."""
    return seq >> (_REIGN_BITS + _COUNT_BITS)


def reign_of(seq: int) -> int:
    """The reign: since which opening of the owner's database."""
    return seq >> _COUNT_BITS & (1 << _REIGN_BITS) - 1


def following(last: int, epoch: int, reign: int) -> int:
    """The number after `last` for an owner of that epoch, whose database was opened in that reign: the first of the
    reign, unless a number of it, or of a later one, was given already. Raises OverflowError at the end of all."""
    first = number(epoch, reign, 1)
    return first if first > last else last + 1


def seq_text(seq: int) -> str:
    """A number for people: `epoch.reign.count`."""
    return f"{epoch_of(seq)}.{reign_of(seq)}.{seq & (1 << _COUNT_BITS) - 1}" if seq else "none"
