"""Open a store by its URL. Only the backend that the URL names is imported."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

import msgspec

from holdfast.blocking import BlockingStore
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.extras import needing
from holdfast.folder import Folder
from holdfast.ports import AttachmentBytes, Backend, Clock
from holdfast.ports.observer import Observer
from holdfast.records.artifacts import ArtifactCheck
from holdfast.records.limits import LARGEST_CONTENT, Limits
from holdfast.records.options import PRIVATE, PostgresOptions, SqliteOptions
from holdfast.rules import checks
from holdfast.store import Context, Store
from holdfast.store.instrumentation import Watched, observed_opening, observing_of
from holdfast.store.metering import CountingBackend
from holdfast.wait import AsyncWaiting, BlockingWaiting, Waiting

if TYPE_CHECKING:
    from asyncpg import Pool

    from holdfast.backends.postgres import PostgresBackend

Options: TypeAlias = SqliteOptions | PostgresOptions

SYNCHRONOUS = ("off", "normal", "full", "extra")
DEEPEST = 256
PORT = ("put", "get", "delete")
POOLERS = ("none", "transaction")
POSTGRES = ("postgresql://", "postgres://")
HOUR_MS = 3_600_000
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def open_blocking(
    url: str | os.PathLike[str],
    *,
    options: Options | None = None,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
    attachments: str | os.PathLike[str] | AttachmentBytes | None = None,
    observe: Observer | Sequence[Observer] | None = None,
    file_mode: int = PRIVATE,
    artifact_checks: Mapping[str, ArtifactCheck] | None = None,
) -> BlockingStore:
    """Open a store for threads: `memory:`, a path, `sqlite:<path>`, `sqlite::memory:` or `postgresql://…`.

    A spelling that would name an odd file is refused with the one to use: `sqlite3:x.db`, `~/x.db`, `memory`. A
    `pathlib.Path` is the name of a file as it stands.

    Without a `clock`, memory and SQLite use this machine's and PostgreSQL its server's. `attachments` is the place of
    attachment bytes: the database by default, a folder if a path is given. `observe` is called for every
    operation: `Logging()`, `OpenTelemetry()`, an observer of your own, or several of them.

    New database and attachment files get the permissions `file_mode`, whatever the umask: by default only their owner
    may read and write them. New folders for attachments can also be entered by users who may read. Files and folders
    that exist keep their permissions.

    `artifact_checks` has a function for each kind of artifact to check. `artifacts.put` calls it with the
    ref and the bytes before the write transaction begins, on an async store in a thread. It returns None, or the
    problem as text, or raises: then the put is `InvalidRequest` and nothing is written. Reads do not call it.

    >>> import json
    >>> def is_json(ref: str, data: bytes) -> None:
    ...     json.loads(data)
    >>> with holdfast.open_blocking("memory:", artifact_checks={"environment": is_json}) as other:
    ...     other.artifacts.put("environment", "main", b"not JSON")
    Traceback (most recent call last):
        ...
    holdfast.errors.InvalidRequest: data: environment artifact 'main' was refused by its check: JSONDecodeError: ...

    >>> with holdfast.open_blocking("memory:") as other:
    ...     other.durability
    'ephemeral'
    """
    parts = _check_parts(limits, clock, attachments, observe, file_mode, artifact_checks)
    backend: Backend | None = None
    try:
        with observed_opening(parts.observers, system_of(url)) as watched:
            backend = open_backend(url, options, parts.clock, BlockingWaiting(), parts.file_mode)
            store = _store_over(backend, parts, watched)
        return BlockingStore(store, backend)
    except BaseException:
        # An observer failed, or an interrupt came: nothing else refers to the backend.
        if backend is not None:
            backend.drive(backend.close())
        raise


def open(
    url: str | os.PathLike[str] | Pool[Any],
    *,
    options: Options | None = None,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
    attachments: str | os.PathLike[str] | AttachmentBytes | None = None,
    observe: Observer | Sequence[Observer] | None = None,
    file_mode: int = PRIVATE,
    artifact_checks: Mapping[str, ArtifactCheck] | None = None,
) -> Opening:
    """Open a store for tasks: `async with holdfast.open(url) as store`, or `store = await holdfast.open(url)`.

    The arguments are those of `open_blocking`. Instead of a URL, an asyncpg pool may be given: it stays the
    caller's and is not closed with the store.

    >>> import asyncio
    >>> async def main():
    ...     async with holdfast.open("memory:") as store:
    ...         return store.durability
    >>> asyncio.run(main())
    'ephemeral'
    """
    return Opening(url, options, _check_parts(limits, clock, attachments, observe, file_mode, artifact_checks))


def ddl(
    url: str | os.PathLike[str],
    *,
    options: Options | None = None,
    distribute_by: Literal["schema", "family"] | None = None,
) -> str:
    """Return the statements that create the schema of the store that a URL names. Connects to nothing.

    With `distribute_by`, return those that spread an existing schema over the nodes of a Citus cluster: the whole
    schema to one node, or the family of each session to one.

    >>> "CREATE TABLE" in holdfast.ddl("sqlite:agent.db")
    True
    >>> "create_distributed_table" in holdfast.ddl("postgresql://db.example.net/agents", distribute_by="family")
    True
    """
    if distribute_by is not None:
        checks.one_of("distribute_by", distribute_by, ("schema", "family"))
        if not isinstance(url, str) or not url.startswith(POSTGRES):
            raise InvalidRequest("distribute_by", "only a PostgreSQL store can be spread over nodes: leave it out")
    if url == "memory:":
        _refuse_options(options, "a memory store")
        return ""
    if isinstance(url, str) and url.startswith(POSTGRES):
        chosen = _check_postgres_options(options)
        from holdfast import dsn

        dsn.check("url", url)
        _postgres()
        from holdfast.backends.postgres.schema_setup import ddl_text, distribution_text

        return ddl_text(chosen.schema) if distribute_by is None else distribution_text(chosen.schema, distribute_by)
    _ = _file_of(url)
    _check_sqlite_options(options)
    from holdfast.backends.sqlite.schema_setup import schema_text

    return schema_text()


class Opening:
    """A store about to be opened."""

    def __init__(self, url: str | os.PathLike[str] | Pool[Any], options: Options | None, parts: Parts) -> None:
        self._url = url
        self._options = options
        self._parts = parts
        self._store: Store | None = None

    async def _open(self) -> Store:
        parts = self._parts
        with observed_opening(parts.observers, system_of(self._url)) as watched:
            backend = await open_backend_async(self._url, self._options, parts.clock, parts.file_mode)
            return _store_over(backend, parts, watched)

    def __enter__(self) -> NoReturn:
        raise TypeError("holdfast.open is for tasks: use `async with holdfast.open(...)`, or open_blocking")

    def __exit__(self, *_: object) -> None:
        """Never reached. Exists so that `with` raises the error of `__enter__`."""

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


def _store_over(backend: Backend, parts: Parts, watched: Watched) -> Store:
    observing = observing_of(parts.observers, backend)
    if observing is None:
        return Store(Context(backend, parts.limits, parts.objects, artifact_checks=parts.artifact_checks))
    watched.observing = observing
    context = Context(
        CountingBackend(backend),
        parts.limits,
        parts.objects,
        observing=observing,
        artifact_checks=parts.artifact_checks,
    )
    return context.facet(Store)(context)


def system_of(url: object) -> str:
    """Return the kind of database that a URL or a pool leads to, in OpenTelemetry's words where it has one."""
    if url == "memory:":
        return "memory"
    return "postgresql" if _is_pool(url) or str(url).startswith(POSTGRES) else "sqlite"


