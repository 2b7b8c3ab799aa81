"""What users of a tree can write makes them nobody else, and a second agent does not get a root that has one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.reporting.causes import Cause
from staging.fsops import OBJECT_ID_XATTR, object_id_get, object_id_set
from tests.ports import free_port, port_base
from tests.system.corpora import differences, many_files, snapshot
from tests.system.demo import Demo, kept
from tests.system.mounts import mounted

pytestmark = pytest.mark.slow

USER = 12345


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("identity") / "demo"
    probe = folder.with_name("probe")
    probe.touch()
    if not object_id_set(str(probe), bytes(16)):
        pytest.skip("this file system has no user attributes")
    with Demo(folder, members=2, aging=0.3) as running:
        yield running


def the_users(path: Path) -> None:
    """A file or folder of an ordinary user, where that can be."""
    if os.geteuid() == 0:
        os.chown(path, USER, USER, follow_symlinks=False)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def incidents(demo: Demo, member: str, cause: Cause) -> int:
    found = demo.status(member)["incidents"].get(cause.value, 0)
    assert isinstance(found, int)
    return found


def object_id(demo: Demo, whose: str) -> bytes:
    """The GUID that somebody passes himself off with."""
    what, _, member = whose.partition(" ")
    if what == "member":
        (found,) = (one["guid"] for one in demo.description["members"] if one["name"] == member)
        return uuid.UUID(found).bytes_le
    if what == "root":
        return next(iter(marks(demo.members[member].root).values()))[:16]
    return object_id_get(str(demo.members["a"].root / member)) or b""


def the_same(demo: Demo) -> dict[str, object]:
    """All members agree, and nothing was in the way of anything; the tree."""
    demo.wait_converged()
    a, b = (snapshot(member.root) for member in demo.members.values())
    assert differences(a, b) == [], demo.report()
    assert kept(demo) == []
    return dict(a)


@pytest.mark.parametrize(
    "whose", ["member b", "member a", "root a", "root b", "id theirs", "id theirs/file", "id file"]
)
def test_a_users_folder_that_bears_the_id_of_something_else(demo: Demo, whose: str) -> None:
    """What he puts into it stays in it, on all members; nothing of anybody else's is replaced or goes."""
    a = demo.members["a"].root
    (a / "theirs").mkdir(exist_ok=True)
    for file in ("file", "theirs/file"):
        write(a / file, f"of root {whose}")
    demo.wait_converged()
    before = incidents(demo, "a", Cause.OBJECT_ID)
    mine = a / f"mine {whose.replace('/', ' ')}"
    told = object_id(demo, whose)
    assert len(told) == 16
    mine.mkdir()
    the_users(mine)
    object_id_set(str(mine), told)
    for file in ("file", "other"):
        write(mine / file, "of a user")
        the_users(mine / file)
    the_same(demo)
    for member in demo.members.values():
        assert (member.root / "file").read_text() == f"of root {whose}"
        assert (member.root / "theirs" / "file").read_text() == f"of root {whose}"
        assert sorted(path.name for path in (member.root / "theirs").iterdir()) == ["file"]
        assert not (member.root / "other").exists()
        assert (member.root / mine.name / "file").read_text() == "of a user"
    assert object_id_get(str(mine)) != told, "it has no ID of its own"
    if whose not in ("id theirs", "root b"):  # copies of a folder have its ID; and of that root a knows nothing
        assert incidents(demo, "a", Cause.OBJECT_ID) > before
        log = demo.members["a"].log.read_text()
        assert re.search(rf"{re.escape(Cause.OBJECT_ID.value)}: .*mine", log)
    shutil.rmtree(mine)
    found = the_same(demo)
    assert {"file", "theirs", "theirs/file"} <= found.keys(), "what bears that ID went with it"


