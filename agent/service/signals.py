"""What signals do to a running agent: some stop it cleanly, one has it read its configuration, and no other ends it
without a word.

Left to the kernel are SIGKILL and SIGSTOP, and those that tell of a fault of the program itself.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents

#: Stop the agent as cancelling does. SIGQUIT is Ctrl-\; SIGXCPU comes when its limit of processor time is reached.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
#: Has the agent read its configuration again.
RELOADING: Final = signal.SIGHUP
#: Mean nothing to the agent, and would end it: the kernel's default. Python ignores SIGPIPE and SIGXFSZ by itself.
MEANINGLESS: Final = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)


def ignore_meaningless() -> None:
    """Have none of MEANINGLESS end this process, nor RELOADING, while nobody is there yet, or any more, to tell of
    it."""
    for number in (RELOADING, *MEANINGLESS):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def handled(stop: Callable[[str], object], reload: Callable[[], object], incidents: Incidents) -> Iterator[None]:
    """While the running event loop runs this: STOPPING call `stop` with the signal's name, RELOADING calls `reload`,
    and of MEANINGLESS `incidents` is told."""
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop, _name(number))
    loop.add_signal_handler(RELOADING, reload)
    for other in MEANINGLESS:
        loop.add_signal_handler(other, _tell, incidents, _name(other))
    try:
        yield
    finally:
        for other in (RELOADING, *MEANINGLESS):
            loop.remove_signal_handler(other)
        ignore_meaningless()


def _tell(incidents: Incidents, name: str) -> None:
    incidents.report(Cause.SIGNAL, name, f"{name} is ignored")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
