"""The protocol of observers, which are called before and after every operation, and cannot change its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, runtime_checkable

from holdfast.records.observations import Observation
from holdfast.records.queue import WorkBatch

End: TypeAlias = Callable[[Observation], None]
"""Called at the end of an operation, in the task or thread that began it."""


class Observer(Protocol):
    """Is called for every operation, by any thread. It must be quick; its exceptions are logged and dropped."""

    def begin(self, operation: str, system: str, *, steps: bool) -> End | None:
        """Begin an operation. Return a callable for its end, or None if the end is of no interest.

        With `steps`, the caller gets control back before the end, so that nothing may be left in the caller's context.
        """
        ...


@runtime_checkable
class Tracing(Protocol):
    """An observer that also follows work from the call that enqueued it to the worker that runs it."""

    def carried(self) -> str | None:
        """Return the current place in a trace, in the form `traceparent` of W3C Trace Context, or None.

        It becomes the end of the ids of the batches that the call enqueues.
        """
        ...

    def handling(self, name: str, batches: Sequence[WorkBatch]) -> AbstractContextManager[None]:
        """Return a block in which a worker runs work. It continues at the place that the first batch carries."""
        ...

    def failed(self, error: BaseException) -> None:
        """Tell that the handler in the current block has failed."""
        ...