def open_backend(
    url: str | os.PathLike[str],
    options: Options | None,
    clock: Clock | None,
    waiting: Waiting,
    file_mode: int = PRIVATE,
) -> Backend:
    """Open the backend that a URL names. PostgreSQL's waits in its own way, on an event loop of its own."""
    if url == "memory:":
        from holdfast.backends.memory import MemoryBackend  # loaded only if used

        _refuse_options(options, "a memory store")
        return MemoryBackend(clock or SystemClock(), waiting)
    if isinstance(url, str) and url.startswith(POSTGRES):
        return _postgres().open_blocking(url, _check_postgres_options(options), clock)
    path = _file_of(url)
    chosen = _check_sqlite_options(options)
    from holdfast.backends.sqlite import SqliteBackend  # loaded only if used

    return SqliteBackend.open(path, chosen, clock or SystemClock(), waiting, file_mode=file_mode)


async def open_backend_async(
    url: str | os.PathLike[str] | Pool[Any],
    options: Options | None,
    clock: Clock | None,
    file_mode: int = PRIVATE,
) -> Backend:
    """Open the backend that a URL names or a pool leads to, for tasks of any event loop."""
    if (isinstance(url, str) and url.startswith(POSTGRES)) or _is_pool(url):
        _postgres()
        from holdfast.backends.postgres import AnyLoopPostgres  # loaded only if used

        return await AnyLoopPostgres.open(url, _check_postgres_options(options), clock)
    import asyncio  # never loaded by blocking callers

    waiting = AsyncWaiting()
    named = cast("str | os.PathLike[str]", url)
    opening = asyncio.ensure_future(waiting.offload(lambda: open_backend(named, options, clock, waiting, file_mode)))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread still opens the backend, which no caller will get: close it.
        with contextlib.suppress(HoldfastError):
            await (await opening).close()
        raise


