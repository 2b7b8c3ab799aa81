"""Small files in C come to the same as one by one in Python: the staging file, the installed file, what is told of
them, and what is refused."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall, ResolvedStep
from agent.localchanges.stage import LocalStage, Work
from journal.changes import Change, Kind
from staging import fsops, sd, smallfiles
from staging.area import StagingArea
from staging.compression import COMPRESSION_LZNT1, COMPRESSION_NONE, COMPRESSION_ZSTD, SUPPORTED
from staging.errors import StagingError
from staging.header import HEADER_SIZE, StageHeader
from staging.restore import restore
from staging.streams import BACKUP_EA_DATA, Ea, encode_eas, stream

pytestmark = pytest.mark.skipif(smallfiles.native is None, reason="the extension in C is not built")

STAGING = Path(__file__).parents[3] / "staging"
ROOT = os.geteuid() == 0
contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda unit, n: (unit * n)[: 1 << 18], st.binary(min_size=1, max_size=64), st.integers(1, 6000)),
    st.builds(lambda before, n, after: before + bytes(n) + after, st.binary(max_size=9), st.integers(0, 150_000),
              st.binary(max_size=9)),
)  # fmt: skip
modes = st.integers(0, 0o777).map(lambda mode: mode | 0o400)
times = st.integers(1, 1 << 61)
owners = st.sampled_from([(0, 0), (12345, 54321), (0, 7)]) if ROOT else st.just((os.geteuid(), os.getegid()))


@contextmanager
def python_only() -> Iterator[None]:
    """As where there is no C compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smallfiles, "native", None)
        yield


class Host:
    """A root, and what a member needs besides."""

    def __init__(self, base: str) -> None:
        self.base = Path(base)
        for name in ("root", "staging", "elsewhere"):
            (self.base / name).mkdir()
        self.root = self.base / "root"
        self.area = StagingArea(str(self.base / "staging"), 1 << 30)
        self.kept = KeptStore(str(self.base / "kept"), 1 << 20, durable=False)
        self.files = FileOps(str(self.root), base, self.area, self.kept, durable=False, compressions=())
        self.stager = LocalStage(self.files, lambda: False, pytest.fail)

    def close(self) -> None:
        self.files.close()
        self.kept.close()

    def work(self, path: str, guid: bytes, kind: Kind = Kind.CREATE) -> Work:
        found = fsops.fingerprint(str(self.root / path))
        above, _, name = path.rpartition("/")
        change = Change(kind, path, guid, bytes(16), above, name, "file", found, 0, content_changed=True)
        return Work(change, guid, bytes(16), bytes(reversed(guid)), 1, (0, 0), None)

    def install(self, names: dict[str, bytes], md5: dict[bytes, bytes]) -> list[ev.Installed]:
        """Installs the staging files of change orders, by the names of the files; GUIDs are those of the orders."""
        items = []
        for name, guid in names.items():
            step = ev.Step(ev.InstallStep.CONTENT, bytes(16), name, file_guid=guid)
            action = ev.Install(guid, guid, False, (step,), md5.get(guid, bytes(16)))
            items.append(ResolvedInstall(action, (ResolvedStep(step, name, None),)))
        done = self.files.install_all(items)
        return [one for one in done if isinstance(one, ev.Installed)]

    def stage(self, guid: bytes, data: bytes) -> None:
        """Puts a staging file there."""
        Path(self.area.path_of(guid)).write_bytes(data)


@contextmanager
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as base:
        one = Host(base)
        try:
            yield one
        finally:
            one.close()


def guid_of(number: int) -> bytes:
    return hashlib.md5(number.to_bytes(4, "little")).digest()


def looks(path: Path) -> tuple[object, ...]:
    """What there is to know of a file beside its inode and the time of its last change."""
    found = path.lstat()
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return (
        path.read_bytes(), found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_blocks, attributes,
    )  # fmt: skip


def told(one: ev.Installed) -> tuple[object, ...]:
    """What is told of an install beside what is different each time; a text may name a moment."""
    facts = one.facts and (one.facts.mtime_ns, one.facts.fsize, one.facts.mode, one.facts.uid, one.facts.gid)
    return replace(one, facts=None, detail=""), facts


