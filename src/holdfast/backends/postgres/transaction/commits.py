"""Commit a turn in two trips: one reads its facts, and one calls the server function that judges and writes it.

A very large turn takes several statements, because the driver encodes all of a statement at once.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.driver_errors import DriverFailure
from holdfast.backends.postgres.transaction.base import columns_of, fits, portions
from holdfast.backends.postgres.transaction.graph import Graph, places_of
from holdfast.backends.postgres.transaction.leases import SESSION_LEASE
from holdfast.backends.postgres.transaction.queue import Queue
from holdfast.backends.postgres.transaction.turn_functions import TurnFunctions, fits_one_call, hash_of, turn_bindings
from holdfast.errors import Corrupt
from holdfast.ports.fast_path_params import Head, TurnParams, TurnPlan
from holdfast.ports.verdicts import TurnVerdict
from holdfast.table_catalog import fetched

BLOB_COLUMNS = len(r.BlobRow.__struct_fields__)


class Commits(Graph, Queue, TurnFunctions):
    """Reads and writes of a turn."""

    __slots__ = ()

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        """Commit a turn or read its head. Return None if a call without a transaction was declined before."""
        too_much = params.plan is not None and not fits_one_call(params.plan)
        return None if self.declined or too_much else await super().commit_turn(params)

    def hinted_head(self, session_id: str) -> Head | None:
        """Return None: the server function returns the head and locks it."""
        return None

    async def known_head(self, session_id: str) -> Head | None:
        """Return None: in a transaction the rule decides about nodes outside the path."""
        return None

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        if isinstance(row, Head):
            self.seen.heads.append((row.session, row.revision))
        else:
            self.seen.processes.append(row)

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        session = query.session
        await self.hold_expiring(session, query.batch_ids, with_lease=query.with_lease)
        if self._runner.distribution:
            return await self._load_facts_apart(query)
        # The driver decodes a row in one go, so nodes of a large turn are read as rows of their own.
        apart = self._runner.heavy
        lease_resource = str(session.session_key) if query.with_lease else None
        [facts] = await self._values(
            "load_commit_facts",
            session.family,
            session.session_key,
            session.revision,
            query.turn_id,
            *places_of(query.segments),
            [] if apart else list(query.node_ids),
            list(query.hashes),
            list(query.batch_ids),
            lease_resource,
            list(query.attachment_ids),
            *await self._source_places(query.sources),
        )
        heads, turns, nodes, hashes, batches, sources, attachment_ids, leases = facts
        found = [] if turns or not apart else await self.find_nodes(query.segments, query.node_ids)
        return r.CommitFacts(
            head=_first(r.RevisionRow, heads),
            turn=_first(r.RevisionRow, turns),
            nodes=(*found, *(fetched(r.NodeRow, values) for values in nodes)),
            hashes=frozenset(hashes),
            batches=tuple(fetched(r.BatchRow, values) for values in batches),
            sources=tuple(fetched(r.BatchRow, values) for values in sources),
            attachment_ids=frozenset(attachment_ids),
            lease=_first(r.LeaseRow, leases),
        )

    async def _load_facts_apart(self, query: r.CommitQuery) -> r.CommitFacts:
        """Load each kind of fact that the turn needs by a statement of its own."""
        family, session_key = place = query.session.family, query.session.session_key
        head = await self._one(r.RevisionRow, "find_revision", *place, query.session.revision)
        turn = None
        if query.turn_id is not None:
            turn = await self._one(r.RevisionRow, "find_turn", *place, query.turn_id)
        nodes: list[r.NodeRow] = []
        if query.segments and query.node_ids:
            asked = *places_of(query.segments), list(query.node_ids)
            nodes = await self._all(r.NodeRow, "find_nodes", family, *asked)
        hashes = await self._values("find_hashes", family, list(query.hashes)) if query.hashes else []
        batches = await self._batches("find_batches", *place, list(query.batch_ids), False) if query.batch_ids else []
        sources: list[r.BatchRow] = []
        if query.sources:
            sources = await self._batches("find_sources", *await self._source_places(query.sources), False)
        attachments: list[Any] = []
        if query.attachment_ids:
            attachments = await self._values("find_stored_attachments", *place, list(query.attachment_ids))
        lease = None
        if query.with_lease:
            lease_place = await self._lease_place(SESSION_LEASE, str(session_key))
            lease = await self._one(r.LeaseRow, "find_lease+", *lease_place)
        return r.CommitFacts(
            head=head,
            turn=turn,
            nodes=tuple(nodes),
            hashes=frozenset(found for (found,) in hashes),
            batches=tuple(batches),
            sources=tuple(sources),
            attachment_ids=frozenset(found for (found,) in attachments),
            lease=lease,
        )

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        """Write a turn that the rule accepted, in a transaction that holds its session. The function judges again."""
        session, revision = plan.session, plan.revision
        whole = plan if isinstance(plan, TurnPlan) else TurnPlan(**msgspec.structs.asdict(plan))
        rest = whole if fits_one_call(whole) else await self._write_in_portions(whole)
        numbers = await self._numbers_for(len(rest.enqueues))
        [(verdict, detail, *_, self._runner.reached)] = await self._call(
            "commit_turn", *turn_bindings(rest, None, now_ms, numbers), True
        )
        if verdict == "absent":
            raise Corrupt("sessions", str(session.session_key), "the head is missing")
        if verdict != "committed":
            # A row outside the session was changed since the facts were read: the rule must judge the turn again.
            raise DriverFailure(asyncpg.SerializationError(f"{verdict}: {detail}"))
        self.seen.heads.append((session, revision))

    async def _write_in_portions(self, plan: TurnPlan) -> TurnPlan:
        """Write the rows that exceed one call, and return the rest. Other transactions see both at the commit."""
        blobs = sorted(plan.blobs, key=hash_of)
        for portion in portions(blobs) if blobs else []:
            if fits(portion):
                await self._run("insert_blobs", plan.session.family, *columns_of(portion, BLOB_COLUMNS))
            else:
                # Not as an array, which the driver would copy again.
                await self._run("insert_blob", plan.session.family, *msgspec.structs.astuple(portion[0]))
        *early_nodes, nodes = portions(plan.nodes)
        for some_nodes in early_nodes:
            await self.insert_nodes(some_nodes)
        *early_drafts, drafts = portions(plan.enqueues)
        for some_drafts in early_drafts:
            await self.insert_batches(some_drafts)
        targets = plan.targets[len(plan.targets) - len(drafts) :]
        return msgspec.structs.replace(plan, blobs=(), nodes=tuple(nodes), enqueues=tuple(drafts), targets=targets)


def _first(kind: type[Any], found: list[tuple[Any, ...]]) -> Any:
    return fetched(kind, found[0]) if found else None
