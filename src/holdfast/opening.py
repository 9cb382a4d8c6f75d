"""A URL says which database; only the backend that it names is imported."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import TracebackType
from typing import Any, cast

from holdfast.blocking import BlockingStore
from holdfast.clock import SystemClock
from holdfast.errors import InvalidRequest
from holdfast.folder import Folder
from holdfast.ports import AttachmentBytes, Backend, Clock
from holdfast.records.limits import Limits
from holdfast.records.options import SqliteOptions
from holdfast.rules import checks
from holdfast.store import Context, Store
from holdfast.waiting import AsyncWaiting, BlockingWaiting, Waiting

SYNCHRONOUS = ("off", "normal", "full", "extra")


def open_blocking(
    url: str | os.PathLike[str],
    *,
    options: SqliteOptions | None = None,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
    attachments: str | os.PathLike[str] | AttachmentBytes | None = None,
) -> BlockingStore:
    """Open a store for threads: `memory:`, a path, `sqlite:<path>` or `sqlite::memory:`.

    `attachments` is where attachment bytes live: in the database by default, in a folder if a path is given.

    >>> with holdfast.open_blocking("memory:") as other:
    ...     other.durability
    'ephemeral'
    """
    backend = open_backend(url, options, clock or SystemClock(), BlockingWaiting())
    return BlockingStore(Store(_context(backend, limits, attachments)), backend)


def open(
    url: str | os.PathLike[str],
    *,
    options: SqliteOptions | None = None,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
    attachments: str | os.PathLike[str] | AttachmentBytes | None = None,
) -> Opening:
    """Open a store for tasks: `async with holdfast.open(url) as store`, or `store = await holdfast.open(url)`.

    The arguments are those of `open_blocking`.

    >>> import asyncio
    >>> async def main():
    ...     async with holdfast.open("memory:") as store:
    ...         return store.durability
    >>> asyncio.run(main())
    'ephemeral'
    """
    return Opening(url, options, limits, clock or SystemClock(), attachments)


class Opening:
    """A store about to be opened."""

    def __init__(
        self, url: str | os.PathLike[str], options: SqliteOptions | None, limits: Limits, clock: Clock,
        attachments: str | os.PathLike[str] | AttachmentBytes | None,
    ) -> None:  # fmt: skip
        self._url = url
        self._options = options
        self._limits = limits
        self._clock = clock
        self._attachments = attachments
        self._store: Store | None = None

    async def _open(self) -> Store:
        waiting = AsyncWaiting()
        backend = await waiting.offload(lambda: open_backend(self._url, self._options, self._clock, waiting))
        return Store(_context(backend, self._limits, self._attachments))

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def open_backend(url: str | os.PathLike[str], options: SqliteOptions | None, clock: Clock, waiting: Waiting) -> Backend:
    """The backend that a URL names, open."""
    text = url if isinstance(url, str) else _path_text(url)
    if text == "memory:":
        from holdfast.backends.memory import MemoryBackend  # only who opens it loads it

        _refuse_options(options, "a memory store")
        return MemoryBackend(clock, waiting)
    path = _sqlite_path(text) if isinstance(url, str) else text
    chosen = _check_sqlite_options(options)
    from holdfast.backends.sqlite import SqliteBackend  # only who opens it loads it

    return SqliteBackend.open(path, chosen, clock, waiting)


def _path_text(url: object) -> str:
    if not isinstance(url, os.PathLike):
        raise InvalidRequest("url", f"must be text or a path, not {type(url).__name__}")
    return os.fsdecode(cast("Any", url))


def _sqlite_path(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    path = rest if colon and scheme == "sqlite" else url
    if colon and scheme != "sqlite" and rest.startswith("//"):
        raise InvalidRequest(
            "url", f"{scheme!r} is not a database that this version knows: use memory: or sqlite:<path>"
        )
    if not path.strip() or "\0" in path:
        raise InvalidRequest("url", "must name a file: sqlite:<path>")
    return path


def _refuse_options(options: object, what: str) -> None:
    if options is not None:
        raise InvalidRequest("options", f"{what} has none")


def _check_sqlite_options(options: object) -> SqliteOptions:
    if options is None:
        return SqliteOptions()
    given = checks.instance("options", options, SqliteOptions)
    checks.one_of("options.synchronous", given.synchronous, SYNCHRONOUS)
    checks.whole("options.busy_timeout_ms", given.busy_timeout_ms, most=3_600_000)
    checks.whole("options.cache_kib", given.cache_kib, most=2**31 - 1)
    checks.flag("options.migrate", given.migrate)
    checks.whole("options.group_size", given.group_size, least=1, most=10_000)
    checks.whole("options.readers", given.readers, least=1, most=256)
    return given


def _context(backend: Backend, limits: Limits, attachments: object) -> Context:
    checks.instance("limits", limits, Limits)
    if attachments is None:
        return Context(backend, limits)
    if isinstance(attachments, str | os.PathLike):
        return Context(backend, limits, Folder(attachments))  # pyright: ignore[reportUnknownArgumentType]
    return Context(backend, limits, attachments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
