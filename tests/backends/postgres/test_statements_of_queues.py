"""A server function decides about work as the rule does, in randomly drawn situations.

`HOLDFAST_SEED` replays a run, `HOLDFAST_SITUATIONS` makes it longer.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.backends.postgres.twins import (
    LAST_MS,
    LEASE_STATES,
    NOW_MS,
    OTHER_TOKEN,
    SESSION_STATES,
    SITUATIONS,
    TOKEN,
    Twins,
    lease_proof,
    lease_row,
    rows_by_table,
    sessions_of,
)

import holdfast
from holdfast import rows as r
from holdfast.leases import OnSession, Token
from holdfast.limit_rows import LimitRow
from holdfast.queue import Group
from holdfast.rules import leases, queue
from holdfast.rules import limits as limit_rules
from holdfast.store import Store

CLOCKS = pytest.mark.parametrize("now_ms", [NOW_MS, LAST_MS - 500], ids=["some time", "the end of time"])
DELIVERIES = ("earliest_safe_boundary", "earliest_safe_boundary", "after_current_turn_commit")
MERGE_KEYS = ("never", "payload_default", "payload_default", Group("a"), Group("b"))
CLAIMS = (
    "free",
    "free",
    "free",
    "free",
    "given back",
    "own",
    "other",
    "other exclusive",
    "expired",
    "expired exclusive",
    "settled",
    "settled and unavailable",
    "in back-off",
    "after back-off",
)


CALM = ("free", "free", "free", "given back", "expired", "after back-off")
"""Batches that block no claim: were all drawn from above, hardly any claim would be granted."""


def draft(rng: random.Random, session_id: str, *, now_ms: int, payload: Any = 1) -> holdfast.WorkDraft:
    return holdfast.WorkDraft(
        session_id=session_id,
        payloads=[payload],
        delivery=rng.choice(DELIVERIES),
        slot=rng.choice(("join", "join", "exclusive")),
        merge_key=rng.choice(MERGE_KEYS),
        available_at_ms=rng.choice((0, 0, 0, now_ms, now_ms + 1, LAST_MS)),
        kind=rng.choice(("turn", "turn", "turn", "mail")),
        priority=rng.choice((0, 0, 1, -1)),
        key=None if rng.random() < 0.4 else f"user {rng.randrange(120)}",
    )


def batch(seq: int, session: r.SessionRow, wanted: holdfast.WorkDraft, source_key: str | None = None) -> r.BatchRow:
    """Return the row of a draft."""
    intent = queue.check_draft("draft", msgspec.structs.replace(wanted, source_key=source_key), holdfast.Limits())
    made = queue.new_batch(intent, batch_id=f"b{seq}", session_key=session.session_key, family=session.family, now_ms=7)
    return msgspec.structs.replace(made, enqueue_seq=seq)


def claimed(
    found: r.BatchRow,
    state: str,
    now_ms: int,
    claim_id: str | None = None,
    left_ms: int = 1,
    size: int = 1,
    slot: bool = False,
) -> r.BatchRow:
    """Return the batch in this state: w1's own claim is proven by `TOKEN` and fence 5."""
    if state == "free":
        return found
    if state == "given back":
        return msgspec.structs.replace(found, claim_fence=2)
    if state == "in back-off":
        return msgspec.structs.replace(found, claim_fence=2, attempts=1, retry_at_ms=now_ms + 1, last_error="e")
    if state == "after back-off":
        return msgspec.structs.replace(found, claim_fence=2, attempts=1, retry_at_ms=now_ms, last_error="e")
    if state.startswith("settled"):
        kept = msgspec.structs.replace(found, source_key=f"k{found.enqueue_seq}", claim_fence=1)
        return msgspec.structs.replace(kept, settled_state="completed", settled_at_ms=8)
    owner, token = ("w1", TOKEN) if state.startswith("own") else ("w2", OTHER_TOKEN)
    return msgspec.structs.replace(
        found,
        claim_id=claim_id or f"claim:{found.enqueue_seq}:5",
        claim_owner=owner,
        claim_token_hash=leases.hash_token(token),
        claim_fence=5,
        claimed_at_ms=9,
        claim_expires_at_ms=now_ms if "expired" in state else min(now_ms + left_ms, LAST_MS),
        claim_exclusive=int(state.endswith("exclusive")),
        claim_size=size,
        claim_slot=int(slot),
        attempts=1,
    )


