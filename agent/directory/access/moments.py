"""When what last happened, for whoever looks at a directory server, or at a host that reads from some. All of it is
since the start of the process, and none of it decides anything. Times are Unix seconds."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agent.directory.access.choosing import ServerPlace
from agent.directory.replication.numbers import seq_text
from agent.wire.filetime import filetime
from agent.work.clock import iso_time

#: Hosts of which it is remembered when they asked, and that a status has, at most.
MOST_REMEMBERED: Final = 20_000
MOST_TOLD: Final = 1000
#: A host asks again after 30 s, unless there is something new: after so long it does not ask here any more.
ASKS_S: Final = 90.0


def moment(when: float | None) -> str | None:
    """As the status has it, in ISO 8601; None for what was not since the start."""
    return iso_time(filetime(int(when * 1e9))) if when else None


class Heard:
    """When other servers were last heard, and how each partition that is owned here was acknowledged."""

    def __init__(self) -> None:
        self.started = time.time()
        self._heard: dict[str, float] = {}
        self._acknowledged: dict[tuple[bytes, str], float] = {}

    def message(self, sender: str) -> None:
        """Another server has said something."""
        self._heard[sender] = time.time()

    def acknowledgement(self, sender: str, partition: bytes) -> None:
        """It has said how far it has a partition that is known here."""
        self._acknowledged[partition, sender] = time.time()

    def acknowledged(self, partition: bytes, servers: Collection[str]) -> dict[str, str | None]:
        """When each of these servers last did so."""
        return {name: moment(self._acknowledged.get((partition, name))) for name in sorted(servers)}

    def status(self, servers: Sequence[Mapping[str, Any]], expected: Collection[str]) -> list[dict[str, Any]]:
        """What is to be said of servers, and when each was heard; from those that are `expected` to say something
        every 20 minutes much longer silence is no good sign."""
        return [
            {**one, "heard": moment(self._heard.get(one["name"])), "expected": one["name"] in expected}
            for one in servers
        ]


class Asking:
    """How far the hosts are that ask a server for what is new, by what they say that they know."""

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[float, float, int]] = {}  # last asked, since when with that generation, which

    def asks(self, who: str, known: int | None = None) -> None:
        """A host asks, and has taken over that generation (0: none yet); None where it does not say, or gets its
        answer only now."""
        now = time.time()
        _, since, before = self._hosts.pop(who, (now, now, 0))
        if known is not None and known != before:
            since, before = now, known
        self._hosts[who] = now, since, before
        if len(self._hosts) > MOST_REMEMBERED:
            del self._hosts[next(iter(self._hosts))]

    def status(self, generation: int, members: Collection[str]) -> dict[str, Any]:
        """Of those that are members: first those that ask and have another generation, then those that do not ask any
        more, each with who has it longest first."""
        now = time.time()

        def rank(one: tuple[str, tuple[float, float, int]]) -> tuple[int, float, str]:
            name, (asked, since, known) = one
            asks = now - asked <= ASKS_S
            return (0 if asks and known != generation else 1 if not asks else 2), since, name

        there = sorted(((name, one) for name, one in self._hosts.items() if name in members), key=rank)
        told = [
            {
                "name": name,
                "asked": moment(asked),
                "asks": now - asked <= ASKS_S,
                "generation": seq_text(known),
                "since": moment(since),
                "current": known == generation,
            }
            for name, (asked, since, known) in there[:MOST_TOLD]
        ]
        count = {
            "current": sum(1 for _, (asked, _, known) in there if now - asked <= ASKS_S and known == generation),
            "other": sum(1 for _, (asked, _, known) in there if now - asked <= ASKS_S and known != generation),
            "gone": sum(1 for _, (asked, _, _) in there if now - asked > ASKS_S),
        }
        return {"reading": told, "reading_left_out": max(len(there) - MOST_TOLD, 0), "reading_count": count}


@dataclass(slots=True)
class _Place:
    reading_since: float | None = None
    answered: float | None = None
    tried: float | None = None
    failing_since: float | None = None
    problem: str = ""


class Places:
    """What a host knows of each server that it may read from."""

    def __init__(self) -> None:
        self._places: dict[ServerPlace, _Place] = {}
        self._read: ServerPlace | None = None  # which is read from
        self.taken_at: float | None = None  # when a generation was last taken over that was news
        self.answered_at: float | None = None

    def _of(self, server: ServerPlace) -> _Place:
        return self._places.setdefault(server, _Place())

    def tried(self, server: ServerPlace) -> None:
        """It is called now."""
        self._of(server).tried = time.time()

    def answered(self, server: ServerPlace) -> None:
        """It has said what there is, or that there is nothing new, and that was believed."""
        one, now = self._of(server), time.time()
        if self._read != server:
            self._read, one.reading_since = server, now
        one.answered = self.answered_at = now
        one.failing_since, one.problem = None, ""

    def took(self) -> None:
        """Another generation has been taken over."""
        self.taken_at = time.time()

    def failed(self, server: ServerPlace, problem: str) -> None:
        """It cannot be used."""
        one = self._of(server)
        one.failing_since, one.problem = one.failing_since or time.time(), problem
        self._read = None if self._read == server else self._read

    def status(
        self, servers: Sequence[ServerPlace], sites: Mapping[ServerPlace, str], chosen: ServerPlace
    ) -> list[dict[str, Any]]:
        """Of these servers, in the order in which they are to be read from."""
        found = []
        for server in servers:
            one = self._places.get(server, _Place())
            found.append(
                {
                    "server": f"{server[0]}:{server[1]}",
                    "site": sites.get(server, ""),
                    "chosen": server == chosen,
                    "read": server == self._read,
                    "since": moment(one.reading_since) if server == self._read else None,
                    "answered": moment(one.answered),
                    "tried": moment(one.tried),
                    "failing_since": moment(one.failing_since),
                    "problem": one.problem,
                }
            )
        return found
