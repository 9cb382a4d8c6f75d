"""Everything happens in a scratch file or schema of our own: what was there before is neither read nor written."""

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
from holdfast.torture.children import Crew
from holdfast.torture.faults import Kind
from holdfast.torture.leftovers import PREFIX, Folder, Owned, dead, mark_of
from holdfast.torture.servers import Server

T = TypeVar("T")

POSTGRES = ("postgresql://", "postgres://")
CONNECT_S = 15.0
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - each folder in it has a name that nobody can foresee


class Unusable(Exception):
    """There is no place for a scratch store here; the message says why."""


class Place(msgspec.Struct, frozen=True):
    """A store that is ours alone. It can be handed to another process."""

    url: str
    options: holdfast.SqliteOptions | holdfast.PostgresOptions

    @property
    def kind(self) -> Kind:
        """Which backend it has."""
        return "postgres" if self.url.startswith(POSTGRES) else "sqlite"

    @property
    def path(self) -> Path:
        """The file of a SQLite store."""
        return Path(self.url)

    def impatient(self, wait_ms: int) -> Place:
        """The same place for a caller that gives up sooner when somebody is in the way."""
        if isinstance(self.options, holdfast.SqliteOptions):
            options: Any = msgspec.structs.replace(self.options, busy_timeout_ms=wait_ms)
        else:
            options = msgspec.structs.replace(self.options, lock_timeout_ms=wait_ms)
        return Place(self.url, options)

    def unsynced(self) -> Place:
        """The same place for faults that lose no power: nothing waits for the disk."""
        if isinstance(self.options, holdfast.SqliteOptions):
            return Place(self.url, msgspec.structs.replace(self.options, synchronous="off"))
        return self

    def open(self) -> holdfast.BlockingStore:
        """The store, open for threads."""
        return holdfast.open_blocking(self.url, options=self.options)

    def open_async(self) -> Any:
        """The store, about to be opened for tasks."""
        return holdfast.open(self.url, options=self.options)


class Scratch:
    """Where one torture happens: gives an empty store as often as it is asked, and takes everything away at the end."""

    def __init__(self, kind: Kind, url: str, folder: Path, options: Any, owned: Owned = Owned()) -> None:  # noqa: B008 - a value
        self.kind: Kind = kind
        self.url = url
        self._folder = Folder(folder, owned)
        self.folder = self._folder.path
        self.options = options
        self._crew: Crew | None = None
        self._server: Server | None = None
        self._made = 0
        self._quick: Folder | None = None

    def crew(self, size: int) -> Crew:
        """Processes that wait for something to do."""
        if self._crew is None:
            self._crew = Crew()
        self._crew.grow(size)
        return self._crew

    def server(self) -> Server:
        """A private server, started now or before."""
        if self._server is None:
            self._server = Server()
            self._server.start()
        return self._server

    def fresh(self) -> Place:
        """An empty store."""
        raise NotImplementedError

    def file(self, name: str) -> Path:
        """A path in the scratch folder that was never used before."""
        self._made += 1
        return self.folder / f"{self._made:06}-{name}"

    def quick_folder(self) -> Path:
        """A folder in memory, where there is one: for files whose syncs are only simulated."""
        if self._quick is None and os.access(IN_MEMORY, os.W_OK):
            self._quick = Folder(IN_MEMORY, Owned())
        return self.folder if self._quick is None else self._quick.path

    def dismiss(self) -> None:
        """Let the crew go: after a failure nobody knows what it is doing."""
        if self._crew is not None:
            self._crew.end()
            self._crew = None

    def remove(self) -> None:
        """Take everything away."""
        self.dismiss()
        if self._server is not None:
            self._server.remove()
        self._folder.remove()
        if self._quick is not None:
            self._quick.remove()

    def sweep(self) -> list[str]:
        """Take away what killed tortures left here, and say what it was; what may be somebody's is only named."""
        swept: list[str] = []
        for inside in (self.folder.parent, IN_MEMORY):
            for path, owned in dead(inside):
                if owned == Owned():
                    shutil.rmtree(path, ignore_errors=True)
                    swept.append(f"removed {path}, which a torture left that was killed")
        return swept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class SqliteScratch(Scratch):
    """A folder beside a file, so that it is on the same disk; the file itself is never opened."""

    def __init__(self, beside: Path, options: holdfast.SqliteOptions | None = None) -> None:
        if not beside.is_dir():
            raise Unusable(f"the folder {beside} does not exist: create it first")
        super().__init__("sqlite", str(beside), beside, options or holdfast.SqliteOptions())
        self._template: Path | None = None
        self._last: Path | None = None

    def fresh(self) -> Place:
        """A new file with an empty store; the one before is taken away."""
        if self._last is not None:
            forget(self._last)
        if self._template is None:
            self._template = self.folder / "template.db"
            holdfast.open_blocking(self._template, options=self.options).close()
        self._last = self.file("scratch.db")
        shutil.copyfile(self._template, self._last)
        return Place(str(self._last), self.options)


class PostgresScratch(Scratch):
    """A schema of a name that nobody else has, in the database that was given."""

    def __init__(self, url: str, folder: Path, *, pooler: Any = "none") -> None:
        self.schema = f"{PREFIX}{secrets.token_hex(6)}"
        options = holdfast.PostgresOptions(schema=self.schema, max_connections=4, pooler=pooler)
        super().__init__("postgres", url, folder, options, Owned(self.schema, mark_of(url)))
        self.statements = load_statements("holdfast.torture", schema=self.schema)
        self.disturbed: list[int] = []
        """Server processes that were cancelled or ended on purpose."""
        self._made_schema = False

    def fresh(self) -> Place:
        """The schema, made now or emptied."""
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
        """The rows of one of our own statements."""

        async def run(connection: Any) -> list[Any]:
            found: list[Any] = await connection.fetch(self.statements[name], *bindings)
            return found

        return self.ask(run)

    def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do something on a connection of its own."""
        return asyncio.run(on_connection(self.url, work))

    def forget_schema(self) -> None:
        """Leave the schema where it is: its server is gone, or about to."""
        self._made_schema = False

    def sweep(self) -> list[str]:
        """Drop the schemas that killed tortures left in this database, if their folders prove it."""
        swept = super().sweep()
        for path, owned in dead(self.folder.parent):
            if owned.schema is not None and owned.database == mark_of(self.url):
                asyncio.run(on_connection(self.url, partial(_drop, owned.schema)))
                shutil.rmtree(path, ignore_errors=True)
                swept.append(f"dropped schema {owned.schema}, which a torture left that was killed")
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
    """Do something on a connection of its own."""
    import asyncpg

    connection: Any = await asyncpg.connect(url, timeout=CONNECT_S)
    try:
        return await work(connection)
    finally:
        await connection.close(timeout=CONNECT_S)


def forget(path: Path) -> None:
    """Remove a SQLite file and what belongs to it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def scratch_at(url: str, *, pooler: Any = "none") -> Scratch:
    """A scratch place beside what a URL names."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise Unusable("this operating system cannot fork: run the torture on one that can")
    holdfast.ddl(url)  # refuses what is not a URL
    if url.startswith(POSTGRES):
        return PostgresScratch(url, Path(tempfile.gettempdir()), pooler=pooler)
    if url == "memory:" or url.endswith(":memory:"):
        raise Unusable("nothing of a store in memory outlives its process: name a file or a server")
    holdfast.ddl(url)  # refuses what is not the URL of a store
    return SqliteScratch(Path(url.removeprefix("sqlite:")).absolute().parent)
