"""Sessions: named heads on a graph of nodes, with metadata about their origin."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.records.common import Document, Record


class Root(Record, frozen=True, tag="root", tag_field="kind"):
    """The relation of a session that the host started itself."""


class Child(Record, frozen=True, tag="child", tag_field="kind"):
    """The relation of a session that another session started, or that was forked from it."""

    parent_session_id: str
    caused_by: Document | None = None


Relation: TypeAlias = Root | Child
"""The origin of a session."""


class SessionMeta(Record, frozen=True):
    """The metadata of a session, for a host to read before it opens the session."""

    session_id: str
    name: str
    created_at_ms: int
    model: str | None = None
    owner: str | None = None
    cwd: str | None = None
    relation: Relation = Root()
    labels: dict[str, str] = {}


class SessionSummary(Record, frozen=True):
    """One entry of a listing. A session that was committed but never created has no name.

    `node_count` counts every node of the graph, including inherited and tombstoned ones.
    """

    session_id: str
    name: str | None
    owner: str | None
    model: str | None
    parent_session_id: str | None
    revision: int
    node_count: int
    created_at_ms: int | None
    changed_at_ms: int
    labels: dict[str, str] = {}


class SessionDeletionReport(Record, frozen=True):
    """The counts of a session's deletion, and the processes that it left without any handle.

    With descendants, `descendant_ids` names those that were deleted, parents before their children, and the counts are
    those of all sessions together.
    """

    session_id: str
    deleted: bool
    revisions: int = 0
    nodes: int = 0
    usage_rows: int = 0
    batches: int = 0
    attachments: int = 0
    blobs: int = 0
    revoked_grants: int = 0
    subscriptions: int = 0
    cleared_wake_targets: int = 0
    orphaned_process_ids: tuple[str, ...] = ()
    preserved_process_ids: tuple[str, ...] = ()
    descendant_ids: tuple[str, ...] = ()
