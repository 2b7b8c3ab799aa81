"""Knocking at a member: whether somebody is let in."""

from __future__ import annotations

from agent.rpc.errors import RpcAuthError
from agent.rpc.frsrpc import FrsPartner
from tests.system.demo import PATIENCE


async def knocks(partner: FrsPartner) -> bool:
    """Whether a caller is let in; and it is closed."""
    try:
        return await partner.nop(PATIENCE) == 0
    except RpcAuthError:
        return False
    finally:
        await partner.close()
