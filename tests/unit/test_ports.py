"""Ports of tests are nobody else's for as long as the tests run."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests import ports
from tests.system.demo import REPOSITORY


def test_no_two_processes_give_out_the_same_ports() -> None:
    mine = ports.port_base(1)
    program = "from tests.ports import port_base; print(port_base(1), flush=True); input()"
    others = [
        subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    try:
        found = [mine]
        for one in others:
            assert one.stdout is not None
            found.append(int(one.stdout.readline()))
    finally:
        for one in others:
            one.communicate(b"\n")
    ranges = {(port - ports._LOWEST) // ports._SIZE for port in found}
    assert len(ranges) == len(found)


def test_a_port_on_which_somebody_listens_is_passed_over() -> None:
    first = ports.port_base(1)
    ports._ranges[0]._next -= 1
    with socket.create_server(("127.0.0.2", first)):
        assert ports.port_base(3) == first + 1
    assert ports.free_ports(2) == [first + 4, first + 5]


def test_threads_get_ports_of_their_own() -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: ports.port_base(10), range(32)))
    assert len(set(found)) == 32
    assert all(abs(one - other) >= 10 for one, other in itertools.combinations(found, 2))


def test_they_are_given_again_when_all_others_were() -> None:
    first, count = ports.port_base(1), 0
    while ports.port_base(1) != first:
        count += 1
        assert count < ports._SIZE
