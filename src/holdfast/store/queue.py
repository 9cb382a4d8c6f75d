"""`store.queue`: each session's work. A batch is claimed by one owner at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.operations import queue as operations
from holdfast.operations import ready, settlement
from holdfast.records.common import Page
from holdfast.records.leases import Lease
from holdfast.records.queue import Boundary, WorkBatch, WorkClaim, WorkCompletion, WorkDraft
from holdfast.rules import checks, claims, leases
from holdfast.rules import queue as rules
from holdfast.store.context import Context
from holdfast.store.pool_queue import CLAIM_TTL_MS, PoolQueue


class Queue(PoolQueue):
    """The work queue."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def enqueue(self, draft: WorkDraft) -> WorkBatch:
        """Enqueue work in a session. A source key that was used before returns the batch that it made, settled or not.

        >>> draft = holdfast.WorkDraft(session_id="chat-42", payloads=[{"text": "hi"}], source_key="message-1")
        >>> store.queue.enqueue(draft).batch_id == store.queue.enqueue(draft).batch_id
        True
        """
        return await enqueued(self._context, "draft", draft)

    async def restore(self, draft: WorkDraft) -> WorkBatch:
        """Enqueue work of another store, also the wake of a process, whose source key `enqueue` refuses.

        Never call it with a source key that a client chooses: work under the key of a wake counts as the end of
        a run.

        >>> draft = holdfast.WorkDraft(session_id="chat-42", payloads=[{"text": "hi"}], source_key="wake:1")
        >>> store.queue.restore(draft).source_key
        'wake:1'
        """
        return await enqueued(self._context, "draft", draft, restores=True)

    async def claim(
        self,
        session_id: str,
        *,
        owner_id: str,
        boundary: Boundary | None = None,
        ttl_ms: int = CLAIM_TTL_MS,
        max_batches: int = checks.DEFAULT_CLAIM,
        exclusive: bool = False,
        lease: Lease | None = None,
        holding: WorkClaim | None = None,
    ) -> WorkClaim | None:
        """Claim the next ready batches that go together, None if there is nothing to claim.

        `exclusive=True`, or a session lease, keeps every other claim out of the session's queue while this one lives,
        also one under the same owner id. Its holder adds later work with `holding=claim`: the ready batches join that
        claim, which is returned whole. Settle the returned claim; renewing or giving back either one concerns all its
        batches. None means that nothing changed, and the old claim is valid. With `exclusive=True` or a lease, the held
        claim also becomes exclusive, even if no work joins it: see `claim.exclusive`.

        A claim takes at most `max_batches`, and ends with the batch with which its payloads reach 16 MiB, so that it
        always has one. A held claim that is as large gets no more work: settle it, and claim again.

        The default boundary is "idle", or "active_turn_checkpoint" with `holding`: then work that waits for the end of
        the turn does not join. Only work of the claim's own kind joins it, and a batch whose slot is not "join" is
        claimed alone; either blocks the batches behind it. A claim lasts 15 minutes unless it is renewed: choose a
        shorter `ttl_ms` if a dead worker's work must be free again sooner.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[{"text": "hi"}]))
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1")
        >>> [item.payload for batch in claim.batches for item in batch.items]
        [{'text': 'hi'}]
        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[{"text": "and"}]))
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1", holding=claim)
        >>> [item.payload for batch in claim.batches for item in batch.items]
        [{'text': 'hi'}, {'text': 'and'}]
        """
        most = checks.claim_size(max_batches, self._context.limits)
        default: Boundary = "idle" if holding is None else "active_turn_checkpoint"
        at = default if boundary is None else boundary
        request = self._request(session_id, owner_id, at, ttl_ms, most, exclusive, lease, None)
        if holding is not None:
            request = self._widening(request, holding)
        return await self._context.backend.write(
            lambda tx: operations.claim(tx, request),
            single_write=holding is None,
            idempotent=True,
            serialize_on=request.session_id,
        )

    def _widening(self, request: operations.ClaimRequest, holding: object) -> operations.ClaimRequest:
        """Return the request for work that joins a held claim, under the owner and the token of that claim."""
        held = checks.instance("holding", holding, WorkClaim)
        proof = claims.check_claim("holding", held, self._context.limits)
        if proof.session_id != request.session_id:
            raise InvalidRequest(
                "holding", f"is a claim in session {proof.session_id!r}, not in {request.session_id!r}"
            )
        if held.owner_id != request.owner_id:
            raise InvalidRequest("owner_id", f"must be {held.owner_id!r}, the owner of the claim that it holds")
        # A claim with more batches than a page could not be settled.
        most = min(request.most, self._context.limits.page - len(proof.batch_ids))
        return msgspec.structs.replace(request, holding=proof, token=proof.token, most=most)

    async def claim_exactly(
        self,
        session_id: str,
        batch_ids: Sequence[str],
        *,
        owner_id: str,
        boundary: Boundary = "idle",
        ttl_ms: int = CLAIM_TTL_MS,
        exclusive: bool = False,
        lease: Lease | None = None,
    ) -> WorkClaim | None:
        """Claim exactly these batches, in this order, if they come next. Otherwise return None and change nothing.

        Batches that are too large for one claim (see `claim`) do not come next together.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.claim_exactly("chat-42", [batch.batch_id], owner_id="worker-1").fence
        1
        """
        exactly = rules.check_batch_ids(batch_ids, self._context.limits)
        request = self._request(session_id, owner_id, boundary, ttl_ms, len(exactly), exclusive, lease, exactly)
        if not exactly:
            return None
        return await self._context.backend.write(
            lambda tx: operations.claim(tx, request),
            single_write=True,
            idempotent=True,
            serialize_on=request.session_id,
        )

    def _request(  # noqa: PLR0917 - the two claims' own parameters, checked in one place
        self, session_id: object, owner_id: object, boundary: object, ttl_ms: object, most: int, exclusive: object,
        lease: object | None, exactly: tuple[str, ...] | None,
    ) -> operations.ClaimRequest:  # fmt: skip
        limits = self._context.limits
        checked = checks.identifier("session_id", session_id, limits)
        return operations.ClaimRequest(
            session_id=checked,
            owner_id=checks.identifier("owner_id", owner_id, limits),
            boundary=cast("Boundary", checks.one_of("boundary", boundary, rules.BOUNDARIES)),
            ttl_ms=self._context.ttl_ms(ttl_ms),
            most=most,
            exclusive=checks.flag("exclusive", exclusive),
            lease=None if lease is None else leases.check_session_lease("lease", lease, checked, limits),
            token=self._context.token(),
            exactly=exactly,
        )

    async def renew(self, claim: WorkClaim, *, ttl_ms: int = CLAIM_TTL_MS) -> WorkClaim:
        """Move the claim's end to `ttl_ms` from now; `ClaimLost` once it expired or was taken over.

        A renewal never shortens a claim: one that lasts longer already stays as it is. To end it sooner, give it back.
        A claim from before a widening works, too: all batches of the claim last longer, also those that joined it.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1", ttl_ms=1000)
        >>> store.queue.renew(claim, ttl_ms=60_000).expires_at_ms > claim.expires_at_ms
        True
        """
        held = checks.instance("claim", claim, WorkClaim)
        completion = claims.check_claim("claim", held, self._context.limits)
        ttl = self._context.ttl_ms(ttl_ms)
        return await self._context.backend.write(
            lambda tx: operations.renew(tx, held, completion, ttl), single_write=True, idempotent=True
        )

    async def give_back(self, claim: WorkClaim | WorkCompletion) -> int:
        """Give claimed work back at once, without using up an attempt. Return how many batches the claim still held.

        Batches that joined the claim later are given back, too.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.give_back(store.queue.claim("chat-42", owner_id="worker-1"))
        1
        """
        completion = claims.check_claim("claim", claim, self._context.limits)
        return await self._context.backend.write(lambda tx: operations.give_back(tx, completion))

    async def cancel(self, session_id: str, batch_id: str) -> WorkBatch | None:
        """Cancel a batch that no claim holds. Return it, or None.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.cancel("chat-42", batch.batch_id).state
        'cancelled'
        """
        session = self._context.identifier("session_id", session_id)
        batch = self._context.identifier("batch_id", batch_id)
        return await self._context.backend.write(lambda tx: settlement.cancel(tx, session, batch))

    async def get(self, session_id: str, batch_id: str) -> WorkBatch | None:
        """Return one batch: waiting, claimed, or settled and not yet pruned.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.get("chat-42", batch.batch_id).state
        'pending'
        """
        session = self._context.identifier("session_id", session_id)
        batch = self._context.identifier("batch_id", batch_id)
        return await self._context.backend.read(lambda tx: operations.find(tx, session, batch))

    async def find(self, session_id: str, source_key: str) -> WorkBatch | None:
        """Return the batch that a source key made, settled or not; None if the key is free.

        >>> draft = holdfast.WorkDraft(session_id="chat-42", payloads=[1], source_key="message-1")
        >>> store.queue.find("chat-42", "message-1") is None
        True
        >>> store.queue.enqueue(draft) == store.queue.find("chat-42", "message-1")
        True
        """
        session = self._context.identifier("session_id", session_id)
        key = self._context.identifier("source_key", source_key)
        return await self._context.backend.read(lambda tx: operations.find_source(tx, session, key))

    async def list(
        self, session_id: str, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[WorkBatch]:
        """Return one page of the session's unsettled work, claimed or not, in order.

        >>> len(store.queue.list("chat-42"))
        0
        """
        return await self._page(session_id, after, limit, pending=False)

    async def sessions(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[str]:
        """Return one page of the ids of sessions that have work that is ready and unclaimed.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> list(store.queue.sessions())
        ['chat-42']
        """
        place = checks.cursor("sessions with work", after, [int])
        size = checks.page_size(limit, self._context.limits)
        start = 0 if place is None else place[0]
        return await self._context.backend.read(lambda tx: operations.sessions_page(tx, after=start, limit=size))

    async def list_pending(
        self, session_id: str, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[WorkBatch]:
        """Return one page of the session's unclaimed work, available yet or not, in order.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> len(store.queue.list_pending("chat-42"))
        1
        """
        return await self._page(session_id, after, limit, pending=True)

    async def _page(self, session_id: object, after: object, limit: object, *, pending: bool) -> Page[WorkBatch]:
        session = self._context.identifier("session_id", session_id)
        place = checks.cursor("queue", after, [int])
        size = checks.page_size(limit, self._context.limits)
        start = 0 if place is None else place[0]
        return await self._context.backend.read(
            lambda tx: operations.list_page(tx, session, pending=pending, after=start, limit=size)
        )

    async def wait(
        self,
        session_id: str,
        *,
        timeout_ms: int,
        owner_id: str | None = None,
        boundary: Boundary = "idle",
        exclusive: bool = False,
    ) -> None:
        """Return once `claim` with the same arguments would find something; `WaitTimeout` if nothing comes in time.

        Does not poll. Without `owner_id`, any lease on the session holds the wait back; exclusive claims always do.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.wait("chat-42", timeout_ms=1000)
        """
        session = self._context.identifier("session_id", session_id)
        at = cast("Boundary", checks.one_of("boundary", boundary, rules.BOUNDARIES))
        owner = checks.optional_identifier("owner_id", owner_id, self._context.limits)
        alone = checks.flag("exclusive", exclusive)

        topic = [ready.queue_topic(session)]

        async def check() -> tuple[bool | None, int | None]:
            outlook = await self._context.backend.read(
                lambda tx: operations.is_claimable(tx, session, at, owner_id=owner, exclusive=alone)
            )
            if outlook.is_refused and topic[0] != ready.ANY_QUEUE:
                # Work of other sessions frees a slot. Look again, now that their changes are watched, too.
                topic[0] = ready.ANY_QUEUE
                return None, 1
            return (True if outlook.is_claimable else None), outlook.due_in_ms

        await self._context.wait_until(lambda: topic[0], check, timeout_ms, f"claimable work in session {session!r}")


async def enqueued(
    context: Context, field: str, draft: object, incarnation: int | None = None, *, restores: bool = False
) -> WorkBatch:
    """Enqueue a draft, in no later incarnation of its session if one is given. Errors name `field`."""
    intent, heavy = await context.prepared(rules.check_draft, field, draft, context.limits, restores=restores)
    batch_id = context.batch_id()
    return await context.backend.write(
        lambda tx: operations.enqueue(tx, intent, batch_id, incarnation),
        single_write=True,
        idempotent=intent.source_key is not None,
        heavy=heavy,
    )
