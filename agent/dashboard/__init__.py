"""The web page of one member: live counters and states, and the summary that Spark made of the fleet."""

from __future__ import annotations

from agent.dashboard.server import DashboardServer, Provider

__all__ = ["DashboardServer", "Provider"]
