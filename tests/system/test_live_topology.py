"""Real members of one topology file, which is changed by commands while a script writes files: nobody is restarted, and
nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import urllib.request
from pathlib import Path
from typing import Any

from agent.counters.registry import PERF_COUNTER_COUNTER, counter_types
from agent.reporting.exit_codes import ExitCode
from agent.rpc.errors import RpcClosed
from agent.rpc.frsrpc import FrsPartner
from agent.rpc.security import Credential
from config.credentials import load_secret
from config.keys import key_text
from config.topologyfile import load_topology
from tests.ports import free_port
from tests.system.demo import PATIENCE, Demo, Member, ask, compare_trees, spawn
from tests.system.knocking import knocks

#: What counts on for as long as a set, or a connection, goes on.
SUMS = {
    of: {name for name, kind in counters.items() if kind == PERF_COUNTER_COUNTER}
    for of, counters in counter_types().items()
}
NEVER, ALWAYS = "0" * 168, "f" * 168


def read(path: Path) -> bytes | None:
    """None: it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class Writer:
    """Writes into the roots of some members until told to stop: every file is of one member, so that there are no
    conflicts, and what has to be there in the end is known."""

    def __init__(self, roots: dict[str, Path]) -> None:
        self.roots = roots
        self.expected: dict[str, bytes] = {}
        self.number = 0
        self._random = random.Random(17)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def only(self, *members: str) -> None:
        """Write into these roots alone from now on."""
        with self._lock:
            self.roots = {name: root for name, root in self.roots.items() if name in members}

    def also(self, member: str, root: Path) -> None:
        with self._lock:
            self.roots = {**self.roots, member: root}

    def until_more(self, demo: Demo) -> None:
        """Until it has written more."""
        number = self.number + 20
        demo.until("more was written", lambda: self.number > number)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with self._lock:
                member = self._random.choice(sorted(self.roots))
                self._write(member, self.number)
            self.number += 1

    def _write(self, member: str, number: int) -> None:
        root, mine = self.roots[member], [name for name in self.expected if name.startswith(f"{member}-")]
        what = self._random.random()
        if mine and what < 0.2:
            name = self._random.choice(mine)
            (root / name).unlink()
            del self.expected[name]
        elif mine and what < 0.4:
            name, other = self._random.choice(mine), f"{member}-{number}-moved"
            (root / name).rename(root / other)
            self.expected[other] = self.expected.pop(name)
        else:
            name = self._random.choice(mine) if mine and what < 0.6 else f"{member}-{number}"
            content = self._random.randbytes(self._random.choice((10, 1000, 100_000)))
            (root / name).write_bytes(content)
            self.expected[name] = content


