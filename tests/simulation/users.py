"""What users do on simulated members, and what is to be seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from agent.engine.context import Limits
from agent.engine.session import NEVER
from agent.wire.filetime import HOUR
from tests.simulation.schedule import mesh, ring
from tests.simulation.simhost import NoCounters, Tally
from tests.simulation.simmember import Member
from tests.simulation.simworld import World


def started(
    names: str,
    *,
    limits: Limits | None = None,
    minor: int = 9,
    ringed: bool = False,
    seed: int = 1,
    counters: type[NoCounters] = NoCounters,
) -> World:
    world = World(names, (ring if ringed else mesh)(names), seed, limits=limits, minor=minor)
    world.counters = counters
    for member in world.members.values():
        member.start()
    world.run(60)
    assert not world.pending()
    return world


def make(member: Member, path: str, content: bytes | None = b"") -> None:
    """A user makes a file, or with None a folder."""
    folder, _, name = path.rpartition("/")
    parent = member.disk.look(folder)
    assert parent is not None
    member.disk.now = member.world.now
    member.disk.add(parent, name, is_dir=content is None, content=content or b"")
    member.touch(member.world.aging)


def move(member: Member, old: str, new: str) -> None:
    node, folder = member.disk.look(old), member.disk.look(new.rpartition("/")[0])
    assert node is not None
    assert folder is not None
    member.disk.now = member.world.now
    member.disk.move(node, folder, new.rpartition("/")[2])
    member.touch(member.world.aging)


def remove(member: Member, path: str) -> None:
    node = member.disk.look(path)
    assert node is not None
    member.disk.now = member.world.now
    member.disk.remove(node)
    member.touch(member.world.aging)


def write(member: Member, path: str, content: bytes) -> None:
    node = member.disk.look(path)
    assert node is not None
    member.disk.now = member.world.now
    member.disk.write(node, content)
    member.touch(member.world.aging)


def until(world: World, what: Callable[[], bool], *, step: float = 0.01) -> None:
    """Time passes in such steps, of seconds, until that is so; before an hour is over it has to be."""
    end = world.now + HOUR
    while not what():
        assert world.now < end, f"it does not come about; what waits: {world.pending()}"
        world.run(step)


def counted(member: Member) -> Counter[str]:
    """What its process has counted, of a world that counts (`Tally`)."""
    tally = member.engine.ctx.counters
    assert isinstance(tally, Tally)
    return Counter(tally.values)


def names(member: Member) -> list[str]:
    return sorted(member.tree())


def all_agree(world: World) -> Member:
    """Everything settles and nothing is wrong; any member will do then."""
    world.check()
    assert world.violations == []
    return world.members["a"]


def kept(world: World) -> list[tuple[str, bytes]]:
    return [(k.reason.name if k else "", c) for m in world.members.values() for c, k in m.disk.kept]


def done(member: Member) -> set[str]:
    """The upstream partners that have sent all they have."""
    sessions = member.engine.in_sessions.sessions.values()
    return {s.cxtion.partner.name for s in sessions if s.last_join_time != NEVER}
