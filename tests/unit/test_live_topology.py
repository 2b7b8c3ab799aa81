"""Members in this process whose topology changes while they run."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.engine import events as ev
from agent.service import directory as directory_module
from agent.service import sets as sets_module
from agent.service.directory import Departures
from agent.service.service import Service
from agent.tree import root as root_module
from agent.tree.lock import RootLock
from agent.tree.mark import read_mark
from agent.wire.packet import NamedGuid, Packet
from config.load import load_agent_config
from config.model import ReplicaSet
from config.topology import new_replica_set
from config.topologyfile import load_topology
from config.write import topology_text
from staging import fsops
from tests.ports import port_base
from tests.system.keys import OtherKey, keyed

PATIENCE = 120.0


class Fleet:
    """Members of one topology file."""

    def __init__(self, folder: Path, members: int) -> None:
        self.demo = prepare(
            DemoOptions(
                folder / "demo", members=members, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05
            )
        )
        self.file = self.demo.topology_file
        self.services: dict[str, Service] = {}

    @property
    def set(self) -> ReplicaSet:
        return load_topology(self.file)[0]

    def write(self, *sets: ReplicaSet) -> None:
        self.file.write_text(topology_text(sets, "changed"))

    def config(self, member: str) -> Path:
        return next(one.config for one in self.demo.members if one.name == member)

    def root(self, member: str) -> Path:
        return next(one.root for one in self.demo.members if one.name == member)

    async def start(self, member: str) -> Service:
        service = self.services[member] = Service(load_agent_config(self.config(member)))
        await service.start()
        return service

    async def read(self) -> dict[str, dict[str, Any]]:
        return {name: await service.directory.read() for name, service in self.services.items()}

    async def agree(self, *members: str) -> None:
        """All these have the same files, and nothing is pending."""

        def same() -> bool:
            trees = [{p.name: p.read_bytes() for p in self.root(m).iterdir() if p.is_file()} for m in members]
            return all(tree == trees[0] for tree in trees)

        await until(lambda: same() and not any(r.pending() for m in members for r in self.replicas(m)))

    def replicas(self, member: str) -> list[Any]:
        return list(self.services[member].sets.replicas.values())


@asynccontextmanager
async def fleet(folder: Path, members: int, *start: str, options: str = "") -> AsyncIterator[Fleet]:
    """`options`: further lines of each agent.toml."""
    if not fsops.object_id_set(str(folder), bytes(range(16))):
        pytest.skip("the file system of the temporary folder has no user attributes")
    made = Fleet(folder, members)
    for one in made.demo.members:
        one.config.write_text(one.config.read_text() + options)
    try:
        for member in start:
            await made.start(member)
        yield made
    finally:
        for service in made.services.values():
            await service.close()


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "LOOK_S", 3600.0)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def joined(service: Service) -> set[str]:
    return {c["name"] for s in service.status()["sets"] for c in s["connections"] if c["state"] == "joined"}


async def test_a_wrong_file_leaves_the_running_one_in_force_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(tmp_path, 2, "a") as made:
        a, text = made.services["a"], made.file.read_text()
        for wrong in (text.replace('primary = "', 'primary = "no'), "", text[: len(text) // 2], "[[set"):
            made.file.write_text(wrong)
            (answer,) = (await made.read()).values()
            assert answer["changes"] == []
            (told, *_) = answer["problems"]
            assert told["file"] == str(made.file)
            assert told["text"] in caplog.text
            assert a.status()["directory"]["problems"] == answer["problems"]
            (one,) = a.status()["sets"]
            assert one["state"] != "stopped"
            assert len(one["connections"]) == 2
        made.file.write_text(wrong.replace("[[set", text))
        assert (await made.read())["a"]["problems"] == []
        assert a.status()["directory"]["problems"] == []


async def test_an_older_file_changes_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a") as made:
        text = made.file.read_text()
        made.file.write_text("serial = 2\n" + text)
        assert (await made.read())["a"]["serial"] == 2
        made.file.write_text("serial = 1\n" + text.replace('"*.tmp"', '"*.old"'))
        (answer,) = (await made.read()).values()
        assert "it is older" in answer["problems"][0]["message"]
        assert answer["serial"] == 2


async def test_members_come_and_go_and_no_one_is_restarted(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as made:
        whole = made.set
        two = {name: member for name, member in whole.members.items() if name != "c"}
        made.write(
            dataclasses.replace(
                whole,
                members=two,
                connections=tuple(c for c in whole.connections if "c" not in (c.upstream, c.downstream)),
            )
        )
        await made.start("a")
        await made.start("b")
        (made.root("a") / "one").write_bytes(b"1")
        await made.agree("a", "b")
        since = {s.since for r in made.replicas("a") for s in r.engine.in_sessions.sessions.values()}
        made.write(whole)
        await made.start("c")
        assert sum("c" in change for change in (await made.read())["a"]["changes"]) == 3  # a member, two connections
        (made.root("c") / "two").write_bytes(b"2")
        await made.agree("a", "b", "c")
        await until(lambda: joined(made.services["a"]) == {"a->b", "b->a", "a->c", "c->a"})
        assert since <= {s.since for r in made.replicas("a") for s in r.engine.in_sessions.sessions.values()}
        made.write(
            dataclasses.replace(
                whole, connections=tuple(c for c in whole.connections if {c.upstream, c.downstream} != {"a", "b"})
            )
        )
        await made.read()
        await until(lambda: joined(made.services["a"]) == {"a->c", "c->a"})
        assert len(made.services["a"].partners.links) == 1
        assert set(made.services["a"].snapshot()["FileReplicaConn"]) == {"demo/a->c", "demo/c->a"}
        (made.root("a") / "three").write_bytes(b"3")
        await made.agree("a", "b", "c")
        assert made.services["a"].snapshot()["FileReplicaSet"]["demo"]["Replica Sets Started"] == 1


async def test_an_address_that_changes_is_where_the_partner_is_reached(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        await until(lambda: joined(made.services["a"]) == {"a->b", "b->a"})
        b = made.services["b"]
        await b.close()
        whole = made.set
        port = whole.members["b"].port
        moved = dataclasses.replace(whole.members["b"], host="127.0.0.2", port=port)
        made.write(dataclasses.replace(whole, members={**whole.members, "b": moved}))
        config = made.config("b")
        config.write_text(config.read_text() + f'\n[listen]\nhost = "127.0.0.2"\nport = {port}\n')
        await made.start("b")
        (changes,) = [await made.services["a"].directory.read()]
        assert any("host 127.0.0.1 becomes 127.0.0.2" in change for change in changes["changes"])
        (made.root("a") / "one").write_bytes(b"1")
        (made.root("b") / "two").write_bytes(b"2")
        await made.agree("a", "b")


async def test_a_filter_holds_for_what_changes_from_then_on(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        (made.root("a") / "before.old").write_bytes(b"1")
        await made.agree("a", "b")
        made.write(dataclasses.replace(made.set, file_filter=("*.old",)))
        await made.read()
        (made.root("a") / "after.old").write_bytes(b"2")
        (made.root("a") / "was.tmp").write_bytes(b"3")
        await until(lambda: (made.root("b") / "was.tmp").exists())
        await until(lambda: not made.replicas("a")[0].pending())
        assert sorted(os.listdir(made.root("b"))) == ["before.old", "was.tmp"]
        made.write(dataclasses.replace(made.set, file_filter=()))
        await made.read()
        await made.agree("a", "b")
        assert (made.root("b") / "after.old").read_bytes() == b"2"


async def test_another_root_stops_the_set_and_nothing_is_deleted(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        (made.root("a") / "one").write_bytes(b"1")
        await made.agree("a", "b")
        config, root = made.config("a"), made.root("a")
        text, other = config.read_text(), root.with_name("other")
        other.mkdir()
        config.write_text(text.replace('root = "root"', f'root = "{other}"'))
        await made.services["a"].directory.read()
        (one,) = made.services["a"].status()["sets"]
        assert one["state"] == "stopped"
        assert f"was {root} and is {other}" in one["error"]
        assert (root / "one").exists()
        config.write_text(text.replace('root = "root"', f'root = "{tmp_path}"'))
        await made.services["a"].directory.read()
        (one,) = made.services["a"].status()["sets"]
        assert f"was {root} and is {tmp_path}" in one["error"]
        config.write_text(text)
        await made.services["a"].directory.read()
        (root / "two").write_bytes(b"2")
        await made.agree("a", "b")
        assert list(other.iterdir()) == []


def gone_from(whole: ReplicaSet, member: str) -> ReplicaSet:
    return dataclasses.replace(
        whole,
        members={name: one for name, one in whole.members.items() if name != member},
        connections=tuple(c for c in whole.connections if member not in (c.upstream, c.downstream)),
    )


async def test_a_member_leaves_when_two_readings_say_so_and_comes_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3, "a", "b", "c", options="\n[directory]\npoll_interval = 0.2\n") as made:
        (made.root("a") / "one").write_bytes(b"1")
        await made.agree("a", "b", "c")
        whole, c = made.set, made.services["c"]
        state = c.config.sets[0].state_dir
        made.write(gone_from(whole, "c"))
        answer = await c.directory.read()
        assert answer["changes"] == []
        assert [one["set"] for one in answer["leaving"]] == ["demo"]
        assert c.status()["sets"][0]["state"] == "online"
        made.file.write_text("")  # and what fails in between begins it anew
        await c.directory.read()
        assert c.directory.status()["leaving"] == []
        made.write(gone_from(whole, "c"))
        await c.directory.read()
        await asyncio.sleep(0.2)
        answer = await c.directory.read()
        assert answer["changes"]
        assert c.status()["sets"] == []
        assert c.partners.links == {}
        assert set(os.listdir(state)) <= {"kept", "deleted"}
        assert (made.root("c") / "one").read_bytes() == b"1"
        files = sorted((made.demo.members[2].state / "samples").glob("*.jsonl"))
        lines = [line for file in files for line in file.open()]
        last = [one for one in map(json.loads, lines) if one["set"] == "demo" and not one["connection"]][-1]["counters"]
        assert (last["Replica Sets Removed"], last["Replica Sets Deleted"]) == (1, 1)
        await made.read()
        (made.root("a") / "two").write_bytes(b"2")
        (made.root("c") / "three").write_bytes(b"3")
        await made.agree("a", "b")
        made.write(whole)
        await made.read()
        await made.agree("a", "b", "c")
        assert sorted(os.listdir(made.root("b"))) == ["one", "three", "two"]


async def test_a_root_that_was_left_is_free_for_others(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "b") as made:
        fd = os.open(made.root("b"), os.O_RDONLY | os.O_DIRECTORY)
        try:
            mark = read_mark(fd)
            assert mark is not None
            made.write(gone_from(made.set, "b"))
            await made.services["b"].directory.leave("demo")
            left = read_mark(fd)
        finally:
            os.close(fd)
        assert left is None or not mark.trusted


async def test_what_is_kept_of_conflicts_stays_when_a_member_leaves(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        (made.root("a") / "one").write_bytes(b"1")
        await made.agree("a", "b")
        (made.root("a") / "one").unlink()
        await made.agree("a", "b")
        b = made.services["b"]
        await until(lambda: b.status()["sets"][0]["deleted"]["files"] == 1)
        kept = [path for path in (b.config.sets[0].state_dir / "deleted").rglob("*") if path.is_file()]
        made.write(gone_from(made.set, "b"))
        await b.directory.leave("demo")
        assert kept
        assert all(path.exists() for path in kept)


async def test_a_set_that_is_made_anew_under_its_name_takes_the_place_of_the_old_one(
    tmp_path: Path,
) -> None:
    """Once the old one is left: one folder is the root of one set."""
    async with fleet(tmp_path, 2, "a", "b", options="\n[directory]\npoll_interval = 0.1\n") as made:
        (made.root("a") / "one").write_bytes(b"1")
        await made.agree("a", "b")
        old = made.set
        addresses = [(one.name, one.host, one.port) for one in old.members.values()]
        made.write(keyed(new_replica_set("demo", addresses, "full-mesh"), old))
        await made.read()
        assert [one["guid"] for one in made.services["a"].status()["sets"]] == [str(uuid.UUID(bytes_le=old.guid))]
        await asyncio.sleep(0.1)
        await made.read()
        (made.root("b") / "two").write_bytes(b"2")
        await made.agree("a", "b")
        assert sorted(os.listdir(made.root("a"))) == ["one", "two"]
        assert set(made.services["a"].snapshot()["FileReplicaSet"]) == {"demo"}


async def test_a_set_whose_root_is_in_that_of_one_to_be_left_waits(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a") as made:
        old = made.set
        addresses = [(one.name, one.host, one.port) for one in old.members.values()]
        made.write(keyed(new_replica_set("other", addresses, "full-mesh"), old))
        config = made.config("a")
        (made.root("a") / "inside").mkdir()
        config.write_text(
            config.read_text().replace('name = "demo"', 'name = "other"').replace('"root"', '"root/inside"')
        )
        await made.read()
        assert [one["name"] for one in made.services["a"].status()["sets"]] == ["demo"]
        await made.services["a"].directory.leave("demo")
        assert [one["name"] for one in made.services["a"].status()["sets"]] == ["other"]


async def test_what_was_begun_is_brought_to_its_end_whoever_goes_away(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a") as made:
        a = made.services["a"]
        made.write(dataclasses.replace(made.set, primary="b"))
        asked = asyncio.create_task(a.directory.read())
        for _ in range(10):
            if not a.directory._reading.locked():
                await asyncio.sleep(0)
        assert a.directory._reading.locked()
        asked.cancel()
        await a.directory.close()
        assert asked.cancelled()
        assert not made.replicas("a")[0].engine.ctx.config.primary
        made.file.write_text("")
        assert (await a.directory.read())["problems"] == []  # it is not read any more


async def test_a_fault_in_reading_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, 2, "a") as made:

        def fail(*_: object) -> None:
            raise ValueError("injected")

        monkeypatch.setattr(made.services["a"].directory._source, "read", fail)
        assert "injected" in (await made.read())["a"]["problems"][0]["text"]
        assert made.services["a"].status()["sets"][0]["state"] != "stopped"


async def test_another_key_is_used_without_a_restart(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        await until(lambda: joined(made.services["a"]) == {"a->b", "b->a"})
        other = OtherKey(made.file.parent, "a")
        other.use()
        changes = (await made.services["a"].directory.read())["changes"]
        assert sorted(changes) == ["authentication: another key", "set demo: the member a: another key"]
        (made.root("a") / "one").write_bytes(b"1")
        partners = made.services["a"].partners
        await until(lambda: any("the topologies have other keys" in why for _, why in partners.refusals()))
        made.file.write_text(other.topology.read_text())
        assert (await made.services["b"].directory.read())["changes"] == ["set demo: the member a: another key"]
        await made.agree("a", "b")


async def test_nothing_goes_to_who_is_no_partner_any_more(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a") as made:
        a = made.services["a"]
        (replica,) = made.replicas("a")
        (partner,) = a.partners.links
        for link in a.partners.take("demo"):
            await link.close()
        name = NamedGuid(partner, "b")
        a.partners.send(ev.Send(partner, Packet(command=0, to=name, from_=name, replica=name, cxtion=name)), "a->b")
        assert a.partners.has_room(partner)
        a.partners.begin(replica, replica.local)
        assert set(a.partners.links) == {partner}


async def test_an_administrator_confirms_that_a_member_leaves(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3, "c") as made:
        c = made.services["c"]
        assert "remove it first" in (await c.directory.leave("demo"))["refused"]
        assert "no replica set" in (await c.directory.leave("nothing"))["refused"]
        made.write(gone_from(made.set, "c"))
        answer = await c.directory.leave("demo")
        assert "refused" not in answer
        assert c.status()["sets"] == []


async def test_a_member_that_was_removed_while_it_was_down_leaves_too(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        await until(lambda: joined(made.services["b"]) != set())
        b = made.services.pop("b")
        await b.directory.read()  # its sets are remembered
        await b.close()
        alone = gone_from(made.set, "b")
        made.write(alone)
        config = load_agent_config(made.config("b"), known={"demo": alone.guid})
        made.services["b"] = again = Service(config)
        await again.start()
        assert again.status()["sets"] == []
        await until(lambda: again.directory.status()["leaving"] != [])
        assert (b.config.sets[0].state_dir / "frs.db").exists()
        answer = await again.directory.leave("demo")
        assert "forgotten" in " ".join(answer["changes"])
        assert not (b.config.sets[0].state_dir / "frs.db").exists()


async def test_a_set_comes_and_goes(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a", "b") as made:
        first = made.set
        second = new_replica_set(
            "more", [(one.name, one.host, one.port) for one in first.members.values()], "full-mesh"
        )
        made.write(first, keyed(second, first))
        for member in "ab":
            (made.root(member).parent / "more").mkdir()
            config = made.config(member)
            config.write_text(config.read_text() + '\n[[set]]\nname = "more"\nroot = "more"\n')
        await made.read()
        (made.root("a").parent / "more" / "one").write_bytes(b"1")
        await until(lambda: (made.root("b").parent / "more" / "one").exists())
        assert [one["name"] for one in made.services["a"].status()["sets"]] == ["demo", "more"]
        made.write(first)
        await made.read()
        answer = await made.services["a"].directory.leave("more")
        assert "the set more is gone" in " ".join(answer["changes"])
        assert [one["name"] for one in made.services["a"].status()["sets"]] == ["demo"]
        (made.root("a") / "two").write_bytes(b"2")
        await made.agree("a", "b")


async def test_what_cannot_change_while_an_agent_runs_is_said(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, "a") as made:
        config, text = made.config("a"), made.config("a").read_text()
        config.write_text(text + '\n[log]\nlevel = "debug"\n')
        assert (await made.read())["a"]["restart"] == ["log_level"]
        config.write_text(text)
        assert (await made.read())["a"]["restart"] == []
        key = made.config("b").parent / "key.toml"
        config.write_text(text.replace('member = "a"', 'member = "b"').replace('"key.toml"', f'"{key}"'))
        assert "has to be restarted" in (await made.read())["a"]["problems"][0]["text"]


async def test_changes_are_seen_without_being_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "LOOK_S", 0.02)
    async with fleet(tmp_path, 2, "a") as made:
        made.write(dataclasses.replace(made.set, primary="b"))
        await until(lambda: not made.replicas("a")[0].engine.ctx.config.primary)


async def test_a_fault_in_one_set_is_said_of_that_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, 2, "a") as made:

        async def fail(_: object) -> None:
            raise ValueError("injected")

        (replica,) = made.replicas("a")
        monkeypatch.setattr(replica, "reconfigure", fail)
        made.write(dataclasses.replace(made.set, primary="b"))
        await made.read()
        (one,) = made.services["a"].status()["sets"]
        assert (one["state"], "injected" in one["error"]) == ("stopped", True)


def test_departures_are_believed_after_two_readings_an_interval_apart() -> None:
    found, gone = Departures(), b"g" * 16
    assert found.staying({gone}, 0.0, 10.0, ()) == {gone}
    assert found.staying({gone}, 9.9, 10.0, ()) == {gone}
    assert found.staying({gone}, 10.0, 10.0, ()) == set()
    assert found.staying({gone}, 20.0, 10.0, ()) == {gone}
    found.failed()
    assert found.staying({gone}, 30.0, 10.0, ()) == {gone}
    assert found.staying(set(), 35.0, 10.0, ()) == set()
    assert found.staying({gone}, 40.0, 10.0, ()) == {gone}
    assert found.staying({gone}, 41.0, 10.0, {gone}) == set()


async def test_all_else_goes_on_while_a_set_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its root is another agent's is asked for seconds where somebody has a lock on it. Who gives up meanwhile
    leaves nothing open."""
    asked, turned, waited = threading.Event(), threading.Event(), []

    def slow(*args: Any) -> RootLock:
        asked.set()
        waited.append(turned.wait(PATIENCE / 2))
        return RootLock(*args)

    async with fleet(tmp_path, 2, "a") as made:
        monkeypatch.setattr(root_module, "RootLock", slow)
        opening = asyncio.create_task(made.start("b"))
        await until(asked.is_set)
        opening.cancel()
        asyncio.get_running_loop().call_later(0.1, turned.set)
        with pytest.raises(asyncio.CancelledError):
            await opening
        await made.services.pop("b").close()
        asked.clear()
        turned.clear()
        opening = asyncio.create_task(made.start("b"))
        await until(asked.is_set)
        assert made.services["a"].status()["sets"] != []
        turned.set()
        await opening
        assert waited == [True, True]
        await until(lambda: joined(made.services["b"]) != set())


async def test_a_set_at_the_root_of_one_that_was_not_left_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry in agent.toml has got another name, perhaps by mistake, while the agent was down."""
    monkeypatch.setattr(sets_module, "RETRY_S", 0.05)
    async with fleet(tmp_path, 2, "a", "b") as made:
        first = made.set
        await until(lambda: joined(made.services["b"]) != set())
        b = made.services.pop("b")
        await b.directory.read()  # its sets are remembered
        await b.close()
        members = [(one.name, one.host, one.port) for one in first.members.values()]
        made.write(first, keyed(new_replica_set("more", members, "full-mesh"), first))
        config = made.config("b")
        config.write_text(config.read_text().replace('name = "demo"', 'name = "more"'))
        made.services["b"] = again = Service(load_agent_config(config, known={"demo": first.guid}))
        await again.start()
        (waits,) = again.status()["sets"]
        assert (waits["name"], waits["state"]) == ("more", "stopped")
        assert "is that of another set of this member" in waits["error"]
        answer = await again.directory.leave("demo")
        assert "forgotten" in " ".join(answer["changes"])
        await until(lambda: [one["state"] for one in again.status()["sets"]] != ["stopped"])
        assert (again.config.sets[0].state_dir / "frs.db").exists()
