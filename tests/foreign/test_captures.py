"""The captures of section 4 of [MS-FRS1] as a partner's script: what Windows sent there is sent to a member of ours,
and what the member answers is held against what Windows answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.foreign import packets, stages
from tests.foreign.packets import ChangeOrder
from tests.foreign.partner import Partner, now
from tests.foreign.site import Member, Names

_VECTORS = Path(__file__).parents[1] / "vectors"
_CAPTURED = {one["section"]: one for one in json.loads((_VECTORS / "packets.json").read_text())["packets"]}
_STAGES = {one["section"]: one for one in json.loads((_VECTORS / "stages.json").read_text())["stages"]}
#: The minor version that the partner of 4.3 sends.
MINOR = 8
SHICO = Names(
    member="SHICO-TEMP-2", member_guid="e5d187e6-12aa-48df-abc1-d7940ae0804c",
    partner="SHICO-TEMP-1", partner_guid="54f4b21a-03fd-4374-8e3b-2875e740d958",
    set_name="Domain System Volume (SYSVOL share)",
    up="08f7a3f0-e05c-4994-9a60-e7cd4057ec6f", down="00d6a3f1-7f3c-4e0e-8d9b-5b1d8a0c9e21",
)  # fmt: skip
#: The connection of 4.4.
VOLATILE = SHICO._replace(up="2d89345f-b2ac-4e89-8bdd-0efa166b92e6")
#: The same as the upstream one sees it.
PDC = Names(
    SHICO.partner, SHICO.partner_guid, SHICO.member, SHICO.member_guid, SHICO.set_name, up=SHICO.up, down=VOLATILE.up
)
# What is each session's, member's or host's own: which session it is and when it began; the root of the tree here as
# parent; what the member alone knows of its file; what Windows left in memory behind what counts (rulings 5, 9, 11).
_OWN = {"join_guid", "last_join_time"}
_OWN_ORDER = {"old_parent_guid", "new_parent_guid", "file_usn", "spares", "name_area"}
#: What of a change order says which change it is, and when and by whom it was made.
OF_THE_CHANGE = (
    "sequence_number", "partner_ack_seq_number", "frs_vsn", "change_order_guid", "originator_guid", "file_guid",
    "ack_version", "event_time",
)  # fmt: skip
#: Means something on the host that made it alone (2.2.3.2).
OF_THE_HOST = ("original_replica_num", "new_replica_num")


def captured(section: str) -> dict[str, Any]:
    """The elements of a packet; bytes that the text does not give are 0."""
    one = _CAPTURED[section]
    return packets.parse(bytes.fromhex((one["pkt_hex"] or one["pkt_template_hex"]).replace("??", "00")))


def staging_file(section: str) -> bytes:
    """A whole staging file."""
    one = _STAGES[section]
    header = one.get("header_hex") or one["header_template_hex"]
    return bytes.fromhex((header + one["compressed_hex"]).replace("??", "00"))


def replay(partner: Partner, section: str, **changes: Any) -> bytes:
    """Send a captured packet, but for these elements, in the session that there is; the GUID of its change order, if
    it has one."""
    elements = captured(section) | changes
    command, cxtion = elements.pop("command"), elements.pop("cxtion")
    partner.calls[cxtion[0]] = cxtion[1]
    if "co_extension_2" in elements:
        elements["co_extension_2"] = packets.extension(elements["co_extension_2"])
    partner.say(command, cxtion[0], **{name: value for name, value in elements.items() if name not in _OWN})
    return elements["remote_co"]["change_order_guid"] if "remote_co" in elements else b""


def differs(heard: dict[str, Any], section: str) -> dict[str, Any]:
    """What is not as Windows answered, as (here, there)."""
    wanted = captured(section)
    found = {}
    for name in sorted(set(heard) | set(wanted)):
        here, there = heard.get(name), wanted.get(name)
        if isinstance(here, ChangeOrder) and isinstance(there, ChangeOrder):
            fields = set(here.fields) - _OWN_ORDER
            found |= {one: (here[one], there[one]) for one in fields if here[one] != there[one]}
        elif name not in _OWN and here != there:
            found[name] = here, there
    return found


def test_a_file_and_folders_are_synchronized(tmp_path: Path) -> None:
    """4.5: a file that is fetched, folders and a file that get other names, what is removed; by their VSNs."""
    with Partner(SHICO, MINOR) as partner, Member(tmp_path, SHICO, partner.port) as member:
        partner.call(member.port)
        partner.join_above()
        partner.say(packets.VVJOIN_DONE, partner.up)

        removed = replay(partner, "4.5.3.1")
        assert differs(partner.hear(packets.REMOTE_CO_DONE, co_guid=removed), "4.5.3.2") == {}

        # the data of this one is not in the text; of a file that is new, the checksum SHOULD be NULL (3.3.4.4.6.1)
        file = replay(partner, "4.5.1.1")
        asked = differs(partner.hear(packets.SEND_STAGE, co_guid=file), "4.5.1.2")
        assert asked == {"co_extension_2": (bytes(16), captured("4.5.1.2")["co_extension_2"])}
        partner.say(
            packets.ABORT_FETCH, partner.up, block_size=0, file_size=0, file_offset=0, co_guid=file,
            co_sequence_number=0,
        )  # fmt: skip

        folder = replay(partner, "4.5.4.1")
        assert differs(partner.serve(folder, staging_file("4.5.4.3")), "4.5.4.2") == {}
        assert differs(partner.hear(packets.REMOTE_CO_DONE, co_guid=folder), "4.5.4.4") == {}
        assert (member.root / "Stone").is_dir()

        # the one answer of all captures whose sequence number is not 1
        folder = replay(partner, "4.5.5.1")
        done = differs(partner.hear(packets.REMOTE_CO_DONE, co_guid=folder), "4.5.5.2")
        assert done == {"sequence_number": (1, 2)}
        assert not (member.root / "Stone").exists()

        folder = replay(partner, "4.5.6.1")
        assert differs(partner.serve(folder, staging_file("4.5.6.3")), "4.5.6.2") == {}
        assert differs(partner.hear(packets.REMOTE_CO_DONE, co_guid=folder), "4.5.6.4") == {}
        assert (member.root / "newstone").is_dir()

        file = replay(partner, "4.5.2.1")
        asked = differs(partner.serve(file, staging_file("4.5.2.3")), "4.5.2.2")
        assert asked == {"co_extension_2": (bytes(16), captured("4.5.2.2")["co_extension_2"])}
        assert differs(partner.hear(packets.REMOTE_CO_DONE, co_guid=file), "4.5.2.4") == {}
        assert (member.root / "newfile.txt").read_bytes() == b"file.txt\r\n"
        assert sorted(one.name for one in member.root.iterdir()) == ["newfile.txt", "newstone"]


def test_a_folder_is_synchronized_initially(tmp_path: Path) -> None:
    """4.4: the partner is joined, and sends a folder of its VVJoin. It is called by the name that it has in the set,
    as in 4.5, and not by that of its host (ruling 3)."""
    with Partner(VOLATILE, MINOR) as partner, Member(tmp_path, VOLATILE, partner.port) as member:
        called = {"to": (partner.me, captured("4.4.1")["to"])}
        partner.calls[partner.up] = captured("4.4.2")["cxtion"][1]
        partner.call(member.port)
        joining = differs(partner.join_above(), "4.4.3")
        own = {"vvector", "join_time", "replica_version_guid", "compression_guid"}
        assert {name: both for name, both in joining.items() if name not in own} == called
        assert stages.LZNT1 in joining["compression_guid"][0]
        order = replay(partner, "4.4.5")
        # the streams of 4.4.7 are not all in the text: with those of the folder in 4.5.4.3
        stage = stages.parse(staging_file("4.5.4.3"))
        header = ChangeOrder.parse(bytes.fromhex(_STAGES["4.4.7"]["header_hex"])[0x50:0x368])
        made = stage._replace(change_order=header, object_id=header["file_guid"])
        assert differs(partner.serve(order, stages.build(made)), "4.4.6") == called
        assert differs(partner.hear(packets.REMOTE_CO_DONE, co_guid=order), "4.4.8") == called
        replay(partner, "4.4.9")
        assert (member.root / "Policies").is_dir()


def test_a_folder_is_synchronized_initially_from_here(tmp_path: Path) -> None:
    """4.4, with the member in the place of the PDC: what the new domain controller said there, and the member's folder
    in the place of the one of that name."""
    with Partner(PDC, MINOR) as partner:
        site = Member(tmp_path, PDC, partner.port)
        (site.root / "Policies").mkdir()
        with site as member:
            partner.call(member.port)
            called = {"to": (partner.me, captured("4.4.2")["to"])}
            replay(partner, "4.4.1")
            # it has begun by itself before, and called the connection by a name of its own
            begun = partner.hear(packets.START_JOIN, cxtion=captured("4.4.2")["cxtion"])
            assert differs(begun, "4.4.2") == called

            joining = captured("4.4.3")
            partner.sessions[partner.down] = joining["join_guid"]
            replay(partner, "4.4.3", join_time=now())  # at its own time, the clocks would be too far apart
            joined = partner.hear(packets.JOINED)
            assert joined["join_guid"] == joining["join_guid"]
            assert differs(joined, "4.4.4") == called
            partner.join_times[partner.down] = joined["last_join_time"]

            offer = partner.hear(packets.REMOTE_CO)
            found = differs(offer, "4.4.5")
            own = {
                name: (offer["remote_co"][name], captured("4.4.5")["remote_co"][name])
                for name in OF_THE_CHANGE + OF_THE_HOST
            }
            checksum = {"co_extension_2": (offer["co_extension_2"], bytes(16))}
            assert found == called | own | checksum
            assert offer["remote_co"]["new_parent_guid"] == captured("4.4.5")["remote_co"]["new_parent_guid"]

            mine = {name: offer["remote_co"][name] for name in OF_THE_CHANGE if name != "sequence_number"}
            guid, gvsn = mine["change_order_guid"], (mine["frs_vsn"], mine["originator_guid"])
            replay(partner, "4.4.6", co_guid=guid, remote_co=captured("4.4.6")["remote_co"].but(**mine))
            block = partner.hear(packets.RECEIVING_STAGE, co_guid=guid)
            assert block["file_size"] == block["block_size"] == len(block["block"])
            stage = stages.parse(block["block"])
            assert (stage.object_id, stage.change_order["name"]) == (mine["file_guid"], "Policies")
            replay(
                partner, "4.4.8", co_guid=guid, gvsn=gvsn, remote_co=captured("4.4.8")["remote_co"].but(**mine),
                co_sequence_number=mine["partner_ack_seq_number"],
            )  # fmt: skip
            assert differs(partner.hear(packets.VVJOIN_DONE), "4.4.9") == called
            replay(partner, "4.4.10")
