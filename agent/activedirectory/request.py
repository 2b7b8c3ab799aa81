"""What is asked of Active Directory, and the process that asks it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agent.activedirectory.objects import Answer, answer_of

#: After so many seconds nobody answers any more.
PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks for what. `domain` is its DNS name, `computer` the name of this member's account without `$`. With
    Kerberos `user` is its principal in `realm`, with the keys in `keytab`; else `user` and `password` bind over TLS,
    where the authority in the file `ca`, or one of the system's, has to have signed the server's certificate.
    `servers`: none for those of the SRV records; `first` of them is asked first, those of `without` are not asked.
    `known` are the GUIDs, as text, of objects that were there before. Where there are `operations`, each a
    writing.Operation, they are carried out at the first server, and nothing is read."""

    domain: str
    computer: str
    mechanism: Literal["kerberos", "simple"]
    user: str
    realm: str = ""
    keytab: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    servers: tuple[str, ...] = ()
    first: str = ""
    without: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    operations: tuple[tuple[str, str, Mapping[str, str | None]], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it: an answer, or the errors of all servers; how many bindings and searches there were, and how many
    operations have been carried out, None where that is not known."""

    answer: Answer | None
    errors: tuple[str, ...]
    counts: Mapping[str, int]
    done: int | None = None


async def ask(request: Request, patience_s: float = PATIENCE_S) -> Reply:
    """Ask in a process of its own, which is ended after `patience_s`, or when this is cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agent.activedirectory.asking", stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(patience_s):
            out, err = await process.communicate(json.dumps(dataclasses.asdict(request)).encode("ascii"))
    except TimeoutError:
        return _failed(f"no answer in {patience_s:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return await asyncio.to_thread(_reply_of, out)
    except ValueError:
        said = err.decode("utf-8", "replace").strip().splitlines()
        return _failed(f"the process that asks has failed: {said[-1] if said else f'exit code {process.returncode}'}")


def _reply_of(out: bytes) -> Reply:
    """What the process wrote: of many members, tens of MiB. Raises ValueError."""
    found: dict[str, Any] = json.loads(out)
    answer = found.pop("answer")
    counts = {name: int(found[name]) for name in _COUNTS}
    return Reply(answer_of(answer) if answer is not None else None, tuple(found["errors"]), counts, found["done"])


_COUNTS: Final = ("bindings", "bindings_failed", "searches", "searches_failed")


def _failed(text: str) -> Reply:
    return Reply(None, (text,), {name: int(name.startswith("bindings")) for name in _COUNTS})
