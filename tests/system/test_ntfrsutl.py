"""`frs ntfrsutl` with real members, over NtFrsApi."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from agent.cli.demo_layout import DemoOptions, prepare
from agent.reporting.exit_codes import ExitCode
from agent.wire.frsapi import INFO_TYPES
from tests.ports import port_base
from tests.system.demo import Demo, ask


def served(tmp_path: Path, table: str) -> Demo:
    """A demo of two members, not started, whose configurations end with that."""
    folder = tmp_path / "demo"
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.1))
    for name in "ab":
        config = folder / name / "agent.toml"
        config.write_text(config.read_text() + table)
    return Demo(folder, aging=0.1)


def ntfrsutl(demo: Demo, *arguments: str, by: str = "a") -> tuple[int, str, str]:
    done = demo.frs("ntfrsutl", *arguments, "--config", os.fspath(demo.directory / by / "agent.toml"))
    return done.returncode, done.stdout, done.stderr


def says(demo: Demo, *arguments: str, by: str = "a") -> Any:
    code, out, err = ntfrsutl(demo, *arguments, "--json", by=by)
    assert code == 0, err
    return json.loads(out)


def inbound(demo: Demo, name: str, replica_set: str) -> int:
    """Change orders that have come to a member and are not finished there."""
    status = ask(demo.members[name].state, "status")
    assert status is not None
    found = [one for one in status["sets"] if one["name"] == replica_set]
    return sum(cxtion["backlog"] for one in found for cxtion in one["connections"] if cxtion["direction"] == "inbound")


def with_another_set(demo: Demo) -> dict[str, Path]:
    """Another set of both members, with its roots; they are told."""
    topology = demo.directory / "topology.toml"
    text = topology.read_text()
    begin = text.index("[[set]]")
    another = text[begin:].replace('name = "demo"', 'name = "more"', 1)
    lines = [
        f'guid = "{uuid.uuid4()}"' if line.startswith("guid = ") else line for line in another.splitlines()
    ]  # fmt: skip
    topology.write_text(text + "\n" + "\n".join(lines) + "\n")
    roots = {}
    for name in "ab":
        roots[name] = demo.directory / name / "more"
        roots[name].mkdir()
        config = demo.directory / name / "agent.toml"
        config.write_text(config.read_text() + '\n[[set]]\nname = "more"\nroot = "more"\n')
        done = demo.frs("reload", "--config", os.fspath(config))
        assert done.returncode == 0, done.stderr
    return roots


def test_a_member_is_asked_and_told(tmp_path: Path) -> None:
    with served(tmp_path, '\n[ntfrsapi]\nreaders = ["a"]\n') as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "a file").write_text("content")
        demo.wait_converged()

        # what it knows, of this host's own member and of another
        for kind in INFO_TYPES:
            found = says(demo, kind, "b")
            assert (found["host"], found["type"]) == ("b", kind)
            assert found["lines"]
        assert "member: b" in says(demo, "version", "b")["lines"]
        assert "member: a" in says(demo, "version")["lines"]
        assert any("'a file'" in line for line in says(demo, "idtable", "b")["lines"])
        code, out, _ = ntfrsutl(demo, "sets", "b")
        assert code == 0
        assert "name: demo" in out

        # intervals
        assert says(demo, "poll", "b") == {"host": "b", "interval": 5, "long": 60, "short": 5}
        assert says(demo, "poll", "b", "--slowly", "30") == {"host": "b", "interval": 30, "long": 30, "short": 5}
        assert says(demo, "poll", "b", "--quickly", "2") == {"host": "b", "interval": 2, "long": 30, "short": 2}

        # installs wait, in sets that come meanwhile, too
        assert says(demo, "freeze", "b") == {"host": "b", "done": "freeze"}
        (a / "later").write_text("content")
        demo.until("a change order waits", lambda: inbound(demo, "b", "demo") > 0)
        shown = demo.frs("status", "--config", os.fspath(demo.members["b"].config)).stdout
        (line,) = (line for line in shown.splitlines() if "frozen" in line)
        assert line.startswith("  20115 frozen since 2")
        assert "by a: installs wait until `frs ntfrsutl thaw`" in line
        roots = with_another_set(demo)
        (roots["a"] / "as late").write_text("content")
        demo.until("a change order waits in the other set", lambda: inbound(demo, "b", "more") > 0)
        assert not (b / "later").exists()
        assert list(roots["b"].iterdir()) == []
        assert says(demo, "thaw", "b") == {"host": "b", "done": "thaw"}
        demo.until("it is installed", lambda: (b / "later").exists() and (roots["b"] / "as late").exists())
        assert [one["frozen"] for one in demo.status("b")["sets"]] == [None, None]

        assert says(demo, "forcerepl", "b", "--set", "demo", "--partner", "a")["done"] == "forcerepl"

        # who is not named may not
        code, out, err = ntfrsutl(demo, "version", "a", by="b")
        assert (code, out) == (ExitCode.FAILURE, "")
        assert "does not allow this to the caller (error 8007)" in err
        code, _, err = ntfrsutl(demo, "version", "c")
        assert code == ExitCode.USAGE
        assert "only a, b" in err
        demo.kill9("b")
        code, _, err = ntfrsutl(demo, "version", "b")
        assert code == ExitCode.UNREACHABLE
        demo.restart("b")
        demo.wait_converged()


def test_a_member_that_does_not_serve_it(tmp_path: Path) -> None:
    with served(tmp_path, "") as demo:
        code, _, err = ntfrsutl(demo, "version", "b")
        assert code == ExitCode.FAILURE
        assert "has a table [ntfrsapi]" in err
        code, _, err = ntfrsutl(demo, "version")  # its own key is none that it takes then
        assert code == ExitCode.FAILURE
