"""Calls the server functions of the schema: each decides and writes in one trip, and returns its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import all_fetched, fetched
from holdfast.ports.verdicts import LeaseVerdict, RenewalVerdict, WorkVerdict

NEEDS_A_SESSION = "absent"
"""The verdict on a session that never was: the operation makes it, which takes a transaction."""


class ServerFunctions:
    """Implements `ports.Shortcuts`. A class that inherits from it says how a function is called, and at what time."""

    __slots__ = ()

    again: bool

    @property
    def given_ms(self) -> int | None:
        """The time of a test's clock; None lets the function read the server's, after its locks."""
        raise NotImplementedError

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that calls a function, and return its rows."""
        raise NotImplementedError

    def _learn(self, answer: WorkVerdict | LeaseVerdict) -> None:
        """Take note of what was written."""

    async def _work(self, name: str, *bindings: Any) -> WorkVerdict:
        found = await self._call(name, *bindings)
        verdict = found[0][0]
        if verdict not in {"enqueued", "known", "claimed"}:
            return WorkVerdict(verdict)
        rows = all_fetched(r.BatchRow, [tuple(values)[1:] for values in found])
        answer = WorkVerdict(verdict, tuple(sorted(rows, key=lambda row: row.enqueue_seq)))
        self._learn(answer)
        return answer

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> WorkVerdict | None:
        answer = await self._work(
            "enqueue_work",
            session_id,
            self.given_ms,
            row.batch_id,
            row.source_key,
            row.draft_hash,
            row.delivery,
            row.slot,
            row.merge_key,
            row.available_at_ms,
            row.payloads,
        )
        return None if answer.verdict == NEEDS_A_SESSION else answer

    async def claim_ready(self, ask: r.ClaimAsk) -> WorkVerdict | None:
        lease, holding = ask.lease, ask.holding
        return await self._work(
            "claim_work",
            ask.session_id,
            self.given_ms,
            ask.owner_id,
            ask.boundary,
            ask.most,
            int(ask.exclusive),
            ask.token_hash,
            ask.ttl_ms,
            None if ask.exactly is None else list(ask.exactly),
            None if lease is None else lease.token_hash,
            None if lease is None else lease.fence,
            None if holding is None else holding.claim_id,
            None if holding is None else holding.fence,
            None if holding is None else list(holding.batch_ids),
            self.again,
        )

    async def extend_claim(self, proof: r.ClaimProof, ttl_ms: int) -> RenewalVerdict | None:
        [(verdict, expires_at_ms)] = await self._call(
            "renew_claim",
            proof.session_id,
            self.given_ms,
            proof.claim_id,
            proof.token_hash,
            proof.fence,
            list(proof.batch_ids),
            ttl_ms,
        )
        return RenewalVerdict("claim_lost" if verdict == NEEDS_A_SESSION else verdict, expires_at_ms or 0)

    async def take_lease(self, ask: r.LeaseAsk) -> LeaseVerdict | None:
        [(verdict, process_status, *lease)] = await self._call(
            "take_lease",
            ask.session_id,
            ask.process_id,
            self.given_ms,
            ask.owner_id,
            ask.token_hash,
            ask.ttl_ms,
        )
        if verdict == NEEDS_A_SESSION:
            return None
        return self._lease_verdict(verdict, lease, process_status)

    async def extend_lease(self, proof: r.LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        [(verdict, *lease)] = await self._call(
            "renew_lease",
            proof.session_id,
            proof.process_id,
            self.given_ms,
            proof.token_hash,
            proof.fence,
            ttl_ms,
        )
        return self._lease_verdict(verdict, lease)

    def _lease_verdict(self, verdict: str, lease: Sequence[Any], process_status: str | None = None) -> LeaseVerdict:
        row = fetched(r.LeaseRow, lease) if lease[0] is not None else None
        answer = LeaseVerdict(verdict, row, process_status)
        self._learn(answer)
        return answer
