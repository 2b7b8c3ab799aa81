"""Errors of the RPC runtime. All of them derive from `RpcError`."""

from __future__ import annotations

from agent.rpc.constants import FAULT_NAMES


class RpcError(Exception):
    """Any failure of a remote call or of the association that carries it."""


class RpcFault(RpcError):
    """The server answered with a fault PDU, or a handler wants to answer with one.

    `status` is the 32-bit DCE or Windows status code, `did_not_execute` tells that the server promises
    that the call had no effect ([C706] 12.6.3.1, PFC_DID_NOT_EXECUTE).
    """

    def __init__(self, status: int, *, did_not_execute: bool = False) -> None:
        super().__init__(f"RPC fault 0x{status:08x} ({FAULT_NAMES.get(status, 'unknown status')})")
        self.status = status
        self.did_not_execute = did_not_execute


class RpcAuthError(RpcError):
    """Authentication failed, or a message did not pass its integrity check."""


class RpcTimeout(RpcError):
    """The peer did not answer in time. The association is closed: the call may or may not have been executed."""


class RpcClosed(RpcError):
    """The association is closed, or was lost while the call was outstanding."""


class RpcProtocolError(RpcError):
    """The peer broke the protocol, refused the bind, or a PDU cannot be parsed."""
