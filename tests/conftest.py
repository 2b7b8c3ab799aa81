"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast this machine is, and what else it does, is no property of the program.
settings.register_profile("whatever the machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever the machine")
