"""A demo: its layout, its end, its going on, and what it does about members that die."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from config.load import load_agent_config
from tests.system.demo import PATIENCE, Demo, Member, ask, environment, spawn


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "demo"


def guids(demo: Demo) -> object:
    return demo.description["set_guid"], [(one["name"], one["guid"]) for one in demo.description["members"]]


def await_end(descriptor: int) -> None:
    assert select.select([descriptor], [], [], PATIENCE)[0], "a process does not end"
    os.close(descriptor)


def test_layout_description_and_clean_end(directory: Path) -> None:
    demo = Demo(directory, members=3, topology="ring", aging=0.2).start()
    assert stat.S_IMODE((directory / "demo.json").stat().st_mode) == 0o600
    assert demo.description["topology"] == "ring"
    assert demo.description["topology_file"] == str(directory / "topology.toml")
    assert demo.description["primary"] == "a"
    assert demo.description["ntlm"] is None
    assert not (directory / "secret.toml").exists()
    assert list(demo.members) == ["a", "b", "c"]
    assert len({one.rpc_port for one in demo.members.values()}) == 3
    descriptors = []
    for name, member in demo.members.items():
        assert member.root == directory / name / "root"
        assert member.root.is_dir()
        assert member.config == directory / name / "agent.toml"
        assert member.state == directory / name / "state"
        assert member.pid_file == directory / name / "agent.pid"
        status = demo.status(name)
        assert status["member"] == name
        assert status["pid"] == demo.pid(name)
        assert {one["state"] for one in status["sets"][0]["connections"]} == {"joined"}
        assert str(member.root) in demo.output()
        assert member.dashboard_url in demo.output()
        with urllib.request.urlopen(member.dashboard_url, timeout=PATIENCE) as answer:
            assert answer.status == 200
        with socket.create_connection((member.host, member.rpc_port), timeout=PATIENCE):
            pass
        descriptors.append(os.pidfd_open(demo.pid(name)))
    assert demo.stop() == 0
    for descriptor in descriptors:
        await_end(descriptor)
    for member in demo.members.values():
        assert not member.pid_file.exists()
        assert not (member.state / "control.sock").exists()
        assert os.listdir(member.root) == []
    assert all(one["pid"] is None for one in json.loads((directory / "demo.json").read_bytes())["members"])


def shown_summary(member: Member) -> object:
    """The summary that the member's dashboard shows; None while there is none."""
    try:
        with urllib.request.urlopen(f"{member.dashboard_url}api/summary", timeout=PATIENCE) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return None


def listens(member: Member) -> bool:
    """Whether the member's dashboard can be reached."""
    port = int(member.dashboard_url.rpartition(":")[2].rstrip("/"))
    with socket.socket() as client:
        return client.connect_ex((member.host, port)) == 0


def test_a_summary_shows_on_the_dashboards_without_a_restart(directory: Path) -> None:
    """A summary of the demo on all of them, one in a member's state directory on its own."""
    with Demo(directory, wait_ready=False) as demo:
        a, b = demo.members["a"], demo.members["b"]
        for member in (a, b):
            demo.until(f"{member.name}'s dashboard is there", lambda member=member: listens(member))
            assert shown_summary(member) is None
        ours = f"frs summarize {directory}/*/state/samples --output {directory}/summary"
        assert f"summary on the dashboards: {ours}" in demo.output().splitlines()
        for folder, made in ((directory / "summary", "of all"), (b.state / "summary", "of b")):
            folder.mkdir()
            (folder / "summary.json").write_text(json.dumps(made))
            os.utime(folder / "summary.json", ns=(1, 1 if made == "of all" else 2))
        assert (shown_summary(a), shown_summary(b)) == ("of all", "of b")


def test_goes_on_where_it_was(directory: Path) -> None:
    with Demo(directory, members=2, topology="full-mesh", aging=0.2) as first:
        (first.members["a"].root / "kept").write_text("kept")
        keys = [load_agent_config(one.config).key for one in first.members.values()]
        first.wait_converged()
    with Demo(directory, port_base=None, dashboard_port=None) as second:
        assert guids(second) == guids(first)
        assert [load_agent_config(one.config).key for one in second.members.values()] == keys
        assert [m.rpc_port for m in second.members.values()] == [m.rpc_port for m in first.members.values()]
        assert "aging = 0.2" in second.members["a"].config.read_text()
        assert (second.members["b"].root / "kept").read_text() == "kept"
        second.wait_converged()


def test_ctrl_c_stops_it(directory: Path) -> None:
    demo = Demo(directory).start()
    assert demo.stop(signal.SIGINT) == 0


