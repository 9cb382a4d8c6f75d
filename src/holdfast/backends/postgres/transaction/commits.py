"""A turn's facts come in one trip, and the server function that judges it writes it in another."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from holdfast import rows as r
from holdfast.asks import Head, TurnAsk, TurnPlan
from holdfast.backends.postgres.transaction.base import fetched
from holdfast.backends.postgres.transaction.graph import Graph, places_of
from holdfast.backends.postgres.transaction.turn_functions import TurnFunctions, turn_bindings
from holdfast.backends.postgres.transaction.work import Work
from holdfast.backends.postgres.translation import DriverFailure
from holdfast.errors import Corrupt
from holdfast.ports.verdicts import TurnVerdict


class Commits(Graph, Work, TurnFunctions):
    """What a turn needs."""

    __slots__ = ()

    async def commit_turn(self, ask: TurnAsk) -> TurnVerdict | None:
        """Commit a turn or look at its head; None once a call without a transaction was declined."""
        return None if self.declined else await super().commit_turn(ask)

    def hinted_head(self, session_id: str) -> Head | None:
        """None: the function shows the head while it locks it."""
        return None

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        if isinstance(row, Head):
            self.seen.heads.append((row.session, row.revision))
        else:
            self.seen.processes.append(row)

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        session = query.session
        await self.hold_expiring(session, query.claim_ids, with_lease=query.with_lease)
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
        """Write a turn that the rule accepted, in a transaction that holds its session. The function judges again."""
        session, revision = plan.session, plan.revision
        whole = plan if isinstance(plan, TurnPlan) else TurnPlan(**msgspec.structs.asdict(plan))
        [(verdict, detail, *_)] = await self._call("commit_turn", *turn_bindings(whole, None, now_ms))
        if verdict == "absent":
            raise Corrupt("sessions", str(session.session_key), "the head is missing")
        if verdict != "committed":
            # What is not the session's own was changed since the facts were read: the rule has to judge it anew.
            raise DriverFailure(asyncpg.SerializationError(f"{verdict}: {detail}"))
        self.seen.heads.append((session, revision))


def _first(kind: type[Any], found: list[tuple[Any, ...]]) -> Any:
    return fetched(kind, found[0]) if found else None
