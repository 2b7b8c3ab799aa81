"""Files that look large and are not, files that are, and files of very many names: nothing else waits for them."""

from __future__ import annotations

import os
from pathlib import Path

from tests.system.demo import Demo

TIB = 1 << 40


def hole(path: Path, size: int, places: int) -> None:
    """A file of holes with a few bytes in so many places."""
    blocks = size // 0x10000
    with open(path, "wb") as f:
        f.truncate(size)
        for number in range(places):
            f.seek(number * blocks // places * 0x10000)
            f.write(b"x" * 10)


def test_files_of_terabytes_of_holes_keep_nothing_waiting(tmp_path: Path) -> None:
    """Wherever their few bytes are, and whatever is there under the same names on the other member."""
    with Demo(tmp_path / "demo", members=2, aging=0.2) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        for number in range(9):
            hole(b / f"h{number}", 8 * TIB, 16)
            (a / f"h{number}").write_text("small")
        (a / "small").write_text("here")
        demo.wait_converged()
        assert (b / "small").read_text() == "here"
        hole(a / "large", 8 * TIB, 64)
        demo.wait_converged()
        found = os.stat(b / "large")
        assert found.st_size == 8 * TIB
        assert found.st_blocks * 512 <= 65 * 0x10000


def test_a_write_to_a_file_of_hundreds_of_names_reaches_them_all(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.2) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "f").write_text("one")
        for number in range(200):
            os.link(a / "f", a / f"l{number}")
        demo.wait_converged()
        with open(a / "l7", "a") as f:
            f.write(" and two")
        demo.wait_converged()
        found = {path.read_text() for path in b.iterdir()}
        assert found == {"one and two"}
        assert len(list(b.iterdir())) == 201
        (a / "l8").unlink()
        (b / "l9").write_text("a file of its own there")
        demo.wait_converged()
        assert not (b / "l8").exists()
        assert (a / "l9").read_text() == "a file of its own there"
        assert (a / "f").stat().st_nlink == 199
