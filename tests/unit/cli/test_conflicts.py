"""`frs conflicts`, with an agent that answers and without one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from agent.cli import conflicts_cmd, run_cli
from agent.cli.output import printable
from agent.conflicts import deletedcontrol
from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.conflicts.keptcontrol import KeptOf, conflicts
from agent.reporting.exit_codes import ExitCode
from agent.service.control import SOCKET_NAME, ControlServer
from agent.tree.excluded import Excluded
from config.load import load_agent_config
from idtable.lock import StateLock
from idtable.store import Store
from staging.beneath import Entry
from tests.unit.config.member_files import AGENT, TOPOLOGY, write
from tests.unit.conflicts.deleting import keep_deleted

SET = "sets/11111111-0000-4000-8000-000000000001"
ORIGINATOR = bytes(range(16))
OURS, THEIRS = "03020100-0504-0706-0809-0a0b0c0d0e0f", "00000000-0000-0000-0000-000000000001"
STRANGE = os.fsdecode(b"a\n\xff\x1b[2J'b")


class Member:
    """A member with its configuration; `kept` fills its store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = write(folder)
        self.root = folder / "root"
        self.state = folder / "state"
        (self.state / SET).mkdir(parents=True)

    def store(self, set_dir: str = SET) -> KeptStore:
        return KeptStore(str(self.state / set_dir / "kept"), 1 << 20)

    def keep(self, path: str, data: bytes = b"data", set_dir: str = SET, **details: Any) -> str:
        (self.folder / "lost").write_bytes(data)
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            with self.store(set_dir) as store:
                entry = Entry(fd, "lost", str(self.folder / "lost"))
                return store.keep(entry, tree_path=path, reason="lost", **details)
        finally:
            os.close(fd)

    def deleted(self) -> DeletedStore:
        return DeletedStore(str(self.state / SET / "deleted"), 1 << 20, 30)

    def delete(self, *paths: str) -> str:
        """Others delete these files, with their paths as content; the id of the group."""
        store, fd = self.deleted(), os.open(self.folder, os.O_RDONLY)
        for path in paths:
            (self.folder / "gone").write_bytes(os.fsencode(path))
            keep_deleted(store, "gone", fd, str(self.folder / "gone"), tree_path=path, by=ORIGINATOR)
        os.close(fd)
        return store.groups()[0].id

    def frs(self, *arguments: str) -> int:
        return run_cli(["conflicts", *arguments, "--config", str(self.config)])


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return Member(tmp_path)


@pytest.fixture(params=["running", "stopped"])
def begin(request: pytest.FixtureRequest, member: Member) -> Iterator[Callable[[], None]]:
    """Call it to have the agent run, or not."""
    with ExitStack() as stack:

        def start() -> None:
            if request.param == "stopped":
                return
            store, deleted = stack.enter_context(member.store()), member.deleted()
            stack.enter_context(StateLock(member.state))

            async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
                one = KeptOf(
                    "docs",
                    str(member.root),
                    store,
                    originators=frozenset({ORIGINATOR}),
                    excluded=Excluded(["*.tmp"], []),
                )
                return conflicts([one._replace(deleted=deleted)], arguments)

            loop = asyncio.new_event_loop()
            server = ControlServer(member.state, {"conflicts": handler})
            thread = threading.Thread(target=loop.run_forever)
            thread.start()

            def stop() -> None:
                asyncio.run_coroutine_threadsafe(server.close(), loop).result()
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

            stack.callback(stop)
            asyncio.run_coroutine_threadsafe(server.start(), loop).result()

        yield start


