"""A session is a named head on a graph of nodes, with metadata about where it came from."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.records.common import Document, Record


class Root(Record, frozen=True, tag="root", tag_field="kind"):
    """A session that nobody started but the host."""


class Child(Record, frozen=True, tag="child", tag_field="kind"):
    """A session that another session started or that was forked from it."""

    parent_session_id: str
    caused_by: Document | None = None


Relation: TypeAlias = Root | Child
"""Where a session came from."""


class SessionMeta(Record, frozen=True):
    """What a host wants to know about a session before it opens it."""

    session_id: str
    name: str
    created_at_ms: int
    model: str | None = None
    owner: str | None = None
    cwd: str | None = None
    relation: Relation = Root()


class SessionSummary(Record, frozen=True):
    """One line of a listing. A session that was committed but never created has no name.

    `node_count` counts every node of the graph, inherited and tombstoned ones included.
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


class SessionDeletionReport(Record, frozen=True):
    """What the deletion of a session erased, and which processes it left without any handle."""

    session_id: str
    deleted: bool
    revisions: int = 0
    nodes: int = 0
    usage_rows: int = 0
    work_batches: int = 0
    attachments: int = 0
    blobs: int = 0
    revoked_grants: int = 0
    subscriptions: int = 0
    cleared_wake_targets: int = 0
    orphaned_process_ids: tuple[str, ...] = ()
    preserved_process_ids: tuple[str, ...] = ()
