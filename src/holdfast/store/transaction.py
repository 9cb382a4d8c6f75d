"""The block of `store.transaction()`: its end commits, an exception rolls back."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

import msgspec

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.open_transaction import Entered
from holdfast.operations.key_frames import StagedKeyFrames
from holdfast.store.context import Context

if TYPE_CHECKING:
    from holdfast.store import Store

MOST_MS = 3_600_000


class Mark:
    """Exists as long as a `with` statement is inside its block."""

    __slots__ = ("__weakref__",)


class Marked:
    """The `__exit__` of a blocking transaction. A `with` statement gets it with a mark, and alone refers to that.

    A signal handler may raise before the first step of any Python code, also of `__exit__`: then nothing has ended the
    transaction. But the statement has dropped the method, and the mark with it, which shows that the block was left.
    """

    def __init__(self, method: Callable[..., None]) -> None:
        self._method = method

    def __get__(self, manager: Any, owner: object = None) -> Callable[..., None]:
        if manager is None:
            return self._method
        bound, mark = partial(self._method, manager), Mark()
        vars(bound)["mark"] = mark
        manager.block.see(ref(mark))
        return bound


class TransactionBlock:
    """An async context manager: `async with store.transaction() as tx`. Each is for one block."""

    def __init__(self, context: Context, over: Callable[[Context], Store], timeout_ms: int) -> None:
        self._context = context
        self._over = over
        self._timeout_ms = timeout_ms
        self._frames = StagedKeyFrames(context.key_frames)
        self._remedies: list[Callable[[str], None]] = []
        self._taken = False
        self._process_id = os.getpid()
        self._mark: ref[Mark] | None = None
        self.entered = Entered()

    def take(self) -> None:
        """Refuse a second block."""
        if self._taken:
            raise InvalidRequest("transaction", "was begun before: call store.transaction() for each block")
        self._taken = True
        if self._mark is not None and self._mark() is None:
            self._mark = None  # the method was looked up for another purpose than a `with` statement

    def see(self, mark: ref[Mark]) -> None:
        """Note the mark of the `with` statement that is about to enter the block."""
        if not self._taken:
            self._mark = mark

    def _is_left(self) -> bool:
        return self._mark is not None and self._mark() is None

    async def begin(self) -> Store:
        """Begin the transaction. The caller marks its own context with `entered`."""
        backend, self.entered.transaction = await self._context.backend.begin(
            self._timeout_ms, None if self._mark is None else self._is_left
        )
        return self._over(
            msgspec.structs.replace(
                self._context,
                backend=backend,
                enclosing="transaction",
                key_frames=self._frames,
                remedies=self._remedies,
            )
        )

    def ends_here(self, error: BaseException | None) -> bool:
        """Return False in a forked child that leaves the block by an exception: the parent ends the transaction."""
        return error is None or os.getpid() == self._process_id

    async def end(self, error: BaseException | None) -> None:
        """Commit, or roll back because of an error of the block."""
        transaction = self.entered.transaction
        if transaction is None:
            return
        if error is not None:
            await transaction.roll_back()
            return
        try:
            await transaction.commit()
        except HoldfastError as failed:
            if failed.outcome != "not_applied":
                self._log_remedies(", in a transaction of which it is not known whether it was committed")
            raise
        self._frames.pass_on()
        self._log_remedies("")

    def _log_remedies(self, doubt: str) -> None:
        for log in self._remedies:
            log(doubt)

    async def __aenter__(self) -> Store:
        self.take()
        store = await self.begin()
        self.entered.enter()
        return store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.entered.leave()
        if self.ends_here(error):
            await self.end(error)

    def __enter__(self) -> NoReturn:
        raise TypeError("this store is for tasks: use `async with store.transaction()`")

    def __exit__(self, *_: object) -> None:
        """Never reached. Exists so that `with` raises the error of `__enter__`."""