def _is_pool(url: object) -> bool:
    """Return True for a pool of asyncpg's. Tested by name, so that the driver is not loaded without need."""
    return any(kind.__module__ == "asyncpg.pool" and kind.__name__ == "Pool" for kind in type(url).__mro__)


def _file_of(url: object) -> str:
    """Return the path of a SQLite file, by its URL or as a path."""
    from holdfast.file_urls import check_path, sqlite_path

    return sqlite_path(url) if isinstance(url, str) else check_path("url", url)


def _postgres() -> type[PostgresBackend]:
    with needing("postgres", field="url", purpose="PostgreSQL"):
        from holdfast.backends.postgres import PostgresBackend  # loaded only if used
    return PostgresBackend


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


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be text, not {type(value).__name__}")
    return value


def _check_postgres_options(options: object) -> PostgresOptions:
    if options is None:
        return PostgresOptions()
    given = checks.instance("options", options, PostgresOptions)
    if SCHEMA_NAME.fullmatch(_text("options.schema", given.schema)) is None:
        raise InvalidRequest(
            "options.schema", "must be a name of up to 63 lowercase letters, digits and underscores, no digit first"
        )
    if given.schema.startswith("pg_"):
        raise InvalidRequest("options.schema", "must not begin with pg_, which PostgreSQL keeps for itself")
    checks.whole("options.max_connections", given.max_connections, least=1, most=10_000)
    checks.whole("options.min_connections", given.min_connections, most=given.max_connections)
    checks.whole("options.acquire_timeout_ms", given.acquire_timeout_ms, least=1, most=HOUR_MS)
    checks.optional_whole("options.idle_timeout_ms", given.idle_timeout_ms, least=1, most=24 * HOUR_MS)
    checks.optional_whole("options.max_lifetime_ms", given.max_lifetime_ms, least=1, most=24 * HOUR_MS)
    checks.optional_whole("options.lock_timeout_ms", given.lock_timeout_ms, least=1, most=HOUR_MS)
    checks.optional_whole("options.statement_timeout_ms", given.statement_timeout_ms, least=1, most=HOUR_MS)
    checks.one_of("options.pooler", given.pooler, POOLERS)
    checks.flag("options.migrate", given.migrate)
    if given.listen_url is not None:
        _text("options.listen_url", given.listen_url)
    if given.read_url is not None:
        _text("options.read_url", given.read_url)
    return given


