"""Read the facts of a turn and write its plan, using only the tables that the turn touches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.budget import Values
from holdfast.backends.sqlite.transaction.base import BLOCK, json_list, listed
from holdfast.backends.sqlite.transaction.graph import Graph, key_of_node
from holdfast.backends.sqlite.transaction.leases import SESSION_LEASE
from holdfast.backends.sqlite.transaction.queue import Queue
from holdfast.table_catalog import fetched

USAGE_COLUMNS = len(r.UsageRow.__struct_fields__)


class Commits(Graph, Queue):
    """Reads and writes of a turn, in as few statements as it needs."""

    __slots__ = ()

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        session = query.session
        bindings = {
            "session_key": session.session_key,
            "revision": session.revision,
            "listed_revision": listed(session.session_key, session.revision),
            "turn_id": query.turn_id,
            "segments": json_list(
                [
                    (segment.session_key, segment.epoch, listed(segment.session_key, segment.upto), segment.last_key)
                    for segment in query.segments
                ]
            ),
            "node_ids": json_list(query.node_ids),
            "family": session.family,
            "hashes": json_list(query.hashes),
            "with_leaf": query.with_leaf,
            "with_ledger": query.with_ledger,
        }
        found: tuple[list[Values], ...] = ([], [], [], [], [])
        for values in self._values("load_commit_facts", bindings):
            kind: int = values[0]
            found[kind].append(values[1:])
        heads, turns, nodes, hashes, ledger = found
        return r.CommitFacts(
            head=fetched(r.RevisionRow, heads[0]) if heads else None,
            turn=fetched(r.RevisionRow, turns[0]) if turns else None,
            nodes=tuple(sorted([fetched(r.NodeRow, values) for values in nodes], key=key_of_node)),
            hashes=frozenset([values[0] for values in hashes]),
            batches=self._claimed(session.session_key, query.batch_ids) if query.batch_ids else (),
            sources=tuple(self._find_sources(query.sources, with_payloads=False)) if query.sources else (),
            attachment_ids=self._stored_attachments(session.session_key, query.attachment_ids)
            if query.attachment_ids
            else frozenset(),
            lease=self._find_lease(SESSION_LEASE, str(session.session_key)) if query.with_lease else None,
            ledger=_ledger(ledger) if query.with_ledger else None,
        )

    def _claimed(self, session_key: int, batch_ids: Sequence[str]) -> tuple[r.BatchRow, ...]:
        return tuple(self._find_batches(session_key, batch_ids, with_payloads=False))

    def _stored_attachments(self, session_key: int, attachment_ids: tuple[str, ...]) -> frozenset[str]:
        found = self._values("find_stored_attachments", (session_key, json_list(attachment_ids)))
        return frozenset(attachment_id for (attachment_id,) in found)

    def _move_head(self, session: r.SessionRow, usage: Sequence[r.UsageRow]) -> None:
        """Update the session's row and its counters. The counter that a session had first is in its row."""
        head = (session.session_key, session.revision, session.node_count, session.epoch, session.changed_at_ms)
        counters = [msgspec.structs.astuple(counter) for counter in usage]
        if counters and self._run("move_head", (*head, *counters[0])):
            others = counters[1:]
        else:
            self._run("move_head+", head)
            others = [one for one in counters if not self._run("add_first_usage", (session.session_key, *one[:-1]))]
        if others:
            self._runner.run_many("add_usage", [(session.session_key, *counter) for counter in others])

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session = plan.session
        self._move_head(session, plan.usage)
        self._store("insert_revision", plan.revision)
        if plan.revision.revision % BLOCK == 0:
            end = listed(plan.revision.session_key, plan.revision.revision)
            self._run("list_turn_ids", (end - BLOCK, end))
        self._insert_nodes(plan.nodes)
        for blob in plan.blobs:
            self._run("insert_blob", (session.family, *msgspec.structs.astuple(blob)))
        if plan.completed_seqs:
            self._run("complete_batches", (json_list(plan.completed_seqs), now_ms, session.revision))
        if plan.attachment_ids:
            self._run("stamp_attachments", (session.session_key, json_list(plan.attachment_ids), now_ms))
        if plan.enqueues:
            self._store_all(r.BatchRow, "insert_batch", plan.enqueues)


def _ledger(rows: list[Values]) -> tuple[r.UsageRow, ...]:
    counters = [fetched(r.UsageRow, values[:USAGE_COLUMNS]) for values in rows]
    return tuple(sorted(counters, key=_place_of))


def _place_of(counter: r.UsageRow) -> int:
    return counter.place
