"""What an attack has sent, and how it was answered."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Tally:
    """Counts for one attack."""

    def __init__(self) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.answers: Counter[str] = Counter()

    def send(self, size: int = 0) -> None:
        """Something of `size` bytes was sent."""
        self.sent += 1
        self.sent_bytes += size

    def answer(self, how: str) -> None:
        """Something was answered, or came to an end, like this."""
        self.answers[how] += 1

    def as_json(self) -> dict[str, Any]:
        """For the line that the attacker prints."""
        return {"sent": self.sent, "sent_bytes": self.sent_bytes, "answers": dict(self.answers)}