@settings(max_examples=60)
@given(messages=st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 5000).map(lambda n: b"m" * n)), max_size=40))
def test_md5_of_many_is_that_of_each(messages: list[bytes]) -> None:
    assert smallfiles.native.md5(messages) == [hashlib.md5(one).digest() for one in messages]


@settings(max_examples=40)
@given(
    files=st.lists(st.tuples(contents, modes, times, owners, st.booleans()), min_size=1, max_size=6),
    compression=st.sampled_from(SUPPORTED),
)
def test_what_is_staged_and_installed_is_the_same(
    files: list[tuple[bytes, int, int, tuple[int, int], bool]], compression: bytes
) -> None:
    """Both ways, and one from the other: each installs what the other one staged."""
    with host() as here, host() as there:
        works = []
        for number, (content, mode, mtime_ns, owner, attribute) in enumerate(files):
            path = here.root / str(number)
            path.write_bytes(content)
            if attribute and number % 2:
                os.setxattr(path, "user.note", b"left to Python")
            os.chown(path, *owner)
            path.chmod(mode)
            os.utime(path, ns=(mtime_ns, mtime_ns))
            works.append(here.work(str(number), guid_of(number)))
        ours = here.stager.stage_all(works, compression)
        staged = {work.stage_guid: Path(here.area.path_of(work.stage_guid)).read_bytes() for work in works}
        with python_only():
            theirs = here.stager.stage_all(works, compression)
        assert ours == theirs
        names = {str(number): work.stage_guid for number, work in enumerate(works)}
        again = {work.stage_guid: Path(here.area.path_of(work.stage_guid)).read_bytes() for work in works}
        assert staged == again
        # install() takes the GUID of a change order for that of its file
        for work in works:
            data = bytearray(staged[work.stage_guid])
            there.stage(work.guid, bytes(data))
            here.stage(work.guid, bytes(data))
        md5 = {one.file_guid: one.md5 for one in ours if isinstance(one, ev.LocalChange)}
        installs = {f"new{name}": guid_of(int(name)) for name in names}
        fast = there.install(installs, md5)
        with python_only():
            slow = here.install(installs, md5)
        assert [told(one) for one in fast] == [told(one) for one in slow]
        assert all(one.outcome is ev.Outcome.DONE for one in fast)
        for name in installs:
            assert looks(there.root / name) == looks(here.root / name)
            assert (there.root / name).read_bytes() == files[int(name[3:])][0]


def a_stage(content: bytes, mode: int = 0o640, **changes: object) -> bytes:
    """A staging file of GUID 0, with other fields in its header."""
    with tempfile.TemporaryDirectory() as base:
        path = Path(base, "f")
        path.write_bytes(content)
        path.chmod(mode)
        area = StagingArea(str(Path(base, "area")), 1 << 30)
        area.stage(guid_of(0), str(path), object_id=guid_of(0), compression=COMPRESSION_NONE)
        data = Path(area.path_of(guid_of(0))).read_bytes()
    header = StageHeader.decode(data)
    for name, value in changes.items():
        setattr(header.info if hasattr(header.info, name) else header, name, value)
    return header.encode() + data[HEADER_SIZE:]


def says_when(data: bytes) -> bool:
    """Whether the header of a staging file has a modification time."""
    try:
        return StageHeader.decode(data).info.last_write_time > 0
    except StagingError:
        return False


def both_ways(data: bytes, md5: bytes = bytes(16)) -> ev.Installed:
    """Installs a staging file both ways, which has to come to the same."""
    with host() as here, host() as there:
        for one in (here, there):
            one.stage(guid_of(0), data)
        (fast,) = there.install({"x": guid_of(0)}, {guid_of(0): md5})
        with python_only():
            (slow,) = here.install({"x": guid_of(0)}, {guid_of(0): md5})
        if not says_when(data):  # then it is the moment of the install
            fast, slow = (replace(one, facts=one.facts and replace(one.facts, mtime_ns=0)) for one in (fast, slow))
        assert told(fast) == told(slow)
        assert os.listdir(there.root) == os.listdir(here.root)
        if (here.root / "x").exists():
            fields = slice(None) if says_when(data) else slice(0, 4)
            assert looks(there.root / "x")[fields] == looks(here.root / "x")[fields]
        assert os.listdir(there.base / "preinstall") == os.listdir(here.base / "preinstall") == []
        return fast