class Fleet:
    """A demo, and what is asked of its members while the topology changes."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.pids = {name: demo.pid(name) for name in demo.members}
        self.sums: dict[str, dict[tuple[str, str], dict[str, int]]] = {}

    @property
    def topology(self) -> Path:
        return self.demo.directory / "topology.toml"

    def change(self, *arguments: str) -> str:
        """`frs topology`; returns once all members have taken it over, and looks at what must go on."""
        done = self.demo.frs("topology", arguments[0], "--file", os.fspath(self.topology), *arguments[1:])
        assert done.returncode == 0, done.stderr
        serial = int(done.stdout.rpartition("serial ")[2].partition(":")[0])
        for name in self.pids:
            self.demo.until(f"{name} has read {arguments}", lambda name=name: self.directory(name)["serial"] == serial)
        self.look()
        return done.stdout

    def directory(self, name: str) -> dict[str, Any]:
        status = ask(self.demo.members[name].state, "status")
        assert status is not None, self.demo.report()
        assert status["pid"] == self.pids[name]
        found: dict[str, Any] = status["directory"]
        return found

    def look(self) -> None:
        """Nobody was restarted, and no counter of a set or a connection that goes on went back."""
        for name in self.pids:
            counters = ask(self.demo.members[name].state, "counters")
            assert counters is not None
            now = {(of, one): values for of, found in counters.items() for one, values in found.items()}
            for (of, one), before in self.sums.get(name, {}).items():
                if (of, one) in now:
                    assert not [sum_ for sum_ in SUMS[of] if now[of, one][sum_] < before[sum_]], (name, one)
            self.sums[name] = now

    def ended(self, name: str, other: str = "") -> None:
        """The connections of these, or of one with all others, have ended: when they come again they begin at zero."""
        for sums in self.sums.values():
            for one in [one for one in sums if "/" in one[1]]:
                ends = one[1].partition("/")[2].split("->")
                if name in ends and (not other or other in ends):
                    del sums[one]

    def joined(self, name: str) -> set[str]:
        status = ask(self.demo.members[name].state, "status")
        assert status is not None
        return {c["name"] for s in status["sets"] for c in s["connections"] if c["state"] in ("joined", "vvjoin")}

    def problems(self, name: str) -> list[dict[str, Any]]:
        """As the dashboard tells them."""
        with urllib.request.urlopen(f"{self.demo.members[name].dashboard_url}api/status") as answer:
            found: list[dict[str, Any]] = json.load(answer)["directory"]["problems"]
        return found

    def secret(self) -> Credential:
        """What members share by now."""
        found = load_secret(self.demo.directory / "secret.toml")
        return Credential(found.domain, found.user, found.password)

    def lets_in(self, name: str, credential: Credential) -> bool:
        """Whether a member lets somebody in who has nothing but that."""

        async def knock() -> bool:
            port = self.demo.members[name].rpc_port
            for _ in range(99):  # whoever is let in by what is no longer valid is cut off when that is noticed
                with contextlib.suppress(RpcClosed):
                    return await knocks(FrsPartner("127.0.0.1", port, credential, connect_timeout=PATIENCE))
            return await knocks(FrsPartner("127.0.0.1", port, credential, connect_timeout=PATIENCE))

        return asyncio.run(knock())

    def start(self, name: str, port: int) -> None:
        """`frs init` and `frs run` on the host of a member that was added."""
        folder = self.demo.directory / name
        root, state, config = folder / "root", folder / "state", self.demo.directory / f"{name}.toml"
        if not config.exists():
            root.mkdir(parents=True)
            (root / f"{name}-first").write_bytes(b"brought along")
            shared = ("--topology", os.fspath(self.topology))
            done = self.demo.frs(
                "init", "--member", name, "--root", os.fspath(root), "--state", os.fspath(state), *shared,
                "--listen", f"127.0.0.1:{port}", "--config", os.fspath(config),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            config.write_text(config.read_text().replace("port = 29700", "port = 0"))
        log = state / "agent.log"
        state.mkdir(exist_ok=True)
        with open(log, "ab") as output:
            process = spawn(self.demo.program("run", "--config", os.fspath(config)), output)
        self.demo.by_hand[name] = process
        self.pids[name] = process.pid
        self.demo.members[name] = Member(
            name=name, host="127.0.0.1", rpc_port=port, root=root, state=state, config=config,
            pid_file=folder / "agent.pid", log=log, dashboard_url="",
        )  # fmt: skip
        self.demo.until(f"{name} answers", lambda: ask(state, "status") is not None)


def test_the_topology_changes_while_files_are_written(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=4, aging=0.2, options=("--shared-secret",)) as demo:
        fleet = Fleet(demo)
        with Writer({name: one.root for name, one in demo.members.items()}) as writer:
            demo.until("something was written", lambda: len(writer.expected) > 10)

            told = fleet.change("add-member", "e", "--address", f"127.0.0.1:{(port := free_port())}")
            assert "e: becomes a member of the set demo" in told
            fleet.start("e", port)
            demo.until("e is joined by all", lambda: len(fleet.joined("e")) == 8)
            writer.expected["e-first"] = b"brought along"
            writer.also("e", demo.members["e"].root)

            fleet.change("set", f"schedule={NEVER}", "--connection", "a->b")
            demo.until("a closed schedule unjoins", lambda: "a->b" not in fleet.joined("b"))
            fleet.change("set", f"schedule={ALWAYS}", "--connection", "a->b")
            demo.until("an open one joins", lambda: "a->b" in fleet.joined("b"))
            fleet.change("set", "priority=1", "--connection", "c->a")
            fleet.change("set", "file_filter=*.skip", "primary=b")
            (demo.members["a"].root / "local.skip").write_bytes(b"stays here")
            fleet.change("set", f"address=localhost:{demo.members['c'].rpc_port}", "--member", "c")
            fleet.change("disconnect", "a", "d")
            demo.until("a connection goes", lambda: not {"a->d", "d->a"} & fleet.joined("d"))
            fleet.ended("a", "d")
            fleet.change("connect", "a", "d")
            demo.until("a connection comes", lambda: {"a->d", "d->a"} <= fleet.joined("d"))

            former = fleet.secret()
            done = demo.frs("secret", "rotate", "--config", os.fspath(demo.members["a"].config))
            assert done.returncode == 0, done.stderr
            for name in "abcd":  # of which each has read it by itself
                demo.until("the new secret is good", lambda name=name: fleet.lets_in(name, fleet.secret()))
            assert [fleet.lets_in(name, former) for name in "abcd"] == [True] * 4
            text = (demo.directory / "secret.toml").read_text()
            (demo.directory / "secret.toml").write_text(text.partition("\n# The password before")[0])
            for name in "abcd":
                demo.until("the former is good no more", lambda name=name: not fleet.lets_in(name, former))
            assert [fleet.lets_in(name, fleet.secret()) for name in "abcd"] == [True] * 4
            fleet.look()

            # What was on its way to c as its address changed may have been lost, and the session with it.
            demo.until("a is joined with all", lambda: len(fleet.joined("a")) == 8)

            text = fleet.topology.read_text()
            fleet.topology.write_text(text.replace('primary = "b"', 'primary = "nobody"'))
            for name in fleet.pids:
                demo.until("the bad edit is told", lambda name=name: fleet.directory(name)["problems"] != [])
            (problem,) = fleet.problems("a")
            assert (problem["file"], problem["key"]) == (os.fspath(fleet.topology), "set[0].primary")
            assert problem["line"] == 1 + text[: text.index("primary = ")].count("\n")
            shown = demo.frs("status", "--config", os.fspath(demo.members["a"].config)).stdout
            assert problem["text"] in shown
            assert problem["text"] in demo.members["a"].log.read_text()
            reload = demo.frs("reload", "--config", os.fspath(demo.members["a"].config))
            assert (reload.returncode, problem["text"] in reload.stderr) == (ExitCode.USAGE, True)
            demo.until("a is joined with all still", lambda: len(fleet.joined("a")) == 8)
            fleet.topology.write_text(text)
            for name in fleet.pids:
                demo.until("the mended one is read", lambda name=name: fleet.directory(name)["problems"] == [])

            key = key_text(load_topology(fleet.topology)[0].members["c"].key or b"")
            writer.only("a", "b", "d", "e")
            theirs = {name: content for name, content in writer.expected.items() if name.startswith("c-")}
            of_a = demo.members["a"].root
            demo.until("a has what c wrote", lambda: all(read(of_a / name) == theirs[name] for name in theirs))
            fleet.change("remove-member", "c")
            assert [one["set"] for one in fleet.directory("c")["leaving"]] == ["demo"]
            left = demo.frs("leave", "--set", "demo", "--config", os.fspath(demo.members["c"].config))
            assert left.returncode == 0, left.stderr
            fleet.sums.pop("c")  # a set that comes again begins at zero
            assert ask(demo.members["c"].state, "status")["sets"] == []  # type: ignore[index]
            demo.until("c is no partner any more", lambda: not [x for x in fleet.joined("a") if "c" in x])
            fleet.ended("c")
            removed = demo.members["c"]
            here = sorted(removed.root.iterdir())
            writer.until_more(demo)
            assert sorted(removed.root.iterdir()) == here

            fleet.change("add-member", "c", "--address", f"127.0.0.1:{removed.rpc_port}", "--key", key)
            demo.until("c is joined by all", lambda: len(fleet.joined("c")) == 8)
            writer.also("c", removed.root)
            writer.until_more(demo)

        demo.wait_converged()
        (demo.members["a"].root / "local.skip").unlink()
        for name in "bcde":
            assert compare_trees(demo.members["a"].root, demo.members[name].root) == []
        found = {one.name: one.read_bytes() for one in demo.members["a"].root.iterdir()}
        assert {name: found.get(name) for name in writer.expected} == writer.expected
        fleet.look()