@CLOCKS
def test_enqueue_at_once_says_and_stores_what_the_rule_does(twins: Twins, now_ms: int) -> None:
    twins.clock.advance(now_ms - twins.clock.now_ms())
    rng = twins.generator("enqueue")
    tables: list[tuple[str, Any]] = []
    situations = []
    for number in range(SITUATIONS):
        state, used = rng.choice(SESSION_STATES), rng.choice(("new", "new", "same", "other", "settled", "none"))
        wanted = draft(rng, f"s{number}", now_ms=now_ms)
        found = sessions_of(number, f"s{number}", state)
        tables.append(("sessions", found))
        if used in ("same", "other", "settled") and found:
            kept = batch(
                number + 1, found[-1], draft(rng, f"s{number}", now_ms=now_ms) if used == "other" else wanted, "k"
            )
            if used == "settled":
                kept = msgspec.structs.replace(kept, settled_state="completed", settled_at_ms=8)
            tables.append(("batches", [kept]))
        if used != "none":
            wanted = msgspec.structs.replace(wanted, source_key="k")
        situations.append((state, used, wanted))
    twins.fill(rows_by_table(tables))
    refused = 0
    for state, used, wanted in situations:
        outcome, acted = twins.both(lambda store, wanted=wanted: store.queue.enqueue(wanted), (state, used, wanted))
        refused += outcome.error is not None
        assert acted is (state != "never"), (state, used, wanted)
    assert 0 < refused < len(situations)
    twins.compare_rows(lambda: "enqueue")


LIMITED = pytest.mark.parametrize("limited", [False, True], ids=["no limits", "limits and pauses"])


def limits_of(now_ms: int) -> list[tuple[str, Any]]:
    """Return the rows of two limited kinds and a paused one."""
    rows = [
        LimitRow("turn", None, 2, 0, now_ms, 0),
        LimitRow("mail", 60, 1, 0, now_ms, 0),
        LimitRow("other", None, None, 1, now_ms, 0),
    ]
    return [("limits", rows)]


def slots_of(batches: list[r.BatchRow]) -> list[tuple[str, Any]]:
    """Return the slots of the claims that have one."""
    found = {limit_rules.slot_of(one) for one in batches if one.claim_slot and one.settled_state is None}
    return [("slots", sorted(found, key=str))]


def pause_of(rng: random.Random, session: r.SessionRow) -> list[tuple[str, Any]]:
    """Return the ready row of a session that is paused now and then."""
    row = r.ReadyRow(session.session_key, session.family, 0, "turn", 0, 0, None, 0, None, 1)
    return [("ready", [row])] if rng.random() < 0.1 else []


def claim_request(rng: random.Random, session_id: str, seqs: list[int], *, calm: bool) -> tuple[str, dict[str, Any]]:
    """Draw w1's request for work: the next batches, or exact ones."""
    asked: dict[str, Any] = {
        "owner_id": "w1",
        "boundary": rng.choice(("idle", "idle", "active_turn_checkpoint")),
        "ttl_ms": rng.choice((1, 1, 400, 5_000)),
        "exclusive": rng.random() < 0.3,
    }
    proof = "none" if calm else rng.choice(("none", "right", "right", "token", "fence"))
    asked["lease"] = None if proof == "none" else lease_proof(OnSession(session_id), proof)
    if rng.random() < 0.35 and seqs:
        first = 0 if rng.random() < 0.7 else rng.randrange(len(seqs))
        wanted = seqs[first : first + rng.randint(1, 3)]
        rng.shuffle(wanted) if rng.random() < 0.1 else None
        return "claim_exactly", {"batch_ids": [f"b{seq}" for seq in wanted], **asked}
    return "claim", {"max_batches": rng.randint(1, 4), **asked}


def held_claim(rng: random.Random, session_id: str, batches: list[r.BatchRow]) -> holdfast.WorkClaim | None:
    """Draw a claim of w1's to widen, sometimes a wrong one; None if w1 has none."""
    own = [found for found in batches if found.claim_owner == "w1"]
    if not own or rng.random() < 0.3:
        return None
    tampering = rng.choice(("right", "right", "right", "right", "token", "fence", "older", "more"))
    return claim_object(session_id, own[0].claim_id or "", [own[0].batch_id], tampering)


def claim_object(session_id: str, claim_id: str, named: list[str], tampering: str) -> holdfast.WorkClaim:
    """Return the claim that `claimed` stores for w1, as w1 got it or nearly so."""
    return holdfast.WorkClaim(
        session_id,
        claim_id,
        "w1",
        Token(OTHER_TOKEN if tampering == "token" else TOKEN),
        {"fence": 6, "older": 4}.get(tampering, 5),
        9,
        10,
        tuple(
            holdfast.WorkBatch(name, session_id, 1, None, "earliest_safe_boundary", "join", "never", 0, 7, ())
            for name in ([*named, "b0"] if tampering == "more" else named)
        ),
    )


