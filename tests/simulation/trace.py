"""What happens in a schedule, for people: `python -m tests.simulation.trace SEED [--small]`."""

from __future__ import annotations

import sys

from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.wire.constants import COMMAND_NAMES
from agent.wire.packet import Packet
from tests.simulation import schedule as sch
from tests.simulation.found import FOUND
from tests.simulation.simmember import Member
from tests.simulation.simworld import START, Step, World


def say(world: World, who: str, text: str) -> None:
    print(f"{(world.now - START) / 1e7:10.4f} {who}: {text}")


def packet_text(p: Packet) -> str:
    text = f"{COMMAND_NAMES[p.command][4:]} {p.cxtion.name}"
    co = p.remote_co
    if co is not None:
        text += (
            f" {co.file_name!r} g{co.file_guid.hex()[:4]} in {co.new_parent_guid.hex()[:4]} v{co.file_version_number}"
            f" t{co.event_time - START} o{co.originator_guid.hex()[:4]} n{co.frs_vsn - START} f{co.flags:x}"
            f" l{co.location_cmd:x} c{co.content_cmd:x} #{co.change_order_guid.hex()[:4]}"
        )
    elif p.co_guid:
        text += f" #{p.co_guid.hex()[:4]}"
    return text


def event_text(e: object) -> str:
    match e:
        case ev.PacketReceived():
            return "<- " + packet_text(e.packet)
        case ev.Send():
            return "-> " + packet_text(e.packet)
        case ev.LocalChange():
            return f"local {e.kind.value} {e.name!r} g{e.file_guid.hex()[:4]} in {e.parent_guid.hex()[:4]}"
        case ev.Install():
            steps = "; ".join(
                f"{s.step.value} {s.parent_guid.hex()[:4]}/{s.name}"
                + (f" ({s.old_parent_guid.hex()[:4]}/{s.old_name})" if s.old_name else "")
                + (f" KEEP {s.keep.reason.name}" if s.keep else "")
                for s in e.steps
            )
            return f"install #{e.co_guid.hex()[:4]} g{e.file_guid.hex()[:4]}: {steps}"
        case ev.Installed():
            return f"installed #{e.co_guid.hex()[:4]} {e.outcome.value} {e.detail}"
        case ev.Examine():
            return f"examine {e.parent_guid.hex()[:4]}/{e.name}"
        case ev.Report():
            return f"{e.level}: {e.text}"
        case ev.Tick():
            return ""
    return type(e).__name__ + (f" #{e.co_guid.hex()[:4]}" if hasattr(e, "co_guid") else "")


def watch(world: World) -> None:
    """Print what happens in the world."""
    made = Member.made

    def started(member: Member, engine: Engine) -> None:
        made(member, engine)
        say(world, member.name, "STARTED")
        handle = engine.handle

        def traced(event: ev.Event, now: int) -> list[ev.Action]:
            text = event_text(event)
            if text:
                say(world, member.name, text)
            out = handle(event, now)
            for action in out:
                if not isinstance(action, ev.StoreBlock | ev.ReadStage | ev.DropStage):
                    say(world, member.name, "    " + event_text(action))
            return out

        engine.handle = traced  # type: ignore[method-assign]

    Member.made = started  # type: ignore[method-assign]


def main() -> None:
    seed = int(sys.argv[1])
    plan = FOUND.get(seed) or sch.generate(seed)
    if "--small" in sys.argv:
        plan = sch.shrink(plan)
    world = plan.world()
    watch(world)

    def step(what: Step) -> None:
        say(world, "-", repr(what))
        world.step(what)

    for s in plan.steps:
        step(s)
    say(world, "-", "finish")
    world.check()
    for member in world.members.values():
        print(member.name, {k: v[1][:20] for k, v in member.tree().items()}, [x[0][:20] for x in member.disk.kept])
        for guid in world.guids(member):
            r = member.store.get(guid)
            if r:
                who = f"o {r.originator_guid.hex()[:4]} n {r.originator_vsn - START}"
                dead = "-" if r.deleted else ""
                print(" ", guid.hex()[:4], r.name, "v", r.version, "t", r.event_time - START, who, dead)
        print("    vv", {k.hex()[:4]: v - START for k, v in member.store.vv_get().items()}, member.pending())
    print(*world.violations, sep="\n")


if __name__ == "__main__":
    main()