def test_the_whole_of_it(member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    first = member.keep(f"sub/{STRANGE}", b"first", md5=bytes(16), winner={"version": 2, "size": 5})
    second = member.keep("ü", b"second")
    begin()
    assert member.frs("list", "--json") == ExitCode.OK
    items = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in items] == [second, first]
    assert items[1].pop("time").endswith("Z")
    assert items[1] == {
        "id": first,
        "path": f"sub/{STRANGE}",
        "size": 5,
        "md5": "00" * 16,
        "winner": {"version": 2, "size": 5},
        "loser": None,
        "reason": "lost",
        "set": "docs",
    }
    assert member.frs("list") == ExitCode.OK
    assert [re.sub(" +", " ", line) for line in capsys.readouterr().out.splitlines()] == [
        f"{second} 6 ü (lost)",
        rf"{first} 5 $'sub/a\n\xff\x1b[2J\'b' (lost)",
    ]
    assert member.frs("show", first) == ExitCode.OK
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (shown["id"], shown["set"], shown["winner"]) == (first, "docs", "version 2, size 5")
    assert Path(shown["content"]).read_bytes() == b"first"
    assert "loser" not in shown
    assert member.frs("show", first, "--json") == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["set"], shown["path"]) == ("file", "docs", f"sub/{STRANGE}")

    assert member.frs("restore", first) == ExitCode.OK
    assert (member.root / "sub" / STRANGE).read_bytes() == b"first"
    assert capsys.readouterr().out == f"$'{member.root}/sub/a\\n\\xff\\x1b[2J\\'b'\n"
    assert member.frs("discard", second) == ExitCode.OK
    assert member.frs("list", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == []


def test_what_others_deleted(
    member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for all of it, and all of it back at once, or single files of it."""
    monkeypatch.setattr(deletedcontrol, "PAGE", 2)
    kept = member.keep("a conflict")
    group = member.delete(f"sub/{STRANGE}", "b", "c", "d", "taken")
    (member.root / "taken").touch()
    begin()
    assert member.frs("list") == ExitCode.OK
    told = capsys.readouterr()
    assert told.out.startswith(kept)
    assert told.out.count("\n") == 1
    assert told.err == "frs: kept besides: 1 group of files that others deleted, see --deleted\n"
    assert member.frs("list", "--json") == ExitCode.OK
    assert [item["id"] for item in json.loads(capsys.readouterr().out)] == [kept]
    assert member.frs("list", "--deleted") == ExitCode.OK
    size = len(os.fsencode(f"sub/{STRANGE}bcdtaken"))
    assert re.sub(r" +", " ", capsys.readouterr().out).startswith(f"{group} {size} 5 files deleted by {OURS} until 20")
    assert member.frs("list", "--deleted", "--json") == ExitCode.OK
    ((listed,),) = [json.loads(capsys.readouterr().out)]
    assert (listed["id"], listed["files"], listed["size"], listed["set"]) == (group, 5, size, "docs")
    assert (listed["originator"], listed["by"], listed["not_kept"]) == (OURS, None, 0)
    assert member.frs("show", group) == ExitCode.OK
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[3:]]
    assert [line[0] for line in lines] == [f"{group}.{number}" for number in range(1, 6)]
    assert [line[2] for line in lines] == [r"$'sub/a\n\xff\x1b[2J\'b'", "b", "c", "d", "taken"]
    assert member.frs("show", group, "--json") == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["contents"][1] == {"id": f"{group}.2", "path": "b", "size": 1}
    assert member.frs("show", f"{group}.2") == ExitCode.OK
    assert "reason   deleted elsewhere" in capsys.readouterr().out

    assert member.frs("restore", f"{group}.2") == ExitCode.OK
    assert capsys.readouterr().out == f"{member.root}/b\n"
    assert member.frs("restore", f"{group}.3", "--to", "x/c") == ExitCode.OK
    assert (member.root / "x" / "c").read_text() == "c"
    assert member.frs("discard", f"{group}.4") == ExitCode.OK
    capsys.readouterr()
    assert member.frs("restore", group, "--to", "x") == ExitCode.USAGE
    assert "leave out --to" in capsys.readouterr().err
    assert member.frs("restore", group) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        f"2 files restored in {member.root}",
        f"  taken is taken: restored as taken.kept-{group}.5",
    ]
    assert (member.root / "sub" / STRANGE).read_bytes() == os.fsencode(f"sub/{STRANGE}")
    for arguments in (("show", group), ("restore", group), ("discard", f"{group}.1")):
        assert member.frs(*arguments) == ExitCode.USAGE
        assert "frs conflicts list" in capsys.readouterr().err
    assert member.frs("list", "--deleted") == ExitCode.OK
    assert capsys.readouterr().out == ""


def test_a_group_of_which_not_all_can_be_restored(
    member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    group = member.delete("a", "c//x", "b")
    begin()
    assert member.frs("restore", group) == ExitCode.FAILURE
    told = capsys.readouterr()
    assert told.out == f"2 files restored in {member.root}\n"
    assert "c//x is not restored, and still kept" in told.err
    assert member.frs("discard", group) == ExitCode.OK
    assert member.frs("show", group) == ExitCode.USAGE


def test_which_version_this_member_made(
    member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Store(member.state / SET / "frs.db")) as store, store.transaction():
        store.meta_set("originator_guid", ORIGINATOR)
    item_id = member.keep("a", winner={"originator": THEIRS, "vsn": 7}, loser={"originator": OURS, "vsn": 8})
    begin()
    assert member.frs("list", "--json") == ExitCode.OK
    (item,) = json.loads(capsys.readouterr().out)
    assert item["winner"] == {"originator": THEIRS, "vsn": 7, "this_member": False}
    assert item["loser"] == {"originator": OURS, "vsn": 8, "this_member": True}
    assert member.frs("show", item_id) == ExitCode.OK
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["winner"] == f"originator {THEIRS}, vsn 7"
    assert shown["loser"] == f"originator {OURS} (this member), vsn 8"


def test_which_version_this_member_made_before_it_became_another_originator(
    member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Store(member.state / SET / "frs.db")) as store, store.transaction():
        store.meta_set("originator_guid", bytes(16))
        store.meta_set("former_originator_guids", bytes((9,)) * 16 + ORIGINATOR)
    member.keep("a", winner={"originator": THEIRS, "vsn": 7}, loser={"originator": OURS, "vsn": 8})
    assert member.frs("list", "--json") == ExitCode.OK
    (item,) = json.loads(capsys.readouterr().out)
    assert (item["winner"]["this_member"], item["loser"]["this_member"]) == (False, True)


def test_where_it_is_not_known_who_this_member_is(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    edition = {"originator": OURS}
    member.keep("a", winner=edition)
    for spoil in (lambda: None, lambda: (member.state / SET / "frs.db").write_bytes(b"no database" * 100)):
        spoil()
        assert member.frs("list", "--json") == ExitCode.OK
        (item,) = json.loads(capsys.readouterr().out)
        assert item["winner"] == edition


def test_restore_to(member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    ids = [member.keep("a", os.fsencode(name)) for name in ("x", STRANGE, "z")]
    (member.root / "taken").touch()
    begin()
    for to in ("taken", "../x", "/etc/x", ".", str(member.root), f"{member.root}/../x", f"{member.root}x/y"):
        assert member.frs("restore", ids[0], "--to", to) == ExitCode.USAGE
        assert "Error: " in capsys.readouterr().err
    assert member.frs("restore", ids[0], "--to", "new/x") == ExitCode.OK
    assert member.frs("restore", ids[1], "--to", f"{member.root}/{STRANGE}") == ExitCode.OK
    assert (member.root / "new" / "x").read_text() == "x"
    assert (member.root / STRANGE).read_bytes() == os.fsencode(STRANGE)
    assert (member.root / "taken").read_bytes() == b""
    assert sorted(os.listdir(member.folder)) == [
        "agent.toml", "root", "secret.toml", "state", "topology.toml",
    ]  # fmt: skip


def test_restored_to_a_name_that_is_excluded(
    member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is put there, and the user is told that nobody else gets it."""
    topology = member.folder / "topology.toml"
    topology.write_text(topology.read_text().replace('primary = "a"', 'primary = "a"\nfile_filter = ["*.tmp"]'))
    first, second = member.keep("a"), member.keep("b")
    begin()
    assert member.frs("restore", first) == ExitCode.OK
    assert capsys.readouterr().err == ""
    assert member.frs("restore", second, "--to", "b.tmp") == ExitCode.OK
    assert "stays on this member only" in capsys.readouterr().err
    assert (member.root / "b.tmp").exists()


def test_an_id_that_is_none(member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    begin()
    for action in ("show", "restore", "discard"):
        for item_id in ("x", "20260102T030405-0123abcd", "../frs.db"):
            assert member.frs(action, item_id) == ExitCode.USAGE
            assert "frs conflicts list" in capsys.readouterr().err
    for arguments in ([], ["show"], ["list", "x"], ["burn", "x"]):
        assert run_cli(["conflicts", *arguments]) == ExitCode.USAGE


def test_a_member_that_never_ran(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    (member.state / SET).rmdir()
    (member.state / "sets").rmdir()
    member.state.rmdir()
    assert member.frs("list", "--json") == ExitCode.OK
    assert capsys.readouterr().out == "[]\n"
    assert member.frs("discard", "x") == ExitCode.USAGE
    assert not member.state.exists()


def test_an_agent_that_does_not_answer(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds its state: looking is allowed, changing is not."""
    item_id = member.keep("a")
    with StateLock(member.state), member.store():
        assert member.frs("list") == ExitCode.OK
        assert capsys.readouterr().out.startswith(item_id)
        assert member.frs("show", item_id) == ExitCode.OK
        for action in ("restore", "discard"):
            assert member.frs(action, item_id) == ExitCode.UNREACHABLE
            assert "in use" in capsys.readouterr().err
    assert os.listdir(member.root) == []
    assert member.frs("restore", item_id) == ExitCode.OK


def test_an_agent_that_hangs(
    member: Member, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes calls (its system does, for it) and answers none."""
    monkeypatch.setattr(conflicts_cmd, "_PATIENCE_S", 0.2)
    item_id = member.keep("a")
    with StateLock(member.state), socket.socket(socket.AF_UNIX) as hanging:
        monkeypatch.chdir(member.state)  # the path of a socket must be short
        hanging.bind(SOCKET_NAME)
        hanging.listen()
        assert member.frs("list") == ExitCode.OK
        assert capsys.readouterr().out.startswith(item_id)
        for action in ("restore", "discard"):
            assert member.frs(action, item_id) == ExitCode.UNREACHABLE
            assert "did not answer" in capsys.readouterr().err


def test_while_it_works_no_agent_can_start(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.config.write_text(f'{AGENT}\n[listen]\nhost = "127.0.0.1"\n')
    item_id = member.keep("a")
    restore = KeptStore.restore

    def meanwhile(store: KeptStore, *arguments: Any) -> str:
        assert run_cli(["run", "--config", str(member.config)]) == ExitCode.FAILURE
        return restore(store, *arguments)

    monkeypatch.setattr(KeptStore, "restore", meanwhile)
    assert member.frs("restore", item_id) == ExitCode.OK


def test_a_root_that_is_gone(member: Member, begin: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    item_id = member.keep("a")
    member.root.rmdir()
    begin()
    assert member.frs("restore", item_id) == ExitCode.USAGE
    assert str(member.root) in capsys.readouterr().err
    assert member.frs("show", item_id) == ExitCode.OK


def test_several_sets(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    other = TOPOLOGY.replace("11111111", "22222222").replace('"docs"', '"more"').replace("a = 2", "a = 3")
    (member.folder / "topology.toml").write_text(TOPOLOGY + "\n" + other)
    (member.folder / "more").mkdir()
    (member.folder / "agent.toml").write_text(AGENT + '\n[[set]]\nname = "more"\nroot = "more"\n')
    assert [local.name for local in load_agent_config(member.config).sets] == ["docs", "more"]
    first = member.keep("a")
    second = member.keep("b", b"of more", set_dir="sets/22222222-0000-4000-8000-000000000001")
    assert member.frs("list", "--json") == ExitCode.OK
    assert [(item["id"], item["set"]) for item in json.loads(capsys.readouterr().out)] == [
        (second, "more"),
        (first, "docs"),
    ]
    assert member.frs("restore", second) == ExitCode.OK
    assert (member.folder / "more" / "b").read_bytes() == b"of more"


def test_printable() -> None:
    assert printable("plain ü € 'x'") == "plain ü € 'x'"
    assert printable("a\u202eb") == "$'a\\xe2\\x80\\xaeb'"
    assert printable("tab\t\\'") == "$'tab\\t\\\\\\''"
