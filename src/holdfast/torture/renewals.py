"""Fault: a slow transaction holds a session's queue while a lease or claim is renewed past its old end.

A claim that waits for the queue began before the renewal. It must still respect the renewal: nothing of the
session is handed to another owner while the renewed lease or exclusive claim is live. Without a renewal, the same claim
succeeds.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import holdfast
from holdfast.leases import Lease, OnSession
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import PostgresScratch, Scratch, on_connection
from holdfast.torture.soundness import unsound

SESSION = "renewed"
SHORT_MS, LONG_MS = 600, 600_000
LATEST_S = 20.0
CLAIMER, HOLDER = "claimer", "holder"


def renew_behind_held_row(scratch: Scratch, seed: int) -> Ran:
    """Let a claim wait for the session's queue across the old end of the lease or claim that blocks it."""
    assert isinstance(scratch, PostgresScratch)
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    by_lease, renews, exclusive = rng.random() < 0.5, rng.random() < 0.8, rng.random() < 0.5
    with place.open() as holder, place.open() as claimer:
        for number in (1, 2):
            holder.queue.enqueue(holdfast.WorkDraft(session_id=SESSION, payloads=[number]))
        keep = _lease(holder) if by_lease else _claim(holder)

        async def race(connection: Any) -> holdfast.WorkClaim | None:
            loop = asyncio.get_running_loop()
            held = connection.transaction()
            await held.start()
            await connection.fetch(scratch.statements["hold_queue"], SESSION)
            waiting = loop.run_in_executor(
                None, lambda: claimer.queue.claim(SESSION, owner_id=CLAIMER, exclusive=exclusive)
            )
            try:
                await _until(connection, scratch.statements["blocked_backends"])
                if renews:
                    await loop.run_in_executor(None, _renew, holder, keep)
                await _until(connection, scratch.statements["clock_passed"], keep.expires_at_ms)
            finally:
                await held.rollback()
            return await waiting

        given = asyncio.run(on_connection(place.url, race))
        what = "session lease" if by_lease else "exclusive claim"
        wrong = [f"I5: work was claimed past a renewed {what}: {given.claim_id}"] if renews and given else []
        wrong += [f"I10: an expired {what} still kept the work"] if not renews and given is None else []
        wrong += unsound(holder)
    return Ran(1, tuple(wrong))


def _lease(store: holdfast.BlockingStore) -> Lease:
    return store.leases.claim(OnSession(SESSION), owner_id=HOLDER, ttl_ms=SHORT_MS)


def _claim(store: holdfast.BlockingStore) -> holdfast.WorkClaim:
    claim = store.queue.claim(SESSION, owner_id=HOLDER, ttl_ms=SHORT_MS, exclusive=True, max_batches=1)
    assert claim is not None, "the work was enqueued just now"
    return claim


def _renew(store: holdfast.BlockingStore, keep: Lease | holdfast.WorkClaim) -> None:
    if isinstance(keep, Lease):
        store.leases.renew(keep, ttl_ms=LONG_MS)
    else:
        store.queue.renew(keep, ttl_ms=LONG_MS)


async def _until(connection: Any, statement: str, *bindings: Any) -> None:
    deadline_s = time.monotonic() + LATEST_S
    while not await connection.fetchval(statement, *bindings):
        if time.monotonic() > deadline_s:
            raise TimeoutError("timed out waiting for the condition of the fault")


HELD_ROW = Fault(
    "renewal-behind-held-row",
    "a slow transaction holds a session's queue while a lease or an exclusive claim is renewed past its old end",
    ("I5", "I10"),
    {"postgres": Numbers(3, 500)},
    renew_behind_held_row,
)
