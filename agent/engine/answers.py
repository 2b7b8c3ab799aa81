"""What the downstream partner answers to a change order: CMD_REMOTE_CO_DONE ([MS-FRS1] 3.3.4.4.6.2)."""

from __future__ import annotations

from agent.engine import flags as fl
from agent.engine.context import Context
from agent.engine.session import Session
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.packet import Gvsn


class Answers:
    """Acknowledges change orders."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def dampen(self, session: Session, co: ChangeOrder) -> None:
        """Acknowledge what is known already (3.3.4.4.6, version dampening)."""
        self.ctx.count_both(session.cxtion, "Inbound Change Orders Dampened")
        self.done(session, co, dampened=True)

    def done(
        self,
        session: Session,
        co: ChangeOrder,
        *,
        dampened: bool = False,
        lost: bool = False,
        new: bool = True,
        compressed: bool = False,
        extension: CoExtension2 | None = None,
    ) -> None:
        """CMD_REMOTE_CO_DONE (3.3.4.4.6.2), if the session is still there; else the change order will come
        again and be dampened."""
        ctx = self.ctx
        if not session.joined:
            return
        is_dir = fl.is_folder(co.location_cmd, co.flags, co.file_attributes)
        compressed = compressed or bool(co.flags & c.CO_FLAG_COMPRESSED_STAGE)
        initial = bool(co.flags & c.CO_FLAG_VVJOIN_TO_ORIG)
        location_cmd = co.location_cmd
        if dampened or lost:
            location_cmd = fl.NO_COMMAND_FOLDER if is_dir else fl.NO_COMMAND_FILE
        if dampened:
            flags, state = fl.done_dampened(compressed=compressed), fl.STATE_DONE_DAMPENED
        elif lost:
            flags, state = fl.done_lost(compressed=compressed), fl.STATE_DONE_LOST
        else:
            state = fl.STATE_DONE
            flags = fl.done(
                initial=initial,
                is_dir=is_dir,
                rename=fl.is_rename(co.location_cmd, co.flags, co.content_cmd),
                delete=fl.is_delete(co.location_cmd, co.flags),
                new=new,
                compressed=compressed,
            )
        packet = session.packet(ctx, c.CMD_REMOTE_CO_DONE)
        packet.block_size = packet.file_size = packet.file_offset = 0
        packet.gvsn = Gvsn(co.frs_vsn, co.originator_guid)
        packet.co_guid = co.change_order_guid
        packet.co_sequence_number = co.partner_ack_seq_number
        packet.remote_co = co.replace(
            flags=flags,
            iflags=c.CO_IFLAG_NONE if dampened else c.CO_IFLAG_VVRETIRE_EXEC,
            state=state,
            content_cmd=0 if initial else co.content_cmd,
            location_cmd=location_cmd,
            cxtion_guid=session.cxtion.guid,
            file_offset=0,
            sequence_number=1,
        )
        session.extend(packet, extension or CoExtension2(bytes(16), first_try_time=ctx.now))
        ctx.send(session.cxtion, packet)
