"""What local changes look like when several come at once."""

from __future__ import annotations

import os
from pathlib import Path

from tests.invariant import unnoticed
from tests.system.demo import Demo, compare_trees


def test_an_attribute_set_just_before_a_rename_travels(tmp_path: Path) -> None:
    """A rename leaves size and modification time alone, and so does an attribute: only the event tells of it."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "folder").mkdir()
        (a / "folder" / "inside").write_bytes(b"content")
        (a / "file").write_bytes(b"content")
        demo.wait_converged()
        os.setxattr(a / "file", "user.note", b"1")
        (a / "file").rename(a / "renamed file")
        os.setxattr(a / "folder", "user.note", b"2")
        (a / "folder").rename(a / "renamed folder")
        os.setxattr(a / "renamed folder" / "inside", "user.note", b"3")
        (a / "renamed folder" / "inside").rename(a / "moved out")
        demo.wait_converged()
        assert compare_trees(a, b) == []
        assert os.getxattr(b / "renamed file", "user.note") == b"1"
        assert os.getxattr(b / "renamed folder", "user.note") == b"2"
        assert os.getxattr(b / "moved out", "user.note") == b"3"


def test_attributes_of_a_folder_set_while_its_member_is_down_travel(tmp_path: Path) -> None:
    """No event tells of them, and mode and owner are what they were."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        for name in ("changed", "left alone"):
            (a / name).mkdir()
        demo.wait_converged()
        demo.kill9("b")
        os.setxattr(b / "changed", "user.note", b"1")
        (b / "left alone" / "file").write_bytes(b"content")
        assert unnoticed(demo.members["b"].config) == ["demo: CREATE 'left alone/file'"]
        sent = demo.counters("a")["FileReplicaSet"]["demo"]["Remote Change Orders Received"]
        demo.restart("b")
        demo.wait_converged()
        assert os.getxattr(a / "changed", "user.note") == b"1"
        assert compare_trees(a, b) == []
        # One for the attribute and one for the file; none for a folder that has only a file more.
        received = demo.counters("a")["FileReplicaSet"]["demo"]["Remote Change Orders Received"]
        assert received - sent == 2


def test_a_hard_link_to_a_replicated_file_is_a_file_of_its_own(tmp_path: Path) -> None:
    """Both names share the attribute that holds the object ID; how GLib saves a file makes such a link for a moment."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "doc").write_bytes(b"one")
        demo.wait_converged()
        os.link(a / "doc", a / "doc~")
        demo.wait_converged()
        assert (b / "doc~").read_bytes() == b"one"
        (a / "new").write_bytes(b"two")
        (a / "new").rename(a / "doc")
        demo.wait_converged()
        assert compare_trees(a, b) == []
        assert ((b / "doc").read_bytes(), (b / "doc~").read_bytes()) == (b"two", b"one")


def test_a_plain_rename_fetches_nothing(tmp_path: Path) -> None:
    """The content is there already: only the name has to change."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "folder").mkdir()
        (a / "folder" / "file").write_bytes(b"content")
        demo.wait_converged()
        before = demo.counters("b")["FileReplicaSet"]["demo"]["Staging Files Fetched"]
        (a / "folder" / "file").rename(a / "folder" / "other")
        (a / "folder").rename(a / "elsewhere")
        demo.wait_converged()
        assert compare_trees(a, b) == []
        assert (b / "elsewhere" / "other").read_bytes() == b"content"
        assert demo.counters("b")["FileReplicaSet"]["demo"]["Staging Files Fetched"] == before


def test_what_is_too_deep_in_the_tree_is_left_alone_and_does_not_keep_the_rest_waiting(tmp_path: Path) -> None:
    """Folders below the longest path that the system takes can be made, one in the other, and not be looked at."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        name = "q" * 120
        folders = [os.open(a, os.O_RDONLY)]
        try:
            for _ in range(40):
                os.mkdir(name, dir_fd=folders[-1])
                folders.append(os.open(name, os.O_RDONLY, dir_fd=folders[-1]))
            (a / "beside").write_bytes(b"content")
            demo.wait_converged()
            assert (b / "beside").read_bytes() == b"content"
            assert (b / name / name / name).is_dir()
            for folder in reversed(folders[:-1]):
                os.rmdir(name, dir_fd=folder)
        finally:
            for folder in folders:
                os.close(folder)
        demo.wait_converged()
        assert compare_trees(a, b) == []
        assert [path.name for path in b.iterdir()] == ["beside"]
