"""Checks that work is neither lost nor doubled: each batch is completed, pending or cancelled, once.

One owner holds a batch at a time, and one that was completed or cancelled is never handed out again.

Calls of a history, `LONG_MS` being longer than a history takes:

- `enqueue`, given the source key: answered with the batch id, or unknown.
- `claim`, given `(owner, ttl_ms)`: answered with `(claim_id, fence, claimed_at_ms, expires_at_ms, batch_ids)`, or
  unknown: then it may have taken any batch. A claim that found nothing is not part of the history.
- `complete`, given `(claim_id, fence, batch_ids)`: answered with the revision that it made, refused, or unknown.
- `forge`, given the same, a completion with a token that was never given out, or of a part of the claim's batches: it
  must be refused.
- `give_back`, given the same: answered with the number of batches given back, or unknown.
- `cancel`, given the batch id: answered with True if it was cancelled, False if not, or unknown.

The end is the store's state afterwards: that of every source key that was ever used, and of every batch that was ever
claimed.

Each batch has one life: an order of the calls that concern it, and of the end, that explains every answer. A claim of
`LONG_MS` or more never lapses within a history, a shorter one at any moment, as in `leases`. If the time of a revision
is known, the claim that it settled must have been live then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.leases import LONG_MS
from holdfast.torture.checkers.linear import TooWide, linearize

States = Mapping[str, tuple[str, str] | None]
"""Batch id and state that the store reports for each source key; None if it knows none."""

Stage: TypeAlias = Literal["absent", "pending", "claimed", "completed", "cancelled"]


class Life(msgspec.Struct, frozen=True):
    """State of one batch: its highest fence, and the claim on it, if there is one."""

    stage: Stage = "absent"
    fence: int = 0
    claim_id: str | None = None
    """None if no client got the answer."""
    expires_at_ms: int | None = None
    """None if no client got the answer."""
    lapses: bool = False
    """True if the claim may expire within the history."""
    lapsed: bool = False
    """True if a client saw that it has expired."""


def check_queue(
    history: Sequence[Call], end: States, written_at_ms: Mapping[int, int] = MappingProxyType({})
) -> list[str]:
    """Return the problems of a history of a queue. Raise `TooWide` if it cannot be judged.

    `written_at_ms` holds the time at which each revision was written, by the store's clock, as far as that is known.
    """
    wrong = [*_enqueued(history, end), *_claims(history)]
    unjudged: TooWide | None = None
    for batch_id, calls in _lives(history, end):
        try:
            found = linearize(calls, Life(), partial(_step, written_at_ms))
        except TooWide as error:
            unjudged = error
        else:
            wrong += [] if found.ok else [f"the life of batch {batch_id} is {found}"]
    if unjudged is not None and not wrong:
        raise unjudged
    return wrong


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


def _claims(history: Sequence[Call]) -> Iterator[str]:
    """Check that a claim is given out once, ends at its stated time, and is settled by its holder, as a whole."""
    given: dict[tuple[str, int], Counter[str]] = {}
    for call in history:
        if call.kind == "claim" and call.outcome == "ok":
            claim_id, fence, claimed_at_ms, expires_at_ms, batch_ids = call.answer
            if (claim_id, fence) in given:
                yield f"claim {claim_id} was given out twice with fence {fence}"
            if expires_at_ms != claimed_at_ms + call.given[1]:
                yield f"claim {claim_id} ends at {expires_at_ms}, not {call.given[1]} ms after {claimed_at_ms}"
            given[claim_id, fence] = Counter(batch_ids)
    for call in history:
        if call.kind == "forge" and call.outcome == "ok":
            yield f"claim {call.given[0]} was settled without its token or in part"
        elif call.kind == "complete" and call.outcome == "ok":
            claim_id, fence, batch_ids = call.given
            whole = given.get((claim_id, fence))
            if whole is None:
                yield f"claim {claim_id} with fence {fence} was completed and never handed out"
            elif whole != Counter(batch_ids):
                yield f"claim {claim_id} of {sorted(whole)} was completed as {sorted(batch_ids)}"


def _lives(history: Sequence[Call], end: States) -> Iterator[tuple[str, list[Call]]]:
    """Yield every batch with the calls that concern it."""
    batches = {key: found[0] for key, found in end.items() if found is not None}
    batches |= {call.given: call.answer for call in history if call.kind == "enqueue" and call.outcome == "ok"}
    states = {found[0]: found[1] for found in end.values() if found is not None}
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in history:
        for batch_id in _concerned(call, batches):
            calls[batch_id].append(call)
    last_ns = max((call.answered_ns or call.sent_ns for call in history), default=0)
    unknown_claims = [call for call in history if call.kind == "claim" and call.outcome == "unknown"]
    for batch_id in sorted({*calls, *states}):
        closing = Call(0, "end", batch_id, states.get(batch_id), "ok", last_ns + 1, last_ns + 2)
        yield batch_id, [*calls[batch_id], *unknown_claims, closing]


def _concerned(call: Call, batches: Mapping[str, str]) -> Iterator[str]:
    if call.kind == "enqueue" and call.given in batches:
        yield batches[call.given]
    elif call.kind == "claim" and call.outcome == "ok":
        yield from call.answer[4]
    elif call.kind in {"complete", "give_back"}:
        yield from call.given[2]
    elif call.kind == "cancel":
        yield call.given


def _step(written_at_ms: Mapping[int, int], life: Life, call: Call) -> Iterator[Life]:
    if call.kind == "enqueue":
        yield Life("pending") if life.stage == "absent" else life
    elif call.kind == "claim":
        yield from _claim(life, call)
    elif call.kind == "complete":
        yield from _complete(life, call, written_at_ms.get(call.answer))
    elif call.kind == "give_back":
        yield from _give_back(life, call)
    elif call.kind == "cancel":
        yield from _cancel(life, call)
    else:
        yield from _end(life, call)


def _claim(life: Life, call: Call) -> Iterator[Life]:
    lapses = call.given[1] < LONG_MS
    if call.outcome == "unknown":
        if life.stage == "pending" or (life.stage == "claimed" and life.lapses):
            yield Life("claimed", life.fence + 1, lapses=lapses)
        return
    claim_id, fence, claimed_at_ms, expires_at_ms, _ = call.answer
    over = life.lapses and (life.expires_at_ms is None or life.expires_at_ms <= claimed_at_ms)
    if fence > life.fence and (life.stage == "pending" or (life.stage == "claimed" and over)):
        yield Life("claimed", fence, claim_id, expires_at_ms, lapses)


def _is_proven(life: Life, call: Call) -> bool:
    """Return whether the batch is held by the claim that is to be settled."""
    return life.stage == "claimed" and (life.claim_id, life.fence) == (call.given[0], call.given[1])


def _complete(life: Life, call: Call, at_ms: int | None) -> Iterator[Life]:
    held = _is_proven(life, call) and not life.lapsed
    if call.outcome == "refused":
        if not held:
            yield life
        elif life.lapses:
            yield msgspec.structs.replace(life, lapsed=True)
    elif held and (at_ms is None or life.expires_at_ms is None or at_ms < life.expires_at_ms):
        yield Life("completed", life.fence)


def _give_back(life: Life, call: Call) -> Iterator[Life]:
    proven = _is_proven(life, call)
    most = len(call.given[2]) if call.outcome == "unknown" else call.answer
    # An expired claim can still be given back, as long as its batches were not claimed again.
    if proven and most:
        yield Life("pending", life.fence)
    elif not proven and most < len(call.given[2]):
        yield life


def _cancel(life: Life, call: Call) -> Iterator[Life]:
    waits = life.stage == "pending" or (life.stage == "claimed" and life.lapses)
    if call.outcome == "unknown" or call.answer:
        if waits:
            yield Life("cancelled", life.fence)
    elif life.stage != "pending" and not life.lapsed:
        yield life


def _end(life: Life, call: Call) -> Iterator[Life]:
    reported = call.answer or "absent"
    lapsed = reported == "pending" and life.stage == "claimed" and life.lapses
    if lapsed or (reported == life.stage and not life.lapsed):
        yield life
