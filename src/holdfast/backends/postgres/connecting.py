"""A URL becomes connections; what it keeps secret appears in no message."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal, cast

import asyncpg

from holdfast import dsn
from holdfast.backends.postgres.link import STATEMENT_CACHE, Connection, statements_of
from holdfast.backends.postgres.pool import LABEL
from holdfast.backends.postgres.pooler_check import check_own
from holdfast.errors import InvalidRequest
from holdfast.records.options import PostgresOptions

CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_MS: Final = 30_000
"""How long the server waits for a client that is silent in a transaction, if statements have no limit."""

FIRST_MADE_OID: Final = 10_000
"""Types below are numbered alike on every server; from here on each database has numbers of its own."""

_described: dict[frozenset[int], Any] = {}


class OwnConnection(asyncpg.Connection):
    """A connection whose prepared statements have names of their own, and which knows PostgreSQL's array types.

    The driver counts its statements from one in each process, so that two clients that a pooler gives one server
    connection would run each other's. And it asks the server for array types the first time that a connection uses
    one: two trips, and more of the server's time than a turn takes. Should a later driver ask in another way, it just
    asks again.
    """

    __slots__ = ("_named", "_namespace")

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._namespace = secrets.token_hex(8)
        self._named = 0

    def _get_unique_id(self, prefix: str) -> str:
        self._named += 1
        return f"holdfast_{prefix}_{self._namespace}_{self._named:x}"

    async def _introspect_types(self, typeoids: Iterable[int], *rest: Any, **named: Any) -> Any:
        wanted = frozenset(typeoids)
        if wanted in _described:
            return _described[wanted]
        # The driver has no types, and its stubs leave out what is private.
        ask = cast("Callable[..., Awaitable[Any]]", super()._introspect_types)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        described = await ask(typeoids, *rest, **named)
        if all(oid < FIRST_MADE_OID for oid in wanted):
            _described[wanted] = described
        return described


class Address:
    """Where the database is, and how connections to it are made; or a pool that somebody lends."""

    def __init__(self, url: Any, options: PostgresOptions) -> None:
        self.lent: Any = None if isinstance(url, str) else url
        self._url = dsn.check("url", url) if isinstance(url, str) else ""
        self._listen_url = (
            self._url if options.listen_url is None else dsn.check("options.listen_url", options.listen_url)
        )
        self._options = options
        self.label = LABEL if self.lent is not None else dsn.label_of(self._url)
        # A transaction pooler gives each transaction another server connection, and none hears anything.
        self.can_listen = options.listen_url is not None or options.pooler == "none"
        self.listens_apart = self.lent is None or options.listen_url is not None

    async def connect(self, timeout_s: float) -> Connection:
        """A new connection for operations."""
        return await self._connect(self._url, min(timeout_s, CONNECT_TIMEOUT_S), pooled=self._options.pooler != "none")

    async def connect_listener(self) -> Connection:
        """A new connection that listens."""
        apart = self._options.listen_url is not None
        pooled = self._options.pooler != "none" and not apart
        return await self._connect(
            self._listen_url,
            CONNECT_TIMEOUT_S,
            pooled=pooled,
            field="options.listen_url" if apart else "options.pooler",
        )

    async def _connect(
        self,
        url: str,
        timeout_s: float,
        *,
        pooled: bool,
        field: Literal["options.pooler", "options.listen_url"] = "options.pooler",
    ) -> Connection:
        settings = {"application_name": "holdfast"}
        if not pooled:
            settings |= {
                # 0 is the server's word for no limit.
                "lock_timeout": str(self._options.lock_timeout_ms or 0),
                "statement_timeout": str(self._options.statement_timeout_ms or 0),
                # No user code runs inside a transaction: a client that is silent in one is gone.
                "idle_in_transaction_session_timeout": str(self._options.statement_timeout_ms or SILENCE_MS),
                # Every statement is short: compiling one takes longer than running it.
                "jit": "off",
                # Planning takes longer than running, too. Rows are asked for by their keys, whatever values these have;
                # left to itself, the planner makes a new plan each time, because it takes every array for a long one.
                "plan_cache_mode": "force_generic_plan",
                # A plan that was made while a table was empty would go on reading all of it when it is large.
                "enable_seqscan": "off",
                "enable_bitmapscan": "off",
                # A statement of its own has no BEGIN that says so.
                "default_transaction_isolation": "read committed",
                "default_transaction_read_only": "off",
                # Rows that a policy hides must not read as rows that do not exist: the server refuses instead.
                "row_security": "off",
                # A commit whose replication is not confirmed is told by a warning.
                "client_min_messages": "warning",
            }
        connection: Any = None
        with suppress(ValueError):
            connection = await asyncpg.connect(
                url,
                connection_class=OwnConnection,
                timeout=timeout_s,
                statement_cache_size=0 if pooled else STATEMENT_CACHE,
                server_settings={} if pooled else settings,
            )
        if connection is None:
            # Without the driver's complaint, even as its context: it may repeat a part of the URL, and that may be the
            # password.
            raise InvalidRequest("url", f"is not a valid URL: use {dsn.FORM}")
        found = cast("Connection", connection)
        if not pooled:
            try:
                await check_own(found, statements_of(self._options.schema), dsn.label_of(url), field)
            except BaseException:
                found.terminate()
                raise
        return found
