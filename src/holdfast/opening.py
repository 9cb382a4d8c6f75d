"""A URL says which database; only the backend that it names is imported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from types import TracebackType
from typing import Any, NoReturn, cast

import msgspec

from holdfast.blocking import BlockingStore
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.folder import Folder
from holdfast.ports import AttachmentBytes, Backend, Clock
from holdfast.records.limits import Limits
from holdfast.records.options import SqliteOptions
from holdfast.rules import checks
from holdfast.store import Context, Store
from holdfast.waiting import AsyncWaiting, BlockingWaiting, Waiting

SYNCHRONOUS = ("off", "normal", "full", "extra")
DEEPEST = 256
PORT = ("put", "get", "delete")


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
    parts = _check_parts(limits, clock, attachments)
    backend = open_backend(url, options, parts.clock, BlockingWaiting())
    return BlockingStore(Store(Context(backend, parts.limits, parts.objects)), backend)


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
    return Opening(url, options, _check_parts(limits, clock, attachments))


class Opening:
    """A store about to be opened."""

    def __init__(self, url: str | os.PathLike[str], options: SqliteOptions | None, parts: Parts) -> None:
        self._url = url
        self._options = options
        self._parts = parts
        self._store: Store | None = None

    async def _open(self) -> Store:
        waiting = AsyncWaiting()
        parts = self._parts
        import asyncio  # a blocking user never pays for it

        opening = asyncio.ensure_future(
            waiting.offload(lambda: open_backend(self._url, self._options, parts.clock, waiting))
        )
        try:
            backend = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on and opens it all the same: let go of what nobody will get.
            with contextlib.suppress(HoldfastError):
                await (await opening).close()
            raise
        return Store(Context(backend, parts.limits, parts.objects))

    def __enter__(self) -> NoReturn:
        raise TypeError("holdfast.open is for tasks: use `async with holdfast.open(...)`, or open_blocking")

    def __exit__(self, *_: object) -> None:
        """Never reached; there so that `with` says what `__enter__` says."""

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
    if url == "memory:":
        from holdfast.backends.memory import MemoryBackend  # only who opens it loads it

        _refuse_options(options, "a memory store")
        return MemoryBackend(clock, waiting)
    path = _sqlite_path(url) if isinstance(url, str) else check_path("url", url)
    chosen = _check_sqlite_options(options)
    from holdfast.backends.sqlite import SqliteBackend  # only who opens it loads it

    return SqliteBackend.open(path, chosen, clock, waiting)


def check_path(field: str, value: object) -> str:
    """A path that an operating system can take."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidRequest(field, f"must be text or a path, not {type(value).__name__}")
    path = os.fsdecode(cast("Any", value))
    if not path.strip() or "\0" in path:
        raise InvalidRequest(field, "must name a file, without NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "contains a lone surrogate, which is not text") from None
    return path


def _sqlite_path(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if colon and scheme != "sqlite" and rest.startswith("//"):
        raise InvalidRequest(
            "url", f"{scheme!r} is not a database that this version knows: use memory: or sqlite:<path>"
        )
    return check_path("url", rest if colon and scheme == "sqlite" else url)


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


class Parts(msgspec.Struct, frozen=True):
    """What a store is made of besides its backend, checked."""

    limits: Limits
    clock: Clock
    objects: AttachmentBytes | None


def _check_parts(limits: object, clock: object, attachments: object) -> Parts:
    """Everything that can be refused before a file is touched."""
    given = checks.instance("limits", limits, Limits)
    for name in given.__struct_fields__:
        checks.whole(f"limits.{name}", getattr(given, name), least=1)
    # Whoever reads a document may stand deep in the stack: what was accepted must stay readable from there.
    checks.whole("limits.document_depth", given.document_depth, most=DEEPEST)
    if clock is not None and not callable(getattr(clock, "now_ms", None)):
        raise InvalidRequest("clock", "must have a method now_ms")
    objects: object = attachments
    if isinstance(attachments, str | os.PathLike):
        objects = Folder(check_path("attachments", cast("object", attachments)))
    elif attachments is not None and not all(callable(getattr(attachments, name, None)) for name in PORT):
        raise InvalidRequest("attachments", f"must be a folder, or have the methods {', '.join(PORT)}")
    return Parts(given, cast("Clock", clock or SystemClock()), cast("AttachmentBytes | None", objects))
