"""What a file system does not keep of what was sent: an edit there takes nothing from the others."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staging import attributes, posixacl, sd
from staging.errors import StagingError, Unsupported
from staging.fsops import fingerprint
from staging.generate import Staged, generate
from staging.restore import Restored, restore
from staging.unstored import Unstored, What, decode
from tests.filesystems import KINDS, mounted

GUID = bytes(range(16))
TIME = 1_600_000_000_123_456_789
LIST = posixacl.encode(posixacl.Acl(7, ((1000, 6),), 5, ((2000, 4),), 7, 4))

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and mount file systems")


class Sides:
    """A member where everything can be kept, and one on another file system."""

    def __init__(self, rich: Path, poor: Path) -> None:
        self.rich, self.poor = rich, poor
        self.remembered = b""

    def stage(self) -> str:
        return str(self.rich / "stage")

    def send(self, name: str) -> Restored:
        """What is at `name` on the first is received by the other one as `x`."""
        staged = generate(str(self.rich / name), self.stage(), object_id=GUID)
        built = restore(self.stage(), str(self.poor / "x"))
        assert built.md5 == staged.md5
        self.remembered = built.remember.encode()
        os.unlink(self.stage())
        return built

    def look(self, out: str | None = None) -> Staged:
        """What the other one says of `x` now, and what it remembers from then on."""
        staged = generate(str(self.poor / "x"), out, object_id=GUID, unstored=decode(self.remembered))
        self.remembered = staged.remember.encode()
        return staged

    def send_back(self) -> Path:
        """`x` arrives as `back`."""
        self.look(self.stage())
        restore(self.stage(), str(self.rich / "back"))
        os.unlink(self.stage())
        return self.rich / "back"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder on a disk: memory file systems hold fewer attributes."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


@pytest.fixture(params=sorted(KINDS))
def sides(request: pytest.FixtureRequest, place: Path) -> Iterator[Sides]:
    with mounted(request.param, place / "poor", place / "images"):
        (place / "rich").mkdir()
        yield Sides(place / "rich", place / "poor")


def make(path: Path, mode: int, *, lists: bool = True) -> Path:
    """A file or folder with everything that it can have."""
    os.chown(path, 1234, 5678)
    path.chmod(mode)
    if lists:
        os.setxattr(path, posixacl.ACCESS_XATTR, LIST)
        path.chmod(mode)
    os.setxattr(path, "user.note", b"of the others")
    os.setxattr(path, "user.long", b"x" * 3000)
    os.utime(path, ns=(TIME, TIME))
    return path


def everything(path: Path) -> tuple[object, ...]:
    found = path.stat()
    names = [name for name in os.listxattr(path) if not name.startswith(("user.frs.", "trusted."))]
    return found.st_uid, found.st_gid, oct(found.st_mode), {name: os.getxattr(path, name) for name in sorted(names)}


@only_root
@pytest.mark.parametrize("mode", [0o4755, 0o640])
def test_a_file_edited_elsewhere_keeps_what_it_had(sides: Sides, mode: int) -> None:
    path = sides.rich / "f"
    path.write_bytes(b"content" * 30_000)
    make(path, mode)
    before = generate(str(path), None, object_id=GUID)
    sides.send("f")
    here = sides.look()
    assert here.md5 == before.md5
    assert (here.info.mtime_ns, here.info.file_attributes) == (TIME, before.info.file_attributes)
    with open(sides.poor / "x", "ab") as stream:
        stream.write(b"and more")
    os.utime(sides.poor / "x", (0, 1_700_000_000))
    back = sides.send_back()
    owner = attributes.only_ours(here.fingerprint, None)  # else a writer takes set-id bits away, as everywhere
    if mode & 0o6000 and not (sides.poor / "x").stat().st_mode & 0o6000 and not owner:
        path.chmod(mode & 0o1777)
    assert everything(back) == everything(path)
    assert back.stat().st_mtime_ns == 1_700_000_000 * 10**9
    assert back.read_bytes().endswith(b"and more")


@only_root
def test_a_change_of_the_mode_changes_the_mode(sides: Sides) -> None:
    path = sides.rich / "f"
    path.write_bytes(b"content")
    make(path, 0o664)
    sides.send("f")
    there = sides.poor / "x"
    before = there.stat().st_mode
    there.chmod(0o600)
    if there.stat().st_mode == before:
        pytest.skip("this file system has no modes")
    back = sides.send_back()
    path.chmod(0o600)
    assert everything(back) == everything(path)
    assert back.stat().st_mtime_ns == TIME
    # and what was changed stays changed, though the disk is as it was made at first again
    there.chmod(stat.S_IMODE(before))
    back.unlink()
    again = sides.send_back()
    assert again.stat().st_mtime_ns == TIME
    assert os.getxattr(again, "user.note") == b"of the others"


@only_root
@pytest.mark.parametrize("lists", [True, False])
def test_a_folder(sides: Sides, lists: bool) -> None:
    path = sides.rich / "d"
    path.mkdir()
    make(path, 0o2775, lists=lists)
    before = generate(str(path), None, object_id=GUID)
    sides.send("d")
    here = sides.look()
    assert (here.md5, here.info.mtime_ns) == (before.md5, TIME)
    (sides.poor / "x").chmod(stat.S_IMODE((sides.poor / "x").stat().st_mode))
    assert everything(sides.send_back()) == everything(path)


@only_root
@pytest.mark.parametrize("folder", [False, True])
def test_lists_go_before_user_attributes_where_there_is_no_room_for_both(place: Path, folder: bool) -> None:
    """Without them the file has other rights. (Blocks of 1 KiB: as many bytes for all attributes of a file.)"""
    with mounted("ext4", place / "poor", place / "images"):
        (place / "rich").mkdir()
        sides = Sides(place / "rich", place / "poor")
        path = sides.rich / "x"
        path.mkdir() if folder else path.write_bytes(b"content")
        make(path, 0o640)
        for number in range(13):
            os.setxattr(path, f"user.{number}", b"x" * 60)
        sides.send("x")
        there = sides.poor / "x"
        assert everything(there)[:3] == everything(path)[:3]
        assert os.getxattr(there, posixacl.ACCESS_XATTR) == os.getxattr(path, posixacl.ACCESS_XATTR)
        assert len(os.listxattr(there)) > 5  # and as many of them as there is room for
        sides.look()
        assert everything(sides.send_back()) == everything(path)


@only_root
def test_a_symbolic_link(sides: Sides) -> None:
    path = sides.rich / "l"
    path.symlink_to("target")
    os.chown(path, 1234, 5678, follow_symlinks=False)
    os.utime(path, ns=(TIME, TIME), follow_symlinks=False)
    before = generate(str(path), None, object_id=GUID)
    try:
        (sides.poor / "probe").symlink_to("target")
    except PermissionError:
        with pytest.raises(Unsupported, match="no symbolic links"):
            sides.send("l")
        return
    sides.send("l")
    here = sides.look()
    assert (here.md5, here.info.mtime_ns) == (before.md5, TIME)


@only_root
def test_an_editor_that_saves_by_renaming(sides: Sides) -> None:
    """The new file has nothing of what the old one had: where that is as much as the file system can hold of it, it is
    still the others'."""
    path = sides.rich / "f"
    path.write_bytes(b"content")
    make(path, 0o644, lists=False)
    sides.send("f")
    there = sides.poor / "x"
    lacks = "user.note" not in os.listxattr(there) if hasattr(os, "listxattr") and _has_attributes(there) else True
    found = there.stat()
    (sides.poor / "new").write_bytes(b"edited")
    os.chown(sides.poor / "new", found.st_uid, found.st_gid)
    (sides.poor / "new").chmod(stat.S_IMODE(found.st_mode))
    os.rename(sides.poor / "new", there)
    back = sides.send_back()
    assert (back.stat().st_uid, back.stat().st_gid) == (1234, 5678)
    assert ("user.note" in os.listxattr(back)) is lacks


