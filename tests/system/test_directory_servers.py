"""Real directory servers on this host: an owner, a copy in its site and the owner of another site. They replicate
over sealed RPC, are killed, come back with an old database, and have another owner in the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.topology import new_replica_set
from config.write import topology_text
from tests.directory.processes import Server, run, until

pytestmark = pytest.mark.slow


class Enterprise:
    """The owner `pec`, the copy `bsc` in its site, the owner `psc` of another site."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.pec, self.bsc, self.psc = (Server(folder, name) for name in ("pec", "bsc", "psc"))
        self.pec.init()
        self.start(stack, self.pec)
        self.bsc.join(self.pec)
        self.psc.join(self.pec, "--site", "second")
        for server in (self.bsc, self.psc):
            self.start(stack, server)
        self.all = (self.pec, self.bsc, self.psc)

    @staticmethod
    def start(stack: contextlib.ExitStack, server: Server) -> None:
        stack.callback(server.stop)
        server.start()

    def take(self, name: str, at: Server) -> None:
        file = self.folder / "wanted.toml"
        file.write_text(topology_text([new_replica_set(name, [("a", "a.example.org", 1)], "full-mesh")], "Wanted."))
        at.directory("import", str(file))

    def agree(self, *servers: Server) -> None:
        until("all have the same", lambda: len({one.topology() for one in servers}) == 1, *servers)
        until("of one number", lambda: len({one.enterprise["last"] for one in servers}) == 1, *servers)


@pytest.fixture
def enterprise(tmp_path: Path) -> Iterator[Enterprise]:
    with contextlib.ExitStack() as stack:
        yield Enterprise(tmp_path, stack)


def test_servers_replicate_are_killed_restored_and_replaced(enterprise: Enterprise) -> None:
    pec, bsc, psc = enterprise.all
    enterprise.take("first", pec)
    enterprise.agree(*enterprise.all)
    assert "first" in bsc.topology()
    assert [one.enterprise["owner"] for one in enterprise.all] == ["pec"] * 3
    # A copy, and the owner of another site, have the owner make a change.
    for number, server in enumerate((bsc, psc)):
        enterprise.take(f"asked{number}", server)
        enterprise.agree(*enterprise.all)
        assert f"asked{number}" in pec.topology()

    # A copy that was killed has what it missed when it is back, although the owner was killed with what it had to tell.
    bsc.kill()
    enterprise.take("second", pec)
    until("it waits to be told", lambda: any(one["name"] == "bsc" and one["waiting"] for one in pec.status["servers"]))
    pec.kill()
    pec.start()
    bsc.start()
    enterprise.agree(*enterprise.all)
    assert "second" in bsc.topology()

    # The owner comes back out of a backup: the others know more, and it takes no change.
    pec.directory("backup", str(enterprise.folder / "backup.db"))
    enterprise.take("third", pec)
    enterprise.agree(*enterprise.all)
    assert "already running" in pec.directory("restore", str(enterprise.folder / "backup.db"), code=4)
    pec.stop()
    wrong = enterprise.folder / "wanted.toml"
    assert "cannot be restored" in pec.directory("restore", str(wrong), code=4)
    assert "restored" in pec.directory("restore", str(enterprise.folder / "backup.db"))
    pec.start()
    until("it is noticed", lambda: bool(pec.enterprise["disputed"]), pec, psc)
    assert "frs directory promote" in pec.directory("import", str(enterprise.folder / "wanted.toml"), code=2)
    assert "DISPUTED" in pec.directory("status", code=1)

    # The administrator has the other site's owner go on, which has the third topology.
    psc.directory("promote")
    until("the others follow", lambda: bsc.enterprise["owner"] == "psc", bsc, psc)
    enterprise.take("fourth", psc)
    enterprise.agree(bsc, psc)
    assert "fourth" in bsc.topology()
    # The first site, whose owner was pec, is that of psc now, and no reason to look for psc where pec is.
    where = {one["name"]: one["address"] for one in bsc.status["servers"]}
    assert where["psc"] == f"127.0.0.1:{psc.port}"
    pec.directory("resign", "--owner", "psc")
    enterprise.agree(*enterprise.all)
    assert [one.enterprise["owner"] for one in enterprise.all] == ["psc"] * 3
    assert [one.status["complete"] for one in enterprise.all] == [True] * 3

    # The other site's owner was taken over: the former owner takes its place, and nobody hears it any more.
    assert "lets psc in no more" in bsc.directory("remove-server", "psc")
    assert "lets psc in no more" in pec.directory("remove-server", "psc")
    pec.directory("promote")
    assert "psc is removed" in pec.directory("remove-server", "psc")
    enterprise.take("fifth", pec)
    enterprise.agree(pec, bsc)
    assert "fifth" in bsc.topology()
    assert "fifth" not in psc.topology()
    for one in (pec, bsc):
        assert [part["owner"] for part in one.status["partitions"]] == ["pec"] * 3
        assert "psc" not in [server["name"] for server in one.status["servers"]]
    assert "no server other" in pec.directory("remove-server", "other", code=2)


