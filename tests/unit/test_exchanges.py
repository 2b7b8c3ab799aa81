"""Users of a tree exchange folders, files and links at the worst moment: whatever the agent does there, and
before whichever of its system calls, nothing outside the tree changes, nothing of root's in it, and nothing is lost or
sent."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.conflicts.kept import KeptError
from agent.engine import events as ev
from agent.wire import constants as c
from staging import openat2, smallfiles
from tests.unit.exchanges import (
    GUID,
    OF_THE_ROOT,
    ROOT,
    SECRET,
    SWAPS,
    Host,
    Swap,
    everything,
    exchanging,
    file,
    folder,
    on_one_host,
)

STRIDE = 1 if os.environ.get("FRS_FULL_TREES") else 5

Step = ev.InstallStep
Action = Callable[[], object]


def new_file(host: Host) -> Action:
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    return lambda: host.install(Step.CONTENT, md5=md5)


def new_folder(host: Host) -> Action:
    md5 = host.staged(lambda p: folder(p, 0o755))
    return lambda: host.install(Step.CONTENT, md5=md5, is_dir=True)


def new_link(host: Host) -> Action:
    md5 = host.staged(lambda p: p.symlink_to("new"))
    return lambda: host.install(Step.CONTENT, md5=md5)


def over_a_file(host: Host) -> Action:
    file(host.x, b"old", 0o644)
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    expected = host.facts(host.x)
    return lambda: host.install(Step.CONTENT, md5=md5, expected=expected)


def over_a_file_that_is_kept(host: Host) -> Action:
    file(host.x, b"precious", 0o644)
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    expected = host.facts(host.x)
    edition = ev.Edition(GUID, bytes(16), "x", 1, 1, 1, bytes(16), bytes(16), 1)
    keep = ev.Keep(ev.KeepReason.UPDATED, edition, edition)
    return lambda: host.install(Step.CONTENT, md5=md5, expected=expected, keep=keep)


def the_rights_of_a_folder(host: Host) -> Action:
    folder(host.x, 0o700)
    md5 = host.staged(lambda p: folder(p, 0o777))
    expected = host.facts(host.x)
    return lambda: host.install(Step.CONTENT, md5=md5, is_dir=True, expected=expected)


def the_rights_of_roots_folder(host: Host) -> Action:
    """Root has another one just like it, which nobody is to get."""
    folder(host.x, 0o700, 0)
    md5 = host.staged(lambda p: folder(p, 0o777))
    expected = host.facts(host.x)
    return lambda: host.install(Step.CONTENT, md5=md5, is_dir=True, expected=expected)


def a_folder_taken_over(host: Host) -> Action:
    folder(host.x, 0o700)
    (host.x / "mine").write_bytes(b"precious")
    md5 = host.staged(lambda p: folder(p, 0o777))
    return lambda: [host.install(Step.CONTENT, md5=md5, is_dir=True, aside=True) for _ in range(2)]


def a_file_in_the_way(host: Host) -> Action:
    file(host.x, b"precious", 0o644)
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    return lambda: [host.install(Step.CONTENT, md5=md5, aside=True) for _ in range(2)]


def a_file_that_is_there_already(host: Host) -> Action:
    file(host.x, b"new", 0o644)
    os.utime(host.x, ns=(1, 1))
    md5 = host.staged(lambda p: file(p, b"new", 0o644))
    return lambda: host.install(Step.CONTENT, md5=md5)


def a_link_that_is_there_already(host: Host) -> Action:
    host.x.symlink_to("new")
    os.utime(host.x, ns=(1, 1), follow_symlinks=False)
    md5 = host.staged(lambda p: p.symlink_to("new"))
    return lambda: host.install(Step.CONTENT, md5=md5)


def a_folder_that_is_there_already(host: Host) -> Action:
    folder(host.x, 0o755)
    os.setxattr(host.x, "user.frs.object_id", GUID)
    md5 = host.staged(lambda p: folder(p, 0o755))
    return lambda: host.install(Step.CONTENT, md5=md5, is_dir=True)


def a_file_removed(host: Host) -> Action:
    file(host.x, b"old", 0o644)
    expected = host.facts(host.x)
    return lambda: host.install(Step.DELETE, expected=expected)


def a_file_removed_and_kept(host: Host) -> Action:
    file(host.x, b"precious", 0o644)
    expected = host.facts(host.x)
    edition = ev.Edition(GUID, bytes(16), "x", 1, 1, 1, b"m" * 16, bytes(16), 1)
    keep = ev.Keep(ev.KeepReason.DELETED, edition, edition)
    return lambda: host.install(Step.DELETE, expected=expected, keep=keep)


def a_folder_removed(host: Host) -> Action:
    folder(host.x, 0o755)
    expected = host.facts(host.x)
    return lambda: host.install(Step.DELETE, expected=expected, is_dir=True)


def a_file_renamed(host: Host) -> Action:
    file(host.e / "y", b"precious", 0o644)
    expected = host.facts(host.e / "y")
    return lambda: host.install(Step.RENAME, expected=expected, old_parent_guid=bytes(16))


def a_file_renamed_to_a_name_that_is_taken(host: Host) -> Action:
    file(host.e / "y", b"precious", 0o644)
    file(host.x, b"precious, too", 0o644)
    expected = host.facts(host.e / "y")
    return lambda: host.install(Step.RENAME, expected=expected, old_parent_guid=bytes(16), aside=True)


def a_file_that_makes_room(host: Host) -> Action:
    file(host.x, b"precious", 0o644)
    expected = host.facts(host.x)
    return lambda: host.install(Step.VACATE, expected=expected, old_parent_guid=bytes(16))


def a_folder_made_again(host: Host) -> Action:
    folder(host.x, 0o777)
    expected = host.facts(host.x)
    host.x.rmdir()
    return lambda: host.install(Step.FOLDER, expected=expected, is_dir=True)


def a_folder_that_is_to_be_there(host: Host) -> Action:
    folder(host.x, 0o755)
    expected = host.facts(host.x)
    return lambda: host.install(Step.FOLDER, expected=expected, is_dir=True)


def a_folder_where_a_file_is(host: Host) -> Action:
    folder(host.x, 0o777)
    expected = host.facts(host.x)
    host.x.rmdir()
    file(host.x, b"precious", 0o644)
    return lambda: host.install(Step.FOLDER, expected=expected, is_dir=True)


def a_new_file_marked_and_staged(host: Host) -> Action:
    file(host.x, b"precious", 0o644)
    work = host.change("file")

    def action() -> None:
        host.stager().mark([work])
        host.stager().stage_all([work], c.COMPRESSION_NONE)

    return action


def a_new_folder_marked_and_staged(host: Host) -> Action:
    folder(host.x, 0o755)
    work = host.change("folder")

    def action() -> None:
        host.stager().mark([work])
        host.stager().stage_all([work], c.COMPRESSION_NONE)

    return action


def a_new_link_staged(host: Host) -> Action:
    host.x.symlink_to("mine")
    work = host.change("symlink")
    return lambda: host.stager().stage_all([work], c.COMPRESSION_NONE)


def something_restored(host: Host, path: str = "u/d/x") -> Action:
    item = host.keep(path)

    def action() -> None:
        try:
            host.kept.restore(item, str(host.root))
        except (KeptError, OSError):
            pass

    return action


def something_restored_with_its_folder(host: Host) -> Action:
    return something_restored(host, "u/d/x/y")


ACTIONS = [
    new_file, new_folder, new_link, over_a_file, over_a_file_that_is_kept, the_rights_of_a_folder,
    the_rights_of_roots_folder, a_folder_taken_over, a_file_in_the_way, a_file_that_is_there_already,
    a_link_that_is_there_already, a_folder_that_is_there_already, a_file_removed, a_file_removed_and_kept,
    a_folder_removed, a_file_renamed, a_file_renamed_to_a_name_that_is_taken, a_file_that_makes_room,
    a_folder_made_again, a_folder_that_is_to_be_there, a_folder_where_a_file_is, a_new_file_marked_and_staged,
    a_new_folder_marked_and_staged, a_new_link_staged, something_restored, something_restored_with_its_folder,
]  # fmt: skip


def try_at(base: Path, make: Callable[[Host], Action], swap: Callable[[Swap], None], at: int, how: str) -> bool:
    """One run; whether there was a call to exchange something before."""
    base.mkdir()
    with on_one_host(base, inside="inside" in how) as host:
        action = make(host)
        outside = everything(host.outside)
        precious = {path.lstat().st_ino for path in host.precious}
        before = host.all_of()
        swapper = Swap(host)
        with exchanging(swapper, swap, at, "momentary" in how) as calls:
            action()
        swapper.close()
        after = host.all_of()
        assert everything(host.outside) == outside, "something outside the tree is another"
        for ino in precious:
            assert after[ino] == before[ino], "what only root may touch is another"
        contents = {content for *_, content in after.values() if isinstance(content, bytes)}
        for *_, content in before.values():
            assert not isinstance(content, bytes) or b"precious" not in content or content in contents, "it is lost"
        assert SECRET not in host.staged_bytes(), "it would be sent"
    shutil.rmtree(base)
    return calls[0] >= at


def try_all(
    base: Path,
    make: Callable[[Host], Action],
    swaps: dict[str, Callable[[Swap], None]],
    hows: list[str],
    stride: int = STRIDE,
) -> None:
    """Each exchange before each system call; for a quick run, before one in STRIDE, each exchange before others."""
    runs = 0
    for number, (name, how) in enumerate(itertools.product(swaps, hows)):
        at = 1 + number % stride
        while try_at(base / f"{at} {how} {name}", make, swaps[name], at, how):
            at += stride
            runs += 1
    assert runs > 2


@pytest.mark.parametrize("make", ACTIONS, ids=lambda make: make.__name__)
def test_whenever_something_is_exchanged(tmp_path: Path, make: Callable[[Host], Action]) -> None:
    try_all(tmp_path, make, SWAPS, ["for good", "momentary"])


@pytest.mark.skipif(not ROOT, reason="only root gives folders away")
@pytest.mark.parametrize("make", [the_rights_of_roots_folder, a_folder_made_again], ids=lambda make: make.__name__)
def test_a_folder_exchanged_before_any_call_at_all_is_not_given_away(
    tmp_path: Path, make: Callable[[Host], Action]
) -> None:
    """In a quick run, too, before each of them: so a user became root."""
    name = "the entry for root's folder"
    try_all(tmp_path, make, {name: SWAPS[name]}, ["for good"], stride=1)


@pytest.mark.parametrize("make", [new_file, new_folder], ids=lambda make: make.__name__)
def test_a_link_in_the_place_of_unfinished_installs_before_any_call_at_all_leads_nowhere(
    tmp_path: Path, make: Callable[[Host], Action]
) -> None:
    """Likewise."""
    name = "unfinished installs for a link"
    try_all(tmp_path, make, {name: OF_THE_ROOT[name]}, ["inside"], stride=1)


@pytest.mark.parametrize("make", ACTIONS, ids=lambda make: make.__name__)
def test_whenever_unfinished_installs_are_exchanged(tmp_path: Path, make: Callable[[Host], Action]) -> None:
    try_all(tmp_path, make, OF_THE_ROOT, ["inside", "inside, momentary"])


@pytest.mark.parametrize("make", [new_file, a_file_in_the_way, a_new_file_marked_and_staged])
def test_where_small_files_are_not_worked_on_in_c(
    tmp_path: Path, make: Callable[[Host], Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smallfiles, "native", None)
    try_all(tmp_path, make, SWAPS, ["for good", "momentary"])


@pytest.mark.parametrize(
    "make", [new_file, the_rights_of_a_folder, a_new_file_marked_and_staged, something_restored_with_its_folder]
)
def test_where_the_kernel_cannot_open_beneath_a_folder(
    tmp_path: Path, make: Callable[[Host], Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openat2._Kernel, "missing", True)
    try_all(tmp_path, make, SWAPS, ["for good", "momentary"])
