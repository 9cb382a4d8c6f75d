"""Open connections from a URL. Its secrets appear in no message."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import asyncpg

from holdfast import dsn
from holdfast.backends.postgres.connection import (
    STATEMENT_CACHE,
    Connection,
    collect_replication_warning,
    statements_of,
)
from holdfast.backends.postgres.pool import LABEL
from holdfast.backends.postgres.pooler_check import Field, check_own
from holdfast.errors import InvalidRequest
from holdfast.records.options import PostgresOptions

CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_MS: Final = 30_000
"""Server-side limit for a client idle in a transaction, if statements have no limit."""


def silence_ms(options: PostgresOptions) -> int:
    """Return the server-side limit for a client idle in a transaction: no user code runs there, so that it is gone."""
    return options.statement_timeout_ms or SILENCE_MS


FIRST_MADE_OID: Final = 10_000
"""Type ids below this are the same on every server; from here on each database has its own."""

_described: dict[frozenset[int], Any] = {}


class OwnConnection(asyncpg.Connection):
    """A connection with unique names of prepared statements and a process-wide cache of array types.

    The driver counts its statements from one in each process, so that two clients on one server connection of a pooler
    would run each other's. And it asks the server for array types at their first use on a connection: two trips, and
    more server time than a turn takes. If a later driver asks in another way, the cache is merely unused.
    """

    __slots__ = ("_named", "_namespace", "replication_warnings")

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._namespace = secrets.token_hex(8)
        self._named = 0
        self.replication_warnings: list[object] = []
        """Reports of commits that did not wait for standbys, since the last commit began."""

    def _get_unique_id(self, prefix: str) -> str:
        self._named += 1
        return f"holdfast_{prefix}_{self._namespace}_{self._named:x}"

    async def _introspect_types(self, typeoids: Iterable[int], *rest: Any, **named: Any) -> Any:
        wanted = frozenset(typeoids)
        if wanted in _described:
            return _described[wanted]
        # The driver has no types, and its stubs leave out private methods.
        ask = cast("Callable[..., Awaitable[Any]]", super()._introspect_types)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        described = await ask(typeoids, *rest, **named)
        if all(oid < FIRST_MADE_OID for oid in wanted):
            _described[wanted] = described
        return described


class Address:
    """The address of the database and how to connect to it, or a caller's pool."""

    def __init__(self, url: Any, options: PostgresOptions) -> None:
        self.caller_pool: Any = None if isinstance(url, str) else url
        self._url = dsn.check("url", url) if isinstance(url, str) else ""
        self._listen_url = (
            self._url if options.listen_url is None else dsn.check("options.listen_url", options.listen_url)
        )
        self._read_url = None if options.read_url is None else dsn.check("options.read_url", options.read_url)
        self._options = options
        self.read_label = None if self._read_url is None else dsn.label_of(self._read_url)
        self.plans_once = True
        """Plan a statement once for all parameters, and not for those of each call."""
        self.label = LABEL if self.caller_pool is not None else dsn.label_of(self._url)
        # A transaction pooler gives each transaction another server connection, so that LISTEN has no effect.
        self.can_listen = options.listen_url is not None or options.pooler == "none"
        self.listens_apart = self.caller_pool is None or options.listen_url is not None

    async def connect(self, timeout_s: float) -> Connection:
        """Open a connection for operations."""
        return await self._connect(self._url, min(timeout_s, CONNECT_TIMEOUT_S), pooled=self._options.pooler != "none")

    async def connect_listener(self) -> Connection:
        """Open a connection for LISTEN."""
        apart = self._options.listen_url is not None
        pooled = self._options.pooler != "none" and not apart
        return await self._connect(
            self._listen_url,
            CONNECT_TIMEOUT_S,
            pooled=pooled,
            field="options.listen_url" if apart else "options.pooler",
        )

    async def connect_reader(self, timeout_s: float) -> Connection:
        """Open a connection for reads from a replica."""
        assert self._read_url is not None, "only a store with a replica reads from it"
        return await self._connect(
            self._read_url, min(timeout_s, CONNECT_TIMEOUT_S), pooled=False, field="options.read_url"
        )

    async def _connect(
        self,
        url: str,
        timeout_s: float,
        *,
        pooled: bool,
        field: Field = "options.pooler",
    ) -> Connection:
        settings = {"application_name": "holdfast"}
        if not pooled:
            settings |= {
                # 0 is the server's word for no limit.
                "lock_timeout": str(self._options.lock_timeout_ms or 0),
                "statement_timeout": str(self._options.statement_timeout_ms or 0),
                "idle_in_transaction_session_timeout": str(silence_ms(self._options)),
                # Every statement is short: compiling one takes longer than running it.
                "jit": "off",
                # Planning takes longer than running, too. Rows are looked up by key, so one plan fits all values; by
                # default, the planner would make a new plan each time, because it assumes that every array is long.
                "plan_cache_mode": "force_generic_plan" if self.plans_once else "auto",
                # A plan made while a table was empty would keep scanning all of it when it is large.
                "enable_seqscan": "off",
                "enable_bitmapscan": "off",
                # A statement outside a transaction has no BEGIN that sets these.
                "default_transaction_isolation": "read committed",
                "default_transaction_read_only": "off",
                # Rows that a policy hides must not read as rows that do not exist: the server refuses instead.
                "row_security": "off",
                # A warning reports a commit whose replication is not confirmed.
                "client_min_messages": "warning",
            }
        connection: Any = None
        with suppress(ValueError, OverflowError):
            connection = await asyncpg.connect(
                url,
                connection_class=OwnConnection,
                timeout=timeout_s,
                statement_cache_size=0 if pooled else STATEMENT_CACHE,
                server_settings={} if pooled else settings,
            )
        if connection is None:
            # Raised without the driver's error, even as context: it may repeat a part of the URL, such as the password.
            raise InvalidRequest(
                "url" if field == "options.pooler" else field,
                f"is not a valid URL, or a PG… environment variable such as PGPORT is wrong: use {dsn.FORM}",
            )
        # Once for all commits: adding and removing a listener takes the driver longer than sending a statement.
        connection.add_log_listener(partial(collect_replication_warning, connection.replication_warnings))
        found = cast("Connection", connection)
        if not pooled:
            try:
                await check_own(found, statements_of(self._options.schema), dsn.label_of(url), field)
            except BaseException:
                found.terminate()
                raise
        return found
