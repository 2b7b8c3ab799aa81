"""What is believed of entries of a tree and of what partners send: folders by their names, set-id bits, the agent's own
names; and what an administrator is told."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.conflicts.kept import KeptError, KeptStore
from agent.engine import events as ev
from agent.reporting.causes import Cause
from config.model import SetIdPolicy
from staging import fsops, install
from staging.beneath import Entry
from staging.generate import generate
from staging.preinstall import RESERVED_NAME, Preinstall
from tests.unit.exchanges import GUID, ROOT, USER, Host, file, folder, give

Step = ev.InstallStep
only_root = pytest.mark.skipif(not ROOT, reason="only root gives files away")

pytestmark = pytest.mark.usefixtures("small_files")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.start()
    yield host
    host.stop()


def again(host: Host, set_id: SetIdPolicy = "same-owner") -> None:
    host.stop()
    host.start(set_id=set_id)


# ---------------------------------------------------------------- set-id bits


def received(host: Host, mode: int, uid: int = 0) -> ev.Installed:
    """A partner sends a file with that mode over what is here."""
    md5 = host.staged(lambda p: file(p, b"#!", mode, uid))
    expected = host.facts(host.x) if host.x.exists() else None
    end = host.install(Step.CONTENT, md5=md5, expected=expected)
    assert end.outcome is ev.Outcome.DONE
    return end


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@only_root
@pytest.mark.parametrize(
    ("before", "uid", "sent", "after"),
    [
        (None, 0, 0o4755, 0o755),
        (None, USER, 0o6755, 0o755),
        (0o755, 0, 0o4755, 0o755),
        (0o4755, 0, 0o4755, 0o4755),
        (0o4711, 0, 0o6755, 0o4755),
        (0o6711, 0, 0o6755, 0o6755),
        (0o2711, 0, 0o6755, 0o2755),
        (0o4755, USER, 0o4755, 0o755),
        (0o2755, USER, 0o2755, 0o755),
        (0o1755, 0, 0o1755, 0o1755),
    ],
)
def test_set_id_bits_are_taken_over_where_they_were_before(
    host: Host, before: int | None, uid: int, sent: int, after: int
) -> None:
    """`uid` is whose the file here is; root's comes."""
    if before is not None:
        file(host.x, b"before", before, uid)
    end = received(host, sent)
    assert mode_of(host.x) == after
    assert host.told == ([Cause.SET_ID] if after & 0o6000 != sent & 0o6000 else [])
    # it is the file that came, and would be sent on as it came
    assert end.md5 == generate(str(host.x), None, object_id=GUID).md5


@only_root
@pytest.mark.parametrize("sent", [0o4755, 0o2775, 0o6775])
def test_refused_bits_are_sent_on_with_the_content_that_they_came_with(host: Host, sent: int) -> None:
    """Who may write to the file must not have what he writes get the bits on another member."""
    md5 = host.staged(lambda p: file(p, b"#! that of the owner", sent))
    assert host.install(Step.CONTENT, md5=md5).outcome is ev.Outcome.DONE
    assert generate(str(host.x), None, object_id=GUID).md5 == md5
    before = host.x.stat()
    with open(host.x, "r+b") as stream:
        stream.write(b"#! another's")
    os.utime(host.x, ns=(before.st_atime_ns, before.st_mtime_ns))
    sent_on = host.base / "sent on"
    generate(str(host.x), str(sent_on), object_id=GUID)
    host.x.unlink()
    again(host, "always")
    sent_on.rename(host.area.path_of(b"c" * 16))
    assert host.install(Step.CONTENT).outcome is ev.Outcome.DONE
    assert (mode_of(host.x), host.x.stat().st_uid) == (sent & 0o1777, USER)


@only_root
@pytest.mark.parametrize(("policy", "mode"), [("always", 0o6755), ("never", 0o755)])
def test_an_administrator_may_decide_otherwise(host: Host, policy: SetIdPolicy, mode: int) -> None:
    again(host, policy)
    file(host.x, b"before", 0o6755, 0)
    received(host, 0o6755)
    assert mode_of(host.x) == mode
    host.x.unlink()
    received(host, 0o6755)
    assert mode_of(host.x) == mode


@only_root
def test_set_group_id_of_folders_is_no_right(host: Host) -> None:
    md5 = host.staged(lambda p: folder(p, 0o3770))
    assert host.install(Step.CONTENT, md5=md5, is_dir=True).outcome is ev.Outcome.DONE
    assert mode_of(host.x) == 0o3770
    assert host.told == []


