"""Child processes that can be killed at any moment. The parent receives everything that a child sent before that.

Children are forked from a server that has loaded everything and has no threads, so that one starts in milliseconds and
inherits no held lock.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

TIMEOUT_S = 60.0
"""Time limit for anything that is not meant to hang."""

LOADED = (
    "holdfast._api",
    "holdfast.backends.sqlite",
    "holdfast.backends.postgres",
    "holdfast.worker.service",
    "holdfast.torture.workers",
    "holdfast.torture.pool_worker",
    "holdfast.torture.lagging_standby",
    "holdfast.torture.power",
    "holdfast.torture.cuts",
    "holdfast.torture.within",
    "holdfast.torture.blocks",
    "holdfast.torture.forks",
    "holdfast.torture.interrupts",
)
"""Modules that are loaded before children are forked. Those that are not installed are skipped."""

PLANTED: tuple[str, str] | None = None
"""A file and a function in it that each child calls before its work. Tests plant bugs with it."""

Port = Connection
"""The connection between a child and its parent."""


class Gone(Exception):
    """The child is dead, and all of its messages were received."""


class Silent(Exception):
    """The child sent nothing although it should."""


class Broken(Exception):
    """The child failed unexpectedly. The message is its traceback."""


class Failure(NamedTuple):
    """Message of a child that fails."""

    trace: str


class Child:
    """A process that runs one function: `work(port, *arguments)`."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(LOADED))
        self._port, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, PLANTED, work, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send it a message. A dead child is ignored."""
        with suppress(OSError):
            self._port.send(message)

    def receive(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Return its next message. Raise `Gone` if it is dead and sent no more."""
        try:
            if not self._port.poll(timeout_s):
                raise Silent(f"child {self.pid} sent nothing for {timeout_s} s")
            message: Any = self._port.recv()
        except (EOFError, ConnectionResetError):
            raise Gone from None
        if isinstance(message, Failure):
            raise Broken(message.trace)
        return message

    def has_message(self, timeout_s: float) -> bool:
        """Return whether it sends a message within this time."""
        return self._port.poll(timeout_s)

    def rest(self) -> list[Any]:
        """Return everything that it sent before it died."""
        messages: list[Any] = []
        with suppress(Gone):
            while True:
                messages.append(self.receive())
        return messages

    def kill(self) -> list[Any]:
        """Kill it, and return the messages that were not received yet."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        messages = self.rest()
        self.join()
        return messages

    def stop(self) -> None:
        """Stop it by SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)

    def join(self) -> None:
        """Wait for its end, and release its resources."""
        self._process.join(TIMEOUT_S)
        self._port.close()
        self._process.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._port.closed:
            with suppress(Broken):
                self.kill()


def _run(port: Port, planted: tuple[str, str] | None, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if planted is not None:
            runpy.run_path(planted[0])[planted[1]](setattr)
        work(port, *arguments)
        port.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed the pipe
    except BaseException:
        with suppress(OSError):
            port.send(Failure(traceback.format_exc()))
    # Skip all cleanup: nothing that this process still holds is worth waiting for.
    os._exit(0)


class ChildPool:
    """Child processes that run one task after another."""

    def __init__(self) -> None:
        self._members: list[Child] = []

    def grow(self, size: int) -> None:
        """Start children until there are at least this many."""
        while len(self._members) < size:
            self._members.append(Child(serve))

    def members(self, count: int) -> list[Child]:
        """Return this many of them."""
        return self._members[:count]

    def end(self) -> None:
        """Kill all of them."""
        for member in self._members:
            with suppress(Broken):
                member.kill()
        self._members = []


def serve(port: Port) -> None:
    """Run tasks until the parent is gone."""
    while True:
        task, arguments = port.recv()
        task(port, *arguments)
