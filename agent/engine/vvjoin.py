"""VVJoin: change orders for all that a downstream partner does not know ([MS-FRS1] 3.3.4.4.4.1).

They come in the order of their originators' VSNs, so that the partner's version vector may follow; a parent folder
that the partner lacks goes before its children, out of that order and marked CO_FLAG_SKIP_VV_UPDATE, and once more,
unmarked, at its own place (where the partner dampens it and lets its version vector move).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from agent.engine import flags as fl
from agent.engine.context import Context, facts_of
from agent.engine.events import MakeStage
from agent.engine.flow import Flow
from agent.engine.records import ASIDE, PASSING, UNSTORED, base_of, checksum_of
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from idtable.records import IDRecord

SKIP = c.CO_FLAG_SKIP_VV_UPDATE
Item = tuple[ChangeOrder, CoExtension2]


def vvjoin_change_orders(ctx: Context, partner_vv: Mapping[bytes, int], partner: bytes) -> Iterator[Item]:
    """Yield each change order to send. Records are read when their turn comes. One that was changed since the Join, or
    was ahead of the version vector then, is marked CO_FLAG_SKIP_VV_UPDATE: changes before it may not have been sent
    yet, and its own change order follows in the outbound log.

    `partner` is the partner's originator GUID, if its database seems to have been restored from a backup: then its
    version vector does not tell which of its own changes it lost. All of them are sent, marked CO_FLAG_OUT_OF_ORDER so
    that it looks at them whatever its version vector says.
    """
    folders: set[bytes] = set()  # that were sent
    had = dict(ctx.vv)
    whole_vv = partner_vv
    partner_vv = {guid: vsn for guid, vsn in whole_vv.items() if guid != partner}
    for guid, originator, vsn in ctx.store.iter_vvjoin(partner_vv):
        record = ctx.store.get(guid)
        if record is None or guid == ctx.config.root_guid or record.flags & (ASIDE | PASSING):
            continue  # it has a change order of its own on its way
        if not record.deleted:
            for ancestor in _unknown_ancestors(ctx, record, partner_vv, folders):
                folders.add(ancestor.file_guid)
                yield present(ctx, ancestor, SKIP)
            if record.is_dir:
                folders.add(guid)
        if record.originator_vsn <= whole_vv.get(record.originator_guid, 0):
            mark = c.CO_FLAG_OUT_OF_ORDER  # lost by the partner
        else:
            same = (record.originator_guid, record.originator_vsn) == (originator, vsn)
            mark = 0 if same and vsn <= had.get(originator, 0) else SKIP
        yield present(ctx, record, mark)


def look_ahead(ctx: Context, flow: Flow) -> None:
    """Take the next change orders of a VVJoin out of their order in the IDTable. A partner that takes them gets the
    staging files, too: they are made while those before are under way."""
    session = flow.session
    partner = session.cxtion.partner.guid
    brings = partner in ctx.batch_members
    while flow.vvjoin is not None and len(flow.upcoming) < (ctx.limits.window if brings else 1):
        if (item := next(flow.vvjoin, None)) is None:
            return
        flow.upcoming.append(item)
        co, extension = item
        needed = brings and not co.is_dir and fl.brings_content(co.location_cmd, co.flags, co.content_cmd)
        record = ctx.store.get(co.file_guid) if needed else None
        facts = facts_of(record) if record is not None and not record.flags & UNSTORED else None
        if facts is not None:
            ctx.out.append(
                MakeStage(partner, co.change_order_guid, co.file_guid, extension.checksum, facts, session.compressions)
            )


def _unknown_ancestors(
    ctx: Context, record: IDRecord, partner_vv: Mapping[bytes, int], sent: set[bytes]
) -> list[IDRecord]:
    """The folders above the record that the partner does not know and was not sent yet, topmost first."""
    found: list[IDRecord] = []
    seen = {record.file_guid}
    guid = record.parent_guid
    while guid != ctx.config.root_guid and guid not in seen:
        seen.add(guid)
        parent = ctx.store.get(guid)
        if parent is None:
            break
        unknown = parent.originator_vsn > partner_vv.get(parent.originator_guid, 0)
        if unknown and guid not in sent:
            found.append(parent)
        guid = parent.parent_guid
    return found[::-1]


def vvjoin_guid(file_guid: bytes, originator: bytes, vsn: int) -> bytes:
    """The GUID of the change order that stands for a version of a file: always the same for the same version, so that
    a VVJoin cut short and done again, or done by two partners, repeats its change orders."""
    return hashlib.md5(file_guid + originator + vsn.to_bytes(8, "little"), usedforsecurity=False).digest()


def present(ctx: Context, record: IDRecord, mark: int) -> Item:
    """A change order for a record's present version, with the flag that keeps it out of the order."""
    return _change_order(ctx, record, mark), CoExtension2(checksum_of(record, ctx.store))


def caught_up(ctx: Context) -> Iterator[Item]:
    """What went out in a VVJoin marked CO_FLAG_SKIP_VV_UPDATE, because an earlier change was not finished here, and is
    no longer ahead of the version vector: once more, so that the partners' version vectors may follow."""
    for originator in sorted(ctx.caught_up):
        waiting = ctx.resend_in_turn.pop(originator, set())
        reached = ctx.vv.get(originator, 0)
        later = {item for item in waiting if item[0] > reached}
        if later:
            ctx.resend_in_turn[originator] = later
        for vsn, guid in sorted(waiting - later):
            record = ctx.store.get(guid)
            if record is not None and (record.originator_guid, record.originator_vsn) == (originator, vsn):
                co = _change_order(ctx, record, 0)
                extension = CoExtension2(checksum_of(record, ctx.store))
                yield co.replace(flags=co.flags & ~c.CO_FLAG_VVJOIN_TO_ORIG), extension
    ctx.caught_up.clear()


def _change_order(ctx: Context, record: IDRecord, extra: int) -> ChangeOrder:
    if record.originator_vsn > ctx.vv.get(record.originator_guid, 0):
        # Carried out here while an earlier change of that originator is not: the partner must not believe
        # that it has everything up to this one either (3.1.1.10.5).
        extra = SKIP
        if ctx.vector.has_room_for(record.originator_guid):  # else the entry never comes to it
            ctx.resend_in_turn.setdefault(record.originator_guid, set()).add((record.originator_vsn, record.file_guid))
    flags = fl.VVJOIN | extra
    if record.deleted:
        command, content = c.CO_LOCATION_DELETE, 0
    else:
        command, content = c.CO_LOCATION_CREATE, c.REASON_FILE_CREATE
    return ChangeOrder(
        flags=flags,
        content_cmd=content,
        location_cmd=fl.location(command, record.is_dir),
        file_attributes=record.attributes,
        file_version_number=record.version,
        file_size=0 if record.is_dir else record.size,
        frs_vsn=record.originator_vsn,
        change_order_guid=vvjoin_guid(record.file_guid, record.originator_guid, record.originator_vsn),
        originator_guid=record.originator_guid,
        file_guid=record.file_guid,
        ack_version=base_of(record),
        old_parent_guid=record.parent_guid,
        new_parent_guid=record.parent_guid,
        event_time=record.event_time,
        file_name=record.name,
    )
