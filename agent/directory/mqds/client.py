"""The methods of dscomm and dscomm2, called."""

from __future__ import annotations

from typing import Any, Final

from agent.directory.mqds.methods import METHODS, Arguments, nothing
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcProtocolError
from agent.rpc.pdu import InterfaceId
from agent.wire.errors import WireError

_TIMEOUT_S: Final = 60.0


class MqdsError(Exception):
    """The server returned an error: `status` is its HRESULT, `answer` what came with it."""

    def __init__(self, name: str, status: int, answer: Arguments) -> None:
        super().__init__(f"S_DS{name}: 0x{status:08x}")
        self.status = status
        self.answer = answer


class MqdsClient:
    """Over one association that is bound to `interface`."""

    def __init__(self, client: RpcClient, interface: InterfaceId) -> None:
        self._client = client
        self._methods = METHODS[interface]

    async def call(self, name: str, **arguments: Any) -> Arguments:
        """A method by its name without S_DS, its arguments by those of the table; gives what it gives. Raises
        MqdsError, RpcError, and WireError for arguments that cannot be."""
        method = self._methods[name]
        stub = await self._client.call(method.opnum, method.encode_request(arguments), _TIMEOUT_S)
        try:
            answer = method.decode_response(stub)
        except WireError as error:
            raise RpcProtocolError(str(error)) from error
        if answer.get("result", 0) >> 31:
            raise MqdsError(name, answer["result"], nothing(method, arguments) | answer)
        return answer