@settings(max_examples=150)
@given(
    content=st.binary(max_size=100),
    changes=st.lists(st.tuples(st.integers(0, 1 << 11), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 60),
    more=st.binary(max_size=3),
)
def test_damaged_staging_files_are_refused_alike(
    content: bytes, changes: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    data = bytearray(a_stage(content))
    for at, value in changes:
        data[at % len(data)] = value
    if cut > 50:
        del data[-(cut - 50) :]
    both_ways(bytes(data + more))


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (a_stage(b"x"), ev.Outcome.DONE),
        (a_stage(b""), ev.Outcome.DONE),
        (a_stage(b"x" * (1 << 18)), ev.Outcome.DONE),
        (a_stage(b"x" * ((1 << 18) + 1)), ev.Outcome.DONE),
        (a_stage(b"x", 0o4755), ev.Outcome.DONE),
        (a_stage(b"x", 0o1644), ev.Outcome.DONE),
        (a_stage(b"x", last_write_time=0), ev.Outcome.DONE),
        (a_stage(b"x", last_write_time=1, last_access_time=1), ev.Outcome.DONE),
        (a_stage(b"x", last_write_time=(1 << 63) - 1), ev.Outcome.DONE),
        (a_stage(b"x", file_attributes=0x21), ev.Outcome.DONE),
        (a_stage(b"x", object_id=bytes(16)), ev.Outcome.DONE),
        (a_stage(b"x", object_id=b"another file's.."), ev.Outcome.STAGE_DAMAGED),
        (a_stage(b"x", end_of_file=2), ev.Outcome.STAGE_DAMAGED),
        (a_stage(b"x", end_of_file=1 << 40), ev.Outcome.STAGE_DAMAGED),
        (a_stage(b"x", compression=b"of somebody else"), ev.Outcome.STAGE_DAMAGED),
        (a_stage(b"x", compression=COMPRESSION_ZSTD), ev.Outcome.STAGE_DAMAGED),
        (a_stage(b"x", compression=COMPRESSION_LZNT1), ev.Outcome.STAGE_DAMAGED),
        (a_stage(b"x") + stream(BACKUP_EA_DATA, encode_eas([Ea(b"NAME", b"value")])), ev.Outcome.DONE),
        (b"", ev.Outcome.STAGE_DAMAGED),
    ],
)
def test_what_is_out_of_the_ordinary_comes_to_the_same(data: bytes, outcome: ev.Outcome) -> None:
    assert both_ways(data).outcome is outcome


def test_another_content_than_was_announced_is_not_installed() -> None:
    end = both_ways(a_stage(b"x"), md5=b"of something els")
    assert end.outcome is ev.Outcome.STAGE_DAMAGED


@pytest.mark.skipif(not ROOT, reason="gives files away")
def test_an_owner_that_no_call_can_give_is_remembered_alike() -> None:
    """-1 leaves the owner as it is for chown(2)."""
    mine, nobody = sd.user_sid(0), sd.user_sid(0xFFFFFFFF)
    assert both_ways(a_stage(b"x").replace(mine, nobody)).outcome is ev.Outcome.DONE


def test_a_small_file_that_expands_beyond_its_size_takes_no_memory() -> None:
    """A frame that says it holds 4 GiB is not believed."""
    frame = bytes.fromhex("28b52ffd") + bytes([0x80 | 0x20]) + (1 << 32 - 1).to_bytes(4, "little") + b"\x03\0\0"
    data = a_stage(b"x", compression=COMPRESSION_ZSTD)[:HEADER_SIZE] + frame
    assert both_ways(data).outcome is ev.Outcome.STAGE_DAMAGED


