"""scapy, with the stubs that scapy-rpc has made from the IDL, calls all methods of both interfaces of a running member:
at privacy they are carried out, at every lower level they are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.foreign import packets
from tests.foreign.partner import Partner
from tests.foreign.site import PATIENCE, Member, Names, names
from tests.foreign.test_levels import LEVELS, need_join

READERS = f'[ntfrsapi]\nreaders = ["{Member.user}"]\n'
ACCESS_DENIED = 5
#: Return values; 120 is ERROR_CALL_NOT_IMPLEMENTED, 87 ERROR_INVALID_PARAMETER.
METHODS = {
    "frsrpc": {
        "FrsNOP": 0, "FrsRpcSendCommPkt": 0, "FrsRpcVerifyPromotionParent": 120, "FrsRpcStartPromotionParent": 87,
    },
    "NtFrsApi": dict.fromkeys((
        "Set_DsPollingIntervalW", "Get_DsPollingIntervalW", "InfoW", "IsPathReplicated", "WriterCommand",
        "ForceReplication",
    ), 0),
}  # fmt: skip


def scapy(member: Member, known: Names, **how: Any) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Level, interface, method, and what scapy made of the answer."""
    asked = {
        "host": member.host, "port": member.port, "user": member.user, "domain": member.domain,
        "password": member.password, "mechanism": "spnego", "order": "little", "levels": ["privacy"],
        "pkt": need_join(known).hex(), "path": str(member.root), "set": known.set_name,
    } | how  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("scapy_calls.py")],
        input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[tuple[str, str, str, dict[str, Any]]] = json.loads(done.stdout)
    assert [(level, one, method) for level, one, method, _ in found] == [
        (level, one, method) for level in asked["levels"] for one, methods in METHODS.items() for method in methods
    ]
    return found


def carried_out(found: list[tuple[str, str, str, dict[str, Any]]], known: Names) -> None:
    """Each method has answered what it has to."""
    for _, interface, method, answer in found:
        assert "fault" not in answer, method
        whole = bytes.fromhex(answer.pop("all"))
        assert int.from_bytes(whole[-4:], "little") == METHODS[interface][method], method
        if method == "Get_DsPollingIntervalW":
            assert answer == {"Interval": 30, "LongInterval": 30, "ShortInterval": 5, "status": 0}
        if method == "IsPathReplicated":
            assert answer == {"Replicated": 1, "Primary": 1, "Root": 1, "status": 0}
        if method == "InfoW":
            assert f"name: {known.set_name}".encode() in whole


@pytest.mark.parametrize("mechanism", ["spnego", "ntlm"])
def test_each_level_of_both_interfaces(tmp_path: Path, mechanism: str) -> None:
    known = names()
    with Partner(known, 9) as partner, Member(tmp_path, known, partner.port, more=READERS) as member:
        partner.hear(packets.NEED_JOIN)  # its set is open
        found = scapy(member, known, levels=list(LEVELS), mechanism=mechanism)
        for level, _, method, answer in found:
            if level != "privacy":
                assert answer == {"fault": ACCESS_DENIED}, (level, method)
        carried_out([one for one in found if one[0] == "privacy"], known)
        partner.hear(packets.START_JOIN)