def test_who_is_no_directory_server_delivers_no_message(enterprise: Enterprise) -> None:
    """A server whose key the directory does not have is not let in, and a member of a set may read and no more."""
    import asyncio

    from agent.directory.access import interface
    from agent.directory.replication.messages import BscAck, encode_message
    from agent.rpc.errors import RpcAuthError, RpcFault
    from agent.rpc.noise import KeyPair
    from agent.rpc.security import KeyCredential
    from config.directory import load_directory_server
    from config.keys import new_key, public_key

    server = load_directory_server(enterprise.pec.config)
    own = new_key()

    async def deliver() -> None:
        key = KeyCredential(KeyPair(own), public_key(server.key))
        client = await interface.connect("127.0.0.1", enterprise.pec.port, key)
        try:
            await interface.deliver(client, encode_message(BscAck(server.site, bytes(16), "bsc")), 30)
        finally:
            await client.close()

    with pytest.raises(RpcAuthError):
        asyncio.run(deliver())
    made = new_replica_set("docs", [("a", "a.example.org", 1)], "full-mesh")
    (member,) = made.members.values()
    object.__setattr__(member, "key", public_key(own))
    file = enterprise.folder / "wanted.toml"
    file.write_text(topology_text([made], ""))
    enterprise.pec.directory("import", str(file))
    with pytest.raises(RpcFault, match="0x00000005"):
        asyncio.run(deliver())


def test_a_copy_takes_the_place_of_the_owner_of_its_site(tmp_path: Path) -> None:
    """Which is lost, with all that the copy heard by it; it comes back, and is a copy, too."""
    with contextlib.ExitStack() as stack:
        pec, psc, copy = (Server(tmp_path, name) for name in ("pec", "psc", "copy"))
        pec.init()
        Enterprise.start(stack, pec)
        psc.join(pec, "--site", "second")
        psc.start()
        until("it owns its site", lambda: any(one["mine"] for one in psc.status["partitions"]), psc)
        copy.join(psc)
        Enterprise.start(stack, copy)
        until("the copy has all", lambda: len([one for one in copy.status["partitions"] if one["complete"]]) == 3, copy)
        assert "no site third" in copy.directory("promote", "--site", "third", code=2)
        servers = (pec, psc, copy)
        until("all know of each other", lambda: len({str(_numbers(one)) for one in servers}) == 1, *servers)
        psc.kill()
        file = tmp_path / "wanted.toml"
        file.write_text(topology_text([new_replica_set("docs", [("a", "a.example.org", 1)], "full-mesh")], "Wanted."))
        pec.directory("import", str(file))
        until("the owner of the enterprise has given it the site", lambda: _promoted(copy, "second"), pec, copy)
        assert "owns the site second now" in copy.directory("promote", "--site", "second"), "it does already"
        until("it hears the owner of the enterprise", lambda: "docs" in copy.topology(), pec, copy)
        file.write_text(topology_text([new_replica_set("more", [("a", "a.example.org", 1)], "full-mesh")], "Wanted."))
        copy.directory("import", str(file))
        assert "more" in pec.topology()
        Enterprise.start(stack, psc)
        until("the former owner has all", lambda: psc.topology() == pec.topology(), pec, psc, copy)
        until("all follow", lambda: all(_owners(one) == ["copy", "pec", "pec"] for one in servers), *servers)
        until("all have all", lambda: all(one.status["complete"] for one in servers), *servers)


def _numbers(server: Server) -> dict[str, str]:
    """The last sequence number that it has of each partition."""
    return {one["id"]: one["last"] for one in server.status["partitions"]}


def _promoted(server: Server, site: str) -> bool:
    """Where the owner of the enterprise has not answered in time, the command says that it is to be run again."""
    done = run("directory", "promote", "--config", str(server.config), "--site", site)
    assert done.returncode == 0 or "run this again" in done.stderr, done.stdout + done.stderr
    return done.returncode == 0


def _owners(server: Server) -> list[str]:
    there = server.status["partitions"]
    assert not any(one["disputed"] for one in there if one["complete"] and one["mine"])
    return sorted(one["owner"] for one in there if one["complete"])
