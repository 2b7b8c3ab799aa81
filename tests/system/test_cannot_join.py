"""Members that cannot join: what `frs wait`, `frs status` and the logs say of it."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from agent.cli.demo_layout import DemoOptions, prepare
from agent.reporting.exit_codes import ExitCode
from agent.wire.guid import guid_text
from config.topologyfile import load_topology
from tests.ports import port_base
from tests.system.demo import Demo, ask
from tests.system.keys import OtherKey


def refused_demo(tmp_path: Path) -> tuple[Demo, OtherKey]:
    """A demo of two members, not started, and another key for b, of which a knows nothing."""
    folder = tmp_path / "demo"
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    demo = Demo(folder, aging=0.3, port_base=None, dashboard_port=None, wait_ready=False)
    return demo, OtherKey(folder, "b")


def wait(demo: Demo, member: str, timeout: str) -> subprocess.CompletedProcess[str]:
    return demo.frs("wait", "--config", os.fspath(demo.members[member].config), "--timeout", timeout)


def refused(demo: Demo, member: str) -> int:
    """How many of this member's attempts to authenticate with its partner were refused."""
    counters = ask(demo.members[member].state, "counters")
    if counters is None:
        return 0
    return min(one["Authentications in Error"] for one in counters["FileReplicaConn"].values())


def test_a_wrong_key_is_pending_and_says_what_to_do(tmp_path: Path) -> None:
    demo, key = refused_demo(tmp_path)
    key.use()
    with demo:
        for member in "ab":
            demo.until(f"{member} was refused again", lambda member=member: refused(demo, member) >= 2)
        for member, other in ("ab", "ba"):
            topology = key.topology if member == "b" else demo.directory / "topology.toml"
            why = f"compare the key of {other} and that of this member in {topology}"
            (entry,) = demo.status(member)["sets"]
            assert {one["name"] for one in entry["connections"]} == {"a->b", "b->a"}
            assert all(why in one["last_error"] for one in entry["connections"]), entry
            assert_does_not_replicate(demo, member, other)
            done = wait(demo, member, "0")
            assert done.returncode == ExitCode.NEGATIVE
            lines = [line for line in done.stdout.splitlines() if "was never joined" in line]
            assert sorted(line.split()[:2] for line in lines) == [["demo:", "a->b"], ["demo:", "b->a"]]
            assert all(why in line for line in lines), lines
            warnings = [line for line in demo.members[member].log.read_text().splitlines() if " WARNING " in line]
            assert sum(why in line for line in warnings) == 1, warnings
            told = [line for line in warnings if "could not authenticate" in line]
            assert told
            says = "its key" if member == "a" else "it calls a member with another key"
            assert all("a client at 127.0.0.1:" in line and says in line for line in told), told
        assert demo.stop() == ExitCode.OK

        key.give_up()
        demo.start()
        demo.until("the demo is ready", demo.is_ready)
        for member in "ab":
            assert wait(demo, member, "600").returncode == ExitCode.OK
            assert demo.frs("status", "--config", os.fspath(demo.members[member].config)).returncode == ExitCode.OK
            assert health(demo, member) == (200, [])


