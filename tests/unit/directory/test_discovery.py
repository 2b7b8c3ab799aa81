"""Discovery ([MS-MQSD]): the captures of section 4 byte for byte, the client's cases A to E and its
timer, the server."""

from __future__ import annotations

import random
import uuid

import pytest

from agent.directory.discovery.answering import Answering, Place
from agent.directory.discovery.asking import WAIT_S, Action, Asking, Broadcast, Finished, Wait
from agent.directory.discovery.packets import MAX_PACKET, TopologyClientRequest, TopologyServerReply
from agent.wire.errors import WireError

#: Section 4 of [MS-MQSD].
REQUEST = bytes.fromhex(
    "0001000061baeae6c6d1db11baac0003ff4e2d2203a191f23ce34faba930be3a33e432ddf61bc5dcadd44345873971568e8f9128"
)
REPLY_SAME_SITE = bytes.fromhex(
    "0002000003a191f23ce34faba930be3a33e432dd01000000000000000000000062baeae6c6d1db11baac0003ff4e2d22"
)
REPLY_OTHER_SITE = bytes.fromhex(
    "0002000003a191f23ce34faba930be3a33e432dd01000000000000001200000062baeae6c6d1db11baac0003ff4e2d22"
    "60baeae6c6d1db11baac0003ff4e2d2231 0030006e00740034007000650063000000"
)


def guid(text: str) -> bytes:
    return uuid.UUID(text).bytes_le


ENTERPRISE = guid("e6eaba61-d1c6-11db-baac-0003ff4e2d22")
SITE = guid("dcc51bf6-d4ad-4543-8739-71568e8f9128")
OTHER_SITE = guid("e6eaba60-d1c6-11db-baac-0003ff4e2d22")
NETWORK = guid("e6eaba62-d1c6-11db-baac-0003ff4e2d22")
REQUEST_ID = guid("f291a103-e33c-ab4f-a930-be3a33e432dd")


def test_the_captures_decode_and_encode_byte_for_byte() -> None:
    request = TopologyClientRequest(ENTERPRISE, REQUEST_ID, SITE)
    assert TopologyClientRequest.decode(REQUEST) == request
    assert request.encode() == REQUEST
    same = TopologyServerReply(REQUEST_ID, (NETWORK,))
    assert TopologyServerReply.decode(REPLY_SAME_SITE) == same
    assert same.own_site
    assert same.encode() == REPLY_SAME_SITE
    other = TopologyServerReply(REQUEST_ID, (NETWORK,), OTHER_SITE, ("nt4pec",))
    assert TopologyServerReply.decode(REPLY_OTHER_SITE) == other
    assert not other.own_site
    assert other.encode() == REPLY_OTHER_SITE


def test_several_servers_and_those_reached_over_ipx_alone() -> None:
    reply = TopologyServerReply(REQUEST_ID, (NETWORK, SITE), OTHER_SITE, ("a", "b"))
    assert TopologyServerReply.decode(reply.encode()) == reply
    data = reply.encode().replace("10b".encode("utf-16-le"), "01b".encode("utf-16-le"))
    assert TopologyServerReply.decode(data).servers == ("a",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        REQUEST,  # another type
        REPLY_OTHER_SITE[:-1],
        REPLY_OTHER_SITE + b"\0",
        REPLY_OTHER_SITE[:20] + b"\0" + REPLY_OTHER_SITE[21:],  # no network
        REPLY_OTHER_SITE[:20] + b"\x21" + REPLY_OTHER_SITE[21:],  # 33 of them
        REPLY_OTHER_SITE[:28] + b"\xff\xff\xff\xff" + REPLY_OTHER_SITE[32:],  # a size that is not there
        REPLY_OTHER_SITE[:-2] + b"a\0",  # no zero at the end
        REPLY_OTHER_SITE.replace(b"n\0t\0", b",\0,\0"),  # empty entries
        REPLY_OTHER_SITE.replace(b"n\0t\0", b"\0\xd8t\0"),  # half a surrogate pair
    ],
)
def test_a_reply_that_is_not_one_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        TopologyServerReply.decode(data)


