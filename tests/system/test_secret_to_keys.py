"""From a secret that all share to another one, and to a key for each member, by the steps of docs/security.md, without
an outage."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.rpc.errors import RpcAuthError, RpcClosed
from agent.rpc.frsrpc import FrsPartner
from agent.rpc.security import Credential
from config.load import load_agent_config
from config.write import with_public_key
from tests.ports import port_base
from tests.system.demo import PATIENCE, Demo

pytestmark = pytest.mark.slow

SECRET, FOR_ALL = 'secret = "../secret.toml"\n', "secret_for_all = true\n"


class Hosts:
    """Two members as they were before there were keys: each with files of its own, on which only the secret is the
    same. None is started."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        made = prepare(
            DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3, shared_secret=True)
        )
        assert made.secret is not None
        self.secret = Credential(made.secret.domain, made.secret.user, made.secret.password)
        shared = re.sub(r"^key = .*\n", "", made.topology_file.read_text(), flags=re.MULTILINE)
        made.topology_file.write_text(shared)
        for member in made.members:
            member.key.unlink()
            (member.folder / "topology.toml").write_text(shared)
            self.edit(member.config, 'key = "key.toml"\n', "")
            self.edit(member.config, FOR_ALL, "")
            self.edit(member.config, "../topology.toml", "topology.toml")
        self.demo = Demo(folder, aging=0.3, port_base=None, dashboard_port=None)
        self._names = itertools.count()

    @staticmethod
    def edit(file: Path, old: str, new: str) -> None:
        """As a person would."""
        text = file.read_text()
        assert text.count(old) == 1, (file, old)
        file.write_text(text.replace(old, new))

    def restart(self, name: str) -> None:
        """With the files as they are now."""
        self.demo.kill9(name)
        self.demo.restart(name)

    def replicate(self) -> None:
        """What is written on each now comes to the other."""
        for source, target in ("ab", "ba"):
            name = f"from {source} {next(self._names)}"
            (self.demo.members[source].root / name).write_text(name)
            there = self.demo.members[target].root / name
            self.demo.until(f"{name} is on {target}", lambda there=there, name=name: _content(there) == name)

    def called_by(self, how: str) -> None:
        """So both call each other, sooner or later: a call that is under way goes on as it began."""
        for name in "ab":
            self.demo.until(f"{name} calls by {how}", lambda name=name: self.called(name) == how)

    def called(self, name: str) -> object:
        (partner,) = self.demo.status(name)["partners"]
        return partner["called_by"]

    def lets_the_secret_in(self, name: str) -> bool:
        """Somebody who has nothing but the secret."""

        async def knock() -> bool:
            partner = FrsPartner("127.0.0.1", self.demo.members[name].rpc_port, self.secret, connect_timeout=PATIENCE)
            try:
                return await partner.nop(PATIENCE) == 0
            except RpcAuthError:
                return False
            except RpcClosed:  # it was let in, and what lets it in changed meanwhile
                return True
            finally:
                await partner.close()

        return asyncio.run(knock())


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def test_members_come_from_a_secret_to_keys_one_after_the_other(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "demo")
    with hosts.demo as demo:
        configs = {name: demo.members[name].config for name in "ab"}
        hosts.replicate()
        hosts.called_by("secret")

        # A key for each; a has one while b is as it was.
        for name in "ab":
            done = demo.frs("key", "--config", str(configs[name]))
            assert done.returncode == 0, done.stderr
            hosts.edit(configs[name], SECRET, f"{SECRET}{FOR_ALL}")
            hosts.restart(name)
            hosts.replicate()
            hosts.called_by("secret")

        # All keys in each topology; a has them while b knows its own only.
        for name, other in ("ab", "ba"):
            config = load_agent_config(configs[name])
            there = load_agent_config(configs[other]).sets[0].member.key
            assert there is not None
            text = with_public_key(config.topology_path, config.topology_path.read_text(), other, there)
            config.topology_path.write_text(text)
            hosts.restart(name)
            hosts.replicate()
        hosts.called_by("key")
        assert [hosts.lets_the_secret_in(name) for name in "ab"] == [True, True]

        # Nobody takes the secret any more; a does not while b still has it.
        for name in "ab":
            hosts.edit(configs[name], f"{SECRET}{FOR_ALL}", "")
            hosts.restart(name)
            assert not hosts.lets_the_secret_in(name)
            hosts.replicate()
            hosts.called_by("key")
        (demo.directory / "secret.toml").unlink()
        demo.wait_converged()
        held = [sorted(path.name for path in demo.members[name].root.iterdir()) for name in "ab"]
        assert held[0] == held[1]
        assert len(held[0]) == 2 * 7


def test_a_secret_is_replaced_host_by_host(tmp_path: Path) -> None:
    """Nothing is restarted; each state on the way replicates both ways."""
    hosts = Hosts(tmp_path / "demo")
    files = {}
    for name in "ab":
        folder = tmp_path / "demo" / name
        files[name] = folder / "secret.toml"
        files[name].touch(0o600)
        files[name].write_text((tmp_path / "demo" / "secret.toml").read_text())
        hosts.edit(folder / "agent.toml", "../secret.toml", "secret.toml")
    with hosts.demo as demo:
        hosts.replicate()
        hosts.called_by("secret")
        done = demo.frs("secret", "rotate", "--config", str(demo.members["a"].config))
        assert done.returncode == 0, done.stderr
        again = demo.frs("secret", "rotate", "--config", str(demo.members["a"].config))
        assert again.returncode == 2
        assert "[former]" in again.stderr
        demo.until("a calls b by what b has", lambda: hosts.called("a") == "former secret")
        hosts.replicate()
        assert "the former secret" in demo.frs("status", "--config", str(demo.members["a"].config)).stdout
        assert [hosts.lets_the_secret_in(name) for name in "ab"] == [True, True]

        files["b"].write_text(files["a"].read_text())
        hosts.replicate()
        hosts.called_by("secret")
        assert [hosts.lets_the_secret_in(name) for name in "ab"] == [True, True]
        for name in "ab":
            files[name].write_text(files[name].read_text().partition("\n# The password before")[0])
        for name in "ab":
            demo.until(f"{name} takes the new one only", lambda name=name: not hosts.lets_the_secret_in(name))
        hosts.replicate()
        hosts.called_by("secret")
        demo.wait_converged()