def health(demo: Demo, member: str) -> tuple[int, list[str]]:
    """What /healthz answers: the status, and why."""
    try:
        with urllib.request.urlopen(f"{demo.members[member].dashboard_url}healthz", timeout=60) as answer:
            return answer.status, json.load(answer)["why"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["why"]


def assert_does_not_replicate(demo: Demo, member: str, partner: str) -> None:
    """The exit code of `frs status`, its lines, the dashboard and the metrics say so, and who is meant."""
    why = "set demo: 13508 it has joined none of its 2 connections"
    done = demo.frs("status", "--config", os.fspath(demo.members[member].config))
    assert done.returncode == ExitCode.NEGATIVE
    assert f"does not replicate: {why}" in done.stdout.splitlines()
    assert health(demo, member) == (503, [why])
    problems = demo.status(member)["problems"]
    assert [one["stops"] for one in problems] == [True, False, False]
    assert [one["partner"] for one in problems] == [None, partner, partner]


def test_reading_counters_makes_no_sample(tmp_path: Path) -> None:
    """All samples that there are were taken when the agent started."""
    prepare_sampled_once(tmp_path / "demo")
    with Demo(tmp_path / "demo", aging=0.3) as demo:
        demo.wait_converged()
        folder = demo.members["a"].state / "samples"
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert sorted(before) == ["00000001-000001.jsonl", "start"]
        for _ in range(3):
            demo.counters("a")
            with urllib.request.urlopen(f"{demo.members['a'].dashboard_url}metrics", timeout=60) as answer:
                assert answer.status == 200
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def prepare_sampled_once(folder: Path) -> None:
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    for member in "ab":
        config = folder / member / "agent.toml"
        config.write_text(f"{config.read_text()}\n[counters]\nsample_interval = 86400\n")


def test_another_topology_is_pending_and_says_what_to_do(tmp_path: Path) -> None:
    """The connection a->b has another GUID in the file that b has: as after `frs init` on both, instead of a copy."""
    with Demo(tmp_path / "demo", aging=0.3) as demo:
        demo.wait_converged()
        demo.kill9("b")
        topology, other = demo.directory / "topology.toml", demo.directory / "b" / "topology.toml"
        guid = next(one.guid for one in load_topology(topology)[0].connections if one.name == "a->b")
        other.write_text(topology.read_text().replace(guid_text(guid), guid_text(bytes(15) + b"x")))
        config = demo.members["b"].config
        config.write_text(config.read_text().replace("../topology.toml", "topology.toml"))
        demo.restart("b")
        for member, partner, file in (("a", "b", topology), ("b", "a", other)):
            why = f"compare {file} with the topology file of {partner}"
            said = f"{partner} has no connection a->b as it is here (error 0x490); most likely the topologies differ"
            told = lambda member=member, said=said: said in wait(demo, member, "0").stdout  # noqa: E731
            demo.until(f"{member} was refused", told)
            done = wait(demo, member, "0")
            assert done.returncode == ExitCode.NEGATIVE
            assert why in done.stdout
            log = (
                demo.members[member]
                .log.with_name("agent.log" if member == "a" else "by-hand.log")
                .read_text()
                .splitlines()
            )
            assert [line for line in log if " WARNING " in line and why in line]
            refusing = [line for line in log if " WARNING " in line and "identity that is not the sender's" in line]
            assert refusing
            assert all("127.0.0.1" in line and f"compare {file}" in line for line in refusing)


def test_a_partner_that_was_joined_once_may_be_down(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", aging=0.3) as demo:
        (demo.members["a"].root / "file").write_bytes(b"of a")
        demo.wait_converged()
        demo.kill9("b")

        def alone() -> bool:
            (entry,) = demo.status("a")["sets"]
            return all(one["state"] not in ("joined", "vvjoin") for one in entry["connections"])

        demo.until("a knows that b is down", alone)
        assert wait(demo, "a", "0").stdout == ""
        demo.kill9("a")
        demo.restart("a")
        done = wait(demo, "a", "600")
        assert (done.returncode, done.stdout) == (ExitCode.OK, "")
        assert alone()


def test_a_key_that_is_wrong_since_the_last_start_is_pending(tmp_path: Path) -> None:
    """The connections were joined once; but a partner that refuses is not one that is down for a while."""
    demo, key = refused_demo(tmp_path)
    with demo:
        demo.until("the demo is ready", demo.is_ready)
        demo.wait_converged()
        key.use()
        demo.kill9("b")
        demo.restart("b")
        for member in "ab":
            demo.until(f"{member} was refused", lambda member=member: refused(demo, member) >= 1)
            done = wait(demo, member, "0")
            assert done.returncode == ExitCode.NEGATIVE
            assert "compare the key" in done.stdout