def test_no_bytes_at_all_are_believed() -> None:
    rng = random.Random(5)
    for _ in range(3000):
        data = bytearray(rng.choice((REQUEST, REPLY_SAME_SITE, REPLY_OTHER_SITE)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for packet in (TopologyClientRequest, TopologyServerReply):
            try:
                packet.decode(bytes(data[: rng.randrange(len(data) + 1)]))
            except WireError:
                pass


def test_the_server_ignores_what_follows_a_request_and_its_version() -> None:
    ipx = REQUEST + b"\x01\0\0\0\x07\0\0\0"
    assert TopologyClientRequest.decode(b"\x09" + ipx[1:]) == TopologyClientRequest.decode(REQUEST)


# -- the client --


def asking() -> Asking:
    return Asking(ENTERPRISE, SITE, lambda: REQUEST_ID)


def near(*networks: bytes) -> bytes:
    return TopologyServerReply(REQUEST_ID, networks or (NETWORK,)).encode()


def far(*servers: str) -> bytes:
    return TopologyServerReply(REQUEST_ID, (NETWORK,), OTHER_SITE, servers).encode()


def sent(network: int) -> list[Action]:
    return [Broadcast(network, REQUEST, WAIT_S)]


def test_case_a_own_site_on_a_network_that_is_not_the_last() -> None:
    client = asking()
    assert client.begin(["one", "two"]) == sent(0)
    assert client.received(0, "192.0.2.1", near()) == sent(1)


def test_case_b_a_second_reply_from_another_site() -> None:
    client = asking()
    client.begin(["one", "two"])
    assert client.received(0, "192.0.2.1", far("a")) == [Wait(15.0)]
    assert client.received(0, "192.0.2.2", far("b")) == sent(1)


def test_case_c_own_site_on_the_last_network_is_not_forgotten() -> None:
    client = asking()
    assert client.begin(["one"]) == sent(0)
    assert client.received(0, "192.0.2.1", near()) == [Finished(("192.0.2.1",), (NETWORK,))]


def test_case_d_waits_for_one_of_the_own_site() -> None:
    client = asking()
    client.begin(["one"])
    assert client.received(0, "192.0.2.9", far("a")) == [Wait(15.0)]
    assert client.received(0, "192.0.2.1", near()) == [Finished(("192.0.2.1", "a"), (NETWORK,))]


def test_case_e_a_second_reply_from_another_site_on_the_last_network() -> None:
    client = asking()
    client.begin(["one"])
    client.received(0, "192.0.2.1", far("a"))
    assert client.received(0, "192.0.2.2", far("b")) == [Finished(("a", "b"), (NETWORK,))]


def test_what_one_network_said_is_not_forgotten_when_the_next_is_asked() -> None:
    client = asking()
    client.begin(["one", "two"])
    client.received(0, "192.0.2.1", far("a"))
    assert client.timeout() == sent(1)
    assert client.timeout() == [Finished(("a",), (NETWORK,))]


def test_nobody_answers() -> None:
    client = asking()
    client.begin(["one", "two"])
    assert client.timeout() == sent(1)
    assert client.timeout() == [Finished(())]
    assert client.timeout() == []
    assert client.begin(["one"]) == sent(0), "nothing is known: it asks again"


def test_what_was_found_is_not_looked_for_again_unless_a_network_may_have_changed() -> None:
    client = asking()
    client.begin(["one"])
    found = client.received(0, "192.0.2.1", near())
    assert client.begin(["one"]) == found
    assert client.begin(["one"], changing=True) == sent(0)


def test_what_is_not_an_answer_to_this_request_is_dropped() -> None:
    client = asking()
    client.begin(["one", "two"])
    assert client.received(1, "192.0.2.1", near()) == []  # over another network
    assert client.received(0, "192.0.2.1", near()[:-1]) == []
    assert client.received(0, "192.0.2.1", TopologyServerReply(SITE, (NETWORK,)).encode()) == []
    assert client.timeout() == sent(1)


def test_a_host_without_a_site_waits_for_no_second_reply() -> None:
    client = Asking(bytes(16), bytes(16), lambda: REQUEST_ID)
    client.begin(["one"])
    (found,) = client.received(0, "192.0.2.1", far("a"))
    assert isinstance(found, Finished)
    assert (found.servers, found.answered) == (("a",), ("192.0.2.1",))


def test_no_network_at_all() -> None:
    assert asking().begin([]) == [Finished(())]


# -- the server --


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def answering(site: bytes = OTHER_SITE, servers: tuple[str, ...] = ("nt4pec",)) -> tuple[Answering, Clock]:
    clock = Clock()
    return Answering(lambda: Place(ENTERPRISE, site, servers, (NETWORK,)), clock), clock


def test_the_server_answers_as_captured() -> None:
    assert answering()[0].received("192.0.2.1", REQUEST) == REPLY_OTHER_SITE
    assert answering(SITE)[0].received("192.0.2.1", REQUEST) == REPLY_SAME_SITE


def test_another_enterprise_gets_no_answer_and_a_host_without_one_does() -> None:
    server, _ = answering()
    assert server.received("192.0.2.1", TopologyClientRequest(SITE, REQUEST_ID, SITE).encode()) is None
    new = TopologyClientRequest(bytes(16), REQUEST_ID, bytes(16)).encode()
    assert server.received("192.0.2.1", new) == REPLY_OTHER_SITE


@pytest.mark.parametrize("name", ["x" * 3000, "\U0001f5c4" * 128, "", "a" * 256])
def test_a_name_that_is_no_hosts_keeps_nobody_from_the_others(name: str) -> None:
    """Some server, which need not be a true one, is called so."""
    server, _ = answering(servers=(name, "nt4pec"))
    assert server.received("192.0.2.1", REQUEST) == REPLY_OTHER_SITE
    assert answering(SITE, (name,))[0].received("192.0.2.1", REQUEST) == REPLY_SAME_SITE
    assert answering(servers=(name,))[0].received("192.0.2.1", REQUEST) is None, "it names nobody"


def test_a_source_is_answered_at_a_bounded_rate_and_others_are_not_held_back() -> None:
    server, clock = answering(SITE)
    assert sum(server.received("192.0.2.1", REQUEST) is not None for _ in range(100)) == 8
    assert server.received("192.0.2.2", REQUEST) is not None
    clock.now += 60
    assert sum(server.received("192.0.2.1", REQUEST) is not None for _ in range(100)) == 8


@pytest.mark.parametrize("sources", [1, 5000])
def test_the_server_is_no_amplifier(sources: int) -> None:
    """Whatever is asked in whoever's name, hardly more bytes go out than came in, headers and all."""
    server, clock = answering(servers=tuple(f"server{number}.example.org" for number in range(200)))
    came = went = 0
    for number in range(4_000):
        clock.now += 1.0
        came += len(REQUEST) + 28
        reply = server.received(f"192.0.{number % sources // 256}.{number % sources % 256}", REQUEST)
        if reply is not None:
            assert len(reply) <= MAX_PACKET
            went += len(reply) + 28
    assert went <= came + 4 * MAX_PACKET
    assert server.answered > 50
