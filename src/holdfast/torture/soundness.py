"""Checks that a store is sound after a fault: verification finds nothing, and work continues."""

from __future__ import annotations

import secrets

import holdfast


def unsound(store: holdfast.BlockingStore) -> list[str]:
    """Return the problems of a store after a fault. Leaves one session with one turn behind."""
    wrong = [f"I10: verify: {one.table} {one.key}: {one.problem}" for one in store.maintenance.verify().findings]
    name = f"afterwards-{secrets.token_hex(4)}"
    try:
        batch = store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[1], source_key="again"))
        claim = store.queue.claim(name, owner_id="afterwards")
        if claim is None or claim.batches[0].batch_id != batch.batch_id:
            return [*wrong, f"I10: work does not continue: {claim}"]
        receipt = store.sessions.handle(name).commit(holdfast.Commit(turn_id="again", completes=[claim]))
        if receipt.revision != 1 or receipt.replayed:
            wrong.append(f"I10: work does not continue: {receipt}")
    except holdfast.HoldfastError as error:
        wrong.append(f"I10: work does not continue: {type(error).__name__}: {error}")
    return wrong
