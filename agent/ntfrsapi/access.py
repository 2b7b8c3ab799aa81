"""Who may call which method of NtFrsApi ([MS-FRS1] 3.2.1 to 3.2.4, notes 45 to 57)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

from agent.rpc.interface import CallContext
from agent.wire.constants import ERROR_ACCESS_DENIED, ERROR_SUCCESS
from agent.wire.frsapi import ERROR_NOT_AUTHENTICATED, FRS_ERR_INSUFFICIENT_PRIV

#: "none": the call fails; "disabled": whoever has authenticated may; else the right that a caller must have.
Check = Literal["none", "disabled", "read", "write"]

FUNCTIONS: Final = (
    "set_ds_polling_interval", "get_ds_polling_interval", "info", "is_path_replicated", "writer_command",
    "force_replication",
)  # fmt: skip
#: As Windows has it: each check enabled, and read access enough.
DEFAULT: Final[Check] = "read"


class Access:
    """`checks` are those that are not the default. `readers` and `writers` are names of members that call by their
    keys, or of accounts; whoever may write may read."""

    def __init__(self, checks: Mapping[str, Check], readers: Collection[str], writers: Collection[str]) -> None:
        self._checks = dict.fromkeys(FUNCTIONS, DEFAULT) | dict(checks)
        self._writers = frozenset(name.casefold() for name in writers)
        self._readers = self._writers | {name.casefold() for name in readers}

    def refusal(self, function: str, context: CallContext) -> int:
        """0 where the caller may, else the error that the call returns."""
        check = self._checks[function]
        if check == "none":
            return ERROR_ACCESS_DENIED
        if check == "disabled":
            return ERROR_SUCCESS
        who = (context.member or context.user).casefold()
        if not who:
            return ERROR_NOT_AUTHENTICATED
        allowed = self._readers if check == "read" else self._writers
        return ERROR_SUCCESS if who in allowed else FRS_ERR_INSUFFICIENT_PRIV
