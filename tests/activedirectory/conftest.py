"""One domain for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.activedirectory.domain import ADDRESSES, SERVER, DomainController, Namespace, missing
from tests.activedirectory.fleet import HOSTS, Fleet


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A domain controller that runs, with the accounts of three computers."""
    if missing():
        pytest.skip(f"needs {', '.join(missing())}")
    folder = tmp_path_factory.mktemp("domain")
    space = Namespace(folder, ADDRESSES | HOSTS)
    controller = DomainController(folder, space)
    try:
        controller.provision()
        controller.start()
        controller.tool("spn", "add", f"ldap/{SERVER}", "DC1$")
        yield Fleet(folder, space, controller)
    finally:
        controller.stop()
        space.close()
