"""Call the server functions of the schema. Each decides and writes in one trip, and returns its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.connection import Link
from holdfast.backends.postgres.transaction.base import all_fetched, fetched
from holdfast.backends.postgres.transaction.function_calls import FunctionCalls, process_family
from holdfast.ports.fast_path_params import ClaimAsk, ClaimProof, LeaseAsk, LeaseProof, NextAsk
from holdfast.ports.verdicts import LeaseVerdict, RenewalVerdict, SettlementVerdict, WorkVerdict

NEEDS_A_SESSION = "absent"
"""The verdict on a session that was never made. The operation creates it, which takes a transaction."""


class ServerFunctions(FunctionCalls):
    """Implements `ports.Shortcuts`. Subclasses define `_call`, and `given_ms` for the clock."""

    __slots__ = ()

    _link: Link
    again: bool

    ready_tables = None
    """None: the functions keep the ready rows."""

    patience = 2
    """Waiting of `claim_next` for other transactions: 0 never, 1 while it holds no lock, 2 always."""

    def _learn(self, answer: WorkVerdict | LeaseVerdict) -> None:
        """Note the rows that were written."""

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
        family = await self._family_of(session_id)
        numbers = await self._numbers_for(1)
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
            row.kind,
            row.priority,
            row.available_at_ms,
            row.payloads,
            family,
            None if numbers is None else numbers[0],
        )
        return None if answer.verdict == NEEDS_A_SESSION else answer

    async def claim_ready(self, ask: ClaimAsk) -> WorkVerdict | None:
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
            await self._family_of(ask.session_id),
            ask.most_bytes,
        )

    async def extend_claim(self, proof: ClaimProof, ttl_ms: int) -> RenewalVerdict | None:
        [(verdict, expires_at_ms)] = await self._call(
            "renew_claim",
            proof.session_id,
            self.given_ms,
            proof.claim_id,
            proof.token_hash,
            proof.fence,
            list(proof.batch_ids),
            ttl_ms,
            await self._family_of(proof.session_id),
        )
        return RenewalVerdict("claim_lost" if verdict == NEEDS_A_SESSION else verdict, expires_at_ms or 0)

    async def settle_claim(
        self, proof: ClaimProof, then: NextAsk | None = None
    ) -> tuple[SettlementVerdict, WorkVerdict | None] | None:
        settles = (
            proof.session_id,
            self.given_ms,
            proof.claim_id,
            proof.token_hash,
            proof.fence,
            list(proof.batch_ids),
        )
        if then is None or self._by_family:
            family = await self._family_of(proof.session_id)
            found = await self._call("settle_claim", *settles, family)
            [(verdict, settled_at_ms, revision, self._link.reached)] = found
            settlement = _settlement(verdict, settled_at_ms, revision)
            # In a call of its own, because the next work may be on another node.
            goes_on = then is not None and settlement.verdict == "completed"
            return settlement, await self.claim_any(then) if then is not None and goes_on else None
        asks = (then.owner_id, _listed(then.kinds), then.most, int(then.exclusive), then.token_hash, then.ttl_ms)
        found = await self._call("settle_and_claim", *settles, *asks, self.again, then.most_bytes)
        verdict, settled_at_ms, revision, self._link.reached = tuple(found[0])[:4]
        settlement = _settlement(verdict, settled_at_ms, revision)
        if settlement.verdict != "completed":
            return settlement, None
        return settlement, self._claimed_next([tuple(values)[4:] for values in found])

    async def claim_any(self, ask: NextAsk) -> WorkVerdict | None:
        if self._by_family:
            return await self._claim_by_family(ask)
        return await self._claim_in(ask, None, self.patience)

    async def _claim_by_family(self, ask: NextAsk) -> WorkVerdict:
        """Claim in one family after the other, the one with the best offer first."""
        if self.again and ask.token_hash is not None:
            # The answer to an earlier run was lost.
            found = await self._link.all("find_claimed_next", ask.token_hash, self.given_ms)
            answer = self._claimed_next(found) if found else None
            if answer is not None and all(row.claim_size == len(answer.rows) for row in answer.rows):
                return answer
        for (family,) in await self._link.all("find_due_families", self.given_ms):
            await self._claim_in(msgspec.structs.replace(ask, token_hash=None), family, 0)
        levels, kinds = [2] if ask.exclusive else [1, 2], _listed(ask.kinds)
        passed: list[int] = []
        busy: list[int] = []
        while best := await self._link.all("find_best_family", levels, kinds, passed):
            [(family,)] = best
            answer = await self._claim_in(ask, family, 0)
            if answer.verdict not in {"none", "busy"}:
                return answer
            passed.append(family)
            if answer.verdict == "busy":
                busy.append(family)
        for family in busy if self.patience else ():
            # Other transactions have locked all claimable work. Wait for them: some of it may be left.
            answer = await self._claim_in(ask, family, self.patience)
            if answer.verdict not in {"none", "busy"}:
                return answer
        return WorkVerdict("busy" if busy else "none")

    async def _claim_in(self, ask: NextAsk, family: int | None, patience: int) -> WorkVerdict:
        found = await self._call(
            "claim_next",
            self.given_ms,
            ask.owner_id,
            _listed(ask.kinds),
            ask.most,
            int(ask.exclusive),
            ask.token_hash,
            ask.ttl_ms,
            self.again,
            patience,
            family,
            ask.most_bytes,
        )
        return self._claimed_next(found)

    def _claimed_next(self, found: Sequence[Sequence[Any]]) -> WorkVerdict:
        verdict, session_id = tuple(found[0])[:2]
        if verdict != "claimed":
            return WorkVerdict(verdict)
        rows = all_fetched(r.BatchRow, [tuple(values)[2:] for values in found])
        answer = WorkVerdict(verdict, tuple(sorted(rows, key=lambda row: row.enqueue_seq)), session_id)
        self._learn(answer)
        return answer

    async def keep_ready(self, family: int, session_key: int, *, freed: bool) -> None:
        await self._call("touch_ready", family, session_key, self.given_ms, freed)

    async def take_lease(self, ask: LeaseAsk) -> LeaseVerdict | None:
        [(verdict, process_status, *lease)] = await self._call(
            "take_lease",
            ask.session_id,
            ask.process_id,
            self.given_ms,
            ask.owner_id,
            ask.token_hash,
            ask.ttl_ms,
            await self._lease_family(ask.session_id, ask.process_id),
        )
        if verdict == NEEDS_A_SESSION:
            return None
        return self._lease_verdict(verdict, lease, process_status)

    async def extend_lease(self, proof: LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        [(verdict, *lease)] = await self._call(
            "renew_lease",
            proof.session_id,
            proof.process_id,
            self.given_ms,
            proof.token_hash,
            proof.fence,
            ttl_ms,
            await self._lease_family(proof.session_id, proof.process_id),
        )
        return self._lease_verdict(verdict, lease)

    async def _lease_family(self, session_id: str | None, process_id: str | None) -> int | None:
        if session_id is not None:
            return await self._family_of(session_id)
        return process_family(process_id) if self._by_family and process_id is not None else None

    def _lease_verdict(self, verdict: str, lease: Sequence[Any], process_status: str | None = None) -> LeaseVerdict:
        row = fetched(r.LeaseRow, lease) if lease[0] is not None else None
        answer = LeaseVerdict(verdict, row, process_status)
        self._learn(answer)
        return answer


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _settlement(verdict: str, settled_at_ms: int | None, revision: int | None) -> SettlementVerdict:
    """Return the verdict on a settlement. A session that was never made has no claims."""
    refusal = "claim_lost" if verdict == NEEDS_A_SESSION else verdict
    return SettlementVerdict(refusal, settled_at_ms or 0, revision)
