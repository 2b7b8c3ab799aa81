"""An agent that is not root: what it cannot apply it keeps and sends on."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

NOBODY = 65534
PRELUDE = f"""
import os, stat, sys
from staging import attributes, sd
from staging.compression import COMPRESSION_LZNT1
from staging.errors import AccessDenied
from staging.generate import generate
from staging.lending import Folder, Lending
from staging.restore import apply_folder, restore
OBJECT_ID = bytes(range(16))
"".encode("utf-16-le")  # the interpreter's own files may be out of reach later
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
os.umask(0o022)
os.chdir(sys.argv[1])
"""


@pytest.fixture
def folder():
    """A folder nobody may use, below others that let it through."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def as_nobody(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(folder)], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def stage(folder: Path, name: str) -> bytes:
    from staging.generate import generate

    staged = generate(str(folder / name), str(folder / (name + ".stage")), object_id=bytes(range(16)))
    os.chown(folder / (name + ".stage"), NOBODY, NOBODY)
    return staged.md5


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o444, 0o4755, 0o2711, 0o755])
def test_files_of_others(folder, mode):
    (folder / "f").write_bytes(b"data")
    os.chown(folder / "f", 1234, 5678)
    (folder / "f").chmod(mode)
    md5 = stage(folder, "f")
    out = as_nobody(folder, f"""
r = restore("f.stage", "t")
st = os.stat("t")
assert st.st_uid == {NOBODY}
assert not st.st_mode & 0o6000, "never the set-id bits of somebody else"
assert r.exact, r
assert generate("t", None, object_id=OBJECT_ID).md5 == r.md5
print(r.md5.hex())
""")  # fmt: skip
    assert out.strip() == md5.hex()
    # chmod here takes from its owner there neither the file nor set-id bits, which only he could see
    as_nobody(folder, """
os.chmod("t", 0o640)
generate("t", "t.stage", object_id=OBJECT_ID)
""")  # fmt: skip
    from staging.restore import restore

    restore(str(folder / "t.stage"), str(folder / "back"))
    st = os.stat(folder / "back")
    assert (st.st_uid, st.st_gid, st.st_mode & 0o7777) == (1234, 5678, 0o640 | mode & 0o6000)


def test_a_forged_descriptor_does_not_travel(folder):
    """Who may write to a file may set its user attributes, but must not become root elsewhere by that."""
    from staging import attributes, sd
    from staging.generate import generate

    path = folder / "f"
    path.write_bytes(b"#!/bin/sh\n")
    honest = generate(str(path), None, object_id=bytes(16)).md5
    os.chown(path, NOBODY, NOBODY)
    mine = generate(str(path), None, object_id=bytes(16)).md5
    as_nobody(folder, """
st = os.stat("f")
forged = sd.build(sd.Posix(stat.S_IFREG | 0o4755, 0, 0))
os.setxattr("f", "user.frs.security_descriptor", attributes.keep(forged, st.st_mode, st.st_uid, st.st_gid, None, None))
""")  # fmt: skip
    assert generate(str(path), None, object_id=bytes(16)).md5 == mine
    # nor when the file is the agent's own but others may write to it
    os.chown(path, 0, 0)
    path.chmod(0o666)
    open_to_all = generate(str(path), None, object_id=bytes(16)).md5
    forged = sd.build(sd.Posix(0o104755, 0, 0))
    os.setxattr(path, attributes.DESCRIPTOR_XATTR, attributes.keep(forged, 0o100666, 0, 0, None, None))
    assert generate(str(path), None, object_id=bytes(16)).md5 == open_to_all != honest


def test_a_descriptor_that_a_user_put_on_his_file_is_not_believed_when_it_is_roots(folder):
    """Root takes a user's program over, and it would be the user's still on all other members."""
    from staging import attributes, sd
    from staging.generate import generate

    path = folder / "f"
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o755)
    honest = generate(str(path), None, object_id=bytes(16)).md5
    os.chown(path, NOBODY, NOBODY)
    forged = sd.build(sd.Posix(stat.S_IFREG | 0o755, NOBODY, NOBODY))
    value = attributes.keep(forged, stat.S_IFREG | 0o755, 0, 0, None, None)
    as_nobody(folder, f"os.setxattr('f', 'user.frs.security_descriptor', {value!r})")
    os.chown(path, 0, 0)
    assert generate(str(path), None, object_id=bytes(16)).md5 == honest


def test_files_that_cannot_keep_it_say_so(folder):
    (folder / "f").write_bytes(b"data")
    os.chown(folder / "f", 1234, 5678)
    (folder / "f").chmod(0o666)
    os.symlink("x", folder / "l")
    stage(folder, "f")
    stage(folder, "l")
    as_nobody(folder, """
for name in ("f", "l"):
    r = restore(name + ".stage", name + ".copy")
    assert not r.exact
    assert r.unstored == ("security descriptor",), r
""")  # fmt: skip


def test_folders(folder):
    (folder / "d").mkdir(mode=0o555)
    os.setxattr(folder / "d", "user.a", b"x")
    stage(folder, "d")
    as_nobody(folder, """
r = restore("d.stage", "t")
assert r.exact
assert stat.S_IMODE(os.stat("t").st_mode) == 0o555
fd = os.open("t", os.O_RDONLY)
with Lending().rewriting(Folder(fd, ("t",))):
    r = apply_folder("d.stage", fd)
assert r.exact
assert stat.S_IMODE(os.stat("t").st_mode) == 0o555
assert generate("t", None, object_id=OBJECT_ID).md5 == r.md5
os.rmdir("t")
""")  # fmt: skip


def test_files_nobody_may_read(folder):
    (folder / "secret").write_bytes(b"x")
    (folder / "secret").chmod(0o600)
    (folder / "readable").write_bytes(b"x")
    as_nobody(folder, """
try:
    generate("secret", None, object_id=OBJECT_ID)
except AccessDenied:
    pass
else:
    raise SystemExit("read it")
generate("readable", None, object_id=OBJECT_ID)  # O_NOATIME is not permitted on it
""")  # fmt: skip
