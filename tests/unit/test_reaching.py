"""What is logged of a partner that cannot be reached."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agent.partners.reaching import Reaching
from agent.reporting.events import led
from agent.wire import constants as c

DOWN = "cannot be reached"
REFUSED = "the server refused the authentication"
COMPARE = "compare the key of b with the one that it has"


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def reaching(counted: list[str], caplog: pytest.LogCaptureFixture) -> Reaching:
    caplog.set_level(logging.INFO)
    return Reaching("b", COMPARE, Path("/etc/frs/topology.toml"), logging.getLogger("frs"), counted.append)


def refuse(reaching: Reaching) -> str:
    reaching.bound(True)
    reaching.authenticated(False, "key")
    return reaching.failed(REFUSED, joined=False)


def down(reaching: Reaching, *, joined: bool = False) -> str:
    reaching.bound(False)
    return reaching.failed(DOWN, joined=joined)


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.levelname for record in caplog.records]
    caplog.clear()
    return found


def test_a_refused_secret_is_warned_of_once(reaching: Reaching, caplog: pytest.LogCaptureFixture) -> None:
    said = refuse(reaching)
    assert said.startswith(f"20312 {REFUSED}")
    assert COMPARE in said
    assert led("b: ", said) in caplog.text
    assert [refuse(reaching), refuse(reaching)] == [said, said]
    assert levels(caplog) == ["WARNING", "INFO", "INFO"]

    reaching.bound(True)
    reaching.authenticated(True, "key")
    assert reaching.failed("closed the connection", joined=True) == "13508 closed the connection"
    refuse(reaching)
    assert levels(caplog) == ["WARNING", "WARNING"]


def test_a_partner_that_is_down_is_no_news(reaching: Reaching, caplog: pytest.LogCaptureFixture) -> None:
    assert down(reaching) == f"13508 {DOWN}"
    assert levels(caplog) == ["INFO"]
    down(reaching, joined=True)
    assert levels(caplog) == ["WARNING"]
    refuse(reaching)
    assert down(reaching) == f"13508 {DOWN}"
    assert levels(caplog) == ["WARNING", "INFO"]


@pytest.mark.parametrize("error", [c.ERROR_NOT_FOUND, c.ERROR_INVALID_PARAMETER, c.ERROR_ACCESS_DENIED])
def test_another_topology_is_warned_of_once_for_each_connection(
    reaching: Reaching, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """It names partner and connection, and says what to compare, until a packet of that connection is taken."""
    for cxtion in ("a->b", "b->a") * 2:
        said = reaching.refused(cxtion, error)
        assert said.startswith("20313 b ")
        assert cxtion in said
        assert f"error {error:#x}" in said
        assert "compare /etc/frs/topology.toml with the topology file of b" in said
        assert reaching.failed(said, joined=False) == said
        assert reaching.refusal is not None
    assert levels(caplog) == ["WARNING", "WARNING", "INFO", "INFO"]
    reaching.authenticated(True, "key")
    assert reaching.refusal is not None
    reaching.taken("a->b")
    assert reaching.refusal == reaching.refused("b->a", error)
    reaching.taken("b->a")
    assert reaching.refusal is None
    reaching.failed(reaching.refused("a->b", error), joined=False)
    assert levels(caplog) == ["WARNING"]


@pytest.mark.parametrize("error", [c.ERROR_SERVICE_NOT_ACTIVE, c.ERROR_RETRY, 6])
def test_a_partner_that_takes_nothing_for_now_waits_for_nobody(
    reaching: Reaching, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    said = reaching.failed(reaching.refused("a->b", error), joined=False)
    assert said.startswith(("20314 b ", "13508 b "))
    assert f"error {error:#x}" in said
    assert reaching.refusal is None
    assert levels(caplog) == ["INFO"]


def test_a_partner_that_nothing_is_known_of_to_call_it_by(counted: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """It waits for somebody to mend it from the beginning on, and is warned of once."""
    caplog.set_level(logging.INFO)
    why = "20311 nothing is exchanged with b: it has no key"
    reaching = Reaching("b", "", Path("topology.toml"), logging.getLogger("frs"), counted.append, missing=why)
    assert reaching.refusal == why
    assert [reaching.failed(why, joined=False) for _ in range(2)] == [why, why]
    assert levels(caplog) == ["WARNING", "INFO"]


def test_a_partner_that_takes_the_secret_though_there_are_keys(
    counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What it was called by last can be asked for; the secret in the place of keys is told once."""
    caplog.set_level(logging.INFO)
    path = Path("/etc/frs/topology.toml")
    reaching = Reaching("b", "", path, logging.getLogger("frs"), counted.append, keyed=True)
    assert reaching.called_by is None
    for by in ("secret", "secret", "key"):
        reaching.bound(True)
        reaching.authenticated(True, by)
        assert reaching.called_by == by
    assert levels(caplog) == ["WARNING"]
    reaching.authenticated(False, "key")
    assert reaching.called_by is None


def test_a_partner_that_takes_the_former_secret_only(counted: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, however often it is called so, and again after it had the new one."""
    caplog.set_level(logging.INFO)
    reaching = Reaching("b", "", Path("topology.toml"), logging.getLogger("frs"), counted.append)
    for told in (["WARNING"], []):
        reaching.bound(True)
        reaching.authenticated(False, "secret")
        reaching.authenticated(True, "former secret")
        assert reaching.called_by == "former secret"
        assert levels(caplog) == told
    reaching.authenticated(True, "secret")
    reaching.authenticated(True, "former secret")
    assert levels(caplog) == ["WARNING"]


def test_binds_and_authentications_are_counted(reaching: Reaching, counted: list[str]) -> None:
    refuse(reaching)
    down(reaching)
    reaching.bound(True)
    reaching.authenticated(True, "key")
    assert counted == [
        *("Bindings", "Authentications in Error"),
        *("Bindings in Error",),
        *("Bindings", "Authentications"),
    ]


def test_a_partner_that_fails_again_and_again_fills_no_log(
    reaching: Reaching, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(300):
        reaching.bound(True)
        reaching.authenticated(True, "key")
        reaching.failed("refused a packet", joined=True)
    assert 10 <= len(caplog.records) <= 20
