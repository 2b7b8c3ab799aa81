"""Who is behind an address, as far as counting goes."""

from __future__ import annotations

import functools
import ipaddress


def source_of(address: str) -> str:
    """Under what a peer's connections are counted together: its IPv4 address, also where that is mapped into IPv6; of
    an IPv6 address the /64 it lies in, since one host can have all of that. Anything else stands for itself.
    """
    return _of_ipv6(address) if ":" in address else address


@functools.lru_cache(1024)
def _of_ipv6(address: str) -> str:
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64)) + "/64"
