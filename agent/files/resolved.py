"""Installs with the paths that the IDTable gave for them."""

from __future__ import annotations

from dataclasses import dataclass

from agent.engine import events as ev
from staging.rootdir import FolderKey


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """A step of an install with the paths and the folders that the IDTable gave for it."""

    step: ev.Step
    path: str
    folder: FolderKey | None
    old_path: str = ""
    old_folder: FolderKey | None = None


@dataclass(frozen=True, slots=True)
class ResolvedInstall:
    """An Install action ready for a worker; None for a folder that has no path any more. Its staging file has `size`
    bytes."""

    action: ev.Install
    steps: tuple[ResolvedStep, ...] | None
    size: int = 0