def test_an_incident_names_path_and_bits(host: Host) -> None:
    received(host, 0o4755, os.geteuid())
    assert host.said == [
        "'u/d/x' came with the set-user-ID bit and is installed without: no file of that owner that had it was here "
        "before; set it here with chmod if it is meant, or see set_id in agent.toml"
    ]


# ---------------------------------------------------------------- folders by their names


def take_over(host: Host, mode: int, uid: int = USER) -> list[ev.Installed]:
    """In its initial sync, a member gets the folder u/d/x."""
    md5 = host.staged(lambda p: folder(p, mode, uid))
    return [host.install(Step.CONTENT, md5=md5, is_dir=True, aside=True) for _ in range(2)]


@only_root
@pytest.mark.parametrize("found", ["root's", "another user's", "the user's in a folder of the group's"])
def test_a_folder_is_not_given_away_because_it_has_the_name(host: Host, found: str) -> None:
    """Before the change order comes, the user calls a folder `x` that he may not enter."""
    owner = {"root's": 0, "another user's": USER + 1}.get(found, USER)
    secret = folder(host.d / "secret", 0o700, owner)
    file(secret / "key", b"secret", 0o600, owner)
    if owner == USER:
        os.chown(host.d, USER + 1, USER + 1)
        host.d.chmod(0o775)
    secret.rename(host.x)
    first, second = take_over(host, 0o777, USER + 1 if owner == USER else USER)
    assert (first.outcome, second.outcome) == (ev.Outcome.NAME_TAKEN, ev.Outcome.DONE)
    assert os.listdir(host.x) == []
    (item,) = host.kept.list()
    assert (item.path, item.kind) == ("u/d/x", "folder")
    kept = Path(item.place)
    assert (mode_of(kept), kept.stat().st_uid, (kept / "key").read_bytes()) == (0o700, owner, b"secret")


@only_root
@pytest.mark.parametrize("why", ["it is empty", "it is the user's own", "it has those rights", "only root can name it"])
def test_a_folder_is_taken_over_where_nothing_is_given_away(host: Host, why: str) -> None:
    owner, mode = (USER, 0o700) if why == "it is the user's own" else (0, 0o700)
    if why == "it has those rights":
        owner, mode = USER + 1, 0o750
    folder(host.x, mode, owner)
    if why != "it is empty":
        file(host.x / "f", b"mine", 0o600, owner)
    if why == "only root can name it":
        os.chown(host.d, 0, 0)
    first, _ = take_over(host, 0o750, USER + 1)
    assert first.outcome is ev.Outcome.ALREADY
    assert (mode_of(host.x), host.x.stat().st_uid) == (0o750, USER + 1)
    assert host.kept.list() == []
    assert fsops.object_id_get(str(host.x)) == GUID


@only_root
def test_a_folder_with_the_object_id_is_not_given_away_either(host: Host) -> None:
    """As it would be after a crash: but the attribute is one that its owner can set."""
    folder(host.x, 0o700, USER + 1)
    file(host.x / "key", b"secret", 0o600, USER + 1)
    os.setxattr(host.x, "user.frs.object_id", GUID)
    md5 = host.staged(lambda p: folder(p, 0o777))
    assert host.install(Step.CONTENT, md5=md5, is_dir=True).outcome is ev.Outcome.NAME_TAKEN
    assert (mode_of(host.x), host.x.stat().st_uid) == (0o700, USER + 1)


@only_root
def test_a_folder_that_is_to_be_there_is_not_any_that_has_the_name(host: Host) -> None:
    """Else it would be what the next change of the rights of that folder is applied to."""
    folder(host.x, 0o777)
    expected = host.facts(host.x)
    host.x.rmdir()
    folder(host.x, 0o700, 0)
    file(host.x / "key", b"secret", 0o600, 0)
    end = host.install(Step.FOLDER, expected=expected, is_dir=True)
    assert end.outcome is ev.Outcome.DONE
    assert end.facts is not None
    assert (end.facts.ino, end.facts.mode, end.facts.uid) == (host.x.stat().st_ino, stat.S_IFDIR | 0o777, USER)
    (item,) = host.kept.list()
    assert mode_of(Path(item.place)) == 0o700


