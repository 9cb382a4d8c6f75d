"""The statement that writes a turn has the parts that the turn needs, each with its own bindings and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast import rows as r
from holdfast.backends.postgres.remembered import Head
from holdfast.backends.postgres.transaction.base import columns_of
from holdfast.backends.postgres.transaction.commits import USAGE_COLUMNS, hash_of
from holdfast.backends.postgres.transaction.graph import places_of


class Now(int):
    """The reading that the statement will take of the clock; its value is an estimate until then."""


class Turn(NamedTuple):
    """What a turn writes and what it counts on."""

    plan: r.CommitPlan
    before: Head
    segments: Sequence[r.Segment]
    hoped_nodes: Sequence[str]
    leaf_key: int | None
    held: Sequence[r.BatchRow]
    lease: r.LeaseRow | None
    session_ids: Mapping[int, str]
    """The ids of the sessions that follow-up work goes to, by their keys."""


def statement_of(turn: Turn, given_ms: int | None) -> list[Any]:
    """The name of the statement, with its parts in the order of their bindings, and the bindings."""
    plan = turn.plan
    name, bindings = "commit_at_once+", _head_of(turn, given_ms)
    if turn.held:
        name += "claims+"
        bindings += _claims_of(turn.held)
    if turn.lease is not None:
        name += "lease+"
        bindings += (turn.lease.resource, turn.lease.token_hash, turn.lease.fence)
    if plan.attachment_ids:
        name += "attachments+"
        bindings.append(plan.attachment_ids)
    if plan.enqueues:
        name += "enqueues+"
        bindings += _enqueues_of(plan)
    if plan.nodes:
        name += "nodes+"
        bindings += _nodes_of(turn)
    if plan.blobs:
        # In the order of their keys, so that two sessions of a family that store the same do not deadlock.
        blobs = sorted(plan.blobs, key=hash_of)
        name += "contents+"
        bindings += _blobs_of(blobs)
        bases = sorted({blob.base_hash for blob in blobs if blob.base_hash is not None})
        if bases:
            name += "deltas+"
            bindings.append(bases)
    if plan.usage:
        name += "usage+"
        bindings += columns_of(plan.usage, USAGE_COLUMNS)
    if plan.enqueues:
        bindings.append([turn.session_ids[key] for _, key in _targets_of(plan)])
    if plan.nodes:
        bindings.append(turn.leaf_key)
    return [name, *bindings]


def _head_of(turn: Turn, given_ms: int | None) -> list[Any]:
    """What every turn has: the head that it counts on, and the one that it makes."""
    before, last = turn.before.session, turn.before.revision
    session, revision = turn.plan.session, turn.plan.revision
    return [
        session.family,
        session.session_key,
        given_ms,
        before.revision,
        before.node_count,
        before.epoch,
        before.session_id,
        before.incarnation,
        before.lineage,
        # What shows that a stored revision is this one: where it ends, and all that it carries over to the next.
        *((None, None, None) if last is None else (last.leaf_key, last.leaf_id, last.body)),
        revision.turn_id,
        session.revision,
        session.node_count,
        session.epoch,
        revision.fingerprint,
        revision.leaf_key,
        revision.leaf_id,
        revision.checkpoint_ref,
        revision.refs,
        revision.body,
    ]


def _claims_of(held: Sequence[r.BatchRow]) -> list[Any]:
    return [
        [row.enqueue_seq for row in held],
        [row.claim_id for row in held],
        [row.claim_token_hash for row in held],
        [row.claim_fence for row in held],
    ]


def _enqueues_of(plan: r.CommitPlan) -> list[Any]:
    rows, others = plan.enqueues, _targets_of(plan)
    sourced = [row for row in rows if row.source_key is not None]
    return [
        [family for family, _ in others],
        [key for _, key in others],
        [row.family for row in sourced],
        [row.session_key for row in sourced],
        [row.source_key for row in sourced],
        [row.batch_id for row in rows],
        [row.session_key for row in rows],
        [row.family for row in rows],
        [row.source_key for row in rows],
        [row.draft_hash for row in rows],
        [row.delivery for row in rows],
        [row.slot for row in rows],
        [row.merge_key for row in rows],
        [row.available_at_ms for row in rows],
        [row.payloads for row in rows],
    ]


def _targets_of(plan: r.CommitPlan) -> list[tuple[int, int]]:
    """The family and key of each other session that work is enqueued for, in the order in which they are locked."""
    own = (plan.session.family, plan.session.session_key)
    return sorted({(row.family, row.session_key) for row in plan.enqueues} - {own})


def _nodes_of(turn: Turn) -> list[Any]:
    """New nodes: whatever all of them share, the turn has said already."""
    rows = turn.plan.nodes
    new_ids = {row.node_id for row in rows}
    return [
        *places_of(turn.segments),
        [node_id for node_id in turn.hoped_nodes if node_id in new_ids],
        [row.node_key for row in rows],
        [row.node_id for row in rows],
        [row.parent_key for row in rows],
        [row.kind for row in rows],
        [row.frame_id for row in rows],
        [row.caused_by for row in rows],
        [None if isinstance(row.created_at_ms, Now) else row.created_at_ms for row in rows],
        [row.payload for row in rows],
    ]


def _blobs_of(rows: Sequence[r.BlobRow]) -> list[Any]:
    return [
        [row.hash for row in rows],
        [row.encoding for row in rows],
        [row.size for row in rows],
        [row.body for row in rows],
        [row.base_hash for row in rows],
    ]
