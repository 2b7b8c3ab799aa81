"""Trees to replicate, changes to make to them, and a strict look at what a tree holds.

A change is planned on a *model*: an ordinary folder that nothing replicates. Planning carries each operation
out on the model at once, so that the plan is always possible, and records it; the same operations are then
carried out on a member's root. After convergence every member's root must look like the model: an oracle that
shares no code with the product.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from impacket.dcerpc.v5.rpcrt import RPC_C_AUTHN_LEVEL_PKT_PRIVACY, RPC_C_AUTHN_WINNT, DCERPC_v5
from impacket.dcerpc.v5.transport import DCERPCTransportFactory
from impacket.uuid import uuidtup_to_bin

SEED = 19991231

PROJECT = Path(__file__).parents[2]

#: The interface of [MS-FRS1] 2.1 as an abstract syntax.
FRSRPC = uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1"))

#: Attributes that the agent keeps on a user's file for itself.
OWN_ATTRIBUTES = "user.frs."

#: Parts of the standard library that make the reduced tree: a few hundred files in nested packages.
SOME_PACKAGES = (
    "asyncio",
    "collections",
    "email",
    "encodings",
    "html",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "sqlite3",
    "unittest",
    "urllib",
    "wsgiref",
    "xml",
    "zoneinfo",
)

#: A campaign (script/campaign) sets these: whole trees, more rounds, another seed.
FULL = bool(os.environ.get("FRS_FULL_TREES"))
ROUNDS = int(os.environ.get("FRS_ROUNDS", "3"))
CHOSEN_SEED = os.environ.get("FRS_SEED", "0")


# ---------------------------------------------------------------- real trees


def _ignore(folder: str, names: list[str]) -> set[str]:
    """Leave out caches, installed packages, and what is neither file, folder nor link."""
    left_out = {"__pycache__", "site-packages", "dist-packages"} & set(names)
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            left_out.add(name)
    return left_out


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=_ignore, dirs_exist_ok=True)


def standard_library(root: Path, *, full: bool = FULL) -> None:
    """Copy Python's own library into the new folder ``root``, with symbolic links among its modules.

    Not every build of Python has links in its library, so the kinds that do occur in others are added.
    """
    source = Path(sysconfig.get_paths()["stdlib"])
    if full:
        _copy(source, root)
    else:
        root.mkdir(parents=True)
        for package in SOME_PACKAGES:
            _copy(source / package, root / package)
    links = {
        "python-json": "json",
        "decode.py": "json/decoder.py",
        "email/charset-link.py": "./charset.py",
        "email/up.py": "../json/__init__.py",
        "absolute": "/usr/lib",
        "dangling": "no/such/file",
        "link-to-link": "decode.py",
        "self": "self",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
        os.utime(root / name, ns=(10**18, 10**18 + 700), follow_symlinks=False)


def system_documents(root: Path, *, full: bool = FULL) -> None:
    """Copy /usr/share/doc and /usr/include (all, or the first folders of each) into the new folder ``root``.

    Systems without them give an empty folder.
    """
    root.mkdir(parents=True)
    for source in (Path("/usr/share/doc"), Path("/usr/include")):
        if not source.is_dir():
            continue
        target = root / source.name
        if full:
            _copy(source, target)
            continue
        target.mkdir()
        links = files = 0
        for entry in sorted(source.iterdir()):
            if entry.is_symlink() and links < 15:
                links += 1
                (target / entry.name).symlink_to(os.readlink(entry))
            elif entry.is_file() and not entry.is_symlink() and files < 150:
                files += 1
                shutil.copy2(entry, target)
            elif entry.is_dir() and not entry.is_symlink() and files < 150:
                inside = sum(len(names) for _, _, names in os.walk(entry))
                if inside <= 20:
                    files += inside
                    _copy(entry, target / entry.name)


# ---------------------------------------------------------------- made trees


def odd_names() -> list[str]:
    """Names of every kind that this file system takes, each valid as one path component."""
    kanji = "\u6f22\u5b57"
    names = [
        " leading and trailing ",
        "two\nlines",
        "tab\tand\rreturn",
        "\x01control\x7f",
        "-rf",
        "--help",
        "$(touch pwned);`id`",
        "back\\slash",
        "C:drive",
        "file:stream:$DATA",
        "quotes\"and'",
        "*?<>|",
        "trailing.dot.",
        "...",
        "CON",
        "NUL.txt",
        "PROGRA~1",
        "percent%2Fescape",
        ".hidden",
        "README",
        "readme",
        "ReadMe",
        "na\u00efve \u00fcber \u0444\u0430\u0439\u043b " + kanji,
        unicodedata.normalize("NFC", "caf\u00e9 \u1e9b\u0323"),
        unicodedata.normalize("NFD", "caf\u00e9 \u1e9b\u0323"),
        "\U0001f600 and \U0010fffd",
        "\ufeffbyte order mark",
        "\u202eright to left",
        "\ufffe\uffff",
        os.fsdecode(b"undecodable \xff\xfe\x80"),
        os.fsdecode(b"latin1 caf\xe9"),
        os.fsdecode(b"surrogate \xed\xa0\xbd\xed\xb8\x80"),
        os.fsdecode(b"cut utf-8 \xe6\xbc"),
        "x" * 255,
        kanji[0] * 85,
        "\U0001f600" * 63,
        os.fsdecode(b"\xff" * 255),
    ]
    return names


def takes(folder: Path, name: str) -> bool:
    """Whether the file system allows that name (some refuse undecodable ones) and gives it back as it is."""
    try:
        (folder / name).touch()
        found = name in os.listdir(folder)
        (folder / name).unlink()
    except OSError as error:
        if error.errno in (errno.EILSEQ, errno.EINVAL, errno.ENAMETOOLONG):
            return False
        raise
    return found


def every_name(root: Path) -> None:
    """Make ``root`` with a file, a folder and a link for each of `odd_names`, and a deep path."""
    for place in ("files", "folders", "links"):
        (root / place).mkdir(parents=True)
    for number, name in enumerate(odd_names()):
        if not takes(root / "files", name):
            continue
        (root / "files" / name).write_bytes(b"content of %d\n" % number)
        (root / "folders" / name).mkdir()
        (root / "folders" / name / "inside").write_bytes(b"inside %d\n" % number)
        (root / "links" / name).symlink_to(os.path.join("..", "files", name))
    deep = root
    for level in range(12):
        deep = deep / f"level {level:02d} {'d' * 120}"
        deep.mkdir()
        (deep / "at this level").write_bytes(b"%d" % level)


def every_kind(root: Path) -> None:
    """Make ``root`` with empty, sparse, linked, large and oddly stamped things, modes and attributes."""
    rng = random.Random(SEED)
    root.mkdir(parents=True)
    (root / "empty file").touch()
    (root / "empty folder" / "in an empty folder").mkdir(parents=True)
    for length in (1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20):
        (root / f"{length} bytes").write_bytes(rng.randbytes(length))
    (root / "zeros").write_bytes(bytes(300_000))
    (root / "text").write_bytes(b"compressible " * 50_000)
    sparse(root / "sparse", 8 << 20)
    with open(root / "all hole", "wb") as stream:
        stream.truncate(5 << 20)
    (root / "linked one").write_bytes(rng.randbytes(10_000))
    os.link(root / "linked one", root / "linked two")
    (root / "links").mkdir()
    os.link(root / "linked one", root / "links" / "linked three")
    modes = root / "modes"
    modes.mkdir()
    for mode in (0o400, 0o444, 0o600, 0o640, 0o644, 0o700, 0o755, 0o777):
        (modes / f"{mode:o}").write_bytes(b"mode %o" % mode)
        (modes / f"{mode:o}").chmod(mode)
        (modes / f"folder {mode:o}").mkdir()
        (modes / f"folder {mode:o}" / "inside").write_bytes(b"x")
        (modes / f"folder {mode:o}").chmod(mode | 0o700)
    (modes / "sticky").mkdir()
    (modes / "sticky").chmod(0o1777)
    times = root / "times"
    times.mkdir()
    for name, when in {
        "epoch": 0,
        "before": -315_619_200 * 10**9,
        "hundred nanoseconds": 1_700_000_000 * 10**9 + 123_456_700,
        "future": 4_102_444_800 * 10**9,
    }.items():
        (times / name).write_bytes(name.encode())
        os.utime(times / name, ns=(when, when))
    attributes = root / "attributes"
    attributes.mkdir()
    (attributes / "file").write_bytes(b"with attributes")
    for where in (attributes, attributes / "file"):
        set_attribute(where, "user.comment", "gr\u00fc\u00dfe".encode())
        set_attribute(where, "user.binary", bytes(range(256)))
        set_attribute(where, "user.empty", b"")
        set_attribute(where, "user.long", b"v" * 2000)


def sparse(path: Path, length: int) -> None:
    """Write a file of ``length`` bytes that is a hole but for three islands of data."""
    rng = random.Random(length)
    with open(path, "wb") as stream:
        stream.truncate(length)
        for place in (0, length // 2, length - 5000):
            stream.seek(place)
            stream.write(rng.randbytes(5000))


def set_attribute(path: Path, name: str, value: bytes) -> None:
    """Set a user attribute where the file system has them; else do nothing."""
    try:
        os.setxattr(path, name, value, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise


def many_files(root: Path, count: int, *, size: int = 4000, folders: int = 10) -> None:
    """Make ``root`` with ``count`` random files of ``size`` bytes spread over ``folders`` folders."""
    rng = random.Random(f"{SEED} {count} {size}")
    for number in range(count):
        place = root / f"folder {number % folders:02d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file {number:05d}").write_bytes(rng.randbytes(size))


# ---------------------------------------------------------------- what a tree holds


@dataclass(frozen=True)
class Entry:
    """What one name in a tree is. ``mtime_ns`` is None for folders and where times were not asked for."""

    kind: str
    mode: int
    content: str
    attributes: tuple[tuple[str, bytes], ...]
    mtime_ns: int | None


def _attributes(path: str) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return ()
    mine = sorted(n for n in names if n.startswith("user.") and not n.startswith(OWN_ATTRIBUTES))
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in mine)


def snapshot(root: Path, *, times: bool = False, granularity: int = 100, moving: bool = False) -> dict[str, Entry]:
    """Everything below ``root`` by relative path. Times are rounded down to ``granularity`` nanoseconds.

    Nothing is left out: an agent's temporary file in a root is a difference. Only in a tree that is ``moving`` an entry
    may be gone before it was looked at.
    """
    found: dict[str, Entry] = {}
    start = os.fspath(root)
    pending = [start]
    while pending:
        entries: Iterator[os.DirEntry[str]] = iter(())
        with contextlib.suppress(FileNotFoundError) if moving else contextlib.nullcontext():
            entries = os.scandir(pending.pop())
        for entry in entries:
            with contextlib.suppress(FileNotFoundError) if moving else contextlib.nullcontext():
                info = entry.stat(follow_symlinks=False)
                if entry.is_symlink():
                    kind, mode, content = "link", 0, os.readlink(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    kind, mode, content = "folder", stat.S_IMODE(info.st_mode), ""
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    with open(entry.path, "rb") as stream:
                        content = f"{info.st_size} {hashlib.file_digest(stream, 'sha256').hexdigest()}"
                    kind, mode = "file", stat.S_IMODE(info.st_mode)
                else:
                    kind, mode, content = "other", 0, ""
                stamp = info.st_mtime_ns // granularity if times and kind != "folder" else None
                found[entry.path[len(start) + 1 :]] = Entry(kind, mode, content, _attributes(entry.path), stamp)
    return found


def differences(want: dict[str, Entry], have: dict[str, Entry], limit: int = 20) -> list[str]:
    """What distinguishes two snapshots, one line each (at most ``limit`` and a count), [] if nothing."""
    lines = [f"missing: {path!a}" for path in sorted(want.keys() - have.keys())]
    lines += [f"too much: {path!a}" for path in sorted(have.keys() - want.keys())]
    for path in sorted(want.keys() & have.keys()):
        if want[path] != have[path]:
            for part in ("kind", "mode", "content", "attributes", "mtime_ns"):
                one, other = getattr(want[path], part), getattr(have[path], part)
                if one != other:
                    lines.append(f"{part} of {path!a}: want {str(one)[:120]!a}, have {str(other)[:120]!a}")
    return lines if len(lines) <= limit else [*lines[:limit], f"... {len(lines)} differences"]


def count_files(root: Path) -> int:
    """How many regular files are below ``root`` now; a folder that vanishes meanwhile counts nothing."""
    return sum(len(names) for _, _, names in os.walk(root))


# ---------------------------------------------------------------- changes

Operation = Callable[[Path], None]


@dataclass
class Plan:
    """Operations recorded while they are carried out on a model. Paths are relative to the root."""

    model: Path
    steps: list[tuple[str, Operation]] = field(default_factory=list)

    def apply(self, root: Path, *, contested: bool = False) -> int:
        """Carry out all recorded operations on another tree that looks as the model did; returns how many.

        ``contested``: others change that tree meanwhile, so an operation that is no longer possible is left out.
        """
        done = 0
        for text, operation in self.steps:
            try:
                operation(root)
                done += 1
            except OSError as error:
                if not contested:
                    raise AssertionError(f"cannot {text!a} in {root}: {error}") from error
        return done

    def _do(self, text: str, operation: Operation) -> None:
        operation(self.model)
        self.steps.append((text, operation))

    def write(self, path: str, content: bytes) -> None:
        """Write a file over or anew, in place."""
        self._do(f"write {path}", lambda root: _keep_nothing((root / path).write_bytes(content)))

    def append(self, path: str, content: bytes) -> None:
        """Add to the end of a file."""

        def operation(root: Path) -> None:
            with open(root / path, "ab") as stream:
                stream.write(content)

        self._do(f"append to {path}", operation)

    def overwrite(self, path: str, place: int, content: bytes) -> None:
        """Write into the middle of a file."""

        def operation(root: Path) -> None:
            with open(root / path, "r+b") as stream:
                stream.seek(place)
                stream.write(content)

        self._do(f"overwrite in {path}", operation)

    def truncate(self, path: str, length: int) -> None:
        """Cut or lengthen a file."""
        self._do(f"truncate {path}", lambda root: os.truncate(root / path, length))

    def save(self, path: str, content: bytes) -> None:
        """Save as editors do: a new file beside the old one, renamed over it."""

        def operation(root: Path) -> None:
            target = root / path
            new = target.parent / f".{hashlib.md5(os.fsencode(path)).hexdigest()[:8]}.new"
            new.write_bytes(content)
            os.replace(new, target)

        self._do(f"save {path}", operation)

    def rename(self, old: str, new: str) -> None:
        """Rename or move a file, link or folder."""
        self._do(f"rename {old} to {new}", lambda root: os.rename(root / old, root / new))

    def swap(self, one: str, other: str) -> None:
        """Exchange two names by way of a third."""

        def operation(root: Path) -> None:
            third = (root / one).with_name("between swapped names")
            os.rename(root / one, third)
            os.rename(root / other, root / one)
            os.rename(third, root / other)

        self._do(f"swap {one} and {other}", operation)

    def remove(self, path: str) -> None:
        """Remove a file or link, or a folder with all that is in it."""

        def operation(root: Path) -> None:
            target = root / path
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()

        self._do(f"remove {path}", operation)

    def make_folder(self, path: str) -> None:
        """Make one folder."""
        self._do(f"make folder {path}", lambda root: (root / path).mkdir())

    def make_tree(self, path: str, make: Callable[[Path], None]) -> None:
        """Make a new tree with one of this module's makers."""
        self._do(f"make tree {path}", lambda root: make(root / path))

    def copy(self, old: str, new: str) -> None:
        """Copy a file or folder as ``cp -a`` does, with all attributes."""

        def operation(root: Path) -> None:
            if (root / old).is_dir():
                shutil.copytree(root / old, root / new, symlinks=True)
            else:
                shutil.copy2(root / old, root / new, follow_symlinks=False)

        self._do(f"copy {old} to {new}", operation)

    def chmod(self, path: str, mode: int) -> None:
        """Change a mode."""
        self._do(f"chmod {mode:o} {path}", lambda root: (root / path).chmod(mode))

    def touch(self, path: str, when_ns: int) -> None:
        """Set only the times, of a link itself too."""
        self._do(f"touch {path}", lambda root: os.utime(root / path, ns=(when_ns, when_ns), follow_symlinks=False))

    def attribute(self, path: str, name: str, value: bytes | None) -> None:
        """Set a user attribute, or take it away (None)."""

        def operation(root: Path) -> None:
            if value is not None:
                set_attribute(root / path, name, value)
                return
            try:
                os.removexattr(root / path, name)
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                    raise

        self._do(f"attribute {name} of {path}", operation)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, in place of whatever file or link has the name."""

        def operation(root: Path) -> None:
            (root / path).unlink(missing_ok=True)
            (root / path).symlink_to(target)

        self._do(f"link {path}", operation)

    # -------------------------------------------------------- many at random

    def _listed(self, inside: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        pending = [os.fspath(self.model / inside)]
        cut = len(os.fspath(self.model)) + 1
        while pending:
            for entry in sorted(os.scandir(pending.pop()), key=lambda one: os.fsencode(one.name)):
                yield entry.path[cut:], entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)

    def at_random(self, rng: random.Random, inside: str, count: int) -> None:
        """Plan ``count`` operations of all kinds below the existing folder ``inside``, chosen by ``rng``."""
        for number in range(count):
            listed = list(self._listed(inside))
            files = [path for path, entry in listed if entry.is_file(follow_symlinks=False)]
            folders = [inside, *(path for path, entry in listed if entry.is_dir(follow_symlinks=False))]
            name = f"n{number} {rng.getrandbits(32):08x} {rng.choice(odd_names())[:40]}"
            new = os.path.join(rng.choice(folders), name)
            choice = rng.randrange(14)
            if choice < 3 or len(files) < 5:
                self.write(new, rng.randbytes(rng.choice((0, 10, 5000, 70_000))))
            elif choice == 3:
                self.append(rng.choice(files), b"appended %d\n" % number)
            elif choice == 4:
                self.save(rng.choice(files), rng.randbytes(2000))
            elif choice == 5:
                self.rename(rng.choice(files), new)
            elif choice == 6:
                self._move_folder(rng, folders[1:], new)
            elif choice == 7:
                self.swap(*rng.sample(files, 2))
            elif choice == 8:
                self.remove(rng.choice(files))
            elif choice == 9:
                self.make_folder(new)
            elif choice == 10:
                self.chmod(rng.choice(files), rng.choice((0o600, 0o640, 0o644, 0o755)))
            elif choice == 11:
                self.touch(rng.choice(files), rng.randrange(10**18, 17 * 10**17))
            elif choice == 12:
                self.attribute(rng.choice(files), "user.note", b"note %d" % number)
            else:
                self.link(new, os.path.basename(rng.choice(files)))

    def _move_folder(self, rng: random.Random, folders: list[str], new: str) -> None:
        movable = [one for one in folders if not (new + "/").startswith(one + "/")]
        if movable:
            self.rename(rng.choice(movable), new)
        else:
            self.make_folder(new)


def _keep_nothing(_: object) -> None:
    """Turn an expression into a statement."""


# ---------------------------------------------------------------- asking members


class Asked(Protocol):
    """A demo whose members can be asked for their counters."""

    def counters(self, name: str) -> dict[str, Any]:
        """What ``frs counters --json`` of that member answers."""


def set_counters(demo: Asked, member: str) -> dict[str, int]:
    """The FileReplicaSet counters of the one replica set of a running member."""
    (counters,) = demo.counters(member)["FileReplicaSet"].values()
    return dict(counters)


def run_frs(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command ``frs`` of the code under test to its end."""
    command = [sys.executable, "-m", "agent.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)


def connect_frsrpc(port: int, ntlm: dict[str, str]) -> DCERPC_v5:
    """A foreign client, bound to frsrpc at packet privacy with a demo's own credentials."""
    wire = DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]")
    wire.set_connect_timeout(60)
    wire.set_credentials(ntlm["user"], ntlm["password"], ntlm["domain"])
    dce = wire.get_dce_rpc()
    dce.set_auth_type(RPC_C_AUTHN_WINNT)
    dce.set_auth_level(RPC_C_AUTHN_LEVEL_PKT_PRIVACY)
    dce.connect()
    dce.bind(FRSRPC)
    return dce
