"""Options of the backends: explicit values, each with a default that loses nothing."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.records.common import KeywordRecord

PRIVATE: Final = 0o600
"""Permissions of a new file unless `file_mode=` widens them: only its owner may read and write it."""


class SqliteOptions(KeywordRecord, frozen=True, kw_only=True):
    """Options of a SQLite store. `migrate=False` refuses to create or upgrade a schema."""

    synchronous: Literal["off", "normal", "full", "extra"] = "full"
    busy_timeout_ms: int = 15_000
    cache_kib: int = 16_384
    migrate: bool = True
    group_size: int = 128
    readers: int = 4


class PostgresOptions(KeywordRecord, frozen=True, kw_only=True):
    """Options of a PostgreSQL store. `migrate=False` only verifies the schema and needs no right to change it.

    `pooler="transaction"` is for a URL that leads to a connection pooler in transaction or session mode: no state then
    outlives a transaction, and waiters poll unless `listen_url` leads past the pooler. A pooler that is not declared is
    refused.

    `read_url` leads to a replica, past any pooler, for `store.reading()`. It may lead to several, or to the primary.

    Four of the times take None for "no limit": `idle_timeout_ms`, `max_lifetime_ms`, `lock_timeout_ms` and
    `statement_timeout_ms`. Without the last one, a call to a server that stopped responding ends only with its
    connection.
    """

    schema: str = "holdfast"
    max_connections: int = 16
    min_connections: int = 0
    acquire_timeout_ms: int = 30_000
    idle_timeout_ms: int | None = 600_000
    max_lifetime_ms: int | None = 1_800_000
    lock_timeout_ms: int | None = 10_000
    statement_timeout_ms: int | None = 30_000
    pooler: Literal["none", "transaction"] = "none"
    listen_url: str | None = None
    read_url: str | None = None
    migrate: bool = True

    def __repr__(self) -> str:
        """Show every option except the values of `listen_url` and `read_url`, which may hold a password."""
        hidden = {name: "…" for name in ("listen_url", "read_url") if getattr(self, name) is not None}
        return KeywordRecord.__repr__(msgspec.structs.replace(self, **hidden))
