"""The control socket: how the commands of one host ask a running agent.

`STATE/control.sock`, mode 0600. Each request is one JSON object on one line, `{"cmd": NAME, ...}`; each
answer is one JSON object on one line, `{"error": TEXT}` where the request could not be answered. A client
keeps its side open until it has its answer: when it goes away, what it asked for is cancelled.

The kernel limits the path of a socket to 108 bytes, so both sides reach it through the open directory,
`/proc/self/fd/N/control.sock`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from agent.edge.gate import Arrival, Gate, GateLimits, Verdict
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents

SOCKET_NAME = "control.sock"
#: Bytes of a request, unless its server takes more, and of one to a directory server: the topology of 10,000 hosts with
#: 50,000 connections goes into that, twice.
MAX_REQUEST = 64 << 10
MAX_TOPOLOGY = 64 << 20
MAX_ANSWER = 64 << 20
_POLL_S = 0.1
#: Connections that are served at once: commands that wait have one each. Those that say nothing cost a descriptor each.
MOST_CLIENTS: Final = 64
_GATE: Final = GateLimits(strangers=32, known=0, patience=10.0, message=1024)

#: In place of a line that is longer than a request may be.
_TOO_LONG: Final = b"too long"
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_log = logging.getLogger(__name__)


class ControlError(Exception):
    """The agent answered that it cannot do what was asked."""


class ControlUnreachable(ControlError):
    """No agent answers at this state directory: it is not running, or may not be reached."""


class ControlAbsent(ControlUnreachable):
    """None is running there."""


class ControlInUse(ControlError):
    """Another agent is already running on this state directory."""


class ControlServer:
    """Answers on the control socket of `state_dir` with `handlers`, one per command name.

    A handler takes the request without its "cmd" and returns the answer. What it raises becomes an error
    answer; `ControlError` is for what the caller can mend, anything else is logged.
    """

    def __init__(
        self,
        state_dir: Path,
        handlers: Mapping[str, Handler],
        incidents: Incidents | None = None,
        *,
        most: int = MAX_REQUEST,
    ) -> None:
        """`most`: bytes of a request."""
        self._most = most
        self._state_dir = state_dir
        self._handlers = dict(handlers)
        self._incidents = incidents if incidents is not None else Incidents(_log)
        self._gate: Gate | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self._inode: int | None = None
        self._directory = -1

    async def start(self) -> None:
        """Starts to listen; raises ControlInUse where another agent does, OSError where it cannot."""
        # Kept open while the socket lives: asyncio may look for it by this path when it closes.
        self._directory = os.open(self._state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        path = _short_path(self._directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await _remove_stale(path, self._state_dir)
            listener.bind(path)
            os.chmod(path, 0o600)  # before listen: until then nobody can connect
            self._inode = os.stat(path).st_ino
            self._gate = Gate("control socket", _GATE, _judge, self._admit, self._incidents)
            self._gate.listen_on(listener)
        except BaseException:
            listener.close()
            os.close(self._directory)
            raise

    async def close(self) -> None:
        """Stops listening, ends what is being answered, and removes the socket. May be called twice."""
        if self._gate is None:
            return
        gate, self._gate = self._gate, None
        gate.close()
        if self._beginning:
            await asyncio.wait(self._beginning)
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        path = _short_path(self._directory)
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == self._inode:
                os.unlink(path)
        os.close(self._directory)

    async def __aenter__(self) -> ControlServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _admit(self, arrival: Arrival, data: memoryview) -> None:
        if len(self._clients) + len(self._beginning) >= MOST_CLIENTS:
            self._incidents.report(
                Cause.CONNECTIONS, arrival.source, f"a command is refused: {MOST_CLIENTS} are being answered"
            )
            arrival.answer(b'{"error":"too many commands are being answered; try again shortly"}\n')
            arrival.sock.close()
            return
        task = asyncio.get_running_loop().create_task(self._connect(arrival))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _connect(self, arrival: Arrival) -> None:
        reader = asyncio.StreamReader(limit=self._most)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, self._accept), arrival.sock
            )
        except OSError:
            arrival.sock.close()  # it has gone

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        following: asyncio.Task[bytes] = asyncio.create_task(_read_line(reader))
        try:
            while line := await following:
                if line is _TOO_LONG:
                    writer.write(json.dumps({"error": f"a request has {self._most} bytes at most"}).encode() + b"\n")
                    await writer.drain()
                    return
                following = asyncio.create_task(_read_line(reader))
                answer = await _unless_gone(asyncio.create_task(self._answer(line)), following)
                if answer is None:
                    return
                writer.write(json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n")
                await writer.drain()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            arguments = json.loads(line)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict) or not isinstance(command := arguments.pop("cmd", None), str):
            return {"error": 'a request is one JSON object on one line, with a "cmd"'}
        handler = self._handlers.get(command)
        if handler is None:
            return {"error": f"unknown command {command!r}; known: {', '.join(sorted(self._handlers))}"}
        try:
            return await handler(arguments)
        except ControlError as error:
            return {"error": str(error)}
        except Exception as error:
            _log.exception("13506 control command %s failed", command)
            return {"error": f"{type(error).__name__}: {error}"}


def _judge(arrival: Arrival, data: memoryview) -> Verdict:
    """Only our own user gets here: whoever says something is listened to."""
    return Verdict.ADMIT


async def request(
    state_dir: Path, cmd: str, *, reply_timeout: float | None = 30.0, who: str = "agent", **arguments: Any
) -> dict[str, Any]:
    """Asks the agent of `state_dir` and returns its answer, waiting at most `reply_timeout` seconds for it. `who` it is
    is said in errors.

    Raises ControlAbsent where none is running, ControlUnreachable where it does not answer, ControlError where it
    answers that it cannot, and for more than MAX_TOPOLOGY bytes.
    """
    asked = json.dumps({"cmd": cmd, **arguments}).encode("ascii") + b"\n"
    if len(asked) > MAX_TOPOLOGY:
        raise ControlError(f"a request has {MAX_TOPOLOGY} bytes at most, and this one {len(asked)}")
    try:
        try:
            directory = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ControlAbsent(
                f"no {who} is running on {state_dir}, which is not there (one that ran on it when it was removed "
                f"replicates nothing any more: its log says so; stop it)"
            ) from None
        try:
            reader, writer = await asyncio.open_unix_connection(_short_path(directory), limit=MAX_ANSWER)
        finally:
            os.close(directory)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise ControlAbsent(f"no {who} is running on {state_dir}") from None
    except OSError as error:
        raise ControlUnreachable(f"the {who} on {state_dir} cannot be reached: {error.strerror}") from None
    try:
        writer.write(asked)
        async with asyncio.timeout(reply_timeout):
            await writer.drain()
            line = await reader.readline()
    except TimeoutError:
        raise ControlUnreachable(f"the {who} on {state_dir} did not answer in {reply_timeout:g} s") from None
    except (ConnectionError, ValueError) as error:
        raise ControlUnreachable(f"the {who} on {state_dir} broke off: {error}") from None
    finally:
        writer.close()
    try:
        answer = json.loads(line)
    except ValueError:
        raise ControlUnreachable(f"the {who} on {state_dir} ended before it answered") from None
    if not isinstance(answer, dict):
        raise ControlError(f"the {who} on {state_dir} sent something that is no answer")
    if isinstance(error_text := answer.get("error"), str):
        raise ControlError(error_text)
    return answer


async def wait_until_done(
    pending: Callable[[], Awaitable[list[str]]], timeout_s: float | None, interval: float = _POLL_S
) -> list[str]:
    """Asks `pending` again and again until it answers with nothing, or `timeout_s` seconds have passed.

    Returns the last answer: empty, or what is still pending. `timeout_s` None waits without limit, 0 asks
    once. The service uses it for the command `wait`.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while left := await pending():
        now = loop.time()
        if deadline is not None and now >= deadline:
            return left
        await asyncio.sleep(interval if deadline is None else min(interval, deadline - now))
    return []


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """One line; empty at the end."""
    try:
        return await reader.readline()
    except ValueError:
        return _TOO_LONG
    except ConnectionError:
        return b""


async def _unless_gone(work: asyncio.Task[dict[str, Any]], following: asyncio.Task[bytes]) -> dict[str, Any] | None:
    """The result of `work`; None, and `work` cancelled, where the client goes away first."""
    try:
        await asyncio.wait({work, following}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not following.result():
            return None
        return await work
    finally:
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def _short_path(directory: int) -> str:
    """A path to the socket in the open `directory` that is short whatever the directory is called."""
    return f"/proc/self/fd/{directory}/{SOCKET_NAME}"


async def _remove_stale(path: str, state_dir: Path) -> None:
    """Removes a socket that a killed agent left; raises ControlInUse where somebody listens on it."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    writer.close()
    raise ControlInUse(f"an agent is already running on {state_dir}")
