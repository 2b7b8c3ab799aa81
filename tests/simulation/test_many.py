"""Many change orders of one file."""

from __future__ import annotations

import pytest

from agent.wire.constants import CMD_ABORT_FETCH, CMD_SEND_STAGE
from tests.simulation.forging import Forger, unanswered
from tests.simulation.simmember import Member
from tests.simulation.users import all_agree, make, names, started, write


@pytest.mark.parametrize("restarted", [False, True])
def test_two_thousand_change_orders_of_one_file_end_one_after_the_other(restarted: bool) -> None:
    """They wait behind the first, whose staging file is on its way; when it ends all of them have lost."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    record = b.store.by_name(b.root, "n")
    assert record is not None
    forger, send = Forger(world, "a", "b"), world.send
    unanswered(world, CMD_SEND_STAGE)
    newest = forger.change_order(
        "n", file_guid=record.file_guid, file_version_number=9000, event_time=record.event_time + 1
    )
    older = [
        newest.replace(
            change_order_guid=world.new_guid(),
            frs_vsn=newest.frs_vsn + n,
            file_version_number=newest.file_version_number - n,
        )
        for n in range(1, 2000)
    ]
    forger.at_once(*(forger.offer(co) for co in (newest, *older)))
    assert waiting(b) == 2000
    world.now += 3600 * 10_000_000
    write(b, "n", b"half an hour later")
    world.run(10)
    assert waiting(b) == 2000
    if restarted:
        b.crash()
        b.start()
        world.run(10)
    else:
        end = forger.packet(CMD_ABORT_FETCH)
        end.block_size = end.file_size = end.file_offset = end.co_sequence_number = 0
        end.co_guid = newest.change_order_guid
        forger.at_once(end)
    assert waiting(b) == 0
    world.send = send  # type: ignore[method-assign]
    a.crash()
    a.start()
    write(a, "n", b"2")
    world.run(60)
    assert names(all_agree(world)) == ["n"]


def waiting(member: Member) -> int:
    return len(member.engine.inbound.entries)
