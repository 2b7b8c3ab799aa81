"""`frs demo --directory`: members that take their topology from a directory server, changed there while they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.demo import Demo
from tests.system.test_directory import frs

pytestmark = pytest.mark.slow


def test_a_demo_whose_topology_is_in_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    server = folder / "directory" / "directory.toml"
    with Demo(folder, aging=0.3, options=("--directory",)) as demo:
        assert f"directory: frs directory status --config {server}" in demo.output()
        assert json.loads((folder / "demo.json").read_text())["server"] == str(server)
        status = ("directory", "status", "--config", str(server))
        demo.until("both wait", lambda: "2 hosts wait here for changes" in frs(*status))
        cxtion = next(one for one in demo.status("a")["sets"][0]["connections"] if one["direction"] == "outbound")
        assert cxtion
        frs("topology", "set", "--connection", "a->b", "priority=3", "--config", str(server))
        log = folder / "b" / "state" / "agent.log"
        demo.until("the member takes it over", lambda: "priority 7 becomes 3" in log.read_text())
        (folder / "a" / "root" / "one").write_text("1")
        demo.wait_converged()
    # Started again in the same folder, it goes on from there.
    with Demo(folder) as demo:
        assert "directory: frs directory status" in demo.output()
        assert (folder / "b" / "root" / "one").read_text() == "1"
        assert "priority = 3" in frs("directory", "export", "--config", str(server))
    said = frs("demo", "--dir", str(folder), "--port-base", "1", code=2)
    assert "leave --port-base out" in said
    assert "without a directory" not in said