def test_names_that_are_taken_stay_as_they_are() -> None:
    with host() as one:
        for number in range(3):
            one.stage(guid_of(number), a_stage(b"new").replace(guid_of(0), guid_of(number)))
        (one.root / "b").write_bytes(b"mine")
        ends = one.install({name: guid_of(number) for number, name in enumerate("abc")}, {})
        assert [end.outcome for end in ends] == [ev.Outcome.DONE, ev.Outcome.NAME_TAKEN, ev.Outcome.DONE]
        assert [(one.root / name).read_bytes() for name in "abc"] == [b"new", b"mine", b"new"]
        assert os.listdir(one.base / "preinstall") == []


def test_the_time_of_a_folder_stays_where_many_come() -> None:
    with host() as one:
        os.utime(one.root, ns=(5, 5))
        for number in range(5):
            one.stage(guid_of(number), a_stage(b"new").replace(guid_of(0), guid_of(number)))
        one.install({str(number): guid_of(number) for number in range(5)}, {})
        assert (len(os.listdir(one.root)), one.root.stat().st_mtime_ns) == (5, 5)


def test_a_file_that_is_written_to_is_left_to_python() -> None:
    with host() as one:
        for name in "ab":
            (one.root / name).write_bytes(b"x")
        with open(one.root / "a", "ab"):
            seen = {name: fsops.fingerprint(str(one.root / name)) for name in "ab"}
            sources = [smallfiles.Source(os.fsencode(name), guid_of(0), False, seen[name]) for name in "ab"]
            found = smallfiles.generate_all(one.files.root.fd, sources, SUPPORTED[0])
        assert [one is None for one in found] == [True, False]


def test_new_files_get_their_object_ids_unless_they_have_other_names() -> None:
    with host() as one:
        for name in "ab":
            (one.root / name).write_bytes(b"x")
        (one.root / "c").hardlink_to(one.root / "b")
        works = [one.work(name, guid_of(number)) for number, name in enumerate("abc")]
        works = [replace_id(work) for work in works]
        one.stager.mark(works)
        events = one.stager.stage_all(works, COMPRESSION_NONE)
        assert [isinstance(event, ev.LocalChange) and event.staged for event in events] == [True] * 3
        found = [fsops.object_id_get(str(one.root / name)) for name in "abc"]
        assert found == [guid_of(0), None, None]
        facts = events[0].facts if isinstance(events[0], ev.LocalChange) else None
        assert facts is not None
        assert facts.ctime_ns == fsops.fingerprint(str(one.root / "a")).ctime_ns


def replace_id(work: Work) -> Work:
    return replace(work, change=replace(work.change, object_id=None))


def test_another_file_than_was_seen_is_not_sent() -> None:
    with host() as one:
        (one.root / "a").write_bytes(b"seen")
        work = one.work("a", guid_of(0))
        (one.root / "a").rename(one.root / "was")
        (one.root / "a").write_bytes(b"another")
        ((refused, error),) = one.stager.stage_all([work], COMPRESSION_NONE)  # type: ignore[misc]
        assert refused is work
        assert "another file" in str(error)
        assert one.area.guids() == []


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc/passwd", b"a\0b"])
def test_a_name_is_one_component(name: bytes) -> None:
    native = smallfiles.native
    fd = os.open("/", os.O_RDONLY)
    try:
        for call in (
            lambda: native.open(fd, [name], 1),
            lambda: native.read(fd, [name], 1),
            lambda: native.write(fd, [(name, b"", b"")]),
            lambda: native.build(fd, [(name, b"", 0, 0, bytes(16), 1, 0o600, 0, 0)], False),
            lambda: native.place(fd, fd, [(fd, b"a", name)]),
            lambda: native.place(fd, fd, [(fd, name, b"a")]),
        ):
            with pytest.raises(ValueError, match="name"):
                call()
    finally:
        os.close(fd)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("file")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        native = smallfiles.native
        assert all(isinstance(one, int) for one in native.open(fd, [b"link"], 100) + native.read(fd, [b"link"], 100))
        assert native.write(fd, [(b"link", b"x", b"y")]) != [0]
        assert (tmp_path / "file").read_bytes() == b"secret"
    finally:
        os.close(fd)


