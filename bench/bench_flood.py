"""How long real partners need for bind and authentication while strangers flood the RPC server with connections.

python bench/bench_flood.py [--seconds 5] [--rate 13000] [--kinds silent,rubbish,negotiate] [--sources other,same]

One process serves, one floods at up to that rate, one is a partner that connects, binds, authenticates, calls and
closes, again and again, from 127.0.0.1. The flood comes from 127.0.0.2 to 127.0.3.255 (`other`) or from 127.0.0.1 as
the partner does (`same`). `silent`: connections that say nothing; `rubbish`: they send no PDU; `negotiate`: they send
a bind with a proper NTLM NEGOTIATE and then nothing, which costs the server most.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcError
from agent.rpc.interface import Interface
from agent.rpc.security import Credential, CredentialStore, make_initiator
from agent.rpc.server import RpcServer

INTERFACE = p.InterfaceId.parse("5c9b4d8e-63b0-4d2b-9d58-6f2f6b1f0a11", 1)
CREDENTIAL = Credential("FRS", "bench", "a password for the benchmark")
HELD = 500  # connections that the flood leaves open


def serve(pipe: Connection, log: str) -> None:
    logging.basicConfig(filename=log, level=logging.INFO)

    async def run() -> None:
        interface = Interface(INTERFACE.uuid, (1, 0), {0: lambda context, stub: b"\0\0\0\0"})
        server = RpcServer([interface], CredentialStore([CREDENTIAL]))
        if hasattr(server, "set_partners"):
            server.set_partners(["127.0.0.1"])
        pipe.send(await server.start("127.0.0.1"))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send((usage.ru_utime, usage.ru_stime, usage.ru_maxrss >> 10))
        await server.close()

    asyncio.run(run())


def flood(pipe: Connection, port: int, kind: str, source: str, rate: float) -> None:
    token = make_initiator(c.AUTH_SPNEGO, CREDENTIAL, host="h").step(None) or b""
    verifier = p.AuthVerifier(c.AUTH_SPNEGO, c.LEVEL_PRIVACY, 0, 1, token)
    bind = p.Bind(5840, 5840, 0, (p.ContextElement(0, INTERFACE, (p.NDR,)),), call_id=1, verifier=verifier)
    data = {"silent": b"", "rubbish": b"GET / HTTP/1.0\r\n\r\n" * 4, "negotiate": p.encode_bind(bind)}[kind]
    held: deque[socket.socket] = deque()
    made = 0
    pipe.send(None)
    begin = time.monotonic()
    while not pipe.poll():
        if made > rate * (time.monotonic() - begin):
            time.sleep(0.001)
            continue
        for _ in range(50):
            one = socket.socket()
            one.setblocking(False)
            try:
                if source == "other":
                    one.bind((f"127.0.{made // 250 % 4}.{made % 250 + 2}", 0))
                one.connect(("127.0.0.1", port))
            except BlockingIOError:
                pass
            except OSError:
                one.close()
                continue
            held.append(one)
            made += 1
            if data and len(held) > 2:
                try:
                    held[-3].send(data)
                except OSError:
                    pass
            if len(held) > HELD:
                held.popleft().close()
    pipe.send(made)


async def binds(port: int, seconds: float) -> tuple[list[float], list[str]]:
    """How long each bind took, in seconds, and what went wrong."""
    times: list[float] = []
    faults: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        try:
            client = await RpcClient.connect("127.0.0.1", port, INTERFACE, CREDENTIAL, timeout=10)
            await client.call(0, bytes(200), 10)
        except RpcError as error:
            faults.append(str(error))
        else:
            times.append(time.monotonic() - begin)
            await client.close()
        await asyncio.sleep(0.01)
    return times, faults


def measure(kind: str, source: str, seconds: float, limit: float) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(theirs, str(log)), daemon=True)
        server.start()
        port = ours.recv()
        rate = 0.0
        if kind == "none":
            times, faults = asyncio.run(binds(port, seconds))
        else:
            control, other = context.Pipe()
            stranger = context.Process(target=flood, args=(other, port, kind, source, limit), daemon=True)
            stranger.start()
            control.recv()
            begin = time.monotonic()
            times, faults = asyncio.run(binds(port, seconds))
            control.send(None)
            rate = control.recv() / (time.monotonic() - begin)
            stranger.join()
        ours.send(None)
        user, system, memory = ours.recv()
        server.join()
        lines = log.read_bytes().count(b"\n")
        size = log.stat().st_size
    attempts = len(times) + len(faults)
    times = sorted(times) or [float("nan")]
    print(
        f"{kind:9s} {source:5s}: {rate:6.0f} connections/s; binds {attempts:4d}, failed {len(faults) / attempts:4.0%}, "
        f"median {statistics.median(times) * 1e3:6.1f} ms, 95 % {times[int(len(times) * 0.95)] * 1e3:7.1f} ms; "
        f"server {user / seconds:4.0%} CPU + {system / seconds:4.0%} in the kernel, {memory} MiB, "
        f"log {lines} lines {size / 1e6:.1f} MB",
        flush=True,
    )
    for fault in sorted(set(faults))[:3]:
        print(f"    {faults.count(fault)} times: {fault}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=13_000, help="connections per second of the flood, at most")
    parser.add_argument("--kinds", default="silent,rubbish,negotiate")
    parser.add_argument("--sources", default="other,same")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    measure("none", "", options.seconds, 0)
    for source in options.sources.split(","):
        for kind in options.kinds.split(","):
            measure(kind, source, options.seconds, options.rate)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
