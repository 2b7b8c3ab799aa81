"""The command line: help, exit codes, and what the commands say, against a control server that answers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import COMMANDS, cli, run_cli
from agent.cli.status_cmd import describe
from agent.reporting.exit_codes import MEANING, ExitCode
from agent.service.control import ControlError, ControlServer, Handler
from tests.unit.config.member_files import AGENT, write

REPOSITORY = Path(__file__).parents[3]
OURS = sorted(set(COMMANDS) - {"summarize"})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = write(tmp_path)
    (tmp_path / "state").mkdir()
    return path


class Server:
    """A control server in a thread of its own, so that commands can be run as a user runs them."""

    def __init__(self, state: Path, handlers: dict[str, Handler]) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = ControlServer(state, handlers)
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> Server:
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def answering(answer: dict[str, Any]) -> Handler:
    async def handler(_: dict[str, Any]) -> dict[str, Any]:
        return answer

    return handler


def frs(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent.cli", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


# ---------------------------------------------------------------- help


def test_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", text, re.MULTILINE)
    for code in ExitCode:
        assert re.search(rf"^  {int(code)} ", text, re.MULTILINE)


@pytest.mark.parametrize("name", OURS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: cli {name}" in result.output
    assert COMMANDS[name][2]


def test_help_loads_nothing_that_is_slow() -> None:
    program = (
        "import sys; from agent.cli import run_cli; run_cli(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"pydantic", "aiohttp", "asyncio", "watchdog", "spnego", "sqlite3", "pyspark"}


def test_no_command_is_a_usage_error() -> None:
    done = frs()
    assert done.returncode == ExitCode.USAGE
    assert "Commands:" in done.stderr


def test_an_unknown_command_or_option_is_a_usage_error() -> None:
    for arguments in (
        ("statsu",),
        ("status", "--jsn"),
        ("wait", "--timeout", "-1"),
        ("wait", "--timeout", "nan"),
        ("demo", "--members", "0"),
    ):
        done = frs(*arguments)
        assert done.returncode == ExitCode.USAGE
        assert "Error: " in done.stderr


# ---------------------------------------------------------------- exit codes


def test_the_documented_table_is_the_one_in_force() -> None:
    assert MEANING.keys() == set(ExitCode)
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (REPOSITORY / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == {int(code): text for code, text in MEANING.items()}


@pytest.mark.parametrize("name", ["run", "status", "wait", "counters"])
def test_a_configuration_that_is_absent(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.toml"
    assert run_cli([name, "--config", str(path)]) == ExitCode.USAGE
    assert str(path) in capsys.readouterr().err


def test_run_names_file_line_and_key_and_starts_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(AGENT + "colour = 1\n")
    assert run_cli(["run", "--config", str(config)]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"{config}:9: set[0].colour: is not a known key")
    config.write_text(AGENT.replace('"root"', '"nowhere"'))
    assert run_cli(["run", "--config", str(config)]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"{config}:8: set[0].root: the root ")
    assert os.listdir(config.parent / "state") == []


@pytest.mark.parametrize("name", ["status", "wait", "counters"])
def test_no_agent_is_running(name: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([name, "--config", str(config)]) == ExitCode.UNREACHABLE
    assert f"frs run --config {config}" in capsys.readouterr().err


def test_run_with_a_host_to_listen_on_that_has_no_address(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(f'{config.read_text()}\n[listen]\nhost = "fe80::1%nowhere"\n')
    assert run_cli(["run", "--config", str(config)]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(f'{config}:11: listen.host: no address is found of the host "fe80::1%nowhere"'), error
    assert os.listdir(config.parent / "state") == [], "nothing is started"


def test_an_agent_that_refuses(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(_: dict[str, Any]) -> dict[str, Any]:
        raise ControlError("not now")

    with Server(config.parent / "state", {"status": refuse}):
        assert run_cli(["status", "--config", str(config)]) == ExitCode.FAILURE
    assert "not now" in capsys.readouterr().err


def test_what_is_broken_in_the_topology_does_not_hide_a_running_agent(config: Path) -> None:
    (config.parent / "topology.toml").write_text("being edited [")
    with Server(config.parent / "state", {"status": answering(STATUS)}):
        assert run_cli(["status", "--config", str(config)]) == ExitCode.OK


def test_a_reader_that_has_enough(config: Path) -> None:
    """`frs counters | head -1` neither fails nor complains."""
    many = {"FileReplicaSet": {"docs": {f"Counter {n}": n for n in range(1, 20_000)}}, "FileReplicaConn": {}}
    with Server(config.parent / "state", {"counters": answering(many)}):
        command = f"'{sys.executable}' -m agent.cli counters --config '{config}' | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "FileReplicaSet docs\n", "")


# ---------------------------------------------------------------- wait, counters, status


def test_wait_with_nothing_pending(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = []

    async def wait(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(arguments)
        return {"pending": []}

    with Server(config.parent / "state", {"wait": wait}):
        assert run_cli(["wait", "--config", str(config)]) == ExitCode.OK
        assert run_cli(["wait", "--config", str(config), "--timeout", "2.5"]) == ExitCode.OK
    assert asked == [{"timeout": None}, {"timeout": 2.5}]
    assert capsys.readouterr().out == ""


def test_wait_says_what_is_pending(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(config.parent / "state", {"wait": answering({"pending": ["docs: 2 aging", "docs: a->b: 1"]})}):
        assert run_cli(["wait", "--config", str(config), "--timeout", "0"]) == ExitCode.NEGATIVE
    assert capsys.readouterr().out == "docs: 2 aging\ndocs: a->b: 1\n"


COUNTERS = {
    "FileReplicaSet": {"docs": {"Files Installed": 12, "Change Orders Received": 0}},
    "FileReplicaConn": {"docs/a->b": {"Join Notifications Sent": 1}},
}


def test_counters(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(config.parent / "state", {"counters": answering(COUNTERS)}):
        assert run_cli(["counters", "--config", str(config), "--json"]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out) == COUNTERS
        assert run_cli(["counters", "--config", str(config)]) == ExitCode.OK
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["FileReplicaSet", "docs"],
        ["12", "Files", "Installed"],
        ["FileReplicaConn", "docs/a->b"],
        ["1", "Join", "Notifications", "Sent"],
    ]


STATUS: dict[str, Any] = {
    "member": "a",
    "pid": 4711,
    "version": "0.1.0",
    "started": "2026-01-01T00:00:00Z",
    "problems": [{"set": "docs", "connection": "b->a", "partner": "b", "stops": False, "why": "connection refused"}],
    "sets": [
        {
            "name": "docs",
            "guid": "11111111-0000-4000-8000-000000000001",
            "originator_guid": "11111111-0000-4000-8000-00000000000f",
            "root": "/srv/docs",
            "type": "other",
            "state": "online",
            "error": "no space",
            "idtable": {"files": 10, "folders": 3, "tombstones": 2},
            "staging": {"used_kib": 5, "free_kib": 6, "quota_kib": 11},
            "pending": {"aging": 1, "local": 2, "inbound": 3, "outbound": 4},
            "last_error": {"time": "2026-01-01T00:00:01Z", "text": "a disk is full"},
            "missing": None,
            "conflicts": {"kept": 3, "used_kib": 21, "newest": "2026-01-01T00:00:05Z"},
            "deleted": {"files": 12, "used_kib": 34, "quota_kib": 56},
            "scan": {
                "interval_s": 3600.0,
                "running": False,
                "ended": "2026-01-01T00:00:04Z",
                "seconds": 61.5,
                "entries": 1234,
                "found": 4,
                "examples": ["a/b", "c", "d"],
            },
            "unstored": {"owner or group": 7, "modification time": 2},
            "mass_deletions": [
                {
                    "by": by,
                    "originator_guid": "11111111-0000-4000-8000-0000000000ff",
                    "this_member": here,
                    "files": files,
                    "began": "2026-01-01T00:00:02Z",
                    "last": "2026-01-01T00:00:03Z",
                }
                for by, here, files in (("files2", False, 101), (None, True, 102), (None, False, 103))
            ],
            "connections": [
                {
                    "name": "a->b",
                    "guid": "11111111-0000-4000-8000-0000000000ab",
                    "direction": "outbound",
                    "partner": "b",
                    "state": "joined",
                    "scheduled": True,
                    "backlog": 7,
                    "last_join_time": None,
                    "last_error": None,
                    "retry_in_s": None,
                },
                {
                    "name": "b->a",
                    "guid": "11111111-0000-4000-8000-0000000000ba",
                    "direction": "inbound",
                    "partner": "b",
                    "state": "unjoined",
                    "scheduled": True,
                    "backlog": 0,
                    "last_join_time": None,
                    "last_error": "connection refused",
                    "retry_in_s": 12.4,
                },
            ],
        }
    ],
    "partners": [
        {"set": "docs", "name": "b", "called_by": "key"},
        {"set": "docs", "name": "c", "called_by": "secret"},
        {"set": "docs", "name": "d", "called_by": None},
    ],
}


def test_status(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(config.parent / "state", {"status": answering(STATUS)}):
        assert run_cli(["status", "--config", str(config), "--json"]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out) == STATUS
        assert run_cli(["status", "--config", str(config)]) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.splitlines() == list(describe(STATUS))
    for part in (
        "  kept of conflicts: 3, 21 KiB, the last 2026-01-01T00:00:05Z",
        "member a, pid 4711",
        "set docs: online, /srv/docs",
        "originator GUID: 11111111-0000-4000-8000-00000000000f",
        "error: no space",
        "10 files, 3 folders, 2 tombstones",
        "5 KiB used, 6 KiB free, quota 11 KiB",
        "1 aging, 2 local, 3 inbound, 4 outbound",
        "2026-01-01T00:00:01Z a disk is full",
        "kept of what others deleted: 12 files, 34 of 56 KiB",
        "last scan of the tree: 2026-01-01T00:00:04Z, 1234 entries in 61.5 s (every 3600 s); "
        "found 4 changes that no event had told of: 'a/b', 'c', 'd', ...",
        "remembered for the others: owner or group of 7 files, modification time of 2 files",
        "mass deletion: 101 files by files2, 2026-01-01T00:00:02Z to 2026-01-01T00:00:03Z",
        "mass deletion: 102 files by this member",
        "mass deletion: 103 files by 11111111-0000-4000-8000-0000000000ff",
        "a->b (outbound): joined, backlog 7",
        "b->a (inbound): unjoined, backlog 0; connection refused; retry in 12 s",
        "partner b (set docs) is called by its key",
        "partner c (set docs) is called by the secret",
        "partner d (set docs) has not been called, or not let this member in",
    ):
        assert part in text


def test_status_of_a_set_that_does_not_replicate(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"set": "docs", "connection": None, "partner": None, "stops": True, "why": "its root is gone"}
    ill = STATUS | {"problems": [problem]}
    with Server(config.parent / "state", {"status": answering(ill)}):
        assert run_cli(["status", "--config", str(config), "--json"]) == ExitCode.NEGATIVE
        assert json.loads(capsys.readouterr().out) == ill
        assert run_cli(["status", "--config", str(config)]) == ExitCode.NEGATIVE
    assert "does not replicate: set docs: its root is gone" in capsys.readouterr().out.splitlines()


def test_accept_deletions(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = []
    loss = {"set": "docs", "files": 1, "folders": 22, "found": 0, "paths": ["a", "b\nc"], "more": 3}

    async def accept(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(arguments)
        return {"refused": "no such set"} if arguments["set"] == "x" else {"accepted": [loss]}

    command = ["accept-deletions", "--config", str(config)]
    with Server(config.parent / "state", {"status": answering(STATUS), "accept-deletions": accept}):
        assert run_cli(command) == ExitCode.OK
        assert capsys.readouterr().out == "docs: 1 file and 22 folders will be deleted on the other members\n"
        assert run_cli([*command, "--dry-run", "--set", "docs"]) == ExitCode.OK
        assert capsys.readouterr().out.splitlines() == [
            "docs: 1 file and 22 folders would be deleted on the other members",
            "  a",
            "  $'b\\nc'",
            "  and what is in 3 more places",
        ]
        assert run_cli([*command, "--set", "x"]) == ExitCode.USAGE
        assert "no such set" in capsys.readouterr().err
    assert asked == [{"set": None, "dry_run": False}, {"set": "docs", "dry_run": True}, {"set": "x", "dry_run": False}]
    assert run_cli(command) == ExitCode.UNREACHABLE