#: System calls that take a name, in C, and what they are allowed to be given: an open folder, and never a link.
BY_NAME = {
    "openat": r"\((folder), e->name, (O_(RDONLY|PATH) \| O_NOFOLLOW (\| O_NONBLOCK )?\| O_CLOEXEC|NEW_FILE, 0600)\)",
    "statx": r'\((folder, e->name, AT_SYMLINK_NOFOLLOW|fd, "", AT_EMPTY_PATH), STATX_WANTED, .*\)',
    "unlinkat": r"\(folder, e->name, 0\)",
    "renameat2": r"\(from, e->name, to, e->other, RENAME_NOREPLACE\)",
    "syscall": r"\(SYS_openat2, folder, name, &how, sizeof how\)",
}
PATHS = (
    "open|creat|stat|lstat|fstatat|access|faccessat|chown|lchown|fchownat|chmod|fchmodat|utime|utimes|utimensat|link"
    "|linkat|symlink|symlinkat|unlink|rename|renameat|mkdir|mkdirat|rmdir|mknod|mknodat|truncate|setxattr|lsetxattr"
    "|getxattr|lgetxattr|listxattr|llistxattr|removexattr|lremovexattr|readlink|readlinkat|opendir|fopen|chdir|execve"
)


def test_no_call_in_c_takes_a_path() -> None:
    """What tests/unit/test_effects.py is for Python. Beyond that tests/unit/test_exchanges.py exchanges names before
    each of these calls."""
    parts = [one.read_text() for one in sorted((STAGING / "native").glob("*.[ch]")) if one.name != "lznt1.c"]
    source = re.sub(r"/\*.*?\*/", "", "\n".join(parts), flags=re.DOTALL)
    assert re.findall(rf"\b(?:{PATHS})\(", re.sub(r'"[^"]*"', "", source)) == []
    for call, wanted in BY_NAME.items():
        found = re.findall(rf"\b{call}(\(.*)", source)
        assert found
        for arguments in found:
            assert re.match(wanted, arguments), (call, arguments)
        names = [arguments for arguments in found if not arguments.startswith("(fd")]
        told = re.findall(rf'about_to\("{"openat2" if call == "syscall" else call}"\);\s[^;]*\b{call}\(', source)
        assert len(told) == len(names), call
    assert "O_NOFOLLOW" in re.findall(r"#define NEW_FILE (.*)", source)[0]


def test_batches_are_not_torn_by_one_that_fails(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    native = smallfiles.native
    try:
        (tmp_path / "b").write_bytes(b"in the way")
        items = [
            (name, b"content", 0, 7, bytes(16), 1, 0o600, os.geteuid(), os.getegid()) for name in (b"a", b"b", b"c")
        ]
        built = native.build(fd, items, True)
        assert [isinstance(one, int) for one in built] == [False, True, False]
        native.close([one[0] for one in built if not isinstance(one, int)])
        assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]
        assert (tmp_path / "b").read_bytes() == b"in the way"
    finally:
        os.close(fd)


def test_restored_by_python_it_is_the_same_file(tmp_path: Path) -> None:
    """An oracle of another kind: what `restore` makes of a staging file made in C."""
    with host() as one:
        (one.root / "a").write_bytes(b"content" * 1000)
        work = one.work("a", guid_of(0))
        one.stager.stage_all([work], COMPRESSION_ZSTD)
        back = restore(one.area.path_of(work.stage_guid), str(tmp_path / "back"), durable=False)
        assert back.exact
        assert stat.S_IMODE(back.fingerprint.mode) == stat.S_IMODE((one.root / "a").stat().st_mode)
        assert (tmp_path / "back").read_bytes() == b"content" * 1000


def test_the_source_is_what_was_built() -> None:
    """The names of the stub are those of the module."""
    stub = ast.parse((STAGING / "_smallfiles.pyi").read_text())
    names = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert names == {name for name in vars(smallfiles.native) if not name.startswith("__")}
