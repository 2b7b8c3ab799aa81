"""The Object ID in an attribute is told, and never believed."""

from __future__ import annotations

import os
import subprocess
import uuid

import pytest

from journal.changes import Kind
from staging.fsops import object_id_get, object_id_set
from tests.unit.journal.bench import Bench, short


class TestObjectId:
    """What stands in the attribute is told, and believed of nobody: users write there what they like."""

    MEMBER = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0").bytes_le

    def copy_with_attributes(self, bench, old, new):
        subprocess.run(["cp", "-a", bench.path(old), bench.path(new)], check=True)
        assert object_id_get(bench.path(new)) == object_id_get(bench.path(old)) is not None

    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_of_nobody_here(self, bench, kind):
        """A member's, the root's, one of an IDTable that is no more: all the same."""
        os.mkdir(bench.path("n")) if kind == "folder" else bench.write("n")
        assert object_id_set(bench.path("n"), self.MEMBER)
        (change,) = bench.both("n")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, self.MEMBER)

    def test_of_the_root(self, tmp_path, table):
        bench = Bench(tmp_path, table)
        os.mkdir(bench.path("d"))
        assert object_id_set(bench.path("d"), bytes(16))
        bench.write("d/f")
        folder, file = bench.both("d", "d/f")
        assert (folder.file_guid, file.parent_guid) == (None, None)
        assert table.paths() == {"d", "d/f"}

    def test_of_another_file_on_a_folder(self, bench):
        (guid,) = bench.known("theirs")
        os.mkdir(bench.path("mine"))
        object_id_set(bench.path("mine"), guid)
        (change,) = bench.both("mine")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, guid)
        assert bench.guid("theirs") == guid

    def test_of_another_folder_that_goes_at_that_moment(self, bench):
        """Its content would land in a folder of somebody else."""
        guid, file = bench.known("theirs/", "theirs/f")
        os.mkdir(bench.path("mine"))
        object_id_set(bench.path("mine"), guid)
        os.unlink(bench.path("theirs/f"))
        os.rmdir(bench.path("theirs"))
        changes = bench.both("mine", "theirs", "theirs/f")
        assert short(changes) == [
            ("CREATE", "mine", "mine"),
            ("DELETE", "theirs", "theirs"),
            ("DELETE", "theirs/f", "f"),
        ]
        assert bench.guid("mine") not in (guid, file)

    def test_of_a_copy(self, bench):
        (guid,) = bench.known("f")
        object_id_set(bench.path("f"), guid)
        bench.examine("f")
        self.copy_with_attributes(bench, "f", "copy")
        (change,) = bench.both("copy")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, guid)

    def test_of_a_copy_whose_original_is_gone(self, bench):
        """What looks like this file moved to another file system and back may be anybody's."""
        (guid,) = bench.known("f")
        object_id_set(bench.path("f"), guid)
        bench.examine("f")
        self.copy_with_attributes(bench, "f", "copy")
        os.unlink(bench.path("f"))
        assert short(bench.both("copy", "f")) == [("CREATE", "copy", "copy"), ("DELETE", "f", "f")]
        assert bench.guid("copy") != guid

    def test_a_file_brought_back_to_its_name_is_that_file(self, bench):
        """Out of a backup, with or without its attributes: the name says so, not the attribute."""
        (guid,) = bench.known("f")
        os.unlink(bench.path("f"))
        bench.write("f", "from the backup")
        object_id_set(bench.path("f"), self.MEMBER)
        (change,) = bench.both("f")
        assert (change.kind, change.file_guid) == (Kind.UPDATE, guid)

    def test_written_over_that_of_a_known_file(self, bench):
        guid, other = bench.known("f", "other")
        object_id_set(bench.path("f"), other)
        (change,) = bench.both("f")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.UPDATE, guid, other)

    def test_of_no_length_is_none(self, bench):
        bench.write("f")
        os.setxattr(bench.path("f"), "user.frs.object_id", b"short")
        (change,) = bench.examine("f")
        assert (change.file_guid, change.object_id) == (None, None)
