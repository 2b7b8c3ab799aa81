"""The members of one variant, their file systems, and the attackers of each that is attacked."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.cli.demo_layout import DemoOptions, prepare
from tests.ports import port_base
from tests.race import layout, safely
from tests.race.board import ATTACKING, COUNTS, ENDED, RESTING, Board
from tests.system.demo import PATIENCE, Demo, ask, environment
from tests.system.mounts import mounted

ATTACKERS = 2  # of each member that is attacked
#: How long a change rests on the member that is edited, and on those that are attacked: that nobody there looks at a
#: name while it is exchanged again and again lets an install find, at first, what it expects.
AGING_S = 0.05
AGING_ATTACKED_S = 0.5
_STATE_SIZE = "size=2g,mode=700"


class Attack:
    """The attackers of one member."""

    def __init__(self, folder: Path, *, seed: int, owns_root: bool, seeding: bool) -> None:
        """`folder`: of the member, with its `root`."""
        self._member = folder.name
        self.board = Board()
        self.root_fd = os.open(folder / "root", safely.FOLDER)
        self._scratch = folder / "scratch"
        with contextlib.suppress(FileExistsError):
            self._scratch.mkdir(mode=0o755)
        os.chown(self._scratch, layout.USER, layout.USER)
        self.scratch_fd = os.open(self._scratch, safely.FOLDER)
        arguments = {
            "root-fd": self.root_fd,
            "scratch-fd": self.scratch_fd,
            "board-fd": self.board.fd,
            "base": folder.parent,
            "root": f"{folder.name}/root",
        }
        common = [f"--{name}={value}" for name, value in arguments.items()]
        common += [f"--{name}" for name, on in (("owns-root", owns_root), ("seeding", seeding)) if on]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.race.attacker", *common, f"--number={n}", f"--seed={seed + n}"],
                pass_fds=(self.root_fd, self.scratch_fd, self.board.fd),
                stdin=subprocess.DEVNULL,
                env=environment(),
            )
            for n in range(ATTACKERS)
        ]

    def go(self) -> None:
        self.board.order = ATTACKING

    def rest(self) -> None:
        """Returns once nobody attacks; what they made in their own folder is gone then."""
        self.board.order = RESTING
        while any(self.board.of(n, "state") for n in range(ATTACKERS)):
            self.alive()
            time.sleep(0.005)

    def clean(self) -> None:
        """What the attackers have heaped up beside the tree is removed, and what they have put into it that is not
        replicated and may not stay in the way: FIFOs."""
        for _, fd, name, found in safely.walk(self.root_fd):
            if stat.S_ISFIFO(found.st_mode):
                os.unlink(name, dir_fd=fd)
        for number in range(ATTACKERS):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(str(number), safely.FOLDER, dir_fd=self.scratch_fd)
                try:
                    safely.empty(fd)
                finally:
                    os.close(fd)

    def alive(self) -> None:
        """Raises where an attacker has ended: then nothing would be shown."""
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"an attacker of {self._member} ended with exit code {process.returncode}")

    def counts(self) -> Counter[str]:
        return Counter({what: sum(self.board.of(n, what) for n in range(ATTACKERS)) for what in COUNTS[1:]})

    def close(self) -> None:
        self.board.order = ENDED
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(self.root_fd)
        os.close(self.scratch_fd)


class Site:
    """A folder with running members. As a context manager it starts and stops them."""

    def __init__(self, folder: Path, *, members: str, two: bool, root: str, durable: bool) -> None:
        """`members`: a letter each, all but the first attacked; `two`, `root`: see rounds.Variant; `durable`: they
        make durable what they do."""
        self.folder = folder
        self._members, self._attacked = members, members[1:]
        self._two, self._root = two, root
        self._durable = durable
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Site:
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        with self._stack:
            count = len(self._members)
            prepare(
                DemoOptions(
                    self.folder, members=count, port_base=port_base(), dashboard_port=port_base(), aging_s=AGING_S
                )
            )
            self._configure()
            for member in self._attacked:
                if self._two:
                    self._stack.enter_context(mounted(self.folder / member / "state", _STATE_SIZE))
                self.own_root(member)
            self.demo = self._stack.enter_context(Demo(self.folder, members=count))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _configure(self) -> None:
        """Staging files bare, so that whatever got into one is found there; slots of attackers are not replicated."""
        for member in self._members:
            (self.folder / member).chmod(0o755)
            file = self.folder / member / "agent.toml"
            fsync = "true" if self._durable else "false"
            text = file.read_text()
            aging = f"aging = {AGING_S}\n"
            assert aging in text
            if member in self._attacked:
                text = text.replace(aging, f"aging = {AGING_ATTACKED_S}\n")
            file.write_text(f'{text}compression = "none"\nfsync = {fsync}\n')
        topology = self.folder / "topology.toml"
        text = topology.read_text()
        for key in ("file_filter", "directory_filter"):
            assert f"{key} = []" in text
            text = text.replace(f"{key} = []", f'{key} = ["*{layout.SLOT}"]')
        topology.write_text(text)

    def own_root(self, member: str) -> None:
        """The tree's root belongs to whom this variant says."""
        root = self.folder / member / "root"
        owner = layout.USER if self._root == "owned" else 0
        os.chown(root, owner, owner)
        root.chmod(0o1777 if self._root == "sticky" else 0o755)

    def root(self, member: str) -> Path:
        return self.folder / member / "root"

    def state(self, member: str) -> Path:
        return self.folder / member / "state"

    def config(self, member: str) -> Path:
        return self.folder / member / "agent.toml"

    def pids(self) -> dict[str, int]:
        """The members that run."""
        found = {}
        for member in self._attacked:
            with contextlib.suppress(OSError, ValueError):
                found[member] = self.demo.pid(member)
        return found

    # ------------------------------------------------------------ members

    def forget(self, member: str) -> None:
        """A member that is down loses its state and its tree, as if it were new."""
        for entry in self.state(member).iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        root = self.root(member)
        fd = os.open(root, safely.FOLDER)
        try:
            safely.empty(fd)
        finally:
            os.close(fd)
        for name in os.listxattr(root):
            if name.startswith(("user.", "trusted.")):
                os.removexattr(root, name)
        self.own_root(member)

    def stop(self, member: str, chooser: random.Random) -> None:
        """Ends a member: by a signal that it hears, or by one that it does not."""
        process = self.demo.by_hand.get(member)
        if process is not None and chooser.random() < 0.5:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
            del self.demo.by_hand[member]
        else:
            self.demo.kill9(member)

    def start(self, member: str) -> None:
        """Starts a member that was stopped; does not wait for it."""
        self.demo.restart(member, wait_ready=False)

    def trouble(self) -> list[str]:
        """Members that have ended, and sets that have stopped: only an administrator can help those."""
        found = []
        for member, process in self.demo.by_hand.items():
            if process.poll() is not None:
                found.append(f"stopped: {member} ended with exit code {process.returncode}")
        for member in self._members:
            answer = ask(self.state(member), "status")
            if answer is not None and answer["sets"][0]["state"] == "stopped":
                found.append(f"stopped: {member}: {answer['sets'][0]['error']}")
        return found

    def counters(self, member: str) -> dict[str, int]:
        """The counters of the set; empty while the member does not answer."""
        answer = ask(self.state(member), "counters")
        if answer is None:
            return {}
        (values,) = answer["FileReplicaSet"].values()
        return dict(values)

    def online(self, member: str) -> bool:
        answer = ask(self.state(member), "status")
        return answer is not None and answer["sets"][0]["state"] == "online"

    def converge(self, patience: float, tick: Callable[[], None]) -> list[str]:
        """Waits until nothing is pending on any member and nothing has moved between two looks; what is pending, when
        that does not come true in so many seconds."""
        deadline = time.monotonic() + patience
        before: object = None
        while True:
            pending: list[str] = []
            for member in self._members:
                answer = ask(self.state(member), "wait", timeout=1)
                if answer is None:
                    pending.append(f"{member} does not answer")
                else:
                    pending += [f"{member}: {line}" for line in answer.get("pending", ())]
            tick()
            if not pending:
                now = [self.counters(member) for member in self._members]
                now = [{name: value for name, value in one.items() if "Change Orders" in name} for one in now]
                if now == before:
                    return []
                before = now
            else:
                before = None
            if time.monotonic() > deadline:
                return pending or ["the members go on changing"]
            if self.trouble():
                return [*self.trouble(), *pending]
