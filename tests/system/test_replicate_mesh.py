"""More than two members: a change is installed once at each, arrives again, is dampened, and is counted so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.corpora import differences, many_files, set_counters, snapshot
from tests.system.demo import Demo


def check_all(demo: Demo, model: Path) -> None:
    """Every member holds exactly the model."""
    demo.wait_converged()
    want = snapshot(model, times=True)
    for name, member in demo.members.items():
        assert differences(want, snapshot(member.root, times=True)) == [], f"member {name}"


@pytest.mark.slow
def test_a_full_mesh_installs_once_and_dampens_the_rest(tmp_path: Path) -> None:
    """Ten files at a: ten installs at b and ten at c, though each hears of each file twice."""
    count = 10
    with Demo(tmp_path / "demo", members=3, topology="full-mesh", aging=0.3) as demo:
        before = {name: set_counters(demo, name) for name in demo.members}
        model = tmp_path / "model"
        model.mkdir()
        for number in range(count):
            name = f"file {number}"
            (demo.members["a"].root / name).write_bytes(b"content %d\n" % number)
            info = (demo.members["a"].root / name).stat()
            (model / name).write_bytes(b"content %d\n" % number)
            os.utime(model / name, ns=(info.st_atime_ns, info.st_mtime_ns))
        check_all(demo, model)
        after = {name: set_counters(demo, name) for name in demo.members}

    def gained(member: str, counter: str) -> int:
        return after[member][counter] - before[member][counter]

    assert gained("a", "Local Change Orders Issued") == count
    assert gained("a", "Files Installed") == 0
    for member in ("b", "c"):
        assert gained(member, "Local Change Orders Issued") == 0
        assert gained(member, "Files Installed") == count
        assert gained(member, "Staging Files Fetched") == count
        heard = gained(member, "Remote Change Orders Received")
        assert heard == count + gained(member, "Inbound Change Orders Dampened")
    # b and c are partners: of the two each file reaches one from the other too, or that other dampens it.
    further = sum(gained(member, f"{way} Change Orders Dampened") for member in "bc" for way in ("Inbound", "Outbound"))
    assert further >= count, "b and c never told each other, or did not count that it was dampened"


@pytest.mark.slow
def test_in_a_ring_of_four_a_change_is_forwarded_and_fetched_once(tmp_path: Path) -> None:
    """a's partners are b and d; c is told by both and fetches from one of them."""
    with Demo(tmp_path / "demo", members=4, topology="ring", aging=0.3) as demo:
        before = {name: set_counters(demo, name) for name in demo.members}
        many_files(tmp_path / "model", 1, size=20_000, folders=1)
        target = demo.members["a"].root / "folder 00"
        target.mkdir()
        source = tmp_path / "model" / "folder 00" / "file 00000"
        (target / source.name).write_bytes(source.read_bytes())
        info = (target / source.name).stat()
        os.utime(source, ns=(info.st_atime_ns, info.st_mtime_ns))
        check_all(demo, tmp_path / "model")
        after = {name: set_counters(demo, name) for name in demo.members}
        connections = demo.counters("c")["FileReplicaConn"]

    def gained(member: str, counter: str) -> int:
        return after[member][counter] - before[member][counter]

    inbound = {name.rpartition("/")[2]: one for name, one in connections.items()}
    assert "a->c" not in inbound, "a ring of four has no connection from a to c"
    assert gained("c", "Staging Files Fetched") == 2, "a folder and a file, each fetched once"
    assert gained("c", "Files Installed") == 2
    heard = gained("c", "Remote Change Orders Received")
    assert heard == 2 + gained("c", "Inbound Change Orders Dampened")
    by_partner = [inbound[name]["Remote Change Orders Received"] for name in ("b->c", "d->c")]
    assert sum(by_partner) == heard
    assert gained("b", "Remote Change Orders Sent") + gained("d", "Remote Change Orders Sent") >= 2
    assert gained("a", "Files Installed") == 0


@pytest.mark.slow
def test_a_ring_of_four_converges_when_all_write(tmp_path: Path) -> None:
    """Each member of a ring writes a tree of its own at the same time."""
    with Demo(tmp_path / "demo", members=4, topology="ring", aging=0.3) as demo:
        model = tmp_path / "model"
        for name, member in demo.members.items():
            many_files(member.root / f"from {name}", 40, size=3000 + ord(name), folders=3)
        for name, member in demo.members.items():
            want = snapshot(member.root / f"from {name}")
            many_files(model / f"from {name}", 40, size=3000 + ord(name), folders=3)
            assert differences(snapshot(model / f"from {name}"), want) == []
        demo.wait_converged()
        for name, member in demo.members.items():
            assert differences(snapshot(model), snapshot(member.root)) == [], f"member {name}"


@pytest.mark.slow
def test_members_on_the_spokes_exchange_through_the_hub(tmp_path: Path) -> None:
    """a is the hub: what c writes reaches b and d, and a rename at d reaches c."""
    with Demo(tmp_path / "demo", members=4, topology="hub-spoke", aging=0.3) as demo:
        model = tmp_path / "model"
        many_files(model / "tree", 30, folders=3)
        many_files(demo.members["c"].root / "tree", 30, folders=3)
        demo.wait_converged()
        for root in (model, demo.members["d"].root):
            (root / "tree" / "folder 01").rename(root / "tree" / "renamed at d")
            (root / "tree" / "folder 02" / "file 00002").unlink()
        demo.wait_converged()
        for name, member in demo.members.items():
            assert differences(snapshot(model), snapshot(member.root)) == [], f"member {name}"
