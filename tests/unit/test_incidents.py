"""Incidents are counted each, and logged at a bounded rate."""

from __future__ import annotations

import logging

import pytest

from agent.reporting.causes import Cause
from agent.reporting.incidents import MOST_LINES, MOST_SOURCES, Incidents

LOG = logging.getLogger("test.incidents")


def test_a_cause_is_logged_once_in_an_interval_and_says_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    incidents = Incidents(LOG, interval_s=60, clock=lambda: now)
    for _ in range(1000):
        incidents.report(Cause.PACKET, "b", "a packet of b is refused")
    assert [r.getMessage() for r in caplog.records] == [
        f"{Cause.PACKET.event} {Cause.PACKET.value}: a packet of b is refused"
    ]
    now = 61.0
    incidents.report(Cause.PACKET, "b", "a packet of b is refused")
    assert "999 times more" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
    assert incidents.counts() == {Cause.PACKET.value: 1001}


def test_an_incident_may_have_an_event_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    Incidents(LOG).report(Cause.IMPLAUSIBLE, "b", "13548 the clock of b differs")
    assert caplog.messages == [f"13548 {Cause.IMPLAUSIBLE.value}: the clock of b differs"]


def test_of_a_set_the_line_has_the_name_once_and_the_count_is_that_of_all(caplog: pytest.LogCaptureFixture) -> None:
    incidents = Incidents(LOG, clock=lambda: 0.0)
    for one in (incidents.of("docs"), incidents.of("docs"), incidents.of("mail")):
        one.report(Cause.FLOOD, "b", "b sends too much")
    told = f"{Cause.FLOOD.event} {Cause.FLOOD.value}: b sends too much"
    assert caplog.messages == [f"[docs] {told}", f"[mail] {told}"], "another set is another source"
    assert incidents.counts() == {Cause.FLOOD.value: 3}


def test_another_source_or_cause_is_not_hidden_by_a_busy_one(caplog: pytest.LogCaptureFixture) -> None:
    incidents = Incidents(LOG, clock=lambda: 0.0)
    incidents.report(Cause.PACKET, "b", "first")
    incidents.report(Cause.PACKET, "c", "second")
    incidents.report(Cause.NAME, "b", "third")
    assert len(caplog.records) == 3


def test_many_sources_fill_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    incidents = Incidents(LOG, interval_s=60, clock=lambda: now)
    for number in range(MOST_SOURCES * 3):
        incidents.report(Cause.CONNECTIONS, str(number), "refused")
    assert len(incidents._told) == MOST_SOURCES
    assert len(caplog.records) == MOST_LINES
    now = 61.0
    incidents.report(Cause.CONNECTIONS, "another", "refused")
    assert len(caplog.records) == MOST_LINES + 1
