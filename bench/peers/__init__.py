"""The measured programs, each behind the same small interface (`bench.peers.base.Peer`)."""

from __future__ import annotations

from bench.peers.base import Peer
from bench.peers.frs import Frs
from bench.peers.rsync import Rsync
from bench.peers.syncthing import Syncthing
from bench.peers.unison import Unison

__all__ = ["Frs", "Peer", "Rsync", "Syncthing", "Unison", "make_peer"]


def make_peer(spec: str) -> Peer:
    """A peer from its name on the command line: ``frs:AGING[:nofsync|:mesh]``, ``rsync``, ``rsync:fsync``, ``unison``
    or ``syncthing:DELAY`` (both in seconds, 3 and 1 if left out). Raises ValueError for an unknown one.
    """
    name, _, argument = spec.partition(":")
    match name:
        case "frs":
            aging, _, variant = argument.partition(":")
            if variant not in ("", "nofsync", "mesh"):
                raise ValueError(f"unknown variant of frs: {variant!r}")
            return Frs(float(aging or 3), fsync=variant != "nofsync", members="abc" if variant == "mesh" else "ab")
        case "rsync":
            if argument not in ("", "fsync"):
                raise ValueError(f"unknown variant of rsync: {argument!r}")
            return Rsync(fsync=argument == "fsync")
        case "unison":
            return Unison()
        case "syncthing":
            return Syncthing(float(argument or 1))
    raise ValueError(f"unknown peer {name!r}; known are frs, rsync, unison, syncthing")
