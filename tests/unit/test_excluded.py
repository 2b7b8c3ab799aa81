"""What the filters of a set exclude (2.3.1.2)."""

from __future__ import annotations

import pytest

from agent.conflicts.keptcontrol import KeptOf
from agent.tree.excluded import Excluded


@pytest.mark.parametrize(
    ("path", "file", "folder"),
    [
        ("a", False, False),
        ("x.tmp", True, False),
        ("X.TMP", True, False),
        (".tmp", True, False),
        ("x.tmpl", False, False),
        ("d/~x", True, False),
        ("~d/x", False, False),
        ("~d/~x", True, False),
        ("Build", False, True),
        ("build/x", True, True),
        ("d/build/e/x", True, True),
        ("both", True, True),
        ("log1", True, False),
        ("log", False, False),
        ("log\N{LATIN SMALL LETTER SHARP S}", True, False),  # one character, in any case
        ("log12", False, False),
        ("[ab]", True, False),
        ("a\nb.tmp", True, False),
        ("\udcff.tmp", True, False),
        (".frs-preinstall/x", True, True),
    ],
)
def test_by_name_and_kind(path: str, file: bool, folder: bool) -> None:
    excluded = Excluded(["*.tmp", "~*", "both", "log?", "[AB]"], ["build", "both"])
    assert excluded(path, False) is file
    assert excluded(path, True) is folder
    assert excluded(path, None) is (file and folder)


@pytest.mark.parametrize("folder", [True, False, None])
def test_no_filters(folder: bool | None) -> None:
    excluded = Excluded([], [""])
    assert not excluded("x.tmp", folder)
    assert not excluded("d/x", folder)


def test_what_is_restored_stays_here_by_its_kind(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "a.bak").mkdir()
    (root / "b.bak").touch()
    (root / "build").touch()
    one = KeptOf("docs", str(root), None, excluded=Excluded(["*.bak"], ["build"]))  # type: ignore[arg-type]
    assert [one.stays_here(name) for name in ("a.bak", "b.bak", "build", "gone.bak")] == [False, True, False, False]


def test_filters_that_change_hold_from_then_on() -> None:
    excluded = Excluded(["*.tmp"], [])
    excluded.change(["*.old"], ["build"])
    assert [excluded(path, False) for path in ("x.tmp", "x.old", "build/x")] == [False, True, True]
