"""A turn that was not as foreseen is judged by facts just read: a refusal is true, an acceptance is proven again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast import rows as r
from holdfast.backends.postgres.foresight import Foresight, Unforeseen, refs_of
from holdfast.backends.postgres.transaction import PostgresTransaction


class Fresh(Foresight):
    """Foresight without memory, for turns alone. Every fact is read, each at one time, and none is locked."""

    _rests_on_nodes = False

    async def find_session(self, session_id: str, *, presence: bool = False) -> r.SessionRow | None:
        if presence:
            raise Unforeseen("work for another session")
        session = self._met(await self._glance(session_id))
        self.tells_the_truth = True
        return session

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        head = self._heads[query.session.session_key]
        facts = await self._reader().load_commit_facts(query)
        if facts.head != head.revision or facts.hashes - refs_of(head):
            # The head moved in between, or a content may go before the statement: only a lock keeps it.
            raise Unforeseen("facts that do not stay")
        self._query, self._held, self._lease = query, facts.batches, facts.lease
        known = {row.node_id for row in facts.nodes}
        self._hoped_nodes = [node_id for node_id in query.node_ids if node_id not in known]
        leaf_id = None if head.revision is None else head.revision.leaf_id
        self._rests_on_nodes = not known <= {leaf_id}
        self._learn_leaf(facts.nodes)
        return facts

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        found = await self._reader().find_nodes(segments, node_ids)
        self._learn_leaf(found)
        return found

    def _learn_leaf(self, nodes: Sequence[r.NodeRow]) -> None:
        """Let the statement prove what it goes on from, if that is the head's leaf."""
        leaf_keys = {head.revision.leaf_key for head in self._heads.values() if head.revision is not None}
        self._leaf_key = next((row.node_key for row in nodes if row.node_key in leaf_keys), self._leaf_key)

    def _reader(self) -> PostgresTransaction:
        return PostgresTransaction(self._link, self.now_ms, "", writes=False)

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        leaf_id, query = plan.revision.leaf_id, self._query
        names_stored_leaf = query is not None and leaf_id in query.node_ids and leaf_id not in _ids_of(plan)
        if self._rests_on_nodes or names_stored_leaf:
            # A stored node that becomes the leaf, or stands for one that was sent again, may be hidden meanwhile.
            raise Unforeseen("stored nodes that may be hidden")
        await super().apply_commit(plan, now_ms)

    async def _transaction_needed(self, *_: Any, **__: Any) -> NoReturn:
        raise Unforeseen("only turns are judged by facts alone")

    find_process = find_lease = find_replay = find_sources = _transaction_needed
    enqueue_new = claim_ready = extend_claim = take_lease = extend_lease = _transaction_needed


def _ids_of(plan: r.CommitPlan) -> set[str]:
    return {row.node_id for row in plan.nodes}
