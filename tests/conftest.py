"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast this machine is, and what else it does, is no property of the program. What a fixture gives, all examples
# of a test share.
PATIENT = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("whatever the machine", deadline=None, suppress_health_check=PATIENT)
settings.load_profile("whatever the machine")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """What a test has logged goes from process to process, which only UTF-8 can; names of files may be anything."""
    return _utf8((yield))


def _utf8(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_utf8(key): _utf8(one) for key, one in value.items()}
        case list() | tuple():
            return type(value)(map(_utf8, value))
    return value
