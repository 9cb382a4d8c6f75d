"""Bases of backends inside a transaction: a caller's, and one of `store.transaction()`.

A transaction of `store.transaction()` ends once: by the end of its block, by its time limit, by an interrupted call, by
a lost database, or because an interrupt left its block before it could be ended. Every later call is refused with the
cause of that end.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar, Unpack

from holdfast.errors import HoldfastError, InvalidRequest, StoreForked, TransactionExpired, Unavailable
from holdfast.ports import Backend, Ending, IsLeft, NoReader, Operation, OperationFlags
from holdfast.ports.queries import PrefetchQuery
from holdfast.wait import AsyncWaiting, Waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class CallerTransaction(NoReader):
    """Base of backends inside a transaction, in which no call can wait for other transactions."""

    FIELD = "connection"
    """The field that a refusal names."""

    def watch(self, topic: str) -> Future[None]:  # noqa: ARG002 - the port's signature
        """Refuse: a wait here would block the awaited change, and would not see it."""
        raise self._no_waiting()

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:  # noqa: ARG002 - the port's signature
        """Refuse, like `watch`."""
        raise self._no_waiting()

    def within(self, connection: object) -> Backend:  # noqa: ARG002 - the port's signature
        """Refuse: a transaction of the caller has no second one inside."""
        raise InvalidRequest("store", "works inside a transaction already: call within() on the store that was opened")

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> NoReturn:  # noqa: ARG002 - the port
        """Refuse: there are no transactions inside of one."""
        raise InvalidRequest("store", "works inside a transaction already: call transaction() on the store itself")

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Refuse: tests read the store itself."""
        raise InvalidRequest("store", "works inside a transaction: use the store that was opened")

    def _no_waiting(self) -> InvalidRequest:
        return InvalidRequest(
            self.FIELD, "a caller cannot wait inside its own transaction: end it, then wait on the store itself"
        )


class End(enum.Enum):
    """The cause of a transaction's end."""

    COMMITTED = "its block ended, and it was committed"
    ROLLED_BACK = "its block ended, and it was rolled back"
    EXPIRED = "it was open for too long, and was rolled back"
    INTERRUPTED = "its block or a call inside was interrupted, and all of it was rolled back"
    LOST = "the database aborted it"


LOOK_S: Final = 0.05
"""Interval at which the block of a transaction is looked at: an interrupt may have left it."""


