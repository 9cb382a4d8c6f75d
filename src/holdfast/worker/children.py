"""A handle on a run that another run has started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from holdfast.worker.run import Run

T = TypeVar("T")


class Child:
    """A run that another run has started."""

    def __init__(self, parent: Run, id: str) -> None:
        self._parent = parent
        self.id = id

    def __repr__(self) -> str:
        return f"Child({self.id!r})"

    @overload
    async def result(self) -> Any: ...
    @overload
    async def result(self, declared: type[T]) -> T: ...
    async def result(self, declared: Any = None) -> Any:
        """Return the child's result once it has ended, as a value of a type if one is given.

        `ChildFailed` if it has no result.
        """
        return await self._parent.result_of(self.id, declared)
