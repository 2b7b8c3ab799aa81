"""The process of the hostile partner: `python -m tests.hostile.attacker TOPOLOGY KEY ATTACK RATE TARGETS EXTRA`.

RATE is in packets a second, 0 for as fast as it can; TARGETS names the members to attack, with commas; EXTRA is what an
attack cannot know from the topology, as JSON: the ports of the dashboards, and a folder outside of every root.

It takes its place as a good partner first. Lines on standard input tell it to go on: `attack SECONDS` begins the
attack, which ends by itself; `leave`, or the end of the input, ends the process. On standard output it prints a JSON
object a line: `{"state": "joined" | "attacking" | "done"}`, and once a second in an attack what it has sent and how it
was answered.

It runs with the lowest priority: a real one would use the processors of another host, not those of its victims.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from config.credentials import load_key
from config.topologyfile import load_topology
from tests.hostile.attack import Attack, Plan
from tests.hostile.attacks import by_name
from tests.hostile.fleet import HOSTILE
from tests.hostile.partner import Partner
from tests.hostile.tally import Tally

JOIN_S = 120.0


def say(**what: Any) -> None:
    """One line to whoever started this."""
    print(json.dumps(what), flush=True)


async def told() -> asyncio.StreamReader:
    """Standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main(topology: str, key: str, attack_name: str, rate: str, targets: str, extra: str) -> int:
    """Runs until told to leave; returns the exit code."""
    orders = await told()
    (replica_set,) = load_topology(Path(topology))
    partner = Partner(replica_set, load_key(Path(key)), HOSTILE)
    await partner.start()
    attack = by_name(attack_name)(partner, Plan(float(rate), tuple(targets.split(",")), json.loads(extra)))
    joined = await partner.join(JOIN_S)
    say(state="joined" if joined else "not joined")
    while line := await orders.readline():
        words = line.decode().split()
        if words and words[0] == "attack":
            say(state="attacking")
            await attacking(attack, float(words[1]))
        elif words and words[0] == "leave":
            break
    return 0


async def attacking(attack: Attack, seconds: float) -> None:
    """Carry it out, telling the numbers as they grow."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    attack.partner.tally = Tally()  # what was sent as a good partner does not count
    work = asyncio.create_task(attack.carry_out(until))
    while not work.done() and loop.time() < until + 5:
        await asyncio.wait({work}, timeout=1.0)
        say(tally=attack.partner.tally.as_json())
    failed = ""
    if not work.done():
        work.cancel()  # it hangs in something that is never answered
    elif (error := work.exception()) is not None:
        failed = "".join(traceback.format_exception(error))
    say(state="done", failed=failed, tally=attack.partner.tally.as_json())


if __name__ == "__main__":
    os.nice(19)
    _soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
    sys.exit(asyncio.run(main(*sys.argv[1:])))
