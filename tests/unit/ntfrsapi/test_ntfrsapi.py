"""NtFrsApi: access checks, polling intervals, paging, and stubs that are none."""

from __future__ import annotations

import asyncio
import inspect
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ntfrsapi.access import FUNCTIONS, Access
from agent.ntfrsapi.interface import COMMANDS, QUESTIONS, ntfrsapi_interface
from agent.ntfrsapi.polling import Polling
from agent.rpc import constants as c
from agent.rpc.errors import RpcFault
from agent.rpc.interface import CallContext
from agent.service.administration import Administration
from agent.wire.frsapi import NOT_REPLICATED, Force
from idtable.records import IDRecord

TEXT = "".join(f"line {number}\n" for number in range(1000))
OPNUMS = dict(zip(FUNCTIONS, (4, 5, 7, 8, 9, 10), strict=True))
DENIED, NOT_AUTHENTICATED, NO_PRIVILEGE, INVALID = 5, 1244, 8007, 8017


class Host:
    def __init__(self) -> None:
        self.frozen: list[bool] = []
        self.forced: list[Force] = []
        self.polls = 0
        self.busy: list[str] = []

    def too_often(self, who: str) -> None:
        self.busy.append(who)

    async def info(self, kind: str) -> str:
        return TEXT

    def replicated(self, path: str, kind: int) -> tuple[bool, int, bool, bytes]:
        return NOT_REPLICATED

    def freeze(self, frozen: bool, who: str) -> None:
        self.frozen.append(frozen)

    def force(self, asked: Force) -> None:
        self.forced.append(asked)

    def poll(self) -> None:
        self.polls += 1


def caller(user: str = "", member: str = "") -> CallContext:
    return CallContext("127.0.0.1", 1, user, "FRS", 6, 1, member)


async def call(access: Access, opnum: int, stub: bytes, context: CallContext, path: Path, host: Host) -> bytes:
    answer = ntfrsapi_interface(host, access, Polling(path / "polling.json")).handlers[opnum](context, stub)
    return await answer if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("check", "context", "status"),
    [
        ("none", caller("writer"), DENIED),
        ("disabled", caller("nobody"), 0),
        ("read", caller("reader"), 0), ("read", caller("READER"), 0), ("read", caller("writer"), 0),
        ("read", caller("nobody"), NO_PRIVILEGE), ("read", caller(), NOT_AUTHENTICATED),
        ("read", caller("x", "files2"), 0), ("read", caller("reader", "files3"), NO_PRIVILEGE),
        ("write", caller("reader"), NO_PRIVILEGE), ("write", caller("writer"), 0),
    ],
)  # fmt: skip
async def test_who_may_call(function: str, check: str, context: CallContext, status: int, tmp_path: Path) -> None:
    """3.2.4: the return value is the last word of the response, whatever comes before it."""
    access = Access({function: check}, ["reader", "files2"], ["writer"])  # type: ignore[dict-item]
    answer = await call(access, OPNUMS[function], bytes(64), context, tmp_path, Host())
    (found,) = struct.unpack("<I", answer[-4:])
    assert found == (status or (INVALID if function in ("info", "is_path_replicated") else 0))  # for what is NULL there


def blob(kind: int, skip: int, size: int = 0x400) -> bytes:
    head = struct.pack("<11I", 0, 0, 0, 0, size, 0, kind, 0, skip, 44, 44)
    return struct.pack("<III", size, 0x20000, size) + head.ljust(size, b"\0")


