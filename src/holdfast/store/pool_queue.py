"""The queue for a pool of workers: claim work of any session; complete, fail, retry or drop it without a turn."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import Corrupt
from holdfast.operations import pool_queue, ready, settlement
from holdfast.operations.pool_queue import NextRequest
from holdfast.ports import Transaction
from holdfast.records.common import Page
from holdfast.records.queue import WorkBatch, WorkClaim, WorkCompletion, WorkReceipt
from holdfast.rules import checks, claims
from holdfast.rules import queue as rules
from holdfast.store.context import Context
from holdfast.store.kind_limits import KindLimits

CLAIM_TTL_MS = 900_000


BATCH = "batch %(batch_id)r of session %(session_id)r"


class PoolQueue(KindLimits):
    """The part of the queue that is not bound to one session."""

    _context: Context

    def _log_remedy(self, message: str, session_id: str, batch_id: str) -> None:
        self._context.log_remedy(message, session_id=session_id, batch_id=batch_id)

    def _next_request(
        self, owner_id: object, kinds: object, ttl_ms: object, max_batches: object, *, exclusive: object
    ) -> NextRequest:
        limits = self._context.limits
        return NextRequest(
            owner_id=checks.identifier("owner_id", owner_id, limits),
            kinds=rules.check_kinds(kinds, limits),
            ttl_ms=self._context.ttl_ms(ttl_ms),
            most=checks.claim_size(max_batches, limits),
            exclusive=checks.flag("exclusive", exclusive),
            token=self._context.token(),
        )

    async def claim_next(
        self,
        *,
        owner_id: str,
        kinds: Sequence[str] | None = None,
        ttl_ms: int = CLAIM_TTL_MS,
        max_batches: int = checks.DEFAULT_CLAIM,
        exclusive: bool = False,
    ) -> WorkClaim | None:
        """Claim the next work of any session, None if there is nothing to claim.

        Sessions are served by the priority of their next batch, and in turn among equals, whatever their backlog. A
        session whose next batch is of another kind, of a paused one or over a limit is skipped, and so is a session
        that is paused or under a session lease, whose holder claims with `claim`. None is certain: nothing could be
        claimed when the last lock was taken. A claim ends at 16 MiB of payloads, as with `claim`. `Corrupt` names
        damaged work, which does not come again for `ttl_ms`: continue with the rest.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="mail", payloads=[{"to": "ada"}], kind="send-mail"))
        >>> claim = store.queue.claim_next(owner_id="worker-1", kinds=["send-mail"])
        >>> claim.session_id, claim.batches[0].attempts
        ('mail', 1)
        >>> store.queue.claim_next(owner_id="worker-1", kinds=["send-mail"]) is None
        True
        """
        request = self._next_request(owner_id, kinds, ttl_ms, max_batches, exclusive=exclusive)
        return await self._claim_next(request)

    async def _claim_next(self, request: NextRequest) -> WorkClaim | None:
        while True:
            # Each run waits for a lock that another worker holds, so this loop does not spin.
            claim, is_busy = await self._context.backend.write(
                lambda tx: pool_queue.claim_next(tx, request), single_write=True, idempotent=True
            )
            if isinstance(claim, Corrupt):
                raise claim
            if not is_busy:
                return claim

    async def wait_next(
        self, *, timeout_ms: int, kinds: Sequence[str] | None = None, exclusive: bool = False, eager: bool = False
    ) -> None:
        """Return once `claim_next` with the same arguments would find something; `WaitTimeout` if none comes in time.

        Does not poll. Notices work when it becomes available, and claims, leases and back-offs when they end.

        With `eager`, it returns at the next change that may bring work, without proving that it did: for a caller that
        claims at once, one trip less.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.wait_next(timeout_ms=1000)
        """
        request = self._next_request("-", kinds, CLAIM_TTL_MS, 1, exclusive=exclusive)
        at_change = True if checks.flag("eager", eager) else None

        async def offered(tx: Transaction) -> tuple[bool, int | None]:
            return await pool_queue.is_offered(tx, request)

        async def check() -> tuple[bool | None, int | None]:
            found, due_in_ms = await self._context.backend.read(offered)
            if found:
                found, due_in_ms = await self._context.backend.write(lambda tx: pool_queue.is_claimable(tx, request))
            return (True if found else None), due_in_ms

        what = "claimable work in any session"
        await self._context.wait_until(ready.ANY_QUEUE, check, timeout_ms, what, offered=offered, at_change=at_change)

    async def complete(self, claim: WorkClaim | WorkCompletion) -> WorkReceipt:
        """Settle a claim without a turn: `ClaimLost` once it expired or was taken over. Idempotent.

        Makes no revision and does not touch the session's head, so that many workers can settle work of one session at
        once. Completing the claim again returns the same receipt, also if a commit completed it.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> claim = store.queue.claim_next(owner_id="worker-1")
        >>> store.queue.complete(claim) == store.queue.complete(claim)
        True
        """
        completion = claims.check_claim("claim", claim, self._context.limits)
        return await self._context.backend.write(
            lambda tx: settlement.complete(tx, completion), single_write=True, idempotent=True
        )

    async def complete_and_claim_next(
        self,
        claim: WorkClaim | WorkCompletion,
        *,
        owner_id: str,
        kinds: Sequence[str] | None = None,
        ttl_ms: int = CLAIM_TTL_MS,
        max_batches: int = checks.DEFAULT_CLAIM,
        exclusive: bool = False,
    ) -> tuple[WorkReceipt, WorkClaim | None]:
        """Settle a claim as `complete` does and claim the next work as `claim_next` does, in one transaction.

        >>> for number in range(2):
        ...     _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[number]))
        >>> claim = store.queue.claim_next(owner_id="worker-1")
        >>> receipt, claim = store.queue.complete_and_claim_next(claim, owner_id="worker-1")
        >>> claim.batches[0].items[0].payload
        1
        """
        completion = claims.check_claim("claim", claim, self._context.limits)
        request = self._next_request(owner_id, kinds, ttl_ms, max_batches, exclusive=exclusive)
        receipt, following, is_busy = await self._context.backend.write(
            lambda tx: pool_queue.complete_and_claim_next(tx, completion, request), single_write=True, idempotent=True
        )
        if not is_busy:
            return receipt, following
        return receipt, await self._claim_next(msgspec.structs.replace(request, was_busy=True))

    async def fail(
        self,
        claim: WorkClaim | WorkCompletion,
        error: str,
        *,
        retry_in_ms: int | None = 0,
        max_attempts: int | None = None,
    ) -> tuple[WorkBatch, ...]:
        """Give claimed work back after a failure. Return its batches in their new state.

        A batch keeps its place and is tried again in `retry_in_ms`: until then exclusive claims wait for it, and other
        claims skip it. A batch whose attempts have reached `max_attempts` is dead: settled, so that it blocks no other
        work, and listed in `dead_letters`. With `retry_in_ms=None` it is dead at once.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> claim = store.queue.claim_next(owner_id="worker-1")
        >>> [batch.state for batch in store.queue.fail(claim, "no answer", retry_in_ms=0, max_attempts=2)]
        ['pending']
        >>> claim = store.queue.claim_next(owner_id="worker-1")
        >>> [batch.state for batch in store.queue.fail(claim, "no answer", retry_in_ms=0, max_attempts=2)]
        ['dead']
        """
        limits = self._context.limits
        completion = claims.check_claim("claim", claim, limits)
        reason = checks.text("error", error, limits)
        delay_ms = checks.optional_whole("retry_in_ms", retry_in_ms, most=limits.ttl_ms)
        most = checks.optional_whole("max_attempts", max_attempts, least=1)
        return await self._context.backend.write(
            lambda tx: settlement.fail(tx, completion, reason, retry_in_ms=delay_ms, max_attempts=most)
        )

    async def dead_letters(
        self,
        *,
        session_id: str | None = None,
        kind: str | None = None,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[WorkBatch]:
        """Return one page of the dead batches, of one session or all, of one kind or all, in the order of enqueueing.

        >>> len(store.queue.dead_letters(kind="send-mail"))
        0
        """
        limits = self._context.limits
        session = checks.optional_identifier("session_id", session_id, limits)
        chosen = checks.optional_identifier("kind", kind, limits)
        place = checks.cursor("dead letters", after, [int])
        size = checks.page_size(limit, limits)
        start = 0 if place is None else place[0]
        return await self._context.backend.read(
            lambda tx: settlement.dead_page(tx, session, chosen, after=start, limit=size)
        )

    async def retry(self, session_id: str, batch_id: str) -> WorkBatch | None:
        """Put a dead batch back at its old place, with its attempts reset. Return it, None if not dead.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> _ = store.queue.fail(store.queue.claim_next(owner_id="worker-1"), "no answer", retry_in_ms=None)
        >>> store.queue.retry("chat-42", batch.batch_id).state
        'pending'
        """
        session = self._context.identifier("session_id", session_id)
        batch = self._context.identifier("batch_id", batch_id)
        retried = await self._context.backend.write(lambda tx: settlement.retry(tx, session, batch))
        if retried is not None:
            self._log_remedy(f"{BATCH} was put back to be retried", session, batch)
        return retried

    async def drop(self, session_id: str, batch_id: str) -> WorkBatch | None:
        """Take a dead batch off the dead letters. Return it, cancelled, so that its key stays used; None if not dead.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> _ = store.queue.fail(store.queue.claim_next(owner_id="worker-1"), "no answer", retry_in_ms=None)
        >>> store.queue.drop("chat-42", batch.batch_id).state
        'cancelled'
        """
        session = self._context.identifier("session_id", session_id)
        batch = self._context.identifier("batch_id", batch_id)
        dropped = await self._context.backend.write(lambda tx: settlement.drop(tx, session, batch))
        if dropped is not None:
            self._log_remedy(f"{BATCH} was dropped", session, batch)
        return dropped

    async def release(self, session_id: str, batch_id: str) -> tuple[WorkBatch, ...]:
        """End the claim on a batch without its token, as if it had expired. Return the batches of the claim.

        For operators, when the claim's owner hangs or is gone. The attempt counts. Empty if no claim holds the batch.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> claim = store.queue.claim_next(owner_id="worker-1")
        >>> [one.state for one in store.queue.release("chat-42", batch.batch_id)]
        ['pending']
        """
        session = self._context.identifier("session_id", session_id)
        batch = self._context.identifier("batch_id", batch_id)
        released = await self._context.backend.write(lambda tx: settlement.release(tx, session, batch))
        if released:
            self._log_remedy(f"the claim on {BATCH} was released", session, batch)
        return released

    async def wait_settled(self, session_id: str, batch_id: str, *, timeout_ms: int) -> WorkBatch:
        """Return a batch once it is settled; `WaitTimeout` if that does not happen in time.

        Does not poll. The batch names the revision that settled it, if a commit did.

        >>> batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> _ = store.queue.complete(store.queue.claim_next(owner_id="worker-1"))
        >>> store.queue.wait_settled("chat-42", batch.batch_id, timeout_ms=1000).state
        'completed'
        """
        session = self._context.identifier("session_id", session_id)
        batch = self._context.identifier("batch_id", batch_id)

        async def check() -> tuple[WorkBatch | None, int | None]:
            return await self._context.backend.read(lambda tx: settlement.outcome(tx, session, batch)), None

        return await self._context.wait_until(
            ready.queue_topic(session), check, timeout_ms, f"batch {batch!r} of session {session!r} to be settled"
        )
