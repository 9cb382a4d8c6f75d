"""The protocol of observers, which are called before and after every operation, and cannot change its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from holdfast.records.observations import Observation

End: TypeAlias = Callable[[Observation], None]
"""Called at the end of an operation, in the task or thread that began it."""


class Observer(Protocol):
    """Is called for every operation, by any thread. It must be quick; its exceptions are logged and dropped."""

    def begin(self, operation: str, system: str, *, steps: bool) -> End | None:
        """Begin an operation. Return a callable for its end, or None if the end is of no interest.

        With `steps`, the caller gets control back before the end, so that nothing may be left in the caller's context.
        """
        ...
