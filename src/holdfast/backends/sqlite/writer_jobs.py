"""Jobs of the writer thread: operations, and transactions of several operations."""

from __future__ import annotations

import enum
import threading
from typing import Any, Protocol

from holdfast.ports import Operation
from holdfast.wait import Ticket


class Job:
    """An operation with its deadline for the database, and its result or error."""

    __slots__ = ("deadline_s", "done", "error", "held", "operation", "result", "ticket", "topics")

    def __init__(self, operation: Operation[Any], deadline_s: float, ticket: Ticket | None = None) -> None:
        self.operation = operation
        self.held: Held | None = None
        """The transaction of several operations that this job begins."""
        self.deadline_s = deadline_s
        self.ticket = ticket
        # A blocking caller waits for this and not for a future: an interrupt at the wrong moment leaves the lock of a
        # future's condition taken, and the thread that sets the result would wait for ever.
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.topics: list[str] = []

    def begin(self) -> bool:
        """Return whether to run the operation: False if its caller has given up."""
        return self.ticket is None or self.ticket.close()

    def tell(self) -> None:
        """Wake the blocking caller."""
        self.done.release()

    def reply(self) -> None:
        """Wake the caller, blocking or not."""
        if self.ticket is None:
            self.tell()
        else:
            Ticket.tell_all([(self.ticket, self.result, self.error)])

    def answer(self) -> Any:
        """Return the result or raise the error, once the operation has ended."""
        if self.error is not None:
            raise self.error
        return self.result


class Request(enum.Enum):
    """The request of a call in a transaction of several operations."""

    RUN = "run an operation"
    COMMIT = "commit"
    ROLL_BACK = "roll back"


class Call(Job):
    """A call in a transaction of several operations."""

    __slots__ = ("request",)

    def __init__(self, request: Request, operation: Operation[Any], ticket: Ticket | None) -> None:
        super().__init__(operation, 0.0, ticket)
        self.request = request


class Held(Protocol):
    """A transaction of several operations, whose calls the writer thread serves until it ends."""

    opening: Job
    """Answered once the transaction has begun."""

    def start_time(self) -> None:
        """Start the time limit."""
        ...

    def next_call(self) -> Call | None:
        """Wait for the next call. Return None once the time is up."""
        ...

    def may_commit(self) -> bool:
        """Decide to commit. Return False if the end was decided otherwise meanwhile."""
        ...

    def lose(self) -> None:
        """Note that SQLite gave the transaction up."""
        ...

    def release(self) -> None:
        """Refuse later calls, and those that came too late."""
        ...
