"""Call the server functions of the queue. Each decides and writes in one trip, and returns its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.transaction.function_calls import NEEDS_A_SESSION, SharedCall
from holdfast.backends.postgres.transaction.lease_functions import LeaseFunctions
from holdfast.ports.fast_path_params import ClaimNextParams, ClaimParams, ClaimProof, HeartbeatParams
from holdfast.ports.verdicts import HeartbeatVerdict, QueueVerdict, RenewalVerdict, SettlementVerdict
from holdfast.table_catalog import all_fetched


class QueueFunctions(LeaseFunctions):
    """The queue of `ports.FastPaths`. Subclasses define `_call`, and `given_ms` for the clock."""

    __slots__ = ()

    _runner: StatementRunner
    is_retry: bool

    ready_tables = None
    """None: the functions keep the ready rows."""

    lock_wait = 2
    """Waiting of `claim_next` for other transactions: 0 never, 1 while it holds no lock, 2 always."""

    async def _queue_verdict(self, name: str, *bindings: Any) -> QueueVerdict:
        found = await self._call(name, *bindings)
        verdict = found[0][0]
        if verdict not in {"enqueued", "known", "claimed"}:
            return QueueVerdict(verdict)
        rows = all_fetched(r.BatchRow, [tuple(values)[1:] for values in found])
        answer = QueueVerdict(verdict, tuple(sorted(rows, key=lambda row: row.enqueue_seq)))
        self._learn(answer)
        return answer

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> QueueVerdict | None:
        family = await self._family_of(session_id)
        numbers = await self._numbers_for(1)
        answer = await self._queue_verdict(
            "enqueue_batch",
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
            row.limit_key,
        )
        return None if answer.verdict == NEEDS_A_SESSION else answer

    async def claim_ready(self, params: ClaimParams) -> QueueVerdict | None:
        lease, holding = params.lease, params.holding
        return await self._queue_verdict(
            "claim_batches",
            params.session_id,
            self.given_ms,
            params.owner_id,
            params.boundary,
            params.most,
            int(params.exclusive),
            params.token_hash,
            params.ttl_ms,
            None if params.exactly is None else list(params.exactly),
            None if lease is None else lease.token_hash,
            None if lease is None else lease.fence,
            None if holding is None else holding.claim_id,
            None if holding is None else holding.fence,
            None if holding is None else list(holding.batch_ids),
            self.is_retry,
            await self._family_of(params.session_id),
            params.most_bytes,
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

    async def renew_all(self, params: HeartbeatParams) -> HeartbeatVerdict | None:
        if self._by_family:
            return None  # claims and leases are on many nodes
        claims, leases = params.claims, params.leases
        found = await self._call(
            "heartbeat",
            self.given_ms,
            params.ttl_ms,
            params.worker_id,
            params.report,
            params.forgotten_ms,
            [one.session_id for one in claims],
            [one.claim_id for one in claims],
            [one.token_hash for one in claims],
            [one.fence for one in claims],
            [len(one.batch_ids) for one in claims],
            [batch_id for one in claims for batch_id in one.batch_ids],
            [one.session_id for one in leases],
            [one.process_id for one in leases],
            [one.token_hash for one in leases],
            [one.fence for one in leases],
        )
        return HeartbeatVerdict(tuple(expires_at_ms for _, expires_at_ms in found[1:]))

    async def settle_claim(
        self, proof: ClaimProof, then: ClaimNextParams | None = None
    ) -> tuple[SettlementVerdict, QueueVerdict | None] | None:
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
            if len(proof.batch_ids) == 1:
                alone, together = (*settles, family, True), (*settles, family, False)
                found = await self._call_shared(SharedCall("settle_claim", alone, together, proof.session_id))
            else:
                [found] = await self._call("settle_claim", *settles, family, True)
            verdict, settled_at_ms, revision, self._runner.reached = found
            settlement = _settlement(verdict, settled_at_ms, revision)
            # In a call of its own, because the next work may be on another node.
            claims_next = then is not None and settlement.verdict == "completed"
            return settlement, await self.claim_any(then) if then is not None and claims_next else None
        asks = (then.owner_id, _listed(then.kinds), then.most, int(then.exclusive), then.token_hash, then.ttl_ms)
        bindings = (*settles, *asks, self.is_retry, then.most_bytes)
        if len(proof.batch_ids) == 1 and _claims_one(then):
            key, token_hash = proof.session_id, then.token_hash
            call = SharedCall(
                *("settle_and_claim", (*bindings, True, False), (*bindings, False, False), key),
                claims_with=token_hash,
                waiting=(*bindings, False, True),
            )
            found = [await self._call_shared(call)]
        else:
            found = await self._call("settle_and_claim", *bindings, True, False)
        verdict, settled_at_ms, revision, self._runner.reached = tuple(found[0])[:4]
        settlement = _settlement(verdict, settled_at_ms, revision)
        if settlement.verdict != "completed":
            return settlement, None
        return settlement, self._claimed_next([tuple(values)[4:] for values in found])

    async def claim_any(self, params: ClaimNextParams) -> QueueVerdict | None:
        if self._by_family:
            return await self._claim_by_family(params)
        return await self._claim_in(params, None, self.lock_wait)

    async def _claim_by_family(self, params: ClaimNextParams) -> QueueVerdict:
        """Claim in one family after the other, the one with the best offer first."""
        if self.is_retry and params.token_hash is not None:
            # The answer to an earlier run was lost.
            found = await self._runner.all("find_claimed_next", params.token_hash, self.given_ms)
            answer = self._claimed_next(found) if found else None
            if answer is not None and all(row.claim_size == len(answer.rows) for row in answer.rows):
                return answer
        for (family,) in await self._runner.all("find_due_families", self.given_ms):
            await self._claim_in(msgspec.structs.replace(params, token_hash=None), family, 0)
        levels, kinds = [2] if params.exclusive else [1, 2], _listed(params.kinds)
        passed: list[int] = []
        busy: list[int] = []
        while best := await self._runner.all("find_best_family", levels, kinds, passed):
            [(family,)] = best
            answer = await self._claim_in(params, family, 0)
            if answer.verdict not in {"none", "busy"}:
                return answer
            passed.append(family)
            if answer.verdict == "busy":
                busy.append(family)
        for family in busy if self.lock_wait else ():
            # Other transactions have locked all claimable work. Wait for them: some of it may be left.
            answer = await self._claim_in(params, family, self.lock_wait)
            if answer.verdict not in {"none", "busy"}:
                return answer
        return QueueVerdict("busy" if busy else "none")

    async def _claim_in(self, params: ClaimNextParams, family: int | None, lock_wait: int) -> QueueVerdict:
        asks = (params.owner_id, _listed(params.kinds), params.most, int(params.exclusive), params.token_hash)
        bindings = (self.given_ms, *asks, params.ttl_ms, self.is_retry)
        alone, together = ((*bindings, each, family, params.most_bytes) for each in (lock_wait, 0))
        if _claims_one(params):
            key = "" if params.kinds is None else ",".join(params.kinds)
            call = SharedCall(
                *("claim_next", alone, together, key),
                claims_with=params.token_hash,
                locks_any=True,
                waiting=alone,
                waits=params.was_busy,
            )
            return self._claimed_next([await self._call_shared(call)])
        return self._claimed_next(await self._call("claim_next", *alone))

    def _claimed_next(self, found: Sequence[Sequence[Any]]) -> QueueVerdict:
        verdict, session_id = tuple(found[0])[:2]
        if verdict != "claimed":
            return QueueVerdict(verdict)
        rows = all_fetched(r.BatchRow, [tuple(values)[2:] for values in found])
        answer = QueueVerdict(verdict, tuple(sorted(rows, key=lambda row: row.enqueue_seq)), session_id)
        self._learn(answer)
        return answer

    async def update_ready(self, family: int, session_key: int, *, freed: bool) -> None:
        await self._call("touch_ready", family, session_key, self.given_ms, freed)


def _claims_one(params: ClaimNextParams) -> bool:
    """Return True if a call claims at most one batch, so that its answer is one row."""
    return params.most == 1 and params.token_hash is not None


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _settlement(verdict: str, settled_at_ms: int | None, revision: int | None) -> SettlementVerdict:
    """Return the verdict on a settlement. A session that was never made has no claims."""
    refusal = "claim_lost" if verdict == NEEDS_A_SESSION else verdict
    return SettlementVerdict(refusal, settled_at_ms or 0, revision)
