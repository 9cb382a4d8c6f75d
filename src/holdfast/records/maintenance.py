"""Housekeeping reports what it did; nothing is removed that anybody can still reach."""

from __future__ import annotations

from holdfast.records.common import Record


class RetentionPolicy(Record, frozen=True, kw_only=True):
    """What may be forgotten. A field that is left out forgets nothing."""

    keep_revisions: int | None = None
    settled_work_older_than_ms: int | None = None
    terminal_processes_older_than_ms: int | None = None
    occurrences_older_than_ms: int | None = None


class PruneReport(Record, frozen=True):
    """What a prune removed, or would remove; `complete` is False when the limit stopped it: call again."""

    dry_run: bool
    revisions: int = 0
    work_batches: int = 0
    processes: int = 0
    events: int = 0
    occurrences: int = 0
    deliveries: int = 0
    complete: bool = True


class GarbageReport(Record, frozen=True):
    """What a collection found and removed."""

    roots: int
    retained_blobs: int
    deleted_blobs: int
    deleted_bytes: int
    deleted_nodes: int = 0


class Stats(Record, frozen=True):
    """How much of everything there is."""

    schema_version: int
    sessions: int
    deleted_sessions: int
    revisions: int
    nodes: int
    blobs: int
    blob_bytes: int
    pending_work: int
    claimed_work: int
    settled_work: int
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
    artifacts: int
    oldest_pending_work_at_ms: int | None = None
    bytes_on_disk: int | None = None


class Finding(Record, frozen=True):
    """One thing that verification found wrong."""

    table: str
    key: str
    problem: str


class Progress(Record, frozen=True):
    """How far long work has come: `total` is what was counted when it began, and others may have added to it since."""

    done: int
    total: int


class VerifyReport(Record, frozen=True):
    """What was checked, and what is wrong; without findings every ref resolves, hash matches and chain is whole.

    That holds for what was read: bytes of attachments that were not are counted.
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
    """Permanent references to bytes outside of the database that were not read: the store has no `attachments=`."""
    foreign_attachments: int = 0
    """Permanent references to bytes at a URI of somebody else, which are nobody's here to read."""

    @property
    def ok(self) -> bool:
        """Is everything as it should be?"""
        return not self.findings
