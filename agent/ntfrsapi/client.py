"""The methods of NtFrsApi, called: on a member, or on a server of somebody else's."""

from __future__ import annotations

from typing import Final, NamedTuple

from agent.rpc.client import RpcClient
from agent.wire import frsapi as w
from agent.wire.constants import ERROR_ACCESS_DENIED

_TIMEOUT_S: Final = 60.0
_BLOB: Final = 0x8000
#: Bytes of text of one type: a server that never comes to an end is not listened to for ever.
_MOST: Final = 64 << 20
_REFUSALS: Final = {
    ERROR_ACCESS_DENIED: "it does not serve this method",
    w.ERROR_NOT_AUTHENTICATED: "it does not know who calls",
    w.FRS_ERR_INSUFFICIENT_PRIV: "it does not allow this to the caller",
    w.FRS_ERR_INVALID_SERVICE_PARAMETER: "it does not know what is asked for",
}


class ApiError(Exception):
    """The server returned an error: `status` ([MS-ERREF] 2.2)."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{_REFUSALS.get(status, 'it failed')} (error {status})")
        self.status = status


class Intervals(NamedTuple):
    """The polling intervals in minutes: the one that is used, the long and the short one."""

    present: int
    long: int
    short: int


class Api:
    """Over one association. All methods raise ApiError, RpcError and WireError."""

    def __init__(self, client: RpcClient) -> None:
        self._client = client

    async def info(self, kind: str) -> str:
        """The text of one of INFO_TYPES."""
        found, skip = bytearray(), 0
        while len(found) < _MOST:
            asked = w.Info(w.INFO_TYPES.index(kind), skip, _BLOB)
            answer = w.decode_info_answer(await self._call(w.OP_INFO, w.encode_info_request(asked)))
            _check(answer.status)
            found += answer.lines
            if not answer.full or answer.upto <= skip:
                break
            skip = answer.upto
        return found.rstrip(b"\0").decode("utf-8", "replace")

    async def intervals(self) -> Intervals:
        """GetDsPollingIntervalW."""
        answer = await self._call(w.OP_GET_DS_POLLING_INTERVAL, b"")
        present, long, short, status = w.decode_numbers(answer, "Interval", "LongInterval", "ShortInterval", "status")
        _check(status)
        return Intervals(present, long, short)

    async def set_intervals(self, uses_short: bool, long: int, short: int) -> None:
        """SetDsPollingIntervalW: 0 leaves an interval as it is. It polls at once."""
        await self._told(w.OP_SET_DS_POLLING_INTERVAL, w.encode_numbers(uses_short, long, short))

    async def freeze(self, frozen: bool) -> None:
        """WriterCommand: whether installs wait."""
        await self._told(w.OP_WRITER_COMMAND, w.encode_numbers(w.FREEZE if frozen else w.THAW))

    async def force(self, set_name: str, partner: str | None) -> None:
        """ForceReplication of a set, or of its connections with one partner."""
        await self._told(w.OP_FORCE_REPLICATION, w.encode_force_by_name(set_name, partner))

    async def _told(self, opnum: int, stub: bytes) -> None:
        (status,) = w.decode_numbers(await self._call(opnum, stub), "return value")
        _check(status)

    async def _call(self, opnum: int, stub: bytes) -> bytes:
        return await self._client.call(opnum, stub, _TIMEOUT_S)


def _check(status: int) -> None:
    if status:
        raise ApiError(status)