def _has_attributes(path: Path) -> bool:
    try:
        os.listxattr(path)
    except OSError:
        return False
    return True


# -- what counts after a change, and what is remembered --

SENT = sd.build(sd.Posix(stat.S_IFREG | 0o6755, 1234, 5678))


@only_root
@pytest.mark.parametrize(
    ("change", "uid", "gid", "mode"),
    [
        (lambda path: path.write_bytes(b"edited"), 1234, 5678, 0o6755),
        (lambda path: path.chmod(0o700), 1234, 5678, 0o6700),
        (lambda path: os.chown(path, -1, 77), 1234, 77, 0o6755),
        (lambda path: path.chmod(0o777), 1234, 5678, 0o777),
    ],
)
def test_what_was_not_changed_is_the_others(place: Path, change: object, uid: int, gid: int, mode: int) -> None:
    """Only this process's own user can write to the file, so set-id bits that it lacks stay; when others can, they do
    not: they would get them for what they write."""
    path = place / "f"
    path.write_bytes(b"content")
    path.chmod(0o755)
    fd = os.open(path, os.O_RDONLY)
    before = attributes.kept_of(SENT, generate(str(path), None, object_id=GUID).fingerprint, attributes.read(fd), fd)
    os.close(fd)
    assert before[1] == attributes.Lacking(owner=True, set_id=True, rights=False)
    change(path)  # type: ignore[operator]
    staged = generate(str(path), str(place / "s"), object_id=GUID, unstored=Unstored(before[0]))
    restore(str(place / "s"), str(place / "t"))
    found = (place / "t").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (uid, gid, mode)
    assert staged.remember.what & What.OWNER


