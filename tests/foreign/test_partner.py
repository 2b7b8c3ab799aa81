"""A scripted partner with nothing of ours, of minor versions 0, 3, 4 and 9, and a real member of ours."""

from __future__ import annotations

import ast
import os
import random
import uuid
from pathlib import Path

import pytest

from tests.foreign import packets, stages
from tests.foreign.packets import ChangeOrder
from tests.foreign.partner import Partner, now
from tests.foreign.site import Member, names

#: Flags
ABORT_CO, RETRY = 0x1, 0x40
#: FileAttributes
ARCHIVE, DIRECTORY = 0x20, 0x10
#: owner and group of BUILTIN\\Administrators, all rights for everybody
DESCRIPTOR = bytes.fromhex(
    "01000484" "14000000" "24000000" "00000000" "34000000"
    "01020000000000052000000020020000" "01020000000000052000000020020000"
    "02001c0001000000" "00001400ff011f00" "010100000000000100000000"
)  # fmt: skip
TEXT = b"".join(b"%d lines of a file that compresses well\r\n" % n for n in range(4000))  # three blocks of streams


def test_nothing_of_ours() -> None:
    ours = {"agent", "staging", "idtable", "journal", "config"}
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            for name in found:
                top, _, rest = name.partition(".")
                assert top not in ours, f"{path.name} imports {name}"
                assert top != "tests" or rest.partition(".")[0] == "foreign", f"{path.name} imports {name}"


def order(partner: Partner, name: str, parent: bytes, *, folder: bool, sync: bool, vsn: int) -> ChangeOrder:
    """A change order of the partner's own for a new file or folder (3.3.4.1, 3.3.4.4.4.1)."""
    compressed = 0x01000000 if partner.minor >= 4 else 0
    return ChangeOrder({
        "name": name, "sequence_number": 7, "partner_ack_seq_number": 7, "state": 0x14,
        "flags": (0x40028 if sync else 0x28 | (0 if folder else 4)) | compressed, "location_cmd": int(folder),
        "content_cmd": 0x100 if sync else 0 if folder else 0x3, "file_attributes": DIRECTORY if folder else ARCHIVE,
        "frs_vsn": vsn, "event_time": now(), "file_size": 0 if folder else 0x20000,
        "change_order_guid": uuid.uuid4().bytes_le, "originator_guid": partner.originator,
        "file_guid": uuid.uuid4().bytes_le, "old_parent_guid": parent, "new_parent_guid": parent,
        "cxtion_guid": partner.up, "file_version_number": 0, "original_replica_num": 1, "new_replica_num": 1,
        "ack_version": 0x1234567890,
    })  # fmt: skip


def staged(partner: Partner, made: ChangeOrder, content: bytes | None, more: bytes = b"") -> stages.Stage:
    """The staging file for it, with more streams; None: a folder."""
    streams = stages.stream(stages.SECURITY_DATA, DESCRIPTOR, 2)
    if content is not None:
        streams += stages.stream(stages.DATA, content) + more
    streams += stages.stream(stages.OBJECT_ID, made["file_guid"] + bytes(48))
    at = made["event_time"]
    stage = stages.Stage(
        made, (at, at, at, at), len(content or b""), made["file_attributes"], made["file_guid"], bytes(40),
        stages.LZNT1 if partner.minor >= 4 else bytes(16), streams,
    )  # fmt: skip
    return stage if partner.minor >= 4 else stage._replace(coc_ext=packets.win2k(stage.md5))


