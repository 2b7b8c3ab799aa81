"""What the IDTable keeps of a file on disk, and back."""

from __future__ import annotations

from agent.engine import events as ev
from staging.fsops import Fingerprint


def facts_of(found: Fingerprint) -> ev.Facts:
    """The part of a fingerprint that the IDTable keeps."""
    return ev.Facts(
        found.dev,
        found.ino,
        found.btime_ns,
        found.mtime_ns,
        found.ctime_ns,
        found.size,
        found.mode,
        found.uid,
        found.gid,
    )


def fingerprint_of(facts: ev.Facts) -> Fingerprint:
    """The fingerprint that the facts stand for; the link count is not kept."""
    return Fingerprint(
        dev=facts.dev,
        ino=facts.ino,
        btime_ns=facts.btime_ns,
        size=facts.fsize,
        mtime_ns=facts.mtime_ns,
        ctime_ns=facts.ctime_ns,
        mode=facts.mode,
        uid=facts.uid,
        gid=facts.gid,
        nlink=1,
    )
