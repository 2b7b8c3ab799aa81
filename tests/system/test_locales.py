"""Members in different locales: whatever the bytes of a name, it is the same name on all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.locales import locale_environment
from tests.system.demo import Demo, compare_trees

NAMES = [
    b"ascii",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode(),
    b"caf\xe9",  # the same in ISO-8859-1
    b"\x80\xff\xfe",
    "\N{EURO SIGN} \N{GRINNING FACE}".encode(),
    b"two\nlines",
]


def _set(monkeypatch: pytest.MonkeyPatch, kind: str, folder: Path) -> None:
    """What is started from now on has this locale."""
    wanted = locale_environment(kind, folder)
    for name in os.environ.keys() - wanted.keys():
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


def _write(root: Path, by: bytes) -> None:
    top = os.fsencode(root)
    for name in NAMES:
        folder = os.path.join(top, by + b"-" + name)
        os.mkdir(folder)
        with open(os.path.join(folder, name), "wb") as stream:
            stream.write(by + name)
        os.symlink(name, os.path.join(folder, b"link-" + name))


@pytest.mark.parametrize("kind", ["C", "ISO-8859-1"])
def test_members_in_other_locales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = tmp_path / "locales"
    folder.mkdir()
    with monkeypatch.context() as patch:
        _set(patch, kind, folder)
        with Demo(tmp_path / "demo", members=2, aging=0.2) as demo:
            one, other = demo.members.values()
            demo.kill9(other.name)
            with monkeypatch.context() as again:
                _set(again, "UTF-8", folder)
                demo.restart(other.name)
            _write(one.root, b"one")
            _write(other.root, b"other")
            demo.wait_converged()
            assert compare_trees(one.root, other.root) == []
            expected = {by + b"-" + name for by in (b"one", b"other") for name in NAMES}
            assert expected <= set(os.listdir(os.fsencode(one.root)))
            for member in demo.members:
                (entry,) = demo.status(member)["sets"]
                assert (entry["state"], entry["last_error"]) == ("online", None)
            logs = one.log.read_bytes() + other.log.with_name("by-hand.log").read_bytes()
            assert b"Error" not in logs, logs.decode("latin-1")