class OpenTransaction(CallerTransaction):
    """Implements `ports.Backend` inside one transaction of the store's own. Base of each database's."""

    FIELD = "transaction"

    def __init__(self, outer: Backend, waiting: Waiting, timeout_ms: int, is_left: IsLeft | None) -> None:
        self.outer = outer
        self._block_is_left = is_left
        self.timeout_ms = timeout_ms
        self.deadline_s = time.monotonic() + timeout_ms / 1000
        self.topics: list[str] = []
        """Topics of the calls so far, published after the commit."""
        self._waiting = waiting
        self.lets_tasks_wait = isinstance(waiting, AsyncWaiting)
        """True if calls of several tasks run one after the other. A thread that would block is refused instead."""
        self._in_use = threading.Lock()
        self._queue: deque[Future[None]] = deque()
        self._queueing = threading.Lock()
        self._deciding = threading.Lock()
        self._end: End | None = None
        self._process_id = os.getpid()

    def __repr__(self) -> str:
        return f"{self.outer!r} in a transaction"

    # For each database to implement.

    async def _apply(self, operation: Operation[T], *, heavy: bool) -> T:
        """Run an operation. If it raises, the transaction is as it was before, or has ended."""
        raise NotImplementedError

    async def _commit(self) -> None:
        """Commit, publish the topics, and return once all is durable. Decides the end itself."""
        raise NotImplementedError

    async def _undo(self) -> None:
        """Roll everything back. The end is decided already."""
        raise NotImplementedError

    # The end.

    @property
    def is_open(self) -> bool:
        """True until the end is decided, or an interrupt has left the block."""
        return self._end is None and not self.is_left()

    def is_left(self) -> bool:
        """Return True if an interrupt has left the block, and nothing has ended the transaction."""
        return self._block_is_left is not None and self._block_is_left()

    def look_in_s(self) -> float:
        """Return the seconds until the time limit, or until the next check of the block."""
        left_s = self.left_s()
        return left_s if self._block_is_left is None else min(left_s, LOOK_S)

    def decide(self, end: End) -> bool:
        """Decide the end. Return False if it was decided before."""
        with self._deciding:
            if self._end is not None:
                return False
            self._end = end
            return True

    def left_s(self) -> float:
        """Return the seconds until the time limit."""
        return self.deadline_s - time.monotonic()

    def check_open(self) -> None:
        """Refuse a call after the end."""
        if not self.is_open:
            raise self.error_of_end()

    def error_of_end(self) -> HoldfastError:
        """Return the error of a call after the end."""
        match end := self._end or End.INTERRUPTED:
            case End.EXPIRED:
                return TransactionExpired(self.timeout_ms)
            case End.INTERRUPTED | End.LOST:
                return Unavailable(f"{self.outer!r}: the transaction ended: {end.value}: run the block again")
            case _:
                return InvalidRequest(
                    self.FIELD,
                    "has ended: use `tx`, and handles made by it, inside its block only; outside of it use the store",
                )

    # The port.

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """`durable` if acknowledged writes survive the process, else `ephemeral`."""
        return self.outer.durability

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        return self.outer.schema_version

    def ddl(self) -> str:
        """Return the statements that create the schema."""
        return self.outer.ddl()

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in the transaction. If it raises, the transaction is as it was before."""
        if self.lets_tasks_wait:
            await self._take_turn()
        else:
            self._take()
        try:
            self.check_open()
            return await self._apply(operation, heavy=flags.get("heavy", False))
        finally:
            self._pass_on()

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:  # noqa: ARG002
        """Run an operation that only reads. It sees the transaction's own changes."""
        return await self.write(operation)

    @property
    def is_forked(self) -> bool:
        """True in a child process: the transaction is the parent's."""
        return os.getpid() != self._process_id

    async def _take_turn(self) -> None:
        """Take the transaction, after the calls that came before."""
        self._require_own_process()
        with self._queueing:
            if self._in_use.acquire(blocking=False):
                return
            turn = _turn()
            self._queue.append(turn)
        try:
            await self._waiting.settle(turn)
        except BaseException:
            if not turn.cancel():
                self._pass_on()  # the turn came together with the cancellation
            raise

    def _pass_on(self) -> None:
        """Give the transaction to the next call that waits, or free it."""
        if not self.lets_tasks_wait:
            self._in_use.release()
            return
        with self._queueing:
            while self._queue:
                turn = self._queue.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._in_use.release()

    def _require_own_process(self) -> None:
        if self.is_forked:
            raise StoreForked(
                "this transaction was begun before the process forked, and only the parent continues with it: fork "
                "outside of the block"
            )

    def _take(self) -> None:
        self._require_own_process()
        if not self._in_use.acquire(blocking=False):
            raise InvalidRequest(
                self.FIELD, "is in use by another task or thread: make one call of `tx` after the other"
            )

    async def commit(self) -> None:
        """Commit, and return once all is durable. If it raises, nothing was applied unless the outcome says so."""
        try:
            self._take()
        except InvalidRequest:
            await self.roll_back()
            raise InvalidRequest(
                self.FIELD,
                "its block ended while another task or thread used it, so it was rolled back: await every call of `tx` "
                "inside the block",
            ) from None
        try:
            self.check_open()
            await self._commit()
        finally:
            self._pass_on()

    async def roll_back(self) -> None:
        """Roll everything back, unless it has ended. Idempotent. Does nothing in a forked child."""
        if not self.is_forked and self.decide(End.ROLLED_BACK):
            await self._undo()

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> NoReturn:  # noqa: ARG002 - the port
        """Refuse: there are no transactions inside of one."""
        raise InvalidRequest("store", "works inside a transaction already: continue with this `tx`")

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a pure call. Return its result, and whether it was heavy."""
        return await self._waiting.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without blocking other operations."""
        return await self._waiting.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return self.outer.drive(work)

    async def close(self) -> None:
        """Refuse: the end of the block ends the transaction."""
        raise InvalidRequest(self.FIELD, "ends with its block: leave the block to commit, or raise to roll back")


def _turn() -> Future[None]:
    from concurrent.futures import Future  # loaded with any backend, and not with the public names

    return Future()


_ENTERED: ContextVar[tuple[Entered, ...]] = ContextVar("holdfast_transactions", default=())
"""The marks of the blocks that the running task or thread is in, with those of the tasks that started it."""


def refuse_inside(backend: object, call: str) -> None:
    """Refuse a call that would wait for the end of a transaction, in a task or thread that is in its block."""
    for block in _ENTERED.get():
        if block.transaction is not None and block.transaction.outer is backend and block.transaction.is_open:
            raise InvalidRequest(
                "store", f"{call} would wait for the end of the transaction that this task is in: use `tx`, or end it"
            )


def outside() -> Context:
    """Return the context of the running task or thread without its blocks, for a task that waits for none of them."""
    context = copy_context()
    context.run(_ENTERED.set, ())
    return context


class Entered:
    """Marks the running task or thread as inside a transaction's block, from `enter` to `leave`.

    The mark counts from the moment that it has a transaction until that one has ended.
    """

    def __init__(self) -> None:
        self.transaction: Ending | None = None
        self._token: Token[tuple[Entered, ...]] | None = None

    def enter(self) -> None:
        """Enter the block."""
        self._token = _ENTERED.set((*_ENTERED.get(), self))

    def leave(self) -> None:
        """Leave the block."""
        if self._token is not None:
            with suppress(ValueError):  # a generator that spans tasks leaves in another context than it entered
                _ENTERED.reset(self._token)