class Parts(msgspec.Struct, frozen=True):
    """The checked parts of a store, besides its backend."""

    limits: Limits
    clock: Clock | None
    objects: AttachmentBytes | None
    observers: tuple[Observer, ...] = ()
    file_mode: int = PRIVATE
    artifact_checks: Mapping[str, ArtifactCheck] = msgspec.field(default_factory=dict[str, ArtifactCheck])


def _check_parts(
    limits: object, clock: object, attachments: object, observe: object, file_mode: object, artifact_checks: object
) -> Parts:
    """Check everything that can be refused before a file is touched."""
    given = checks.instance("limits", limits, Limits)
    for name in given.__struct_fields__:
        checks.whole(f"limits.{name}", getattr(given, name), least=1)
    for name in ("document_bytes", "component_bytes", "attachment_bytes", "artifact_bytes"):
        # No reader unpacks more, so that a small frame in a hostile file cannot claim all memory.
        checks.whole(f"limits.{name}", getattr(given, name), most=LARGEST_CONTENT)
    # A reader may be deep in the stack: an accepted document must stay readable from there.
    checks.whole("limits.document_depth", given.document_depth, most=DEEPEST)
    if clock is not None and not callable(getattr(clock, "now_ms", None)):
        raise InvalidRequest("clock", "must have a method now_ms")
    mode = _check_file_mode(file_mode)
    objects: object = attachments
    if isinstance(attachments, str | os.PathLike):
        from holdfast.file_urls import check_path

        objects = Folder(check_path("attachments", cast("object", attachments)), file_mode=mode)
    elif attachments is not None and not all(callable(getattr(attachments, name, None)) for name in PORT):
        raise InvalidRequest("attachments", f"must be a folder, or have the methods {', '.join(PORT)}")
    observers = _check_observers(observe)
    judges = _check_artifact_checks(artifact_checks, given)
    return Parts(given, cast("Clock | None", clock), cast("AttachmentBytes | None", objects), observers, mode, judges)


def _check_artifact_checks(artifact_checks: object, limits: Limits) -> Mapping[str, ArtifactCheck]:
    if artifact_checks is None:
        return {}
    import inspect  # slow to load

    if not isinstance(artifact_checks, Mapping):
        found = type(artifact_checks).__name__
        raise InvalidRequest("artifact_checks", f'must be a function for each kind, {{"module": check}}, not {found}')
    given = dict(cast("Mapping[object, object]", artifact_checks))
    for kind, check in given.items():
        name = checks.identifier("artifact_checks", kind, limits)
        if not callable(check) or any(map(inspect.iscoroutinefunction, (check, type(check).__call__))):
            raise InvalidRequest(f"artifact_checks[{name!r}]", "must be a plain function: check(ref, data)")
    return cast("dict[str, ArtifactCheck]", given)


def _check_file_mode(file_mode: object) -> int:
    mode = checks.whole("file_mode", file_mode, most=0o777)
    if mode & PRIVATE != PRIVATE or mode & ~0o666:
        raise InvalidRequest(
            "file_mode", f"is {mode:#o}: the owner reads and writes, others may too, no execute bit, such as 0o640"
        )
    return mode


def _check_observers(observe: object) -> tuple[Observer, ...]:
    if observe is None:
        return ()
    given = cast("Sequence[object]", observe) if isinstance(observe, list | tuple) else (observe,)
    if not all(callable(getattr(one, "begin", None)) for one in given):
        raise InvalidRequest("observe", "must have a method begin: Logging(), OpenTelemetry(), or several in a list")
    return cast("tuple[Observer, ...]", tuple(given))
