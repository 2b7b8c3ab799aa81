"""Two members with filters: which files and folders the other one gets (2.3.1.2)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.localchanges.member import Member, entries, pair, together
from tests.unit.config.member_files import TOPOLOGY

FILTERS = 'file_filter = ["*.tmp", "*.bak", "~*"]\ndirectory_filter = ["build"]\n'


async def _after(one: Member, other: Member, edit: Callable[[], object]) -> set[str]:
    """What the other member has after an edit."""
    edit()
    await together(one, other)
    return set(entries(other.root))


async def test_filters_are_for_what_they_are_named_after(tmp_path: Path) -> None:
    topology = TOPOLOGY.replace('primary = "a"\n', f'primary = "a"\n{FILTERS}')
    async with pair(tmp_path, aging_s=0.05, topology=topology) as (one, other):
        root = Path(one.root)

        def fill() -> None:
            for folder in ("~home", "etc.bak", "build", "src/build"):
                (root / folder).mkdir(parents=True)
                (root / folder / "file").write_text(folder)
            for file in ("~file", "src/x.bak", "etc.bak/x.tmp"):
                (root / file).write_text(file)
            (root / "etc.bak" / "build").write_text("a file")

        files = {"~home", "~home/file", "etc.bak", "etc.bak/file", "etc.bak/build", "src"}
        assert await _after(one, other, fill) == files
        assert await _after(one, other, lambda: (root / "src/build").rename(root / "src/new")) == files | {
            "src/new",
            "src/new/file",
        }

        def exchange() -> None:
            """The folders become files that are excluded, the file a folder that is."""
            shutil.rmtree(root / "~home")
            (root / "~home").write_text("a file")
            (root / "etc.bak" / "build").unlink()
            (root / "etc.bak" / "build").mkdir()
            (root / "src" / "new").rename(root / "src" / "build")

        assert await _after(one, other, exchange) == {"etc.bak", "etc.bak/file", "src"}
        assert await _after(one, other, lambda: shutil.rmtree(root / "etc.bak")) == {"src"}
        assert (root / "~home").read_text() == "a file"
