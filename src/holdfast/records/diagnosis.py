"""A diagnosis lists the risks to a store, each with advice. It changes and repairs nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.records.common import Record


class SqliteFacts(Record, frozen=True, kw_only=True, tag="sqlite"):
    """The state of a SQLite file, and of this store's connections to it, as SQLite reports it."""

    version: int
    """The library's version as it numbers itself: 3054000 is 3.54.0."""
    synchronous: Literal["off", "normal", "full", "extra"]
    journal_mode: str
    log_bytes: int
    """Size of the write-ahead log."""
    file_system: str | None = None
    """The kind of file system that holds the file, None if it cannot be determined."""


class PostgresFacts(Record, frozen=True, kw_only=True, tag="postgresql"):
    """The state of a PostgreSQL server, as far as this store's role may see it."""

    version: int
    """The server's version as it numbers itself: 180001 is 18.1."""
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standby_names: str
    autovacuum: bool
    tables_without_autovacuum: tuple[str, ...] = ()
    hidden_tables: tuple[str, ...] = ()
    """Tables whose row-level security applies to this role. Every call that needs one of them is refused."""
    connections: int
    max_connections: int
    transaction_ids_used: int
    """Age in transactions of the oldest unfrozen row, out of about 2,100 million possible."""
    longest_transaction_ms: int = 0
    """Age of the oldest open transaction of any other connection to this database."""
    longest_idle_transaction_ms: int = 0
    """The longest time that a transaction of another connection has been idle."""
    usual_log_bytes: int = 1024**3
    """The size that the server's write-ahead log may reach between two checkpoints: `max_wal_size`."""
    log_bytes: int | None = None
    """Size of the write-ahead log; None if this role may not see it."""
    slot: str | None = None
    """The replication slot that retains most of the log, None if no slot retains any."""
    slot_bytes: int = 0
    """Bytes of the log that this slot retains."""
    archiving_failed: bool = False
    """True if the last attempt to archive the log failed. The server keeps the whole log until one succeeds."""
    server_ms: int
    """The server's clock."""


Engine: TypeAlias = SqliteFacts | PostgresFacts


class StoreFacts(Record, frozen=True, kw_only=True):
    """The input of a diagnosis: what the database reports about itself, and what has waited too long.

    `engine` is None for a database that reports nothing of its own. For each kind of waiting item there is a count, and
    the time since when the oldest has waited.
    """

    now_ms: int
    schema_version: int
    expired_leases: int
    oldest_expired_lease_at_ms: int | None = None
    undelivered: int
    oldest_undelivered_at_ms: int | None = None
    ready_batches: int
    oldest_ready_batch_at_ms: int | None = None
    missing_indexes: tuple[str, ...] = ()
    engine: Engine | None = None


class StuckItems(Record, frozen=True, kw_only=True):
    """The ids of the first few items of each kind that wait too long. Each can be asked about with `holdfast why`."""

    ready_sessions: tuple[tuple[str, str], ...] = ()
    """Sessions with work that is ready for a minute, of every kind, longest first, each with its most serious cause."""
    stuck_since_ms: int | None = None
    """The time since which the first of them that is stuck has such work."""
    undelivered: tuple[str, ...] = ()
    """Processes that a trigger reserved, and that were never started."""
    failed_deliveries: tuple[str, ...] = ()
    """Processes that a trigger reserved, and that could not be started."""
    failed_schedules: tuple[str, ...] = ()
    """Schedules whose last tick started nothing."""
    dead_letters: tuple[str, ...] = ()
    """Sessions with work that failed at its last attempt."""
    claimed_by_dead: tuple[str, ...] = ()
    """Sessions of which a worker that no longer reports holds work or the lease."""
    run_by_dead: tuple[str, ...] = ()
    """Runs that such a worker holds."""
    dead_workers: tuple[str, ...] = ()
    """Workers that no longer report, and hold work or runs."""
    expired_leases: tuple[tuple[str, str], ...] = ()
    """Processes whose lease ended without being released, each with the name of its first cause."""
    due_runs: tuple[tuple[str, str], ...] = ()
    """Of each kind and version the run that has been due longest, for a minute or more, with its most serious cause."""
    due_since_ms: int | None = None
    """The time since which the first of them is due."""
    stuck_run_since_ms: int | None = None
    """The time since which the first of them that is stuck is due."""
    over_time_limit: tuple[str, ...] = ()
    """Sessions and runs whose handler is over its time limit, and cannot be stopped."""
    due_schedule: str | None = None
    """The schedule whose tick has been due longest."""
    due_schedule_at_ms: int | None = None


class Concern(Record, frozen=True):
    """One risk to a store. `name` stays the same across versions; `problem` and `advice` are for people.

    `ids` are those of the first items that it is about, each for `holdfast why`.

    A `danger` can lose acknowledged work, or has lost some. A `warning` will slow the store down or stop it, or is work
    that no worker does.
    """

    level: Literal["danger", "warning"]
    name: str
    problem: str
    advice: str
    ids: tuple[str, ...] = ()


class Diagnosis(Record, frozen=True):
    """All dangers and warnings, dangers first, and the facts behind them; None if damage hides the facts."""

    concerns: tuple[Concern, ...]
    facts: StoreFacts | None = None
    stuck: StuckItems | None = None

    @property
    def ok(self) -> bool:
        """True if there is nothing to do."""
        return not self.concerns
