"""What the exit code of `frs` means, the same for every command. docs/cli.md shows this table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `frs`."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    UNREACHABLE = 3
    FAILURE = 4
    INTERRUPTED = 130


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done; for `wait`: nothing is pending; for `run` and `demo`: stopped when asked to",
    ExitCode.NEGATIVE: "the answer is no: `wait` found something still pending when its time was over, `status` a set "
    "that does not replicate",
    ExitCode.USAGE: "the command line or the configuration is wrong; nothing was started or changed",
    ExitCode.UNREACHABLE: "the agent is not running or does not answer",
    ExitCode.FAILURE: "it began and failed: a port in use, a disk error, a member that died, a fault of frs",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}