def send(partner: Partner, made: ChangeOrder, content: bytes | None, more: bytes = b"") -> None:
    """Offer it and serve its staging file; what the member asks and answers is what 3.3.4.4.6.1 and 3.3.4.4.6.2 say."""
    stage = staged(partner, made, content, more)
    partner.offer(made, stage.md5)
    asked = partner.serve(made["change_order_guid"], stages.build(stage))["remote_co"]
    done = partner.hear(packets.REMOTE_CO_DONE, co_guid=made["change_order_guid"])
    answer = done["remote_co"]
    sync = made["flags"] & 0x40000
    assert asked["state"] == (5 if sync else 6)
    assert answer["state"] == 0x16
    assert (asked["iflags"], answer["iflags"]) == (0, 1)
    bits = made["flags"] & 0x01040000 | 0x408 | (0 if content is None else 4)
    assert asked["flags"] == (bits & ~0x01000000 if sync and content is None else bits)
    assert answer["flags"] == bits | 2
    assert done["gvsn"] == (made["frs_vsn"], made["originator_guid"])
    assert done["co_sequence_number"] == made["partner_ack_seq_number"]
    assert (done["block_size"], done["file_size"], done["file_offset"]) == (0, 0, 0)
    for same in (
        "location_cmd", "change_order_guid", "originator_guid", "file_guid", "frs_vsn", "ack_version", "event_time",
        "name", "file_attributes", "file_version_number", "partner_ack_seq_number",
    ):  # fmt: skip
        assert asked[same] == answer[same] == made[same], same


def take(partner: Partner, name: str, content: bytes | None, *, sync: bool) -> ChangeOrder:
    """Wait for the change order of a new file or folder, fetch it, and acknowledge it."""
    while True:
        offer = partner.hear(packets.REMOTE_CO)
        if offer["remote_co"]["name"] == name:
            break
        assert offer["remote_co"]["location_cmd"] & 1, "another folder, whose content comes next"
    made = offer["remote_co"]
    assert bool(made["flags"] & 0x40000) == sync
    assert made["location_cmd"] == (1 if content is None else 0)
    stage = partner.fetch(offer)
    assert stage.stream(stages.DATA) == content
    assert stage.object_id == made["file_guid"]
    assert stage.stream(stages.OBJECT_ID) == made["file_guid"] + bytes(48)
    assert bool(stage.attributes & DIRECTORY) == (content is None)
    assert stage.change_order["name"] == name
    checksum = offer.get("co_ext_win2k") or offer.get("co_extension_2")
    assert checksum == stage.md5
    if partner.minor >= 4:
        assert stage.compression == stages.LZNT1
        assert not any(stage.coc_ext)
    else:
        assert stage.compression == bytes(16)
        assert stages.checksum_of_header(stage) == stage.md5
    partner.done(offer)
    return made


@pytest.mark.parametrize("minor", [0, 3, 4, 9])
def test_a_partner_of_minor_version(tmp_path: Path, minor: int) -> None:
    known = names()
    noise = random.Random(minor).randbytes(70_000)
    with Partner(known, minor) as partner:
        site = Member(tmp_path, known, partner.port)
        (site.root / "old").mkdir()
        (site.root / "old" / "text").write_bytes(TEXT)
        with site as member:
            partner.call(member.port)

            # a whole VVJoin from the member: the folder first, then what is in it
            partner.join_below()
            folder = take(partner, "old", None, sync=True)
            text = take(partner, "text", TEXT, sync=True)
            assert folder["new_parent_guid"] == partner.me[0]
            assert text["new_parent_guid"] == folder["file_guid"]
            partner.hear(packets.VVJOIN_DONE)

            # a change order from the member
            (member.root / "new").write_bytes(noise)
            new = take(partner, "new", noise, sync=False)
            assert new["frs_vsn"] > text["frs_vsn"]

            # a whole VVJoin to the member
            joining = partner.join_above()
            assert joining["last_join_time"] == 1
            assert {guid for _, guid in joining["vvector"]} >= {joining["replica_version_guid"]}
            there = order(partner, "there", partner.member[0], folder=True, sync=True, vsn=now())
            send(partner, there, None)
            inside = order(partner, "inside", there["file_guid"], folder=False, sync=True, vsn=there["frs_vsn"] + 1)
            send(partner, inside, TEXT)
            partner.say(packets.VVJOIN_DONE, partner.up)
            member.until("the file is there", "there/inside", TEXT)

            # a change order to the member, and one that removes it again
            last = order(partner, "last", partner.member[0], folder=False, sync=False, vsn=now())
            send(partner, last, noise)
            assert (member.root / "last").read_bytes() == noise
            gone = last.but(
                flags=0x28, content_cmd=0, location_cmd=2, change_order_guid=os.urandom(16), frs_vsn=now(),
                event_time=now(), file_version_number=1,
            )  # fmt: skip
            partner.offer(gone, bytes(16))
            done = partner.hear(packets.REMOTE_CO_DONE, co_guid=gone["change_order_guid"])
            assert done["remote_co"]["flags"] == 0xA
            assert not (member.root / "last").exists()

            # one that was removed there
            (member.root / "new").unlink()
            offer = partner.hear(packets.REMOTE_CO)
            assert offer["remote_co"]["file_guid"] == new["file_guid"]
            assert offer["remote_co"]["location_cmd"] == 2
            partner.done(offer)

            # nothing of what the partner sent comes back, and the session ends
            assert not partner.unread(packets.REMOTE_CO)
            partner.say(packets.UNJOIN_REMOTE, partner.down)
            assert not partner.unread(packets.RETRY_FETCH)
            assert not partner.unread(packets.ABORT_FETCH)
    assert {said for said, _ in partner.heard} == {9}
    ours = {packet["command"] for _, packet in partner.heard}
    assert ours >= {packets.REMOTE_CO, packets.SEND_STAGE, packets.RECEIVING_STAGE, packets.REMOTE_CO_DONE}


