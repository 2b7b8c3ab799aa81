"""Two members set up as README says, each with files of its own, and nothing but topology.toml copied between them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.system.hosts import Host

pytestmark = pytest.mark.slow


def test_two_hosts_that_know_each_other_by_their_keys(tmp_path: Path) -> None:
    """Until the topology with both keys is back on the first, nothing passes between the two, and it says why."""
    first, second = Host(tmp_path / "files1"), Host(tmp_path / "files2")
    (first.root / "seed").write_text("of files1")
    mine, other = free_ports()
    address = ("--address", f"127.0.0.1:{mine}", "--peer", f"files2=127.0.0.1:{other}")
    first.init("--member", "files1", "--set", "docs", "--listen", f"127.0.0.1:{mine}", *address)
    copied = tmp_path / "topology.toml"
    shutil.copy(first.topology, copied)
    second.init("--member", "files2", "--listen", f"127.0.0.1:{other}", "--topology", str(copied))
    with contextlib.ExitStack() as stack:
        for host in (first, second):
            stack.callback(host.stop)
            host.start()
        first.until("it says so", lambda: "nothing is exchanged with files2: it has no key in" in first.log())
        second.until("it is refused", lambda: "refused the authentication" in second.log())
        assert list(second.root.iterdir()) == []
        shutil.copy(second.topology, first.topology)
        first.start()
        second.until("the seed is here", lambda: (second.root / "seed").exists())
        (second.root / "back").write_text("of files2")
        first.until("what the second wrote is here", lambda: (first.root / "back").exists())
    assert (second.root / "seed").read_text() == "of files1"
    assert first.key.read_text() != second.key.read_text()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("secret")]
