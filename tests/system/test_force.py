"""`frs force` with real members whose schedule is closed for the whole week."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agent.cli.demo_layout import DemoOptions, prepare
from agent.reporting.exit_codes import ExitCode
from tests.ports import port_base
from tests.system.demo import Demo, ask

CLOSED = "0" * 168


def closed_demo(tmp_path: Path) -> Demo:
    """A demo of two members, not started, whose set has a schedule that never opens."""
    folder = tmp_path / "demo"
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    topology = folder / "topology.toml"
    text = topology.read_text()
    assert text.count('primary = "a"\n') == 1
    topology.write_text(text.replace('primary = "a"\n', f'primary = "a"\nschedule = "{CLOSED}"\n'))
    return Demo(folder, aging=0.3, wait_ready=False)


def force(demo: Demo, member: str, *arguments: str) -> tuple[int, str, str]:
    config = demo.directory / member / "agent.toml"
    done = demo.frs("force", "--config", os.fspath(config), *arguments)
    return done.returncode, done.stdout, done.stderr


def joined(demo: Demo, member: str) -> set[str]:
    """The names of the connections that are joined."""
    (entry,) = demo.status(member)["sets"]
    return {one["name"] for one in entry["connections"] if one["state"] in ("joined", "vvjoin")}


def test_a_closed_schedule_holds_files_back_until_they_are_forced(tmp_path: Path) -> None:
    demo = closed_demo(tmp_path)
    code, said, wrong = force(demo, "a")
    assert (code, said) == (ExitCode.UNREACHABLE, "")
    assert "no agent is running" in wrong

    with demo:
        a, b = demo.members["a"], demo.members["b"]

        def seen() -> bool:
            status = ask(a.state, "status")
            return status is not None and status["sets"][0]["idtable"]["files"] == 1

        (a.root / "file").write_bytes(b"of a")
        demo.until("a knows the file", seen)
        demo.until("b answers", lambda: ask(b.state, "status") is not None)
        time.sleep(2.0)
        assert joined(demo, "a") == joined(demo, "b") == set()
        assert list(b.root.iterdir()) == []

        for arguments, text in (
            (("--set", "nothing"), 'takes no part in a replica set "nothing"; it has "demo"'),
            (("--partner", "a"), 'no connection with a member "a" in any set; partners: "b"'),
            (("--set", "demo", "--partner", "z"), 'no connection with a member "z" in set demo; partners: "b"'),
        ):
            code, said, wrong = force(demo, "a", *arguments)
            assert (code, said) == (ExitCode.USAGE, "")
            assert text in wrong
        assert joined(demo, "a") == joined(demo, "b") == set()

        code, said, _ = force(demo, "b", "--set", "demo", "--partner", "a")
        assert code == ExitCode.OK
        lines = {"demo: a->b (inbound) joins now", "demo: b->a (outbound) joins now"}
        assert set(said.splitlines()) == lines
        demo.until("the file arrives", (b.root / "file").exists)
        assert (b.root / "file").read_bytes() == b"of a"

        demo.until("both directions are joined", lambda: joined(demo, "b") == {"a->b", "b->a"})
        assert force(demo, "a", "--partner", "b")[1].count("is joined already") == 2
        (b.root / "back").write_bytes(b"of b")
        demo.until("a file goes the other way", (a.root / "back").exists)