@CLOCKS
@LIMITED
def test_claim_at_once_takes_the_prefix_that_the_rule_takes(twins: Twins, now_ms: int, limited: bool) -> None:
    twins.clock.advance(now_ms - twins.clock.now_ms())
    rng = twins.generator(f"claim {limited}")
    tables: list[tuple[str, Any]] = limits_of(now_ms) if limited else []
    situations = []
    for number in range(SITUATIONS):
        calm, session_id = rng.random() < 0.6, f"s{number}"
        state = "lives" if calm else rng.choice(SESSION_STATES)
        found = sessions_of(number, session_id, state)
        tables.append(("sessions", found))
        seqs = list(range(10 * number + 1, 10 * number + 1 + rng.randint(0, 5)))
        lease_state = rng.choice(("absent", "released", "own", "other expired") if calm else LEASE_STATES)
        # Mergeable batches are rare among random ones, and only those are claimed together.
        pattern = draft(rng, session_id, now_ms=now_ms)
        batches = []
        if found:
            tables.append(("leases", lease_row("session", str(found[-1].session_key), lease_state, now_ms)))
            pool = (*CALM, rng.choice(("free", "own", "other", "other exclusive"))) if calm else CLAIMS
            alike = rng.random()
            for seq in seqs:
                wanted = pattern if rng.random() < alike else draft(rng, session_id, now_ms=now_ms)
                # A claim of two batches whose holder names one was widened.
                size = 2 if rng.random() < 0.15 else 1
                has_slot = limited and rng.random() < 0.8
                batches.append(
                    claimed(batch(seq, found[-1], wanted), rng.choice(pool), now_ms, size=size, slot=has_slot)
                )
            tables.append(("batches", batches))
            if limited:
                tables += [*slots_of(batches), *pause_of(rng, found[-1])]
        method, asked = claim_request(rng, session_id, seqs, calm=calm)
        if method == "claim":
            asked["holding"] = held_claim(rng, session_id, batches)
            asked["boundary"] = rng.choice((None, asked["boundary"]))
        situations.append((state, lease_state, batches, session_id, method, asked))
    twins.fill(rows_by_table(tables))
    taken: list[int] = []
    for situation in situations:
        *_, session_id, method, asked = situation
        outcome, acted = twins.both(
            lambda store, session_id=session_id, method=method, asked=asked: getattr(store.queue, method)(
                session_id, **asked
            ),
            situation,
        )
        assert acted or asked.get("holding"), f"the function left to the transaction what it may do: {situation}"
        if outcome.value is not None:
            taken.append(len(outcome.value.batches))
    assert len(taken) > SITUATIONS // 10
    assert max(taken) >= min(2, SITUATIONS // 100)
    twins.compare_rows(lambda: "claim")


PROVEN: dict[str, Callable[[Store, holdfast.WorkClaim, int], Awaitable[Any]]] = {
    "renew": lambda store, claim, ttl_ms: store.queue.renew(claim, ttl_ms=ttl_ms),
    "complete": lambda store, claim, _: store.queue.complete(claim),
}


def claims_to_prove(
    rng: random.Random, now_ms: int, count: int, *, limited: bool = False
) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Return rows of claimed batches, and for each session its states, a claim that may prove them, and a duration."""
    tables: list[tuple[str, Any]] = limits_of(now_ms) if limited else []
    situations = []
    for number in range(count):
        state, session_id = rng.choice(SESSION_STATES), f"s{number}"
        found = sessions_of(number, session_id, state)
        tables.append(("sessions", found))
        seqs = list(range(10 * number + 1, 10 * number + 1 + rng.randint(1, 3)))
        claim_id = f"claim:{seqs[0]}:5"
        held = rng.choice(("own", "own", "own", "own exclusive", "own expired", "other", "free"))
        lost = rng.choice(("none", "none", "none", "none", "settled", "taken over"))
        if found:
            pattern = draft(rng, session_id, now_ms=now_ms)
            left_ms = rng.choice((1, 3_000))
            batches = [
                claimed(batch(seq, found[-1], pattern), held, now_ms, claim_id, left_ms, len(seqs), limited)
                for seq in seqs
            ]
            if lost != "none":
                batches[-1] = claimed(
                    batch(seqs[-1], found[-1], pattern), "settled" if lost == "settled" else "other", now_ms
                )
            tables.append(("batches", batches))
            if limited:
                tables += [*slots_of(batches), *pause_of(rng, found[-1])]
        names = [f"b{seq}" for seq in seqs]
        altered = {
            "first": names[:1],
            "first twice": names[:1] * 2,
            "all but the first": names[1:],
            "more": [*names, "b0"],
            "twice": [*names, names[0]],
            "turned round": names[::-1],
        }
        tampering = rng.choice((*["right"] * 8, *["first"] * 2, "token", "fence", "older", *altered))
        named = altered.get(tampering, names)
        claim = claim_object(session_id, claim_id, named, "right" if tampering == "more" else tampering)
        situations.append((state, held, lost, tampering, claim, rng.choice((1, 400, 5_000))))
    return tables, situations


@CLOCKS
@LIMITED
@pytest.mark.parametrize("call", PROVEN)
def test_a_claim_that_is_renewed_or_completed_at_once_is_proven_as_by_the_rule(
    twins: Twins, now_ms: int, call: str, limited: bool
) -> None:
    twins.clock.advance(now_ms - twins.clock.now_ms())
    tables, situations = claims_to_prove(
        twins.generator(f"{call} a claim {limited}"), now_ms, SITUATIONS, limited=limited
    )
    twins.fill(rows_by_table(tables))
    proven = 0
    for situation in situations:
        *_, claim, ttl_ms = situation
        outcome, acted = twins.both(
            lambda store, claim=claim, ttl_ms=ttl_ms: PROVEN[call](store, claim, ttl_ms), situation
        )
        proven += outcome.error is None
        assert acted is (call == "complete" or situation[0] != "never"), situation
    assert proven > SITUATIONS // 30
    twins.compare_rows(lambda: f"{call} a claim")