def test_a_user_who_takes_the_ids_of_what_root_is_making(demo: Demo) -> None:
    """The agent gives a new file its ID before it tells anybody of it; who is quick has it before that."""
    a = demo.members["a"].root
    (a / "new").mkdir()
    (a / "his").mkdir()
    the_users(a / "his")
    wanted = [f"{number:03}" for number in range(60)]
    over = threading.Event()

    def thief() -> None:
        left = set(wanted)
        while left and not over.is_set():
            for name in sorted(left):
                stolen = object_id_get(str(a / "new" / name))
                if stolen is not None:
                    left.remove(name)
                    for his in (a / "his" / f"first {name}", a / "his" / f"second {name}"):
                        write(his, "of a user")
                        object_id_set(str(his), stolen)

    thread = threading.Thread(target=thief)
    thread.start()
    try:
        for name in wanted:
            write(a / "new" / name, f"of root {name}")
        demo.until("all have an ID", lambda: all(object_id_get(str(a / "new" / name)) for name in wanted))
        thread.join()
    finally:
        over.set()
        thread.join()
    the_same(demo)
    for member in demo.members.values():
        assert {path.name: path.read_text() for path in (member.root / "new").iterdir()} == {
            name: f"of root {name}" for name in wanted
        }
        assert len(list((member.root / "his").iterdir())) == 2 * len(wanted)
    ids = [object_id_get(str(path)) for path in a.glob("*/*") if path.is_file()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_user_of_one_member_who_takes_the_id_of_what_is_new_on_another(demo: Demo, kind: str) -> None:
    """Two creations of one file, and his would be the later one: root's would be gone from all members."""
    a, b = (member.root for member in demo.members.values())
    demo.wait_converged()
    demo.kill9("b")
    new = a / f"new {kind}"
    write(new, "of root")
    demo.until("it has an ID", lambda: object_id_get(str(new)) is not None)
    his = b / f"his {kind}"
    his.mkdir() if kind == "folder" else write(his, "of a user")
    the_users(his)
    object_id_set(str(his), object_id_get(str(new)) or b"")
    demo.restart("b")
    the_same(demo)
    for member in demo.members.values():
        assert (member.root / new.name).read_text() == "of root"
        assert (member.root / his.name).exists()


def test_copies_with_attributes_are_files_of_their_own_and_nothing_to_tell(demo: Demo) -> None:
    a = demo.members["a"].root
    many_files(a / "original", 30)
    demo.wait_converged()
    before = incidents(demo, "a", Cause.OBJECT_ID)
    shutil.copytree(a / "original", a / "copy")
    for path in (a / "copy", *(a / "copy").rglob("*")):
        original = a / "original" / path.relative_to(a / "copy")
        assert object_id_set(str(path), object_id_get(str(original)) or b"")
        shutil.copystat(original, path)
    the_same(demo)
    assert incidents(demo, "a", Cause.OBJECT_ID) == before
    shutil.rmtree(a / "original")
    found = the_same(demo)
    assert len([path for path in found if path.startswith("copy/")]) >= 30
    assert not [path for path in found if path.startswith("original")]


@pytest.mark.parametrize("name", [".frs-preinstall", ".frs-preinstall.mine", "frs-swap-mine"])
def test_a_users_file_at_a_name_of_the_agents_own(demo: Demo, name: str) -> None:
    """It stays where it is, is told about once, and everything else goes on."""
    a, b = (member.root for member in demo.members.values())
    before = incidents(demo, "a", Cause.RESERVED_NAME)
    write(a / name, "of a user")
    write(a / "beside it", name)
    demo.wait_converged()
    assert not (b / name).exists()
    assert (b / "beside it").read_text() == name
    assert incidents(demo, "a", Cause.RESERVED_NAME) == before + 1
    write(a / name, "changed")
    demo.wait_converged()
    assert incidents(demo, "a", Cause.RESERVED_NAME) == before + 1
    assert f"'{name}' in the root is not replicated" in demo.members["a"].log.read_text()
    (a / name).unlink()
    the_same(demo)


def test_state_that_is_removed_and_begun_anew(tmp_path: Path) -> None:
    """The files bear the IDs of a state that is no more: they are new, and those that the others have, too, stay."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        many_files(a.root / "tree", 40)
        demo.wait_converged()
        want = snapshot(a.root)
        inodes = {path: path.stat().st_ino for path in b.root.rglob("*")}
        demo.kill9("b")
        shutil.rmtree(b.state / "sets")
        demo.restart("b")
        demo.wait_converged()
        assert differences(want, snapshot(a.root)) == []
        assert differences(want, snapshot(b.root)) == []
        assert {path: path.stat().st_ino for path in b.root.rglob("*")} == inodes, "they were made anew"
        assert kept(demo) == []
        assert incidents(demo, "b", Cause.OBJECT_ID) == 0
        write(b.root / "tree" / "later", "of b")
        demo.wait_converged()
        assert (a.root / "tree" / "later").read_text() == "of b"


def second(demo: Demo, member: str, port: int) -> Path:
    """The configuration of another agent on the root of a member, with a state directory of its own."""
    config = demo.members[member].config
    text = config.read_text().replace('state = "state"', 'state = "other"')
    text = re.sub(r"^port = .*$", "port = 0", text, flags=re.MULTILINE).replace("agent.pid", "other.pid")
    text += f"\n[listen]\nport = {port}\n"
    other = config.with_name("other.toml")
    other.write_text(text)
    return other


def marks(root: Path) -> dict[str, bytes]:
    found = {}
    for name in ("trusted.frs.root", OBJECT_ID_XATTR):
        with contextlib.suppress(OSError):
            found[name] = os.getxattr(root, name)
    return found


@pytest.mark.parametrize("port", ["in use", "free"])
def test_a_second_agent_on_a_root(tmp_path: Path, port: str) -> None:
    """It ends with exit code 4 and names the one that runs, which goes on; and which starts again afterwards."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        b = demo.members["b"]
        write(b.root / "before", "before")
        demo.wait_converged()
        before = marks(b.root)
        assert before or not object_id_set(str(b.log), bytes(16))
        other = second(demo, "b", b.rpc_port if port == "in use" else free_port())
        done = demo.frs("run", "--config", os.fspath(other))
        assert done.returncode == 4, done.stderr
        state = f" with the state directory {b.state}" if "trusted.frs.root" in before else ""
        assert f"process {demo.pid('b')}{state}) replicates {b.root} already" in done.stderr
        assert marks(b.root) == before
        write(b.root / "meanwhile", "meanwhile")
        the_same(demo)
        demo.kill9("b")
        if "trusted.frs.root" in before:
            done = demo.frs("run", "--config", os.fspath(other))
            assert done.returncode == 4, done.stderr
            assert f"belongs to the agent with the state directory {b.state}" in done.stderr
            assert marks(b.root) == before
        demo.restart("b")
        write(b.root / "after", "after")
        assert the_same(demo).keys() >= {"before", "meanwhile", "after"}


def test_an_agent_that_cannot_start_leaves_the_root_alone(tmp_path: Path) -> None:
    """Its port is in use: the next one is the first."""
    folder = tmp_path / "demo"
    folder.mkdir()
    made = prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    member = made.members[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", member.port))
        taken.listen()
        demo = Demo(folder)
        done = demo.frs("run", "--config", os.fspath(member.config))
    assert done.returncode == 4, done.stderr
    assert marks(member.root) == {}
    with Demo(folder, members=2, aging=0.3) as demo:
        assert marks(member.root) or not object_id_set(str(member.log), bytes(16))


def test_the_root_of_another_disk_is_not_taken_for_the_root(tmp_path: Path) -> None:
    """The top folders of two file systems have the same inode number, and a fresh one is not even empty."""
    folder = tmp_path / "demo"
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    root = folder / "b" / "root"
    with contextlib.ExitStack() as disk:
        disk.enter_context(mounted(root, "size=4m,mode=755"))
        with Demo(folder, members=2, aging=0.3) as demo:
            a, b = demo.members["a"], demo.members["b"]
            many_files(a.root, 30)
            demo.wait_converged()
            want, inode, marked = snapshot(a.root), root.stat().st_ino, marks(root)
            demo.kill9("b")
            disk.close()
            with mounted(root, "size=4m,mode=755"):
                (root / "lost+found").mkdir()
                for name, value in marked.items():
                    if name == OBJECT_ID_XATTR:
                        os.setxattr(root, name, value)
                assert root.stat().st_ino == inode
                done = demo.frs("run", "--config", os.fspath(b.config))
                assert done.returncode == 4, done.stderr
                assert "is not the folder it was" in done.stderr
                assert differences(want, snapshot(a.root)) == []
