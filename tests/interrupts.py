"""How a campaign is interrupted."""

from __future__ import annotations

import signal


def interrupt_once() -> None:
    """From now on the first SIGINT or SIGTERM raises KeyboardInterrupt in the main thread, and those after it do not
    disturb what ends members and unmounts their file systems then (timeout(1) sends two)."""

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
