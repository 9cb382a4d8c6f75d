"""Read any listing of any store to its end, one page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

if TYPE_CHECKING:
    # The command line prints its help without loading the records.
    from holdfast.records.common import Page

P = ParamSpec("P")
T = TypeVar("T")


@overload
def every(listing: Callable[P, Page[T]], /, *args: P.args, **filters: P.kwargs) -> Iterable[T]: ...
@overload
def every(listing: Callable[P, Awaitable[Page[T]]], /, *args: P.args, **filters: P.kwargs) -> AsyncIterable[T]: ...
def every(listing: Callable[..., Any], /, *args: Any, **filters: Any) -> Any:
    """Iterate over all items of a listing, however many there are: `for`, or `async for` on an async store.

    Arguments are those of the listing; `limit` is the size of a page, and `after` the place to begin. Pages are read as
    the iteration reaches them. An item that exists from beginning to end is seen exactly once; one that is added
    meanwhile may be seen.

    Two listings are feeds, in the order of change: `sessions.list(changed_since_ms=…)` and `processes.ended`. An item
    that changes meanwhile moves to their end: it is seen at least once, and may be seen again after each change. A
    loop that changes what it sees may never end: make a list of the items first. With
    `sessions.list(newest_first=True)` it moves to the front instead: it is seen at most once.

    >>> for number in range(60):
    ...     _ = store.sessions.create(f"chat-{number}", owner="ada")
    >>> len(store.sessions.list(owner="ada")), sum(1 for session in holdfast.every(store.sessions.list, owner="ada"))
    (50, 60)
    """
    if not callable(cast("object", listing)):
        _close(listing)
        raise TypeError("give the listing itself and do not call it: every(store.sessions.list, owner=...)")
    return Every[Any](listing, args, filters)


def _close(page: object) -> None:
    """Close a coroutine, which would otherwise warn that it was never awaited."""
    close = getattr(page, "close", None)
    if callable(close):
        close()


def _require_page(page: object) -> None:
    if not hasattr(page, "items") or not hasattr(page, "next"):
        raise TypeError(f"this is not a listing: it returned {type(page).__name__} and not a page")


class Every(Generic[T]):
    """All items of a listing, iterated with or without await, as the store is used."""

    def __init__(self, listing: Callable[..., Any], args: tuple[Any, ...], filters: dict[str, Any]) -> None:
        self._listing = listing
        self._args = args
        self._filters = filters

    def __repr__(self) -> str:
        return f"every({self._listing!r})"

    def _page(self, after: str | None) -> Any:
        if after is None:
            return self._listing(*self._args, **self._filters)
        import inspect

        # The place to begin may have been passed by position.
        given = inspect.signature(self._listing).bind(*self._args, **self._filters)
        given.arguments["after"] = after
        return self._listing(*given.args, **given.kwargs)

    def __iter__(self) -> Iterator[T]:
        after: str | None = None
        while True:
            page = self._page(after)
            if hasattr(page, "__await__"):
                _close(page)
                raise TypeError("this listing is of an async store: use `async for`")
            _require_page(page)
            yield from cast("Page[T]", page)
            if (after := cast("Page[T]", page).next) is None:
                return

    async def __aiter__(self) -> AsyncIterator[T]:
        after: str | None = None
        while True:
            page = self._page(after)
            if not hasattr(page, "__await__"):
                _require_page(page)
                raise TypeError("this listing is of a blocking store: use `for`")
            found = cast("Page[T]", await page)
            _require_page(found)
            for one in found:
                yield one
            if (after := found.next) is None:
                return