@only_root
def test_what_was_changed_here_is_not_the_others_again_when_it_is_changed_back(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"content")
    os.utime(path, ns=(10**18, 10**18))
    unstored = Unstored(None, {b"user.a": (b"1", None)}, (TIME, 10**18), (0x20, 0x20))
    assert generate(str(path), None, object_id=GUID, unstored=unstored).info.mtime_ns == TIME
    os.setxattr(path, "user.a", b"2")
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    staged = generate(str(path), None, object_id=GUID, unstored=unstored)
    assert staged.info.mtime_ns == 10**18 + 1
    assert staged.remember.encode() == b""
    os.removexattr(path, "user.a")
    os.utime(path, ns=(10**18, 10**18))
    assert generate(str(path), None, object_id=GUID, unstored=staged.remember).info.mtime_ns == 10**18


def test_a_list_that_cannot_be_had_gives_the_group_no_more_than_it_gave(place: Path) -> None:
    """The mode of a file with a list shows its mask where the group's rights would be."""
    narrow = posixacl.encode(posixacl.Acl(6, ((1000, 6),), 4, (), 6, 0))
    assert posixacl.mode_without(narrow, 0o660) == 0o640
    assert posixacl.with_mode(narrow, 0o600) == posixacl.encode(posixacl.Acl(6, ((1000, 6),), 4, (), 0, 0))


values = st.none() | st.binary(max_size=40)
pairs = st.none() | st.tuples(st.integers(-(2**80), 2**80), st.integers(-(2**80), 2**80))


@given(
    st.none() | st.binary(min_size=1),
    st.dictionaries(st.binary(min_size=1, max_size=20), st.tuples(values, values)),
    pairs,
    st.none() | st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.none() | st.binary(min_size=16, max_size=16),
    st.integers(1, 127),
)
def test_what_is_remembered_is_read_as_it_was_written(
    kept: bytes | None,
    user: dict[bytes, tuple[bytes | None, bytes | None]],
    times: tuple[int, int] | None,
    flags: tuple[int, int] | None,
    made: bytes | None,
    what: int,
) -> None:
    unstored = Unstored(kept, user, times, flags, made, what)
    if unstored == Unstored(what=what):
        assert unstored.encode() == b""
        assert decode(b"") is None
        return
    assert decode(unstored.encode()) == unstored


def test_what_cannot_be_read_is_said(place: Path) -> None:
    with pytest.raises(StagingError):
        decode(b"\1\2\3")


@only_root
def test_set_id_bits_that_are_not_taken_do_not_go_over_to_another_file_of_that_name(place: Path) -> None:
    """Whoever may rename files in the folder would choose what bears them elsewhere."""
    (place / "sent").write_bytes(b"content")
    os.chmod(place / "sent", 0o4755)
    (place / "x").write_bytes(b"another file")
    os.chmod(place / "x", 0o755)
    st, found = fingerprint(str(place / "x")), attributes.Attributes({})
    wanted = attributes.of_disk(fingerprint(str(place / "sent")), found)
    with open(place / "x", "rb") as stream:
        kept, lacking = attributes.kept_of(wanted, st, found, stream.fileno())
        assert lacking.set_id
        assert attributes.descriptor(st, found, stream.fileno(), kept) == wanted
        here = attributes.descriptor(st, found, stream.fileno(), kept, another=True)
    assert here == attributes.of_disk(st, found)
