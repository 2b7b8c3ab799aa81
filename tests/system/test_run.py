"""`frs run` and what is around it: signals, files that others can write."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.cli.demo_layout import DemoMember, DemoOptions, prepare
from agent.service.signals import MEANINGLESS, STOPPING
from agent.work.descriptors import WANTED
from tests.ports import port_base
from tests.system.demo import PATIENCE, ask, spawn


class Running:
    """One member of a demo, started by itself."""

    def __init__(self, process: subprocess.Popen[bytes], state: Path, log: Path) -> None:
        self.process = process
        self._state = state
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def status(self) -> dict[str, Any] | None:
        return ask(self._state, "status")

    def until_it_answers(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while (status := self.status()) is None:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}\n{self.log()}"
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        return status


@contextmanager
def running(
    tmp_path: Path, prepared: Callable[[DemoMember], object] = lambda member: None, *, before: str = ""
) -> Iterator[Running]:
    """A member of a demo after `prepared` and, in its shell, `before`."""
    member = prepare(DemoOptions(tmp_path / "demo", 2, port_base=port_base(), dashboard_port=port_base())).members[0]
    prepared(member)
    log = tmp_path / "log"
    with log.open("ab") as output:
        shell = ["bash", "-c", f'{before}\nexec "$@"', "bash"]
        program = [*shell, sys.executable, "-P", "-m", "agent.cli", "run", "--config", os.fspath(member.config)]
        process = spawn(program, output)
    found = Running(process, member.state, log)
    try:
        found.until_it_answers()
        yield found
    finally:
        process.kill()
        process.wait()


def until_told(one: Running, times: int) -> None:
    told = 0
    while told < times:
        told = one.until_it_answers()["incidents"].get("signal that does nothing", 0)
    assert told == times


def test_signals_that_mean_nothing_are_told_and_the_agent_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as one:
        one.process.send_signal(signal.SIGUSR1)
        until_told(one, 1)
        assert "signal that does nothing: SIGUSR1 is ignored" in one.log()
        one.process.send_signal(signal.SIGPIPE)
        one.process.send_signal(signal.SIGXFSZ)
        for number in MEANINGLESS:
            one.process.send_signal(number)
        until_told(one, 1 + len(MEANINGLESS))
        assert one.log().count("SIGUSR1 is ignored") == 1, "at a bounded rate"
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(PATIENCE) == 0, one.log()


def test_sighup_has_the_configuration_read_again(tmp_path: Path) -> None:
    with running(tmp_path) as one:
        topology = tmp_path / "demo" / "topology.toml"
        read = one.until_it_answers()["directory"]["read"]
        text = topology.read_text()
        while one.until_it_answers()["directory"]["read"] == read:
            one.process.send_signal(signal.SIGHUP)
        wrong = topology.with_name("wrong.toml")  # put in its place at once: half of it would be wrong in another way
        wrong.write_text(text.replace("primary", "primory", 1))
        wrong.replace(topology)
        while not (found := one.until_it_answers()["directory"]["problems"]):
            one.process.send_signal(signal.SIGHUP)
        assert {(problem["file"], problem["key"]) for problem in found} == {
            (str(topology), "set[0].primary"), (str(topology), "set[0].primory"),
        }  # fmt: skip
        topology.write_text(text)
        while one.until_it_answers()["directory"]["problems"]:
            one.process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize(
    "number", [one for one in STOPPING if one not in (signal.SIGTERM, signal.SIGINT)], ids=lambda number: number.name
)
def test_signals_that_stop_it_beside_those_of_every_day(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path) as one:
        one.process.send_signal(number)
        assert one.process.wait(PATIENCE) == 0, one.log()
        assert f"stopping on {number.name}" in one.log()
        assert one.log().rstrip().endswith("stopped")


def test_a_configuration_that_others_can_write_is_told(tmp_path: Path) -> None:
    with running(tmp_path, lambda member: member.config.chmod(0o666)) as one:
        assert f"the configuration {tmp_path}/demo/a/agent.toml can be written by everybody" in one.log()


def test_the_pid_file_follows_no_link_that_somebody_laid(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")

    def lay(member: DemoMember) -> None:
        member.pid_file.with_name(member.pid_file.name + ".new").symlink_to(target)
        member.pid_file.symlink_to(target)

    with running(tmp_path, lay) as one:
        assert target.read_text() == "precious"
        assert one.process.pid == int((tmp_path / "demo" / "a" / "agent.pid").read_text())


def soft_limit(process: subprocess.Popen[bytes]) -> int:
    return resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0]


def test_as_many_files_may_be_open_as_the_system_allows(tmp_path: Path) -> None:
    with running(tmp_path, before="ulimit -Sn 256") as one:
        hard = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)[1]
        assert soft_limit(one.process) == min(hard, WANTED)
        assert "files may be open at once" not in one.log()


def test_few_files_that_may_be_open_are_told_and_enough_to_run(tmp_path: Path) -> None:
    with running(tmp_path, before="ulimit -Sn 256; ulimit -Hn 300") as one:
        assert soft_limit(one.process) == 300
        assert "only 300 files may be open at once; raise the limit on open files: LimitNOFILE=" in one.log()


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "moved away"])
def test_a_state_directory_that_goes_away_under_a_running_agent(tmp_path: Path, removed: bool) -> None:
    """The set stops and says what to do; nothing is made at the place of the state directory, not even at the end."""
    with running(tmp_path) as one:
        state = tmp_path / "demo" / "a" / "state"
        (database,) = state.glob("sets/*/frs.db")
        aside = state.rename(tmp_path / "aside")
        if removed:
            shutil.rmtree(aside)
        said = f"replication of this set has stopped: the database {database} is not at its place any more"
        deadline = time.monotonic() + PATIENCE
        while said not in one.log():
            assert time.monotonic() < deadline, one.log()
            time.sleep(0.05)
        assert "Stop the agent, put the state directory back" in one.log()
        one.process.terminate()
        assert one.process.wait(PATIENCE) == 0, one.log()
        assert not state.exists()
        assert "Traceback" not in one.log()
