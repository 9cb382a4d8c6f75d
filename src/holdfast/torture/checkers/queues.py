"""Work is neither lost nor doubled: what was enqueued is completed, pending or cancelled, each batch once.

One owner holds a batch at a time.

Calls of a history:

- `enqueue`, given the source key: answered with the batch id, or unknown.
- `claim`, given the owner: answered with `(claim_id, fence, claimed_at_ms, expires_at_ms, batch_ids)`, or unknown.
  A claim that found nothing is no part of the history.
- `complete`, given `(claim_id, fence, batch_ids)`: answered, refused, or unknown.
- `forge`, given the same, a completion with a token that nobody was ever given: it must be refused.
- `abandon`, given the same: answered with the number of batches given back, or unknown.
- `cancel`, given the batch id: answered with True if it was cancelled, False if not, or unknown.

The end is what the store says afterwards: the state of every source key that was ever used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from holdfast.torture.checkers.histories import Call

States = Mapping[str, tuple[str, str] | None]
"""For each source key the batch id and state that the store tells; None if it knows none."""

OPEN = {"pending", "claimed"}


def check_queue(history: Sequence[Call], end: States) -> list[str]:
    """What is wrong with the accounts; empty if they balance."""
    return [*_enqueued(history, end), *_settled(history, end), *_claims(history)]


def _enqueued(history: Sequence[Call], end: States) -> Iterator[str]:
    tried = {call.given for call in history if call.kind == "enqueue"}
    ids: dict[str, str] = {}
    for call in history:
        if call.kind != "enqueue" or call.outcome != "ok":
            continue
        if ids.setdefault(call.given, call.answer) != call.answer:
            yield f"source key {call.given} was answered with two batches: {ids[call.given]} and {call.answer}"
        found = end.get(call.given)
        if found is None:
            yield f"batch {call.answer} of {call.given} was acknowledged and is gone"
        elif found[0] != call.answer:
            yield f"source key {call.given} was acknowledged as {call.answer} and is {found[0]}"
    for key, found in end.items():
        if found is not None and key not in tried:
            yield f"batch {found[0]} of {key} was never enqueued"
    batches = [found[0] for found in end.values() if found is not None]
    if len(set(batches)) != len(batches):
        yield "two source keys share a batch"


def _settled(history: Sequence[Call], end: States) -> Iterator[str]:
    states = {found[0]: found[1] for found in end.values() if found is not None}
    completed: dict[str, int] = defaultdict(int)
    maybe: set[str] = set()
    cancelled: set[str] = set()
    for call in history:
        if call.kind == "forge" and call.outcome == "ok":
            yield f"claim {call.given[0]} was settled without its token"
        elif call.kind == "complete":
            for batch_id in call.given[2]:
                completed[batch_id] += call.outcome == "ok"
                if call.outcome == "unknown":
                    maybe.add(batch_id)
        elif call.kind == "cancel" and (call.outcome == "unknown" or call.answer):
            (maybe if call.outcome == "unknown" else cancelled).add(call.given)
    for batch_id, state in states.items():
        times = completed[batch_id]
        if times > 1:
            yield f"batch {batch_id} was completed {times} times"
        if times and state != "completed":
            yield f"batch {batch_id} was completed and is {state}"
        if batch_id in cancelled and state != "cancelled":
            yield f"batch {batch_id} was cancelled and is {state}"
        if state not in OPEN and not times and batch_id not in maybe | cancelled:
            yield f"batch {batch_id} is {state}, and nobody did that"


def _claims(history: Sequence[Call]) -> Iterator[str]:
    """One live claim a batch, and nothing accepted under an earlier one."""
    claims: dict[str, list[Call]] = defaultdict(list)
    for call in history:
        if call.kind == "claim" and call.outcome == "ok":
            for batch_id in call.answer[4]:
                claims[batch_id].append(call)
    given_back: dict[tuple[str, int], int] = {}
    for call in history:
        if call.kind in {"abandon", "complete"} and (
            call.outcome == "unknown" or (call.outcome == "ok" and call.answer)
        ):
            place = (call.given[0], call.given[1])
            given_back[place] = min(call.sent_ns, given_back.get(place, call.sent_ns))
    for batch_id, taken in claims.items():
        taken.sort(key=lambda call: call.answer[1])
        for earlier, later in pairwise(taken):
            fence, next_fence = earlier.answer[1], later.answer[1]
            if fence == next_fence:
                yield f"batch {batch_id} was claimed twice with fence {fence}"
            free_ns = given_back.get((earlier.answer[0], fence))
            lapsed = earlier.answer[3] <= later.answer[2]
            assert later.answered_ns is not None
            if not lapsed and (free_ns is None or free_ns > later.answered_ns):
                yield f"batch {batch_id} was claimed with fence {next_fence} while fence {fence} was live"
    for call in history:
        if call.kind == "complete" and call.outcome == "ok":
            yield from _stale(call, claims)


def _stale(completion: Call, claims: Mapping[str, list[Call]]) -> Iterator[str]:
    claim_id, fence, batch_ids = completion.given
    for batch_id in batch_ids:
        for claim in claims.get(batch_id, ()):
            assert claim.answered_ns is not None
            if claim.answer[1] > fence and claim.answered_ns < completion.sent_ns:
                yield f"batch {batch_id} was completed under {claim_id}, after {claim.answer[0]} held it"
