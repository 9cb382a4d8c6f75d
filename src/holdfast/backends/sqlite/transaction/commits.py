"""Read the facts of a turn and write its plan, using only the tables that the turn touches."""

from __future__ import annotations

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import json_list
from holdfast.backends.sqlite.transaction.graph import Graph
from holdfast.backends.sqlite.transaction.leases import SESSION_LEASE
from holdfast.backends.sqlite.transaction.queue import Queue


class Commits(Graph, Queue):
    """Reads and writes of a turn, in as few statements as it needs."""

    __slots__ = ()

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        session = query.session
        return r.CommitFacts(
            head=self._one(r.RevisionRow, "find_revision", (session.session_key, session.revision)),
            turn=None
            if query.turn_id is None
            else self._one(r.RevisionRow, "find_turn", (session.session_key, query.turn_id)),
            nodes=tuple(self._find_nodes(query.segments, query.node_ids)),
            hashes=self._existing_hashes(session.family, query.hashes),
            batches=tuple(self._find_batches(session.session_key, query.batch_ids, with_payloads=False)),
            sources=tuple(self._find_sources(query.sources, with_payloads=False)),
            attachment_ids=self._stored_attachments(session.session_key, query.attachment_ids),
            lease=self._find_lease(SESSION_LEASE, str(session.session_key)) if query.with_lease else None,
        )

    def _existing_hashes(self, family: int, hashes: tuple[str, ...]) -> frozenset[str]:
        if not hashes:
            return frozenset()
        return frozenset(hash for (hash,) in self._runner.run_many("find_hash", [(family, hash) for hash in hashes]))

    def _stored_attachments(self, session_key: int, attachment_ids: tuple[str, ...]) -> frozenset[str]:
        if not attachment_ids:
            return frozenset()
        found = self._values("find_stored_attachments", (session_key, json_list(attachment_ids)))
        return frozenset(attachment_id for (attachment_id,) in found)

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session = plan.session
        head = (session.session_key, session.revision, session.node_count, session.epoch, session.changed_at_ms)
        self._run("move_head", head)
        self._store("insert_revision", plan.revision)
        self._insert_nodes(plan.nodes)
        if plan.blobs:
            blobs = ((session.family, *msgspec.structs.astuple(blob)) for blob in plan.blobs)
            self._runner.run_many("insert_blob", blobs)
        if plan.usage:
            usage = ((session.session_key, *msgspec.structs.astuple(counter)) for counter in plan.usage)
            self._runner.run_many("add_usage", usage)
        if plan.completed_seqs:
            self._run("complete_batches", (json_list(plan.completed_seqs), now_ms, session.revision))
        if plan.attachment_ids:
            self._run("stamp_attachments", (session.session_key, json_list(plan.attachment_ids), now_ms))
        self._store_all(r.BatchRow, "insert_batch", plan.enqueues)
