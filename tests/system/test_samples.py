"""Samples of members that are started again: numbered starts, the journal of the one before as Parquet."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from agent.counters import parquet
from agent.wire.guid import guid_text
from config.topologyfile import load_topology
from tests.system.demo import Demo


@pytest.mark.slow
def test_what_a_killed_member_sampled_is_archived_by_the_next_start(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        for number in range(3):
            (demo.members["a"].root / f"file {number}").write_bytes(b"content of file %d" % number)
        demo.wait_converged()
        folder = demo.members["b"].state / "samples"
        journal = folder / "00000001-000001.jsonl"
        demo.until("all files are in a sample", lambda: b'"Files Installed":3' in journal.read_bytes())
        demo.kill9("b")
        place = tmp_path / "for all"
        with demo.members["b"].config.open("a") as config:
            config.write(f'\n[counters]\nsamples_store = "file://{quote(str(place))}"\n')
        demo.restart("b")
        demo.until("the journal of the first start is archived", lambda: not journal.exists())
        [path] = folder.glob("date=*/*")
        assert path.name == "00000001-000001.parquet"
        assert [one.name for one in folder.glob("*.jsonl")] == ["00000002-000001.jsonl"]
        rows = parquet.read(path).to_pylist()
        (topology,) = load_topology(demo.directory / "topology.toml")
        assert {row["set_guid"] for row in rows} == {guid_text(topology.guid)}
        assert {row["member_guid"] for row in rows} == {guid_text(topology.members["b"].guid)}
        guids = {connection.key: guid_text(connection.guid) for connection in topology.connections}
        assert {row["connection"]: row["connection_guid"] for row in rows if row["connection"]} == guids
        installed = [row["value"] for row in rows if row["counter"] == "Files Installed"]
        assert (installed[0], installed[-1]) == (0, 3)
        assert {row["start"] for row in rows} == {1}
        demo.until("it is copied", lambda: bool(demo.status("b")["samples_store"]["copied"]))
        [copied] = [one for one in place.rglob("*") if one.is_file()]
        assert copied.relative_to(place).parts[:3] == ("frs", "b", path.parent.name)
        assert copied.read_bytes() == path.read_bytes()
        assert demo.status("b")["samples_store"] == {
            "place": f"file://{quote(str(place))}", "copied": 1, "problem": None, "since": None,
        }  # fmt: skip
