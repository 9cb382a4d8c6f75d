"""The block of `store.transaction()`: its end commits, an exception rolls back."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.open_transaction import Entered
from holdfast.operations.key_frames import StagedKeyFrames
from holdfast.ports import Ending
from holdfast.store.context import Context

if TYPE_CHECKING:
    from holdfast.store import Store

MOST_MS = 3_600_000


class TransactionBlock:
    """An async context manager: `async with store.transaction() as tx`. Each is for one block."""

    def __init__(self, context: Context, over: Callable[[Context], Store], timeout_ms: int) -> None:
        self._context = context
        self._over = over
        self._timeout_ms = timeout_ms
        self._frames = StagedKeyFrames(context.key_frames)
        self._taken = False
        self.entered = Entered()
        self.ending: Ending | None = None

    def take(self) -> None:
        """Refuse a second block."""
        if self._taken:
            raise InvalidRequest("transaction", "was begun before: call store.transaction() for each block")
        self._taken = True

    async def begin(self) -> Store:
        """Begin the transaction. The caller marks its own context with `entered`."""
        backend, self.ending = await self._context.backend.begin(self._timeout_ms)
        return self._over(
            msgspec.structs.replace(self._context, backend=backend, borrowed="transaction", key_frames=self._frames)
        )

    async def end(self, error: BaseException | None) -> None:
        """Commit, or roll back because of an error of the block."""
        if self.ending is None:
            return
        if error is not None:
            await self.ending.roll_back()
            return
        await self.ending.commit()
        self._frames.pass_on()

    async def __aenter__(self) -> Store:
        self.take()
        store = await self.begin()
        if self.ending is not None:
            self.entered.enter(self.ending)
        return store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.entered.leave()
        await self.end(error)

    def __enter__(self) -> NoReturn:
        raise TypeError("this store is for tasks: use `async with store.transaction()`")

    def __exit__(self, *_: object) -> None:
        """Never reached. Exists so that `with` raises the error of `__enter__`."""