def test_a_folder_made_again_has_the_lists_of_the_one_above(host: Host) -> None:
    acl = bytes.fromhex("02000000 01000700ffffffff 0200070039300000 04000500ffffffff 10000700ffffffff 20000500ffffffff")
    try:
        os.setxattr(host.d, "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("no access control lists here")
    host.x.mkdir()
    give(host.x, stat.S_IMODE(host.x.stat().st_mode))  # whose the one above is
    expected, value = host.facts(host.x), os.getxattr(host.x, "system.posix_acl_default")
    host.x.rmdir()
    assert host.install(Step.FOLDER, expected=expected, is_dir=True).outcome is ev.Outcome.DONE
    assert os.getxattr(host.x, "system.posix_acl_default") == value == acl
    assert host.x.stat().st_mode == expected.mode


@only_root
def test_a_folder_made_again_has_no_lists_of_whoever_owns_the_one_above(host: Host) -> None:
    """Its owner is another: who put it out of the tree would be let into it when it comes back."""
    acl = bytes.fromhex("02000000 01000700ffffffff 0200070039300000 04000500ffffffff 10000700ffffffff 20000500ffffffff")
    folder(host.x, 0o750, 0)
    expected = host.facts(host.x)
    host.x.rmdir()
    try:
        os.setxattr(host.d, "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("no access control lists here")
    assert host.install(Step.FOLDER, expected=expected, is_dir=True).outcome is ev.Outcome.DONE
    assert (mode_of(host.x), host.x.stat().st_uid) == (0o750, 0)
    assert not [name for name in os.listxattr(host.x) if name.startswith("system.posix_acl")]


def test_another_name_of_a_file_is_not_changed_with_it(host: Host) -> None:
    """What is there already is taken over as it is, but not when something outside the tree would get its time."""
    file(host.x, b"new", 0o644)
    os.utime(host.x, ns=(1, 1))
    os.link(host.x, host.home / "other")
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    assert host.install(Step.CONTENT, md5=md5).outcome is ev.Outcome.NAME_TAKEN
    assert (host.home / "other").stat().st_mtime_ns == 1
    assert os.listxattr(host.home / "other") == []


# ---------------------------------------------------------------- what was exchanged


def test_what_cannot_go_back_does_not_stay_where_it_came_to(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user exchanges what is being renamed into root's folder for something else of his, and takes its old name."""
    file(host.e / "y", b"expected", 0o644)
    expected = host.facts(host.e / "y")
    real = install.move_to_free_name
    moves = []

    def move(src_fd: int, src: str, dst_fd: int, dst: str) -> bool:
        if not moves:
            os.rename(host.e / "y", host.e / "was")
            file(host.e / "y", b"evil", 0o755)
        moves.append(src)
        done = real(src_fd, src, dst_fd, dst)
        if len(moves) == 1:
            file(host.e / "y", b"in the way", 0o644)
        return done

    monkeypatch.setattr(install, "move_to_free_name", move)
    end = host.install(Step.RENAME, expected=expected, old_parent_guid=bytes(16))
    assert end.outcome is ev.Outcome.TARGET_CHANGED
    assert not host.x.exists()
    assert (host.e / "y").read_bytes() == b"in the way"
    (item,) = host.kept.list()
    assert Path(item.place).read_bytes() == b"evil"
    assert host.told == [Cause.SWAPPED]
    assert "'u/e/y'" in host.said[0]


def test_what_is_taken_back_from_a_folder_that_left_is_only_what_was_installed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has its name by then stays there, a folder with all that is in it."""
    md5 = host.staged(lambda p: file(p, b"new", 0o644))

    def leaves(root: object, at: object) -> bool:
        host.x.rename(host.d / "was")
        (host.d / "rootonly").rename(host.x)
        return False

    monkeypatch.setattr(install, "in_tree", leaves)
    assert host.install(Step.CONTENT, md5=md5).outcome is ev.Outcome.TARGET_CHANGED
    assert os.listdir(host.x) == ["key"]
    assert (host.d / "was").read_bytes() == b"new"
    assert host.told == [Cause.SWAPPED]


def test_an_exchange_is_told_and_undone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    file(host.x, b"old", 0o644)
    expected = host.facts(host.x)
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    real = fsops.renameat2
    done = []

    def renameat2(src_fd: int, src: str, dst_fd: int, dst: str, flags: int) -> None:
        if not done:
            done.append(1)
            host.x.unlink()
            file(host.x, b"another", 0o644)
        real(src_fd, src, dst_fd, dst, flags)

    monkeypatch.setattr(fsops, "renameat2", renameat2)
    assert host.install(Step.CONTENT, md5=md5, expected=expected).outcome is ev.Outcome.TARGET_CHANGED
    assert host.x.read_bytes() == b"another"
    assert host.told == [Cause.SWAPPED]


@pytest.mark.parametrize("step", [Step.DELETE, Step.CONTENT])
def test_what_cannot_go_back_into_a_folder_that_is_gone_is_kept(
    host: Host, step: ev.InstallStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody edits a file while it is replaced or removed, and removes its folder with what is there then."""
    for path in host.precious[1:]:
        path.rename(host.e / path.name)
    file(host.x, b"old", 0o644)
    expected = host.facts(host.x)
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    real = install._look_out

    def look_out(out: Entry, seen: fsops.Fingerprint, opened: bool = False) -> tuple[install.Outcome, bool]:
        Path(out.path).write_bytes(b"edited")
        host.x.unlink(missing_ok=True)
        host.d.rmdir()
        return real(out, seen, opened)

    monkeypatch.setattr(install, "_look_out", look_out)
    assert host.install(step, md5=md5, expected=expected).outcome is ev.Outcome.TARGET_CHANGED
    (item,) = host.kept.list()
    assert Path(item.place).read_bytes() == b"edited"


def test_what_two_files_displaced_is_kept_twice(host: Host) -> None:
    """The first could not be moved to what is kept, and waits where the second one comes to."""
    host.kept.close()
    for content in (b"first", b"second"):
        file(host.x, content, 0o644)
        md5 = host.staged(lambda p: file(p, b"new", 0o644))
        assert host.install(Step.CONTENT, md5=md5, aside=True).outcome is ev.Outcome.NAME_TAKEN
        assert not host.x.exists()
    host.stop()
    host.start()
    assert {Path(item.place).read_bytes() for item in host.kept.list()} == {b"first", b"second"}


# ---------------------------------------------------------------- names of the agent's own


@pytest.mark.parametrize("inside", [False, True])
def test_a_foreign_entry_at_the_reserved_name_is_kept(
    tmp_path: Path, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Preinstall, "_can_rename", lambda self: not inside)
    host = Host(tmp_path)
    file(host.root / RESERVED_NAME, b"mine", 0o644)
    host.start()
    (item,) = host.kept.list()
    assert (item.path, Path(item.place).read_bytes()) == (RESERVED_NAME, b"mine")
    assert host.told == [Cause.RESERVED_NAME]
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    assert host.install(Step.CONTENT, md5=md5).outcome is ev.Outcome.DONE
    with pytest.raises(KeptError, match="a name of the agent's own"):
        host.kept.restore(item.id, str(host.root), RESERVED_NAME)
    restored = host.kept.restore(item.id, str(host.root))
    assert restored == f"restored-{RESERVED_NAME[1:]}.kept-{item.id}"
    assert (host.root / restored).read_bytes() == b"mine"
    host.stop()


def test_installs_go_on_when_the_folder_of_unfinished_ones_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Preinstall, "_can_rename", lambda self: False)
    host = Host(tmp_path, inside=True)
    host.start()
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    (host.root / RESERVED_NAME).rmdir()
    file(host.root / RESERVED_NAME, b"mine", 0o644)
    assert host.install(Step.CONTENT, md5=md5).outcome is ev.Outcome.DONE
    assert host.x.read_bytes() == b"new"
    (item,) = host.kept.list()
    assert Path(item.place).read_bytes() == b"mine"
    assert set(host.told) == {Cause.RESERVED_NAME}
    host.stop()
    assert sorted(os.listdir(host.root)) == ["u"]


def test_what_was_left_in_a_folder_is_not_taken_from_a_link_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something could not be moved to what is kept; before the next start a user puts a link where it waits."""
    monkeypatch.setattr(Preinstall, "_can_rename", lambda self: False)
    host = Host(tmp_path, inside=True)
    host.start()
    waiting = host.root / RESERVED_NAME
    (waiting / "x.aside").write_bytes(b"waits")
    fd = os.open(waiting, os.O_RDONLY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", lambda *_, **__: os.stat("/nowhere"))
        item = host.kept.keep(Entry(fd, "x.aside", str(waiting / "x.aside")), tree_path="x", reason="lost")
    os.close(fd)
    host.stop()
    victim = folder(host.outside / "victim", 0o700, 0)
    os.rename(waiting, host.root / "was")
    os.link(host.root / "was" / "x.aside", victim / "x.aside")
    waiting.symlink_to("../outside/victim")
    with KeptStore(host.kept.dir, 1 << 20) as store:
        assert store.get(item).error is not None
        with pytest.raises(OSError, match=r"link|directory"):
            store.restore(item, str(host.root))
        with pytest.raises(OSError, match=r"link|directory"):
            store.discard(item)
    assert os.listdir(victim) == ["x.aside"]
    host.start()
    assert os.listdir(victim) == ["x.aside"]
    assert "x" in {kept.path for kept in host.kept.list()}
    assert b"waits" in {Path(kept.place).read_bytes() for kept in host.kept.list() if kept.kind == "file"}
    host.stop()
