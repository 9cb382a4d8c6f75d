"""A listing is read to its end one page at a time, whoever lists what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import holdfast

T = TypeVar("T")

PAGE = 200


def every(listing: Callable[..., holdfast.Page[T]], *, size: int = PAGE) -> Iterator[T]:
    """All of a listing; `listing` takes `after=` and `limit=`, as every one of a store does."""
    after: str | None = None
    while True:
        page = listing(after=after, limit=size)
        yield from page
        if (after := page.next) is None:
            return