def test_a_member_that_dies_is_reported_and_can_be_started_by_hand(directory: Path) -> None:
    with Demo(directory, aging=0.2) as demo:
        pid = demo.pid("b")
        demo.kill9("b")
        demo.until("the death is reported", lambda: f"member b (pid {pid}) was killed by SIGKILL" in demo.output())
        assert f"frs run --config {demo.members['b'].config}" in demo.output()
        assert demo.status("a")["member"] == "a"
        assert demo.frs("status", "--config", str(demo.members["b"].config)).returncode == 3
        demo.restart("b")
        demo.until("the return is reported", lambda: f"member b runs again, pid {demo.pid('b')}" in demo.output())
        pids = {m["name"]: m["pid"] for m in json.loads((directory / "demo.json").read_bytes())["members"]}
        assert pids["b"] == demo.by_hand["b"].pid
        (demo.members["a"].root / "after").write_text("after")
        demo.wait_converged()
        assert (demo.members["b"].root / "after").read_text() == "after"


def test_members_end_with_a_demo_that_is_killed(directory: Path) -> None:
    demo = Demo(directory).start()
    assert demo.process is not None
    descriptors = [os.pidfd_open(demo.pid(name)) for name in demo.members]
    demo.process.kill()
    demo.process.wait()
    for descriptor in descriptors:
        await_end(descriptor)
    with Demo(directory) as again:
        assert guids(again) == guids(demo)


def test_a_stale_pid_file_harms_nobody(directory: Path) -> None:
    with Demo(directory):
        pass
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (directory / "b" / "agent.pid").write_text(f"{stranger.pid}\n")
        with Demo(directory) as demo:
            assert demo.pid("b") != stranger.pid
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_two_demos_at_once_and_none_twice(tmp_path: Path) -> None:
    with Demo(tmp_path / "one") as one, Demo(tmp_path / "two") as two:
        ports = [m.rpc_port for demo in (one, two) for m in demo.members.values()]
        assert len(set(ports)) == 4
        again = one.frs("demo", "--dir", str(tmp_path / "one"))
        assert again.returncode == 4
        assert "already running" in again.stderr
        taken = one.frs("demo", "--dir", str(tmp_path / "three"), "--port-base", str(min(ports)))
        assert taken.returncode == 4
        assert f"port {min(ports)} " in taken.stderr
        assert "--port-base" in taken.stderr
        run = one.frs("run", "--config", str(one.members["a"].config))
        assert run.returncode == 4
        assert "already running" in run.stderr
        assert one.status("a")["pid"] == one.pid("a")


def test_a_member_that_cannot_start_is_reported_with_its_log(directory: Path) -> None:
    with Demo(directory) as demo:
        pass
    demo.members["b"].config.write_text(demo.members["b"].config.read_text().replace('"root"', '"absent"'))
    broken = Demo(directory, wait_ready=False).start()
    try:
        broken.until("b's end is reported", lambda: "member b" in broken.output() and "exit code 2" in broken.output())
        broken.until("its log is shown", lambda: "set[0].root" in broken.output())
        broken.until("a answers", lambda: ask(broken.members["a"].state, "status") is not None)
        assert not broken.is_ready()
    finally:
        code = broken.stop()
    assert code == 0


def test_frs_run_is_stopped_by_sigterm(directory: Path) -> None:
    with Demo(directory, members=1) as demo:
        member = demo.members["a"]
    with open(directory / "run.log", "wb") as log:
        process = spawn(demo.program("run", "--config", str(member.config)), log)
    try:
        while ask(member.state, "status") is None:
            assert process.poll() is None, (directory / "run.log").read_text()
        assert int(member.pid_file.read_text()) == process.pid
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert not member.pid_file.exists()
    finally:
        process.kill()
        process.wait()


def test_other_members_than_are_there_are_refused(directory: Path) -> None:
    with Demo(directory, members=4, topology="ring"):
        pass
    for options in (("--members", "3"), ("--topology", "full-mesh")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agent.cli", "demo", "--dir", str(directory), *options],
            env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 2
        assert options[0] in done.stderr


def test_a_dashboard_whose_port_is_taken_says_which_key_to_change(directory: Path) -> None:
    with Demo(directory, wait_ready=False) as demo:
        b = demo.members["b"]
        demo.until("b answers", lambda: ask(b.state, "status") is not None)
        demo.kill9("b")
        with socket.create_server(("127.0.0.1", int(b.dashboard_url.rpartition(":")[2].rstrip("/")))):
            demo.restart("b")
            log = b.log.with_name("by-hand.log")
            demo.until("b says so", lambda: " ERROR " in log.read_text())
        (line,) = [line for line in log.read_text().splitlines() if " ERROR " in line]
        assert "no dashboard on 127.0.0.1:" in line
        assert f"set another dashboard.port in {b.config}" in line
