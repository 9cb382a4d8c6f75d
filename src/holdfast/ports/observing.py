"""An observer is told of every operation, once before and once after, and cannot change what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from holdfast.records.observations import Observation

End: TypeAlias = Callable[[Observation], None]
"""What is called at the end of an operation, in the task or thread that began it."""


class Observer(Protocol):
    """Who is told of operations, by any thread. It must be quick; what it raises is logged, and changes nothing."""

    def begin(self, operation: str, system: str, *, steps: bool) -> End | None:
        """An operation begins; what is returned is called at its end, and None means that nobody wants to know.

        With `steps`, the caller gets control back before the end, so that nothing may be left in the caller's context.
        """
        ...
