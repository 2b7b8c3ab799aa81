"""What is under way to one downstream partner ([MS-FRS1] 3.1.1.8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.engine.order import Key
from agent.engine.session import Session
from agent.wire.change_order import ChangeOrder


@dataclass(slots=True)
class Flow:
    """What one outbound connection has in flight. `unacked` maps a sequence number to the CO's GUID."""

    session: Session
    leading: int = 0
    trailing: int = 0
    saved_trailing: int = 0
    unacked: dict[int, bytes] = field(default_factory=dict)
    vvjoin: Iterator[tuple[ChangeOrder, bytes]] | None = None
    vvjoin_seq: int = 0
    vvjoin_unacked: dict[int, bytes] = field(default_factory=dict)
    offered: dict[bytes, Key] = field(default_factory=dict)  # change order -> the change, of those in vvjoin_unacked
    resume_at: int = 0
    moved_at: int = 0  # when the last change order was acknowledged, or sent after that (see stuck)
    ahead: set[tuple[bytes, int]] = field(default_factory=set)  # originators and VSNs sent out of order (see stuck)
    numbers: dict[bytes, list[int]] = field(default_factory=dict)  # of a change order, which may be sent twice

    @property
    def reach(self) -> int:
        """Up to this number of the outbound log the session has sent all, or is about to in its VVJoin."""
        return self.leading if self.vvjoin is None else self.resume_at
