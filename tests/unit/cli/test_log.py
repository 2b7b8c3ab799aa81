"""Log lines say where they belong."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.reporting.log import (
    AT_ONCE,
    FIRST_S,
    LONGEST,
    MOST_EVENTS,
    QUIET_S,
    BoundedLines,
    get_logger,
    setup_logging,
)
from agent.wire.constants import CMD_NEED_JOIN
from agent.wire.packet import NamedGuid, Packet, describe


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_a_line_carries_its_context() -> None:
    stream = io.StringIO()
    setup_logging("info", stream)
    logger = get_logger("frs.test", set_name="docs", connection="a->b")
    logger.info("joined in %d s", 3)
    logger.bind(change_order="3f2504e0").warning("13508 retried")
    logger.debug("not shown")
    get_logger("frs.test").error("20101 100%% of nothing")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        rf"{stamp} INFO    frs\.test: \[docs\] \[a->b\] joined in 3 s\n"
        rf"{stamp} WARNING frs\.test: \[docs\] \[a->b\] \[co 3f2504e0\] 13508 retried\n"
        rf"{stamp} ERROR   frs\.test: 20101 100%% of nothing\n",
        stream.getvalue(),
    )
    setup_logging("debug", stream)
    logger.debug("shown")
    assert stream.getvalue().count("shown\n") == 1


@pytest.mark.usefixtures("root_logger")
def test_no_place_of_the_program_fills_the_log() -> None:
    now = 1000.0
    stream = io.StringIO()
    setup_logging("debug", stream)
    (handler,) = logging.getLogger().handlers
    (bounded,) = (one for one in handler.filters if isinstance(one, BoundedLines))
    bounded._clock = lambda: now
    log = get_logger("frs.test", set_name="docs")

    def flood(lines: int) -> list[str]:
        """What one place writes, whatever the texts."""
        before = len(stream.getvalue())
        for number in range(lines):
            log.warning("kept %r", f"file {number}")
        return stream.getvalue()[before:].splitlines()

    assert len(flood(1000)) == AT_ONCE
    log.warning("another place")
    assert stream.getvalue().endswith("[docs] another place\n")
    now += 3600
    lines = flood(1000)
    assert len(lines) == AT_ONCE
    assert lines[0].endswith("[docs] kept 'file 0' (and 950 lines like this one were left out)")
    assert lines[1].endswith("[docs] kept 'file 1'")
    now += 2
    assert len(flood(1000)) == 1
    for _ in range(1000):
        log.debug("debugging")
    assert stream.getvalue().count("debugging") == 1000


@pytest.mark.usefixtures("root_logger")
def test_a_warning_at_each_attempt_is_one_event_told_ever_more_seldom() -> None:
    now = 1000.0
    stream = io.StringIO()
    setup_logging("info", stream)
    (handler,) = logging.getLogger().handlers
    (bounded,) = (one for one in handler.filters if isinstance(one, BoundedLines))
    bounded._clock = lambda: now
    log = get_logger("frs.test", set_name="docs")

    def attempts(seconds: int, every: int) -> list[str]:
        nonlocal now
        before = len(stream.getvalue())
        for _ in range(seconds // every):
            log.error("20207 %s cannot be written", "the journal")
            now += every
        return stream.getvalue()[before:].splitlines()

    lines = attempts(86400, 5)
    pauses = [FIRST_S * 2**n for n in range(20)]
    assert len(lines) == 1 + sum(1 for n in range(20) if sum(pauses[: n + 1]) < 86400)
    assert lines[0].endswith("[docs] 20207 the journal cannot be written")
    assert re.search(r"written \(13 times since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\)$", lines[1])
    log.error("20207 %s cannot be written", "the database")
    assert stream.getvalue().endswith("the database cannot be written\n"), "what says something else is told"
    now += QUIET_S + 1
    assert attempts(5, 5)[0].endswith("[docs] 20207 the journal cannot be written"), "another event"
    for number in range(3 * MOST_EVENTS):
        now += 2
        log.error("20207 %d cannot be written", number)
    assert len(bounded._events) == MOST_EVENTS


@pytest.mark.usefixtures("root_logger")
def test_what_another_library_warns_of_has_a_number_too() -> None:
    stream = io.StringIO()
    setup_logging("info", stream)
    logging.getLogger("asyncio").warning("a task took long")
    logging.getLogger("frs").info("a set begins")
    assert [line.partition(": ")[2] for line in stream.getvalue().splitlines()] == [
        "20000 a task took long",
        "a set begins",
    ]


@pytest.mark.usefixtures("root_logger")
def test_incidents_are_bounded_by_themselves() -> None:
    """One cause takes no room from another, though both are written at one place."""
    stream = io.StringIO()
    setup_logging("info", stream)
    incidents = Incidents(logging.getLogger("frs"))
    for cause in Cause:
        for number in range(100):
            incidents.report(cause, f"source {number}", "a text")
    assert {cause.value for cause in Cause if stream.getvalue().count(f" {cause.value}: ") == 10} == {
        cause.value for cause in Cause
    }


@pytest.mark.usefixtures("root_logger")
def test_a_line_has_an_end_however_long_the_names_in_a_packet_are() -> None:
    """And however they have to be written."""
    stream = io.StringIO()
    setup_logging("info", stream)
    name = NamedGuid(bytes(16), "\udc80" * 40_000)
    packet = describe(Packet(CMD_NEED_JOIN, name, name, name, name))
    Incidents(logging.getLogger("frs")).report(Cause.SENDER, "b", f"a packet is refused: {packet}")
    (line,) = stream.getvalue().splitlines()
    assert " 20334 " in line
    assert len(line) < 6 * LONGEST + 100
    assert re.search(r"\.\.\. \(\d+ characters more\)$", line)
