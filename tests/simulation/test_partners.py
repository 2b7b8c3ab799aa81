"""What partners agree on, what is taken from them, and what is tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.engine import events as ev
from agent.engine import flags as fl
from agent.engine.context import Limits
from agent.engine.entry import Stage
from agent.engine.reconcile import morphed_name
from agent.reporting.causes import Cause
from agent.wire.change_order import ChangeOrder
from agent.wire.constants import (
    CMD_JOINING,
    CMD_REMOTE_CO,
    CMD_REMOTE_CO_DONE,
    CMD_SEND_STAGE,
    CMD_UNJOIN_REMOTE,
    CO_FLAG_INSTALL_INCOMPLETE,
    COMPRESSION_LZNT1,
    COMPRESSION_NONE,
    COMPRESSION_ZSTD,
)
from agent.wire.filetime import DAY, HOUR, MINUTE, SECOND
from agent.wire.packet import Packet
from tests.simulation.forging import Forger
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, make, move, names, remove, started, until, write


@pytest.mark.parametrize("minor", range(10))
def test_partners_of_every_minor_version(minor: int) -> None:
    world = started("ab", minor=minor)
    make(world.members["a"], "d", None)
    make(world.members["a"], "d/n", b"1")
    world.run(60)
    move(world.members["b"], "d/n", "n")
    assert names(all_agree(world)) == ["d", "n"]


@pytest.mark.parametrize("minor", range(10))
def test_compressions_are_told_from_minor_version_4_on(minor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    send = World.send

    def spy(world: World, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if packet.command == CMD_JOINING:
            told.append(bool(packet.compression_guids))
        send(world, source, partner, packet, **way)

    monkeypatch.setattr(World, "send", spy)
    started("ab", minor=minor)
    assert set(told) == {minor >= 4}


def test_a_start_drops_the_staging_files_that_nobody_needs() -> None:
    """Those that were acknowledged but not dropped yet, or staged and not recorded, when the member was killed."""
    world = started("ab")
    a, world.no_room = world.members["a"], 0
    world.step(("cut", 0, 1))
    make(a, "n", b"waits for b")
    world.run(30)
    (needed,) = a.disk.stages
    a.disk.stages[b"nobody needs it."] = b"left"
    content = a.disk.stages[needed]
    a.crash()
    a.disk.stages[needed] = content  # a crash may cost it
    a.start()
    world.run(30)
    assert list(a.disk.stages) == [needed]
    world.cut.clear()
    assert names(all_agree(world)) == ["n"]
    assert not a.disk.stages


def test_an_incomplete_install_stays_in_the_outbound_log() -> None:
    world = started("ab")
    a = world.members["a"]
    world.members["b"].disk.full = True
    make(a, "n", b"1")
    world.run(10)
    flow = next(iter(a.engine.outbound.flows.values()))
    assert flow.unacked
    (seq, guid), trailing = next(iter(flow.unacked.items())), flow.trailing
    session = flow.session
    packet = session.packet(a.engine.ctx, 0x250)
    row = a.store.outlog_by_co(guid)
    assert row is not None
    packet.co_guid, packet.co_sequence_number = guid, seq
    packet.remote_co = ChangeOrder.decode(row.co).replace(flags=0x80)
    with a.store.transaction():
        a.engine.outbound.acknowledged(session, packet)
    assert seq in flow.unacked
    assert flow.trailing == trailing
    packet.remote_co.flags = 0
    with a.store.transaction():
        a.engine.outbound.acknowledged(session, packet)
    assert flow.trailing > trailing


def held_open_for_days() -> tuple[World, Member, Member]:
    """Two members with a file `n`, which somebody has open for writing on the second for longer than is tried."""
    world = started("ab", limits=Limits(max_retry_time=DAY))
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    node = b.disk.look("n")
    assert node is not None
    b.disk.busy[node.ino] = world.now + 10 * DAY
    return world, a, b


def test_tries_end_with_the_limits() -> None:
    world, a, b = held_open_for_days()
    write(a, "n", b"2")
    world.run(2 * 86400)
    assert any("given up" in r.text for r in b.reports)
    assert not world.pending()


def test_the_very_change_that_the_version_vector_names_is_dampened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change comes once more, and is the last one known of its maker; the file was changed since."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    send, sent = world.send, []

    def heard(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if packet.remote_co is not None:
            sent.append(packet)
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", heard)
    make(a, "n", b"1")
    world.run(60)
    offer = next(p for p in sent if p.command == CMD_REMOTE_CO)
    write(b, "n", b"2")
    world.run(60)
    sent.clear()
    assert b.engine.ctx.vv[offer.remote_co.originator_guid] == offer.remote_co.frs_vsn
    b.post(ev.PacketReceived(offer, 9))
    world.run(60)
    (answer,) = sent
    assert answer.command == CMD_REMOTE_CO_DONE
    assert answer.remote_co.flags == fl.done_dampened(compressed=False)


def test_an_acknowledgement_is_awaited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again, or that the change order is not installed yet, is nothing that was asked for."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    send, awaited = world.send, list[tuple[bool, bool]]()
    answers: list[Packet] = []

    def heard(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is b and packet.command == CMD_REMOTE_CO_DONE:
            co = packet.remote_co
            incomplete = replace(packet, remote_co=co.replace(flags=co.flags | CO_FLAG_INSTALL_INCOMPLETE))
            awaited.append((a.engine.awaits(packet), a.engine.awaits(incomplete)))
            answers.append(packet)
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", heard)
    make(a, "n", b"1")
    make(a, "m", b"2")
    world.run(60)
    assert awaited == [(True, False)] * 2
    assert not any(a.engine.awaits(packet) for packet in answers)
    all_agree(world)


#: What a change order says, by the names of the members concerned, and the cause of its refusal.
NOT_FOR_FILES = [
    ({"file_guid": ("member", "b")}, Cause.IDENTITY),  # its own member GUID
    ({"file_guid": ("member", "a")}, Cause.IDENTITY),  # the sender's
    ({"file_guid": ("member", "c")}, Cause.IDENTITY),  # a member further on
    ({"file_guid": ("root", "b")}, Cause.IDENTITY),
    ({"file_guid": bytes(16)}, Cause.IDENTITY),
    ({"new_parent_guid": "itself"}, Cause.IDENTITY),
    ({"new_parent_guid": ("member", "a")}, Cause.IDENTITY),
    ({"new_parent_guid": bytes(16)}, Cause.IDENTITY),
    ({"file_name": ".frs-preinstall"}, Cause.NAME),
    ({"file_name": ".frs-preinstall.0123456789abcdef"}, Cause.NAME),
    ({"file_name": ".FRS-PreInstall"}, Cause.NAME),  # the same on many file systems
    ({"file_name": "frs-swap-00000001-0002-0003-0405-060708090a0b"}, Cause.NAME),
    ({"file_name": "../odd"}, Cause.NAME),
]


@pytest.mark.parametrize("is_dir", [False, True])
@pytest.mark.parametrize(("said", "cause"), NOT_FOR_FILES)
def test_what_is_not_a_partner_s_to_name_is_refused(
    said: dict[str, object], cause: Cause, is_dir: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends there, is counted as an incident of the partner, and everything else goes on: what the change really is
    comes by the other partner."""
    world = started("abc", ringed=True)
    a, b = world.members["a"], world.members["b"]
    send = world.send

    def value(wanted: object, co: ChangeOrder) -> object:
        if wanted == "itself":
            return co.file_guid
        if isinstance(wanted, tuple):
            return b.root if wanted[0] == "root" else world.guid_of(*wanted)
        return wanted

    def mad(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        mine = source is a and partner == b.guid and packet.command == CMD_REMOTE_CO
        if mine and packet.remote_co is not None and packet.remote_co.file_name == "odd":
            told = packet.remote_co
            packet.remote_co = told.replace(**{k: value(v, told) for k, v in said.items()})
        send(source, partner, packet, **way)

    monkeypatch.setattr(world, "send", mad)
    make(a, "odd", None if is_dir else b"1")
    world.run(60)  # the other partner has it before the version vector passes its number with what comes next
    make(a, "even", b"2")
    world.run(60)
    incidents = [r for r in b.reports if r.cause is not None]
    assert {(r.cause, r.source) for r in incidents} == {(cause, "a")}
    assert repr(said.get("file_name", "odd")) in incidents[0].text
    make(b, "later", b"3")
    world.run(120)
    assert names(all_agree(world)) == ["even", "later", "odd"]
    assert not world.pending()


def test_what_was_taken_in_before_it_was_refused_ends_with_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inbound log of an earlier version may hold it."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    b.disk.full = True
    make(a, "odd", b"1")
    world.run(60)
    (row,) = list(b.store.inlog_iter())
    co = ChangeOrder.decode(row.co).replace(file_name=".frs-preinstall")
    b.crash()
    b.disk.full = False
    with b.store.transaction():
        b.store.inlog_put(replace(row, co=co.encode()))
    b.start()
    world.run(120)
    assert ".frs-preinstall" not in names(b)
    all_agree(world)
    assert names(b) == ["odd"]


def test_what_lies_in_a_folder_that_passed_for_a_member_stays_out_of_the_root() -> None:
    """An earlier version may have let such a folder into the IDTable, and a user puts more into it."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "mine", None)
    world.run(60)
    node = a.disk.look("mine")
    assert node is not None
    (known,) = a.store.by_local_key(1, node.ino, node.ino)
    a.crash()
    with a.store.transaction():
        a.store.put(replace(known, file_guid=b.guid))
        a.store.put(replace(known, deleted=True, ino=None))
    a.start()
    make(a, "mine/passwd", b"of a user")
    make(a, "passwd", b"of root")
    world.run(120)
    assert b.tree()["passwd"][1] == b"of root"
    assert {r.cause for r in b.reports} >= {Cause.IDENTITY}


@pytest.mark.parametrize("name", [".frs-preinstall", "frs-swap-1"])
def test_names_of_the_agent_s_own_are_so_in_the_root_alone(name: str) -> None:
    """A morphed name can stand there, for that is where what has lost its folder goes."""
    world = started("ab")
    a = world.members["a"]
    make(a, "d", None)
    world.run(60)
    make(a, f"d/{name}", b"1")
    world.run(60)
    assert names(world.members["b"]) == ["d", f"d/{name}"]
    assert morphed_name(name, bytes(16)) == f"_{name}_NTFRS_00000000"
    all_agree(world)


def test_a_removal_that_is_given_up_is_undone_everywhere() -> None:
    world, a, b = held_open_for_days()
    remove(a, "n")
    world.run(86400 / 2)
    assert names(a) == []
    world.run(2 * 86400)
    assert any("given up" in r.text for r in b.reports)
    assert names(all_agree(world)) == ["n"]


@pytest.mark.parametrize(("of", "joined"), [("this session", False), ("an earlier one", True), ("none", True)])
def test_an_unjoin_is_for_the_session_it_names(of: str, joined: bool) -> None:
    """On the connection that a->b changes take, from its sender; what comes late must not end the session after it."""
    world = started("ab")
    forger = Forger(world, "a", "b")
    packet = forger.packet(CMD_UNJOIN_REMOTE)
    if of != "this session":
        packet.join_guid = world.new_guid() if of == "an earlier one" else bytes(16)
    forger.at_once(packet)
    session = next(s for s in forger.to.engine.in_sessions.sessions.values())
    assert session.joined is joined


def test_an_engine_that_is_told_twice_to_go_on_keeps_its_inbound_log() -> None:
    """Else what is on disk of it would be taken for doubles, and be lost with the next crash."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    b.disk.full = True
    make(a, "n", b"1")
    world.run(5)
    rows = [row.co_guid for row in b.store.inlog_iter()]
    assert rows
    b.crash()
    b.start()
    world.run(1)
    for event in (ev.Resumed(frozenset(b.disk.stages)), ev.Started(frozenset(b.disk.stages))):
        with b.store.transaction():
            b.engine.handle(event, b.now)
        assert [row.co_guid for row in b.store.inlog_iter()] == rows
    b.disk.full = False
    world.run(600)
    all_agree(world)


def until_it_fetches(member: Member) -> None:
    entries = member.engine.inbound.entries
    until(member.world, lambda: any(entry.stage is Stage.FETCHING for entry in entries.values()), step=0.001)


@pytest.mark.parametrize("what", ["changed", "removed"])
def test_nobody_waits_for_the_staging_file_of_a_partner_that_is_gone(what: str) -> None:
    """c leaves for ever while a fetches from it: what b says of the same file since then is carried out."""
    world = started("abc")
    a, b, c = (world.members[name] for name in "abc")
    make(b, "f", b"before")
    world.run(60)
    world.cut.add(frozenset("bc"))
    world.run(10)
    write(c, "f", b"of c")
    until_it_fetches(a)
    c.crash()
    world.run(10)
    if what == "changed":
        write(b, "f", b"of b")
    else:
        remove(b, "f")
    world.run(120)
    tree = a.tree()
    assert ("f" in tree and tree["f"][1] == b"of b") if what == "changed" else "f" not in tree
    outbound = b.engine.outbound
    late = {flow.session.cxtion.partner.name for flow in outbound.flows.values() if outbound.backlog(flow)}
    assert late <= {"c"}


@pytest.mark.parametrize("what", ["changed", "removed"])
@pytest.mark.parametrize("how", ["gone", "silent"])
def test_what_is_older_than_what_nobody_sends_does_not_wait_for_it(what: str, how: str) -> None:
    """c announces versions of the file that are newer than all others, and sends none. What b says of it is older, and
    news all the same: it comes at once if c is gone, and when c is given no more time if it is silent."""
    world = started("abc")
    a, b, c = (world.members[name] for name in "abc")
    make(b, "f", b"before")
    world.run(60)
    record = a.store.by_name(a.root, "f")
    assert record is not None
    send = world.send

    def silent(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if partner != c.guid or packet.command != CMD_SEND_STAGE:
            send(source, partner, packet, **way)

    if how == "silent":
        world.send = silent  # type: ignore[method-assign]
    forger = Forger(world, "c", "a")
    newest = forger.change_order("f", file_guid=record.file_guid, file_version_number=9)
    forger.send_change_orders(
        *(
            newest.replace(change_order_guid=world.new_guid(), frs_vsn=newest.frs_vsn + n, file_version_number=9 - n)
            for n in range(4)
        )
    )
    until_it_fetches(a)
    if how == "gone":
        c.crash()
    for content in (b"1 of b", b"2 of b" if what == "changed" else None):
        if content is not None:
            write(b, "f", content)
        else:
            remove(b, "f")
        world.run(60 if how == "gone" else HOUR / SECOND)
        assert a.tree() == b.tree()
    world.send = send  # type: ignore[method-assign]
    if how == "gone":
        c.start()
    world.run(HOUR / SECOND)
    assert names(all_agree(world)) == (["f"] if what == "changed" else [])


def test_only_what_is_of_the_same_file_waits_for_a_partner_that_is_silent() -> None:
    """c does not send what a asks for, and stays: a file that b gives the name that c's is to have arrives."""
    world = started("abc")
    a, b, c = (world.members[name] for name in "abc")
    make(b, "f", b"of b")
    world.run(60)
    world.cut.add(frozenset("bc"))
    world.run(10)
    make(c, "n", b"of c")
    until_it_fetches(a)
    world.slow[frozenset("ac")] = 20 * MINUTE
    move(b, "f", "n")
    world.run(60)
    assert a.tree()["n"][1] == b"of b"
    world.slow.clear()
    world.cut.clear()
    all_agree(world)


def test_what_a_partner_was_about_to_send_comes_however_long_it_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost its power in the middle of a fetch, and comes back after longer than anything is tried."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(b, "f", b"before")
    world.run(60)
    write(b, "f", b"after")
    until_it_fetches(a)
    b.crash()
    inbound, tries = a.engine.inbound, []
    retry = inbound.retry
    monkeypatch.setattr(inbound, "retry", lambda *arguments: tries.append(retry(*arguments)))
    world.run(5 * 86400)
    assert 0 < len(tries) <= 5 * 24 * 60 + 1, "each of thousands may be tried once a minute"
    assert a.tree()["f"][1] == b"before"
    b.start()
    assert all_agree(world).tree()["f"][1] == b"after"
    assert not any("given up" in report.text for report in a.reports)


def without_its_folder(names: str) -> tuple[World, Member]:
    """The last of these members sends the file d/f, and to nobody the folder d."""
    world = started(names)
    a, last = world.members["a"], world.members[names[-1]]
    send = world.send

    def lossy(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if packet.remote_co is None or packet.command != CMD_REMOTE_CO or packet.remote_co.file_name != "d":
            send(source, partner, packet, **way)

    world.send = lossy  # type: ignore[method-assign]
    make(last, "d", None)
    make(last, "d/f", b"content")
    world.run(120)
    return world, a


def given_up(member: Member) -> list[str]:
    return [report.text for report in member.reports if report.cause is Cause.GIVEN_UP]


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_what_comes_without_a_folder_that_nobody_sends_is_given_up_after_a_day(names: str) -> None:
    """Meanwhile it is told who sent it, and not that the folder is on its way."""
    world, a = without_its_folder(names)
    sender = names[-1]
    (waiting,) = a.engine.waiting(20)
    assert (waiting.sender, waiting.reason) == (sender, ev.Outcome.PARENT_MISSING)
    assert waiting.detail == f"{sender} sent it without its folder, which nobody has sent yet"
    assert any(f"of {sender} for" in line and waiting.detail in line for line in a.engine.pending_text())
    assert not given_up(a)
    world.run(DAY / SECOND)
    (text,) = given_up(a)
    assert f"{sender} sent it without the folder it is in, and no partner has that" in text
    assert not a.pending()
    assert not a.store.inlog_count()


def test_what_comes_without_a_folder_waits_for_a_partner_that_is_away() -> None:
    """That one may have the folder."""
    world, a = without_its_folder("abc")
    world.members["b"].crash()
    a.post(ev.PartnerUnreachable(world.members["b"].guid, "gone"))
    world.run(1.5 * DAY / SECOND)
    assert not given_up(a)
    assert a.pending()


def test_what_a_partner_sent_without_its_folder_ends_when_it_is_a_partner_no_more() -> None:
    """As soon as the others have sent all they have; and nobody else is said to have sent it."""
    world, a = without_its_folder("abc")
    world.leave(world.members["c"])
    for _ in range(1000):
        waiting = a.engine.waiting(20)
        if waiting:
            break
        world.run(0.01)
    assert [one.sender for one in waiting] == ["a member that is no partner any more"]
    assert [one["backlog"] for one in a.engine.connections() if one["direction"] == "inbound"] == [0]
    world.run(60)
    (text,) = given_up(a)
    assert "a member that is no partner any more sent it without the folder it is in" in text
    assert not a.pending()
    all_agree(world)


def test_what_partners_decompress_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a member stages when it starts, before anybody has joined, is compressed for those who joined before."""
    world = started("abc", minor=9)
    a, b, _ = (world.members[n] for n in "abc")
    ours = {COMPRESSION_NONE, COMPRESSION_LZNT1, COMPRESSION_ZSTD}

    def restarted() -> frozenset[bytes]:
        a.crash()
        a.start()
        assert not any(session.joined for session in a.engine.out_sessions.sessions.values())
        return a.engine.out_sessions.compressions()

    assert restarted() == ours
    send = World.send

    def foreign(world: World, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if packet.command == CMD_JOINING and source is b:
            packet.compression_guids = [COMPRESSION_LZNT1, b"not known to us."]
        send(world, source, partner, packet, **way)

    monkeypatch.setattr(World, "send", foreign)
    world.run(120)
    assert a.engine.out_sessions.compressions() == {COMPRESSION_NONE, COMPRESSION_LZNT1}
    assert restarted() == {COMPRESSION_NONE, COMPRESSION_LZNT1}
    monkeypatch.setattr(World, "send", send)
    world.run(120)
    assert restarted() == ours, "as it said last"
    with a.store.transaction():
        a.store.meta_set("compressions", b"")
    assert restarted() == {COMPRESSION_NONE, COMPRESSION_LZNT1}, "nobody knows"
