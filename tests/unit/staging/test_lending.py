"""Folders that their owner may not write to: entries come and go in them all the same, and their modes stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

NOBODY = 65534
REPOSITORY = Path(__file__).parents[3]
PRELUDE = f"""
import json, os, signal, stat, sys
from agent.engine import events as ev
from agent.files.facts import facts_of
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall, ResolvedStep
from agent.conflicts.kept import KeptStore
from agent.files.underway import UnderWay
from staging import fsops, lending
from staging.area import StagingArea
"".encode("utf-16-le")  # the interpreter's own files may be out of reach later
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
os.umask(0o022)
os.chdir(sys.argv[1])
BASE = os.getcwd()
GUID, CO = b"g" * 16, b"c" * 16
ENDS = ev.InstallStep
told = []
for name in ("root", "src", "staging"):
    os.makedirs(name, exist_ok=True)

def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)

def start():
    global area, files, kept
    area = StagingArea(BASE + "/staging", 1 << 30)
    kept = KeptStore(BASE + "/kept", 1 << 20, durable=False)
    files = FileOps(BASE + "/root", BASE, area, kept, durable=False, compressions=(),
                    lent=lambda key, lent: told.append((key[1], lent)))

def facts(path):
    return facts_of(fsops.fingerprint(path))

def install(step, path, old="", is_dir=False, staged=None):
    md5 = bytes(16)
    if staged is not None:
        md5 = area.stage(CO, BASE + "/src/" + staged, object_id=GUID).md5
    action = ev.Install(CO, GUID, is_dir, (step,), md5)
    (end,) = files.install_all([ResolvedInstall(action, (ResolvedStep(step, path, None, old, None),))])
    return end

def step(kind, name, expected=None, old=None, **more):
    return ev.Step(kind, b"p" * 16, name, expected, b"o" * 16 if old else b"", old or "", file_guid=GUID, **more)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder nobody may use, below others that let it through."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def as_nobody(place: Path, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(place)], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr


def test_files_come_change_and_go(place: Path) -> None:
    as_nobody(place, """
start()
os.mkdir("root/mod"); os.chmod("root/mod", 0o555)
os.utime("root/mod", ns=(1, 10**18))
open("src/f", "w").write("one")
end = install(step(ENDS.CONTENT, "f"), "mod/f", staged="f")
assert end.outcome is ev.Outcome.DONE, end
assert (mode("root/mod"), os.stat("root/mod").st_mtime_ns) == (0o555, 10**18)
assert told == [(os.stat("root/mod").st_ino, True), (os.stat("root/mod").st_ino, False)]
assert os.listdir("lent") == []
open("src/f", "w").write("another")
assert install(step(ENDS.CONTENT, "f", end.facts), "mod/f", staged="f").outcome is ev.Outcome.DONE
assert open("root/mod/f").read() == "another"
assert install(step(ENDS.DELETE, "f", facts("root/mod/f")), "mod/f").outcome is ev.Outcome.DONE
assert (os.listdir("root/mod"), mode("root/mod")) == ([], 0o555)
assert install(step(ENDS.DELETE, "mod", facts("root/mod")), "mod", is_dir=True).outcome is ev.Outcome.DONE
files.close()
""")  # fmt: skip


def test_a_read_only_folder_comes_moves_and_is_given_another_mode(place: Path) -> None:
    as_nobody(place, """
start()
for name in ("a", "b"):
    os.mkdir("root/" + name); os.chmod("root/" + name, 0o555)
os.mkdir("src/d"); os.chmod("src/d", 0o555)
end = install(step(ENDS.CONTENT, "d"), "a/d", is_dir=True, staged="d")
assert end.outcome is ev.Outcome.DONE, end
assert mode("root/a/d") == 0o555
assert end.facts == facts("root/a/d")
end = install(step(ENDS.RENAME, "e", end.facts, old="d"), "b/e", old="a/d", is_dir=True)
assert end.outcome is ev.Outcome.DONE, end
assert end.facts == facts("root/b/e")
assert [mode("root/" + name) for name in ("a", "b", "b/e")] == [0o555] * 3
os.chmod("src/d", 0o755); os.setxattr("src/d", "user.a", b"1")
end = install(step(ENDS.CONTENT, "e", end.facts), "b/e", is_dir=True, staged="d")
assert end.outcome is ev.Outcome.DONE, end
assert (mode("root/b/e"), mode("root/b"), os.getxattr("root/b/e", "user.a")) == (0o755, 0o555, b"1")
for value in (b"2", b"3"):  # made read-only, and changed while it is
    os.chmod("src/d", 0o755); os.setxattr("src/d", "user.a", value); os.chmod("src/d", 0o555)
    end = install(step(ENDS.CONTENT, "e", end.facts), "b/e", is_dir=True, staged="d")
    assert end.outcome is ev.Outcome.DONE, end
assert (mode("root/b/e"), os.getxattr("root/b/e", "user.a"), os.listdir("lent")) == (0o555, b"3", [])
files.close()
""")  # fmt: skip


def test_what_is_in_the_way_is_kept_and_comes_back(place: Path) -> None:
    as_nobody(place, """
start()
os.mkdir("root/a"); os.mkdir("root/a/x"); open("root/a/x/f", "w").write("one")
os.chmod("root/a/x", 0o555); os.chmod("root/a", 0o555)
open("src/f", "w").write("two")
assert install(step(ENDS.CONTENT, "x", aside=True), "a/x", staged="f").outcome is ev.Outcome.NAME_TAKEN
assert (os.listdir("root/a"), mode("root/a")) == ([], 0o555)
(item,) = kept.list()
assert mode(item.place) == 0o555
assert kept.restore(item.id, BASE + "/root") == "a/x"
assert open("root/a/x/f").read() == "one"
assert (mode("root/a"), mode("root/a/x")) == (0o555, 0o555)
files.close()
""")  # fmt: skip


KILLED = """
os.mkdir("root/mod"); os.chmod("root/mod", 0o555)
open("src/f", "w").write("one")
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if os.fork() == 0:
    from staging import install as module, smallfiles
    module.move_to_free_name = die
    if smallfiles.native is not None:
        smallfiles.native.watch(lambda call: call == "renameat2" and die())
    start()
    install(step(ENDS.CONTENT, "f"), "mod/f", staged="f")
os.wait()
assert mode("root/mod") == 0o755
"""


def test_after_kill_9_the_next_start_gives_the_mode_back(place: Path) -> None:
    as_nobody(place, KILLED + """
start()
assert (mode("root/mod"), os.listdir("lent")) == (0o555, [])
""")  # fmt: skip


@pytest.mark.parametrize(
    "change", ['os.chmod("root/mod", 0o700)', 'os.rename("root/mod", "root/new"); os.mkdir("root/mod")']
)
def test_but_not_to_what_somebody_changed_since(place: Path, change: str) -> None:
    as_nobody(place, KILLED + change + """
before = mode("root/mod")
start()
assert (mode("root/mod"), os.listdir("lent")) == (before, [])
""")  # fmt: skip


def test_it_is_not_news_while_it_lasts(place: Path) -> None:
    as_nobody(place, """
under, key = UnderWay(), (1, 2, 3)
assert not under.concerns(b"f" * 16, key, (b"p" * 16, "n"))
under.lent(key, True)
under.look(set())
assert under.concerns(b"f" * 16, key, (b"p" * 16, "n"))
under.lent(key, False)
assert under.concerns(b"f" * 16, key, (b"p" * 16, "n")), "somebody may have looked before"
under.look(set())
assert not under.concerns(b"f" * 16, key, (b"p" * 16, "n"))
""")  # fmt: skip
