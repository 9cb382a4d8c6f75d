"""Scratch files and schemas of our own. Existing data is neither read nor written."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

import holdfast
from holdfast.statements import load_statements
from holdfast.torture.children import ChildPool
from holdfast.torture.faults import Kind
from holdfast.torture.leftovers import PREFIX, Folder, Owned, dead, mark_of
from holdfast.torture.servers import Server

T = TypeVar("T")

POSTGRES = ("postgresql://", "postgres://")
CONNECT_S = 15.0
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - each folder in it has an unpredictable name


class Unusable(Exception):
    """No scratch store can be made here. The message says why."""


class Place(msgspec.Struct, frozen=True):
    """A store of our own. It can be passed to another process."""

    url: str
    options: holdfast.SqliteOptions | holdfast.PostgresOptions

    @property
    def kind(self) -> Kind:
        """Return its backend."""
        return "postgres" if self.url.startswith(POSTGRES) else "sqlite"

    @property
    def path(self) -> Path:
        """Return the file of a SQLite store."""
        return Path(self.url)

    def with_lock_timeout(self, wait_ms: int) -> Place:
        """Return the same place with a shorter wait for locks."""
        if isinstance(self.options, holdfast.SqliteOptions):
            options: Any = msgspec.structs.replace(self.options, busy_timeout_ms=wait_ms)
        else:
            options = msgspec.structs.replace(self.options, lock_timeout_ms=wait_ms)
        return Place(self.url, options)

    def unsynced(self) -> Place:
        """Return the same place without syncs, for faults that lose no power."""
        if isinstance(self.options, holdfast.SqliteOptions):
            return Place(self.url, msgspec.structs.replace(self.options, synchronous="off"))
        return self

    def open(self) -> holdfast.BlockingStore:
        """Open the store for threads."""
        return holdfast.open_blocking(self.url, options=self.options)

    def open_async(self) -> Any:
        """Return the store for tasks, not yet opened."""
        return holdfast.open(self.url, options=self.options)


class Scratch:
    """The scratch of one torture: makes empty stores on request, and removes everything at the end."""

    def __init__(self, kind: Kind, url: str, folder: Path, options: Any, owned: Owned = Owned()) -> None:  # noqa: B008 - a value
        self.kind: Kind = kind
        self.url = url
        self._folder = Folder(folder, owned)
        self.folder = self._folder.path
        self.options = options
        self._children: ChildPool | None = None
        self._server: Server | None = None
        self._made = 0
        self._quick: Folder | None = None

    def children(self, size: int) -> ChildPool:
        """Return processes that wait for tasks."""
        if self._children is None:
            self._children = ChildPool()
        self._children.grow(size)
        return self._children

    def server(self) -> Server:
        """Return a private server, started on first use."""
        if self._server is None:
            self._server = Server()
            self._server.start()
        return self._server

    def fresh(self) -> Place:
        """Return an empty store."""
        raise NotImplementedError

    def file(self, name: str) -> Path:
        """Return an unused path in the scratch folder."""
        self._made += 1
        return self.folder / f"{self._made:06}-{name}"

    def quick_folder(self) -> Path:
        """Return a folder in memory, if there is one, for files whose syncs are only simulated."""
        if self._quick is None and os.access(IN_MEMORY, os.W_OK):
            self._quick = Folder(IN_MEMORY, Owned())
        return self.folder if self._quick is None else self._quick.path

    def dismiss(self) -> None:
        """End the children: after a failure its state is unknown."""
        if self._children is not None:
            self._children.end()
            self._children = None

    def remove(self) -> None:
        """Remove everything."""
        self.dismiss()
        if self._server is not None:
            self._server.remove()
        self._folder.remove()
        if self._quick is not None:
            self._quick.remove()

    def sweep(self) -> list[str]:
        """Remove leftovers of killed tortures, and return what they were. Schemas that may be in use are only named."""
        swept: list[str] = []
        for inside in (self.folder.parent, IN_MEMORY):
            for path, owned in dead(inside):
                if owned == Owned():
                    shutil.rmtree(path, ignore_errors=True)
                    swept.append(f"removed {path}, left by a killed torture")
        return swept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class SqliteScratch(Scratch):
    """A folder next to a file, so that it is on the same disk. The file itself is never opened."""

    def __init__(self, beside: Path, options: holdfast.SqliteOptions | None = None) -> None:
        if not beside.is_dir():
            raise Unusable(f"the folder {beside} does not exist: create it first")
        super().__init__("sqlite", str(beside), beside, options or holdfast.SqliteOptions())
        self._template: Path | None = None
        self._last: Path | None = None

    def fresh(self) -> Place:
        """Return a new file with an empty store. The previous one is removed."""
        if self._last is not None:
            forget(self._last)
        if self._template is None:
            self._template = self.folder / "template.db"
            holdfast.open_blocking(self._template, options=self.options).close()
        self._last = self.file("scratch.db")
        shutil.copyfile(self._template, self._last)
        return Place(str(self._last), self.options)


class PostgresScratch(Scratch):
    """A schema with a random name in the given database."""

    def __init__(self, url: str, folder: Path, *, pooler: Any = "none") -> None:
        self.schema = f"{PREFIX}{secrets.token_hex(6)}"
        options = holdfast.PostgresOptions(schema=self.schema, max_connections=4, pooler=pooler)
        super().__init__("postgres", url, folder, options, Owned(self.schema, mark_of(url)))
        self.statements = load_statements("holdfast.torture", schema=self.schema)
        self.disturbed: list[int] = []
        """Process ids of server backends that were cancelled or terminated on purpose."""
        self._made_schema = False

    def fresh(self) -> Place:
        """Return the schema, created or emptied."""
        place = Place(self.url, self.options)
        if not self._made_schema:
            self._made_schema = True
            place.open().close()
        else:
            self.ask(self._empty)
        return place

    async def _empty(self, connection: Any) -> None:
        texts: Sequence[Any] = await connection.fetch(self.statements["list_tables"], self.schema)
        async with connection.transaction():
            for (text,) in texts:
                await connection.execute(text)

    def rows(self, name: str, *bindings: Any) -> list[Any]:
        """Return the rows of one of our own statements."""

        async def run(connection: Any) -> list[Any]:
            found: list[Any] = await connection.fetch(self.statements[name], *bindings)
            return found

        return self.ask(run)

    def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run something on a connection of its own."""
        return asyncio.run(on_connection(self.url, work))

    def forget_schema(self) -> None:
        """Do not drop the schema: its server is gone, or about to be."""
        self._made_schema = False

    def sweep(self) -> list[str]:
        """Also drop the schemas that killed tortures left in this database, if their folders prove it."""
        swept = super().sweep()
        for path, owned in dead(self.folder.parent):
            if owned.schema is not None and owned.database == mark_of(self.url):
                asyncio.run(on_connection(self.url, partial(_drop, owned.schema)))
                shutil.rmtree(path, ignore_errors=True)
                swept.append(f"dropped schema {owned.schema}, left by a killed torture")
        return swept + [
            f"there is a schema {name} of another torture: once that is over, DROP SCHEMA {name} CASCADE"
            for (name,) in self.rows("scratch_schemas", PREFIX, self.schema)
        ]

    def remove(self) -> None:
        """Drop the schema."""
        super().remove()
        if self._made_schema:
            with suppress(OSError):
                self.ask(partial(_drop, self.schema))


async def _drop(schema: str, connection: Any) -> None:
    await connection.execute(load_statements("holdfast.torture", schema=schema)["drop_schema"])


async def on_connection(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run something on a connection of its own."""
    import asyncpg

    connection: Any = await asyncpg.connect(url, timeout=CONNECT_S)
    try:
        return await work(connection)
    finally:
        await connection.close(timeout=CONNECT_S)


def forget(path: Path) -> None:
    """Remove a SQLite file and the files next to it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def scratch_at(url: str, *, pooler: Any = "none") -> Scratch:
    """Return a scratch place next to the database that a URL names."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise Unusable("this operating system cannot fork: run the torture on one that can")
    holdfast.ddl(url)  # refuses an invalid URL
    if url.startswith(POSTGRES):
        return PostgresScratch(url, Path(tempfile.gettempdir()), pooler=pooler)
    if url == "memory:" or url.endswith(":memory:"):
        raise Unusable("nothing of a store in memory outlives its process: name a file or a server")
    holdfast.ddl(url)  # refuses a URL that names no store
    return SqliteScratch(Path(url.removeprefix("sqlite:")).absolute().parent)