async def test_text_comes_in_pages(tmp_path: Path) -> None:
    access, found, skip, pages = Access({"info": "disabled"}, [], []), b"", 0, 0
    while True:
        answer = await call(access, 7, blob(0, skip), caller(), tmp_path, Host())
        assert struct.unpack("<I", answer[-4:]) == (0,)
        words = struct.unpack_from("<11I", answer, 8)
        assert (words[0], words[4], words[6], words[7]) == (0, 0x400, 0, len(TEXT))
        found += answer[8 + words[9] : 8 + words[10]]
        skip, pages = words[8], pages + 1
        if not words[5] & 2:
            break
    assert found.decode() == TEXT
    assert pages == -(-len(TEXT) // (0x400 - 44))


@pytest.mark.parametrize(
    "stub",
    [struct.pack("<II", 0x400, 0), blob(10, 0), blob(0, 0)[:8] + struct.pack("<I", 0x400) + b"\xff" * 0x400,
     struct.pack("<III", 8, 0x20000, 8) + bytes(8)],
)  # fmt: skip
async def test_a_blob_that_cannot_be_served(stub: bytes, tmp_path: Path) -> None:
    answer = await call(Access({"info": "disabled"}, [], []), 7, stub, caller(), tmp_path, Host())
    assert answer == struct.pack("<II", 0, INVALID)


@given(opnum=st.sampled_from(sorted(OPNUMS.values())), stub=st.binary(max_size=200))
async def test_any_stub_is_answered_or_faulted(
    opnum: int, stub: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    access = Access(dict.fromkeys(FUNCTIONS, "disabled"), [], [])
    try:
        answer = await call(access, opnum, stub, caller(), tmp_path_factory.getbasetemp(), Host())
    except RpcFault:
        return
    assert len(answer) >= 4


@pytest.mark.parametrize(
    ("given_", "expected"),
    [((0, 30, 0), (30, 30, 5)), ((1, 0, 2), (2, 60, 2)), ((0, 10, 20), (10, 10, 10)), ((1, 10, 3), (3, 10, 3)),
     ((1, 0, 0), (5, 60, 5)), ((0, 0, 0), (60, 60, 5)), ((0, 0x8BD0, 0), (0x8BCF, 0x8BCF, 5)),
     ((1, 0, 0xFFFFFFFF), (0x8BCF, 60, 0x8BCF))],
)  # fmt: skip
async def test_polling_intervals(given_: tuple[int, int, int], expected: tuple[int, int, int], tmp_path: Path) -> None:
    """3.2.4.1, notes 58 and 59: 0 leaves an interval as it is, both set the lower one is the short one."""
    access, host = Access(dict.fromkeys(FUNCTIONS, "disabled"), [], []), Host()
    polling = Polling(tmp_path / "polling.json")
    handlers = ntfrsapi_interface(host, access, polling).handlers
    set_, get = handlers[4](caller(), struct.pack("<3I", *given_)), handlers[5](caller(), b"")
    assert inspect.isawaitable(set_)
    assert inspect.isawaitable(get)
    assert await set_ == bytes(4)
    assert struct.unpack("<4I", await get) == (*expected, 0)
    assert host.polls == 1
    again = Polling(tmp_path / "polling.json")
    assert (again.long, again.short, again.present) == (expected[1], expected[2], expected[2])  # a start polls often


def test_a_file_of_intervals_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "polling.json").write_text('{"long": "x"')
    assert Polling(tmp_path / "polling.json").long == 60


async def test_commands(tmp_path: Path) -> None:
    access, host = Access(dict.fromkeys(FUNCTIONS, "disabled"), [], []), Host()
    for command in (1, 2, 3):
        assert await call(access, 9, struct.pack("<I", command), caller(), tmp_path, host) == bytes(4)
    assert host.frozen == [True, False]
    name = "docs\0".encode("utf-16-le")
    stub = struct.pack("<I", 0x20000) + bytes(range(16)) + struct.pack("<IIIII", 0, 0x20004, 5, 0, 5) + name + bytes(2)
    assert await call(access, 10, stub + bytes(4), caller(), tmp_path, host) == bytes(4)
    assert host.forced == [Force(bytes(range(16)), None, "docs", None)]


@pytest.mark.parametrize(("function", "most"), [("info", QUESTIONS[1]), ("force_replication", COMMANDS[1])])
async def test_each_caller_is_answered_in_moderation(function: str, most: int, tmp_path: Path) -> None:
    """Whoever may call may else keep this member busy, and have it send to its partners without end."""
    host, access = Host(), Access(dict.fromkeys(FUNCTIONS, "disabled"), [], [])
    handler = ntfrsapi_interface(host, access, Polling(tmp_path / "polling.json")).handlers[OPNUMS[function]]

    async def called(who: str) -> int | None:
        try:
            answer = handler(caller(member=who), bytes(64))
            assert inspect.isawaitable(answer)
            return len(await answer)
        except RpcFault as fault:
            return None if fault.status == c.NCA_S_SERVER_TOO_BUSY else fault.status

    answers = [await called("files2") for _ in range(3 * most)]
    assert most <= len(answers) - answers.count(None) < 2 * most
    assert host.busy == ["files2"] * answers.count(None)
    assert await called("files3") is not None


class Lock:
    """Counts how often it is taken."""

    taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        pass


def member_with(files: int) -> tuple[Any, Lock]:
    """A service with one set of so many files."""
    records = [
        IDRecord(number.to_bytes(16, "big"), bytes(16), f"file {number}", is_dir=False) for number in range(files)
    ]
    store = SimpleNamespace(all_live=lambda: iter(records), path_of=lambda guid: "x" * 1000)
    replica = SimpleNamespace(name="docs", lock=Lock(), store=store)
    return SimpleNamespace(sets=SimpleNamespace(replicas={b"": replica})), replica.lock


async def test_a_table_is_read_once_for_all_who_ask_and_the_engine_goes_on_meanwhile() -> None:
    service, lock = member_with(1000)
    administration = Administration(service)
    texts = await asyncio.gather(*(administration.info("idtable") for _ in range(50)))
    assert len(set(texts)) == 1
    assert texts[0].count("\n") == 1001
    assert 10 <= lock.taken <= 11


async def test_a_table_is_told_up_to_a_bound() -> None:
    service, _ = member_with(50_000)
    assert 2 << 20 <= len(await Administration(service).info("idtable")) <= 2 << 20
