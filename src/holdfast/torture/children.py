"""A child is a process that can be killed at any moment; whatever it told before that, its parent hears.

Children are forked from a server that has loaded everything and has no threads, so that one starts in milliseconds
and inherits no lock that somebody held.
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

PATIENCE_S = 60.0
"""How long anything may take that is not meant to hang."""

LOADED = (
    "holdfast.public",
    "holdfast.backends.sqlite",
    "holdfast.backends.postgres",
    "holdfast.torture.workers",
    "holdfast.torture.behind",
    "holdfast.torture.power",
    "holdfast.torture.cuts",
    "holdfast.torture.within",
    "holdfast.torture.forks",
    "holdfast.torture.interrupts",
)
"""What is loaded before children are made; what is not installed is left out."""

PLANTED: tuple[str, str] | None = None
"""A file and a function in it that is called in each child before its work: tests plant bugs with it."""

Port = Connection
"""What a child and its parent talk through."""


class Gone(Exception):
    """The child is dead, and everything that it had said was heard."""


class Silent(Exception):
    """The child says nothing although it should."""


class Broken(Exception):
    """The child failed in a way that it should not; the message is its traceback."""


class Failure(NamedTuple):
    """What a child says when it fails."""

    trace: str


class Child:
    """A process that does one thing: `work(port, *arguments)`."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(LOADED))
        self._port, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, PLANTED, work, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def say(self, message: Any) -> None:
        """Tell it something; one that is dead does not hear it."""
        with suppress(OSError):
            self._port.send(message)

    def hear(self, patience_s: float = PATIENCE_S) -> Any:
        """The next thing that it says; `Gone` if it is dead and has said nothing more."""
        try:
            if not self._port.poll(patience_s):
                raise Silent(f"child {self.pid} said nothing for {patience_s} s")
            message: Any = self._port.recv()
        except (EOFError, ConnectionResetError):
            raise Gone from None
        if isinstance(message, Failure):
            raise Broken(message.trace)
        return message

    def heard(self, patience_s: float) -> bool:
        """Whether it says something within this time."""
        return self._port.poll(patience_s)

    def rest(self) -> list[Any]:
        """Everything that it said before it died."""
        said: list[Any] = []
        with suppress(Gone):
            while True:
                said.append(self.hear())
        return said

    def kill(self) -> list[Any]:
        """Kill it at once; whatever it had said and nobody heard yet."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        said = self.rest()
        self.join()
        return said

    def stop(self) -> None:
        """Hold it where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def join(self) -> None:
        """Wait for its end, and let go of it."""
        self._process.join(PATIENCE_S)
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
        pass  # the parent does not want any more
    except BaseException:
        with suppress(OSError):
            port.send(Failure(traceback.format_exc()))
    # Nothing of what this process still holds is worth waiting for.
    os._exit(0)


class Crew:
    """Children that wait for one task after another."""

    def __init__(self) -> None:
        self._members: list[Child] = []

    def grow(self, size: int) -> None:
        """Be at least that many."""
        while len(self._members) < size:
            self._members.append(Child(serve))

    def members(self, count: int) -> list[Child]:
        """So many of them."""
        return self._members[:count]

    def end(self) -> None:
        """Let them go."""
        for member in self._members:
            with suppress(Broken):
                member.kill()
        self._members = []


def serve(port: Port) -> None:
    """What a member of a crew does: tasks, as long as some come."""
    while True:
        task, arguments = port.recv()
        task(port, *arguments)
