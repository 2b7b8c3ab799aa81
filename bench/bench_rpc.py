"""Calls per second and bytes per second of agent.rpc, sealed, over loopback between two processes.

python bench/bench_rpc.py [--profile client|server] [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import multiprocessing.connection
import pstats
import time

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.interface import Interface
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import RpcServer

INTERFACE = InterfaceId.parse("5c9b4d8e-63b0-4d2b-9d58-6f2f6b1f0a11", 1)
CREDENTIAL = Credential("FRS", "bench", "a password for the benchmark")
SIZES = ((200, 1), (200, 8), (200, 64), (5_000, 8), (65_536 + 1_400, 1), (65_536 + 1_400, 8))


def serve(pipe: multiprocessing.connection.Connection, profile: bool) -> None:
    async def run() -> None:
        interface = Interface(INTERFACE.uuid, (1, 0), {0: lambda context, stub: b"\0\0\0\0"})
        server = RpcServer([interface], CredentialStore([CREDENTIAL]))
        pipe.send(await server.start("127.0.0.1"))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await server.close()

    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    asyncio.run(run())
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


async def measure(port: int, seconds: float, fragment: int) -> None:
    client = await RpcClient.connect("127.0.0.1", port, INTERFACE, CREDENTIAL, timeout=10, max_fragment=fragment)
    for size, parallel in SIZES:
        stub = bytes(size)
        done = 0
        end = time.perf_counter() + seconds
        cpu = time.process_time()

        async def worker(stub: bytes, end: float) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await client.call(0, stub, 30)
                done += 1

        begin = time.perf_counter()
        await asyncio.gather(*(worker(stub, end) for _ in range(parallel)))
        elapsed = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        print(
            f"fragment {fragment:6d}  stub {size:6d} B  in flight {parallel:3d}: {done / elapsed:9.0f} calls/s"
            f"  {done * size / elapsed / 1e6:8.1f} MB/s   client {cpu / done * 1e6:6.1f} us CPU/call"
        )
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", choices=("client", "server"))
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    pipe, other = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(other, options.profile == "server"), daemon=True)
    process.start()
    port = pipe.recv()
    profiler = cProfile.Profile()
    if options.profile == "client":
        profiler.enable()
    asyncio.run(measure(port, options.seconds, c.MAX_FRAGMENT))
    if options.profile == "client":
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
    if not options.profile:
        asyncio.run(measure(port, options.seconds, c.DEFAULT_FRAGMENT))
    pipe.send(None)
    process.join()


if __name__ == "__main__":
    main()
