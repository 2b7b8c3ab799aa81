"""Names that Windows cannot hold, on the wire.

What its systems refuse in a name travels as a character of the private use area, as Services for Macintosh had it and
Samba and the kernel's cifs have since: 0x01 to 0x1F and `"*:<>?\\|` as U+F001 to U+F027, a space or a dot at the end as
U+F028 and U+F029. A name that has one of these characters of its own says its UTF-8 in lone surrogates, as bytes that
are no UTF-8 do. So every name comes back the same, and no two names become one.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = "".join(map(chr, range(1, 32)))
_REFUSED: Final = {char: chr(0xF001 + at) for at, char in enumerate(_CONTROLS + '"*:<>?\\|')}
_AT_END: Final = {" ": "\uf028", ".": "\uf029"}
_MEANT: Final = {stand_in: char for char, stand_in in (_REFUSED | _AT_END).items()}
#: Characters of the private use area that stand for others, and how a name says that it has them itself.
_OWN: Final = {chr(code): f"\udcef\udc80{chr(0xDC00 | 0x80 | code & 0x3F)}" for code in range(0xF001, 0xF02A)}
_IS_OWN: Final = {said: char for char, said in _OWN.items()}

_OF_ITS_OWN: Final = re.compile("[\uf001-\uf029]")
_TO_WINDOWS: Final = re.compile(r'[\x01-\x1f"*:<>?\\|\uf001-\uf029]|[ .]\Z')
_FROM_WIRE: Final = re.compile("[\uf001-\uf029]|\udcef\udc80[\udc81-\udca9]")


def to_wire(name: str, *, exact: bool) -> str:
    """The name as it is sent; `exact`: to a partner that can hold any name."""
    if exact:
        return _OF_ITS_OWN.sub(lambda found: _OWN[found[0]], name)
    return _TO_WINDOWS.sub(lambda found: _stand_in(found[0]), name)


def _stand_in(char: str) -> str:
    return _OWN.get(char) or _REFUSED.get(char) or _AT_END[char]


def from_wire(name: str) -> str:
    """The name that was meant."""
    return _FROM_WIRE.sub(lambda found: _MEANT.get(found[0]) or _IS_OWN[found[0]], name)
