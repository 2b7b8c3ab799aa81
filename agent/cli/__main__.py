"""`python -m agent.cli`, the same as `frs`."""

from __future__ import annotations

from agent.cli import main

main()