@pytest.mark.parametrize("minor", [3, 9])
def test_a_staging_file_that_cannot_be_had(tmp_path: Path, minor: int) -> None:
    """CMD_RETRY_FETCH: the same request again, marked so (3.3.4.4.11). What comes damaged is fetched three times, and
    aborted then (3.3.4.4.8)."""
    known = names()
    with Partner(known, minor) as partner, Member(tmp_path, known, partner.port) as member:
        partner.call(member.port)
        partner.join_above()
        partner.say(packets.VVJOIN_DONE, partner.up)

        later = order(partner, "later", partner.member[0], folder=False, sync=False, vsn=now())
        stage = staged(partner, later, TEXT)
        co_guid = later["change_order_guid"]
        partner.offer(later, stage.md5)
        first = partner.hear(packets.SEND_STAGE, co_guid=co_guid)
        partner.say(
            packets.RETRY_FETCH, partner.up, block_size=0, file_offset=0, co_guid=co_guid, co_sequence_number=0
        )  # fmt: skip
        again = partner.serve(co_guid, stages.build(stage))
        done = partner.hear(packets.REMOTE_CO_DONE, co_guid=co_guid)
        assert not first["remote_co"]["flags"] & RETRY
        assert again["remote_co"]["flags"] & RETRY
        assert done["remote_co"]["state"] == 0x16
        assert (member.root / "later").read_bytes() == TEXT

        never = order(partner, "never", partner.member[0], folder=False, sync=False, vsn=now())
        partner.offer(never, bytes(range(16)))  # another MD5 than that of its streams
        for _ in range(3):
            partner.serve(never["change_order_guid"], stages.build(staged(partner, never, TEXT)))
        done = partner.hear(packets.REMOTE_CO_DONE, co_guid=never["change_order_guid"])
        assert done["remote_co"]["flags"] & ABORT_CO
        assert not (member.root / "never").exists()
        assert any("never" in line and ("WARNING" in line or "ERROR" in line) for line in member.lines)


def test_what_no_file_here_holds_goes_to_a_member_that_comes_later_without_it(tmp_path: Path) -> None:
    """An alternate stream that is too large for a user attribute: the staging file that came had it, and one that is
    made here has not, and so another MD5 than the one that was announced."""
    known = names()
    picture = stages.stream(stages.ALTERNATE_DATA, bytes(100_000), 0, ":picture:$DATA".encode("utf-16-le"))
    with Partner(known, 9) as partner, Member(tmp_path, known, partner.port) as member:
        partner.call(member.port)
        partner.join_above()
        made = order(partner, "text", partner.member[0], folder=False, sync=True, vsn=now())
        send(partner, made, TEXT, picture)
        partner.say(packets.VVJOIN_DONE, partner.up)
        partner.join_below()  # as somebody who has nothing
        offer = partner.hear(packets.REMOTE_CO)
        assert offer["remote_co"]["frs_vsn"] == made["frs_vsn"]
        assert offer["co_extension_2"] == bytes(16)
        stage = partner.fetch(offer)
        assert (stage.object_id, stage.stream(stages.DATA)) == (made["file_guid"], TEXT)
        partner.done(offer)
        partner.hear(packets.VVJOIN_DONE)
