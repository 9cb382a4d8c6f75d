"""Parts that all adapters share: the way to a store, waits for writes, and errors that name the caller's values.

A store that is named by a URL is opened once for each process and shared by all adapters that name it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import math
import os
import re
import secrets
import threading
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import holdfast

T = TypeVar("T")

Place: TypeAlias = "holdfast.Store | str | os.PathLike[str]"
"""An open store, or the URL or path of one."""

PAYLOAD = re.compile(r"graph\.nodes\[(\d+)\]\.payload")
DEEPEST = 256
"""No store accepts deeper documents, so that nothing below needs to be converted."""


class Shared:
    """The store of a URL, opened by its first use."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = url
        self.users = 0
        self._lock = threading.Lock()
        self._store: holdfast.Store | None = None

    async def store(self) -> holdfast.Store:
        """Return the store. Callers on several event loops may open it at the same time: one of them is kept."""
        if self._store is not None:
            return self._store
        opened = await holdfast.open(self.url)
        kept = self._keep(opened)
        if kept is not opened:
            await opened.close()
        return kept

    def _keep(self, opened: holdfast.Store) -> holdfast.Store:
        with self._lock:
            if self._store is None:
                self._store = opened
            return self._store

    async def close(self) -> None:
        """Close the store if it was opened."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            await store.close()


_SHARED: dict[tuple[int, str], Shared] = {}
_LOCK = threading.Lock()
_CLOSING: set[asyncio.Task[None]] = set()


class Source:
    """The store of one adapter object: the caller's, or the shared one of a URL."""

    def __init__(self, place: Place) -> None:
        self._given: holdfast.Store | None = None
        self._shared: Shared | None = None
        self._closed = False
        if isinstance(place, holdfast.Store):
            self._given = place
        elif isinstance(place, holdfast.BlockingStore):
            raise holdfast.InvalidRequest("store", "is for threads: open it with `await holdfast.open(url)`")
        else:
            self._shared = _share(place)

    async def store(self) -> holdfast.Store:
        """Return the store. Raises `StoreClosed` after `release`."""
        if self._closed:
            raise holdfast.errors.StoreClosed
        if self._given is not None:
            return self._given
        assert self._shared is not None
        return await self._shared.store()

    def release(self) -> Shared | None:
        """Give up the store. Return the shared one if this was its last user, to be closed. Idempotent."""
        if self._closed:
            return None
        self._closed = True
        shared = self._shared
        if shared is None:
            return None
        with _LOCK:
            shared.users -= 1
            if shared.users:
                return None
            _SHARED.pop((os.getpid(), str(shared.url)), None)
        return shared

    def close(self) -> None:
        """Give up the store from code that cannot await. On a running event loop a task closes it."""
        last = self.release()
        if last is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(last.close())
            return
        task = loop.create_task(last.close())
        _CLOSING.add(task)
        task.add_done_callback(_CLOSING.discard)

    async def aclose(self) -> None:
        """Give up the store, and close it if this was its last user."""
        last = self.release()
        if last is not None:
            await last.close()


def _share(place: str | os.PathLike[str]) -> Shared:
    url = os.fspath(place)
    if ":memory:" in url or url.startswith("memory:"):
        # Each is a store of its own.
        alone = Shared(place)
        alone.users = 1
        return alone
    with _LOCK:
        shared = _SHARED.setdefault((os.getpid(), url), Shared(place))
        shared.users += 1
        return shared


NAME_BYTES = 10
"""Bytes of a name. Stored names are a good part of a short message's row."""


def new_name() -> str:
    """Return a random name for a turn or a node."""
    return _name_of(secrets.token_bytes(NAME_BYTES))


def name_after(text: str) -> str:
    """Return a name for a turn, always the same for a text."""
    return _name_of(hashlib.sha256(text.encode()).digest()[:NAME_BYTES])


def _name_of(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()


async def settled(write: Awaitable[T]) -> T:
    """Await a write to its end, also if the caller is cancelled meanwhile; the cancellation is raised then."""
    task = asyncio.ensure_future(write)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Retrieved, so that asyncio does not report it as lost.
        task.exception() if not task.cancelled() else None
        raise cancelled
    return task.result()


def with_lists(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with lists in place of tuples, as `json.dumps` writes them."""
    if depth > DEEPEST:
        return value
    if isinstance(value, dict):
        return {key: with_lists(one, depth + 1) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [with_lists(one, depth + 1) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value


@contextlib.contextmanager
def naming(field: str, *, is_one: bool = False, first: int = 0, **others: str) -> Generator[None]:
    """Name the caller's argument in a refusal: `items[2]` and not the payload of a node, or `event` if it is one.

    `first` is the caller's index of the first node. `others` has the caller's names of further fields, by the last part
    of the store's.
    """
    try:
        yield
    except holdfast.InvalidRequest as error:
        found = PAYLOAD.fullmatch(error.field)
        named = others.get(error.field.rpartition(".")[2])
        if found is not None:
            named = field if is_one else f"{field}[{first + int(found[1])}]"
        elif error.field == "graph.nodes":
            named = field
        if named is None:
            raise
        raise holdfast.InvalidRequest(named, error.problem, limit=error.limit) from error


@contextlib.contextmanager
def reading(key: str) -> Generator[None]:
    """Report stored data that the framework cannot take as damage. The content is in the cause, not in the message."""
    try:
        yield
    except holdfast.HoldfastError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise holdfast.errors.Corrupt(
            "sessions", key, f"its data is not of this framework ({type(error).__name__})"
        ) from error


def require_numbers(field: str, value: Any) -> None:
    """Refuse NaN and infinity, which JSON does not have: frameworks write null in their place."""
    under = [value]
    while under:
        one = under.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise holdfast.InvalidRequest(field, "has a NaN or infinite number, which JSON does not have")
        if isinstance(one, dict):
            under.extend(cast("Any", one).values())
        elif isinstance(one, list | tuple):
            under.extend(cast("Any", one))


def require_kinds(session_id: str, nodes: Sequence[holdfast.Node], family: str, known: Sequence[str]) -> None:
    """Refuse nodes that this adapter did not write, or whose form is newer than this adapter."""
    if {node.kind for node in nodes}.issubset(known):
        return
    kind = next(node.kind for node in nodes if node.kind not in known)
    if kind.startswith(f"{family}."):
        raise holdfast.errors.Incompatible(
            f"session {session_id!r} has a node of kind {kind!r}, written by a newer adapter; this one knows "
            f"{', '.join(known)}: upgrade holdfast"
        )
    raise holdfast.InvalidRequest(
        "session_id", f"session {session_id!r} has a node of kind {kind!r}, not of {family}: use another id"
    )
