"""Reports of housekeeping. It removes nothing that is still reachable."""

from __future__ import annotations

from holdfast.records.common import KeywordRecord, Record


class RetentionPolicy(KeywordRecord, frozen=True, kw_only=True):
    """Selects what a prune forgets. A field that is left out forgets nothing."""

    keep_revisions: int | None = None
    settled_batches_older_than_ms: int | None = None
    terminal_processes_older_than_ms: int | None = None
    occurrences_older_than_ms: int | None = None


class PruneReport(Record, frozen=True):
    """The counts of a prune, or of its dry run. `complete` is False if the limit stopped it: call again."""

    dry_run: bool
    revisions: int = 0
    batches: int = 0
    processes: int = 0
    events: int = 0
    occurrences: int = 0
    deliveries: int = 0
    complete: bool = True


class GarbageReport(Record, frozen=True):
    """The counts of one garbage collection."""

    roots: int
    retained_blobs: int
    deleted_blobs: int
    deleted_bytes: int
    deleted_nodes: int = 0
    deleted_results: int = 0
    """Artifacts of the kind `run-result` whose run is gone. Their bytes are counted in `deleted_bytes`."""


class Stats(Record, frozen=True):
    """Row counts and sizes of the whole store."""

    schema_version: int
    sessions: int
    deleted_sessions: int
    revisions: int
    nodes: int
    blobs: int
    blob_bytes: int
    pending_batches: int
    claimed_batches: int
    settled_batches: int
    attachments: int
    attachment_bytes: int
    processes: int
    running_processes: int
    events: int
    grants: int
    live_leases: int
    subscriptions: int
    occurrences: int
    undelivered: int
    schedules: int
    artifacts: int
    oldest_pending_batch_at_ms: int | None = None
    bytes_on_disk: int | None = None


class Finding(Record, frozen=True):
    """One problem that verification found."""

    table: str
    key: str
    problem: str


class Progress(Record, frozen=True):
    """The progress of a long operation. `total` was counted when it began; other writers may have added rows since."""

    done: int
    total: int


class VerifyReport(Record, frozen=True):
    """The counts and findings of a verification. Without findings, all refs, hashes and chains are intact.

    That holds for what was read. The last two counts are of attachments whose bytes were not read.
    """

    checked_sessions: int
    checked_revisions: int
    checked_nodes: int
    checked_blobs: int
    checked_processes: int
    checked_events: int
    checked_attachments: int
    checked_artifacts: int
    findings: tuple[Finding, ...] = ()
    unread_attachments: int = 0
    """Permanent references to bytes outside the database that were not read: the store has no `attachments=`."""
    foreign_attachments: int = 0
    """Permanent references to bytes at a foreign URI, which this store cannot read."""

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings
