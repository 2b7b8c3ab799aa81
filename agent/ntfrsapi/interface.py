"""The six methods, as a server offers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from agent.ntfrsapi.access import Access
from agent.ntfrsapi.polling import Polling
from agent.rpc import constants as c
from agent.rpc.errors import RpcFault
from agent.rpc.interface import CallContext, Handler, Interface
from agent.rpc.pdu import InterfaceId
from agent.wire import frsapi as w
from agent.wire.constants import ERROR_SUCCESS, NTFRS_COMM_MINOR
from agent.wire.errors import WireError
from agent.work.rates import SourceRates

NTFRSAPI: Final = InterfaceId.parse("d049b186-814f-11d1-9a3c-00c04fc9b232", 1, 1)


class Host(Protocol):
    """What the methods need of the member."""

    async def info(self, kind: str) -> str:
        """Text for people, of one of the types of NTFRSAPI_INFO."""

    def replicated(self, path: str, kind: int) -> tuple[bool, int, bool, bytes]:
        """Replicated, Primary, Root and ReplicaSetGuid of a path, for a set of that type (0: any)."""

    def freeze(self, frozen: bool, who: str) -> None:
        """Whether installs wait, in all sets; `who` has said so."""

    def force(self, asked: w.Force) -> None:
        """Join now, whatever the schedule says: what is named, as far as it is here."""

    def poll(self) -> None:
        """Begin to poll for another configuration, if that is not under way."""

    def too_often(self, who: str) -> None:
        """Somebody calls more often than is answered."""


#: Calls that are answered, a second and at once, of each caller: those that ask, and those that change something.
QUESTIONS: Final = (50.0, 200)
COMMANDS: Final = (1.0, 20)


def ntfrsapi_interface(host: Host, access: Access, polling: Polling) -> Interface:
    """The interface. A stub that cannot be unmarshalled gets the fault RPC_X_BAD_STUB_DATA, and who calls too often
    NCA_S_SERVER_TOO_BUSY."""
    questions, commands = SourceRates(*QUESTIONS), SourceRates(*COMMANDS)

    def set_interval(stub: bytes, _: str) -> bytes:
        short, long_minutes, short_minutes = w.decode_numbers(stub, "UseShortInterval", "LongInterval", "ShortInterval")
        polling.set(bool(short), long_minutes, short_minutes)
        host.poll()
        return w.encode_numbers(ERROR_SUCCESS)

    def get_interval(stub: bytes, _: str) -> bytes:
        return w.encode_numbers(polling.present, polling.long, polling.short, ERROR_SUCCESS)

    async def info(stub: bytes, _: str) -> bytes:
        asked = w.decode_info(stub)
        if asked is None:
            return w.encode_no_info(w.FRS_ERR_INVALID_SERVICE_PARAMETER)
        text = (await host.info(w.INFO_TYPES[asked.kind])).encode("utf-8", "replace")
        return w.encode_info(asked, text, NTFRS_COMM_MINOR, ERROR_SUCCESS)

    def is_path_replicated(stub: bytes, _: str) -> bytes:
        path, kind = w.decode_path(stub)
        if path is None:
            return w.encode_path(*w.NOT_REPLICATED, w.FRS_ERR_INVALID_SERVICE_PARAMETER)
        return w.encode_path(*host.replicated(path, kind), ERROR_SUCCESS)

    def writer_command(stub: bytes, who: str) -> bytes:
        (command,) = w.decode_numbers(stub, "Command")
        if command in (w.FREEZE, w.THAW):  # what is none is ignored (3.2.4.5)
            host.freeze(command == w.FREEZE, who)
        return w.encode_numbers(ERROR_SUCCESS)

    def force_replication(stub: bytes, _: str) -> bytes:
        host.force(w.decode_force(stub))
        return w.encode_numbers(ERROR_SUCCESS)

    def checked(
        function: str,
        work: Callable[[bytes, str], bytes | Awaitable[bytes]],
        refused: Callable[[int], bytes],
        rates: SourceRates = questions,
    ) -> Handler:
        async def handle(context: CallContext, stub: bytes) -> bytes:
            status = access.refusal(function, context)
            if status:
                return refused(status)
            who = context.member or context.user or context.peer
            if not rates.take(who):
                host.too_often(who)
                raise RpcFault(c.NCA_S_SERVER_TOO_BUSY)
            try:
                answer = work(stub, who)
                return answer if isinstance(answer, bytes) else await answer
            except WireError as error:
                raise RpcFault(c.RPC_X_BAD_STUB_DATA) from error

        return handle

    handlers = {
        w.OP_SET_DS_POLLING_INTERVAL: checked("set_ds_polling_interval", set_interval, w.encode_numbers, commands),
        w.OP_GET_DS_POLLING_INTERVAL: checked(
            "get_ds_polling_interval", get_interval, lambda status: w.encode_numbers(0, 0, 0, status)
        ),
        w.OP_INFO: checked("info", info, w.encode_no_info),
        w.OP_IS_PATH_REPLICATED: checked(
            "is_path_replicated", is_path_replicated, lambda status: w.encode_path(*w.NOT_REPLICATED, status)
        ),
        w.OP_WRITER_COMMAND: checked("writer_command", writer_command, w.encode_numbers, commands),
        w.OP_FORCE_REPLICATION: checked("force_replication", force_replication, w.encode_numbers, commands),
    }
    return Interface(NTFRSAPI.uuid, (NTFRSAPI.major, NTFRSAPI.minor), handlers, shapes=w.REQUESTS)
