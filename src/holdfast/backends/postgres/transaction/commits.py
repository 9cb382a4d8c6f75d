"""A commit reads its facts in one trip and writes its plan in another, however much the turn holds."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import columns_of, fetched
from holdfast.backends.postgres.transaction.graph import NODE_COLUMNS, Graph, places_of
from holdfast.backends.postgres.transaction.work import DRAFT_COLUMNS, Work
from holdfast.errors import Corrupt

BLOB_COLUMNS = len(r.BlobRow.__struct_fields__) - 1
"""Without the base, which comes last of all bindings."""

USAGE_COLUMNS = len(r.UsageRow.__struct_fields__)


class Commits(Graph, Work):
    """What a turn needs."""

    __slots__ = ()

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        session = query.session
        lease_resource = str(session.session_key) if query.with_lease else None
        [facts] = await self._values(
            "load_commit_facts",
            session.family,
            session.session_key,
            session.revision,
            query.turn_id,
            *places_of(query.segments),
            list(query.node_ids),
            list(query.hashes),
            list(query.claim_ids),
            lease_resource,
            list(query.attachment_ids),
            *await self._source_places(query.sources),
        )
        heads, turns, nodes, hashes, batches, sources, attachment_ids, leases = facts
        return r.CommitFacts(
            head=_first(r.RevisionRow, heads),
            turn=_first(r.RevisionRow, turns),
            nodes=tuple(fetched(r.NodeRow, values) for values in nodes),
            hashes=frozenset(hashes),
            batches=tuple(self._noted([fetched(r.BatchRow, values) for values in batches])),
            sources=tuple(self._noted([fetched(r.BatchRow, values) for values in sources])),
            attachment_ids=frozenset(attachment_ids),
            lease=_first(r.LeaseRow, leases),
        )

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session, revision = plan.session, plan.revision
        head = msgspec.structs.astuple(session)
        turn = msgspec.structs.astuple(revision)
        # In the order of their keys, so that two sessions of a family that store the same contents do not deadlock.
        blobs = sorted(plan.blobs, key=hash_of)
        written = await self._number(
            "apply_commit",
            session.family,
            session.session_key,
            *head[1:3],
            *head[4:],
            *turn[3:],
            *columns_of(plan.nodes, NODE_COLUMNS),
            *columns_of(blobs, BLOB_COLUMNS),
            *columns_of(plan.usage, USAGE_COLUMNS),
            list(plan.completed_seqs),
            list(plan.attachment_ids),
            now_ms,
            *columns_of(plan.enqueues, DRAFT_COLUMNS, first=1),
            [blob.base_hash for blob in blobs],
        )
        if written != 1:
            raise Corrupt("sessions", str(session.session_key), "the head is missing")
        self.seen.heads.append((session, revision))


def _first(kind: type[Any], found: list[tuple[Any, ...]]) -> Any:
    return fetched(kind, found[0]) if found else None


def hash_of(blob: r.BlobRow) -> str:
    """What contents are ordered by."""
    return blob.hash
