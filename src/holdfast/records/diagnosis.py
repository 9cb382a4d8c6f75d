"""A diagnosis names what endangers a store, each with what to do about it; it changes nothing and repairs nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.records.common import Record


class SqliteFacts(Record, frozen=True, kw_only=True, tag="sqlite"):
    """What SQLite says about a file, and about the connections of this store to it."""

    version: int
    """Of the library, as it numbers itself: 3054000 is 3.54.0."""
    synchronous: Literal["off", "normal", "full", "extra"]
    journal_mode: str
    log_bytes: int
    """How large the write-ahead log is."""
    file_system: str | None = None
    """What kind of file system holds the file, None if that cannot be told."""


class PostgresFacts(Record, frozen=True, kw_only=True, tag="postgresql"):
    """What a PostgreSQL server says about itself, as far as this store's role may see it."""

    version: int
    """As the server numbers itself: 180001 is 18.1."""
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standby_names: str
    autovacuum: bool
    tables_without_autovacuum: tuple[str, ...] = ()
    connections: int
    max_connections: int
    transaction_ids_used: int
    """How many transactions ago the oldest row was frozen, of about 2,000 million that are possible."""
    longest_transaction_ms: int = 0
    """For how long the oldest transaction of anybody else has been open in this database."""
    longest_idle_transaction_ms: int = 0
    """For how long a transaction of anybody else has been left open with nothing happening in it."""
    usual_log_bytes: int = 1024**3
    """What the server's write-ahead log may grow to between two checkpoints: `max_wal_size`."""
    log_bytes: int | None = None
    """How large the write-ahead log is; None if this role may not see that."""
    slot: str | None = None
    """The replication slot that keeps most of the log, if any keeps some."""
    slot_bytes: int = 0
    """How much of the log that slot keeps."""
    archiving_failed: bool = False
    """Whether the last attempt to archive the log failed; until one succeeds, all of it is kept."""
    server_ms: int
    """The server's clock."""


Engine: TypeAlias = SqliteFacts | PostgresFacts


class StoreFacts(Record, frozen=True, kw_only=True):
    """What a diagnosis is made from: what the database says about itself, and what has been waiting for too long.

    `engine` is None for a database that has nothing of its own to say. Of each thing that waits it is told how many
    there are, and since when the oldest does.
    """

    now_ms: int
    schema_version: int
    expired_leases: int
    oldest_expired_lease_at_ms: int | None = None
    undelivered: int
    oldest_undelivered_at_ms: int | None = None
    ready_work: int
    oldest_ready_work_at_ms: int | None = None
    missing_indexes: tuple[str, ...] = ()
    engine: Engine | None = None


class Concern(Record, frozen=True):
    """One thing that endangers a store: `name` stays the same over versions, the texts are for people.

    A `danger` can lose or has lost acknowledged work. A `warning` will slow the store down or stop it, or is work that
    nobody does.
    """

    level: Literal["danger", "warning"]
    name: str
    problem: str
    advice: str


class Diagnosis(Record, frozen=True):
    """Everything that endangers a store, dangers first, and the facts that say so; None if damage hides them."""

    concerns: tuple[Concern, ...]
    facts: StoreFacts | None = None

    @property
    def ok(self) -> bool:
        """Is there nothing to do?"""
        return not self.concerns
