"""What all methods of dscomm and dscomm2 have in common: who calls, how often, with which context handles, and which
object is meant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from agent.directory.mqds import security as s
from agent.directory.mqds.methods import DSCOMM, DSCOMM2, METHODS, Arguments, Method, nothing
from agent.directory.objects.model import (
    MQ_ERROR_ACCESS_DENIED,
    MQ_ERROR_ILLEGAL_PROPERTY_VALUE,
    MQDS_OBJECT_NOT_FOUND,
    DirectoryError,
    DsObject,
)
from agent.directory.objects.table import NAME, Type
from agent.directory.replication.messages import DirectoryChange
from agent.directory.store.store import FORMER_PREFIX, DirectoryStore, DirectoryStoreError
from agent.rpc import constants as c
from agent.rpc.errors import RpcFault
from agent.rpc.interface import CallContext, Handler, Interface
from agent.wire.errors import WireError
from agent.wire.guid import new_guid
from agent.work.rates import SourceRates

MQ_ERROR_DS_ERROR: Final = 0xC00E0043
#: RPC's own: a context handle that is not known.
NCA_S_FAULT_CONTEXT_MISMATCH: Final = 0x1C00001A
#: Context handles of one caller, and of all; calls of one caller, a second and at once.
MOST_OF_ONE: Final = 32
MOST_HANDLES: Final = 1024
CALLS: Final = (50.0, 200.0)
_KIND_OF_HANDLE: Final = {
    "LookupNext": "cursor", "LookupEnd": "cursor", "NotifyDelete": "deletion", "EndDeleteNotification": "deletion",
}  # fmt: skip


class Directory(Protocol):
    """What the methods need of the server."""

    store: DirectoryStore
    #: Where it listens.
    port: int

    @property
    def site(self) -> bytes:
        """The site that it is in."""

    @property
    def enterprise(self) -> bytes:
        """The identifier of the enterprise."""

    async def request(self, changes: list[DirectoryChange]) -> None:
        """Make these changes, or have the owners of their partitions make them. Raises DirectoryError."""

    def may_write(self, context: CallContext) -> bool:
        """Whether a caller is an administrator."""

    def connected(self) -> set[int]:
        """The identifiers of the connections that there are."""


@dataclass(slots=True)
class Open:
    """A context handle, and what it stands for: a security context (of nothing), a cursor, a deletion under way."""

    kind: str
    connection: int
    who: str
    columns: tuple[int, ...] = ()
    rows: list[bytes] = field(default_factory=list)


class Serving:
    """Serves both interfaces. `tolerant`: some private properties may be read."""

    def __init__(self, directory: Directory, *, tolerant: bool = False) -> None:
        self._directory = directory
        self._tolerant = tolerant
        self._open: dict[bytes, Open] = {}
        self._rates = SourceRates(*CALLS)

    def interfaces(self) -> list[Interface]:
        """Both, for a server that offers them."""
        return [
            Interface(one.uuid, (one.major, one.minor), {m.opnum: self._handler(m) for m in METHODS[one].values()})
            for one in (DSCOMM, DSCOMM2)
        ]

    def _handler(self, method: Method) -> Handler:
        work: Callable[[CallContext, Arguments], Awaitable[Arguments]] = getattr(self, f"_{_snake(method.name)}")

        async def handle(context: CallContext, stub: bytes) -> bytes:
            if context.member.startswith(FORMER_PREFIX):  # who may read that it is none any more, and nothing else
                raise RpcFault(c.ACCESS_DENIED)
            if not self._rates.take(_caller(context)):
                raise RpcFault(c.NCA_S_SERVER_TOO_BUSY)
            try:
                asked = method.decode_request(stub)
            except WireError as error:
                raise RpcFault(c.RPC_X_BAD_STUB_DATA) from error
            for name, _ in method.takes:
                if name in ("auth", "handle"):
                    self.known(context, asked[name], "auth" if name == "auth" else _KIND_OF_HANDLE[method.name])
            answer = nothing(method, asked)
            try:
                return method.encode_response(answer | await work(context, asked))
            except DirectoryError as error:
                answer |= {"result": error.status, **getattr(error, "beside", {})}
            except WireError:
                answer["result"] = MQ_ERROR_ILLEGAL_PROPERTY_VALUE
            except DirectoryStoreError:
                answer["result"] = MQ_ERROR_DS_ERROR
            return method.encode_response(answer)

        return handle

    # -- context handles --

    def known(self, context: CallContext, handle: bytes, kind: str) -> Open:
        """What a handle stands for; the fault of RPC for one that this caller does not have. One of S_DSValidateServer
        is for both interfaces, and so for other associations of the caller, too."""
        found = self._open.get(handle)
        if found is None or found.kind != kind or found.who != _caller(context):
            raise RpcFault(NCA_S_FAULT_CONTEXT_MISMATCH)
        return found

    def _new_handle(self, context: CallContext, kind: str) -> tuple[bytes, Open]:
        """Those of connections that have ended are run down first (3.1.6.1, 3.1.6.2)."""
        there, who = self._directory.connected(), _caller(context)
        self._open = {handle: one for handle, one in self._open.items() if one.connection in there}
        mine = sum(one.who == who for one in self._open.values())
        if mine >= MOST_OF_ONE or len(self._open) >= MOST_HANDLES:
            raise RpcFault(c.NCA_S_SERVER_TOO_BUSY)
        handle = bytes(4) + new_guid()
        found = self._open[handle] = Open(kind, context.connection_id, who)
        return handle, found

    # -- objects --

    def _find(self, type_: Type, asked: Arguments) -> DsObject:
        """The object that is meant, by its path or identifier."""
        store, guid = self._directory.store, asked.get("guid")
        if type_ == Type.ENTERPRISE:
            found = store.get(self._directory.enterprise)
        elif guid is not None:
            found = store.get(guid)
        else:
            found = store.find(type_, asked["path"]) if type_ in NAME and asked.get("path") is not None else None
        if found is None or found.type != type_:
            raise DirectoryError(MQDS_OBJECT_NOT_FOUND, f"there is no such {type_.name}")
        return found

    def _check(self, context: CallContext, found: DsObject, right: int) -> None:
        """Whether a caller has a right to an object. Raises DirectoryError."""
        sids = [s.EVERYONE, s.AUTHENTICATED, *([s.ADMINISTRATORS] if self._directory.may_write(context) else [])]
        if not s.descriptor_of(found).allows(sids, right):
            raise DirectoryError(MQ_ERROR_ACCESS_DENIED, "the caller may not do this to that object")


class Beside(DirectoryError):
    """An error with which something is told nevertheless."""

    def __init__(self, status: int, beside: Arguments) -> None:
        super().__init__(status, "see what is given beside")
        self.beside = beside


def _caller(context: CallContext) -> str:
    return context.member or context.user or context.peer


def _snake(name: str) -> str:
    """`GetPropsGuidEx` as `get_props_guid_ex`, `QMGetObjectSecurity` as `qm_get_object_security`."""
    words, last = "", ""
    for index, letter in enumerate(name):
        after = name[index + 1 : index + 2]
        if index and letter.isupper() and (last.islower() or after.islower()):
            words += "_"
        words += letter.lower()
        last = letter
    return words
