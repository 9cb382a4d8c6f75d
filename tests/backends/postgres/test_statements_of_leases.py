"""A server function decides about a lease as the rule does, in randomly drawn situations."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from tests.backends.postgres.twins import (
    LAST_MS,
    LEASE_STATES,
    NOW_MS,
    SESSION_STATES,
    SITUATIONS,
    Twins,
    lease_proof,
    lease_row,
    rows_by_table,
    sessions_of,
)

from holdfast import rows as r
from holdfast.leases import OnProcess, OnSession

CLOCKS = pytest.mark.parametrize("now_ms", [NOW_MS, LAST_MS - 500], ids=["some time", "the end of time"])
KINDS = pytest.mark.parametrize("kind", ["session", "process"])
PROCESS_STATES = ("running", "running", "running", "never", "completed", "failed", "cancelled")
BODY = b'{"input":{"type":"external"}}'


def resources_of(number: int, kind: str, state: str) -> tuple[list[Any], str]:
    """Return the rows of a lease's resource, and its name in the lease."""
    if kind == "session":
        found = sessions_of(number, f"r{number}", state)
        return [("sessions", found)], str(found[-1].session_key if found else 0)
    name = f"r{number}"
    if state == "never":
        return [], name
    return [("processes", [r.ProcessRow(name, "h", state, 0, None, None, None, None, 0, 1, 1, BODY)])], name


def named(number: int, kind: str) -> OnSession | OnProcess:
    return OnSession(f"r{number}") if kind == "session" else OnProcess(f"r{number}")


@KINDS
@CLOCKS
@pytest.mark.parametrize("fence_floor", [0, 70])
def test_taking_a_lease_at_once_gives_what_the_rule_gives(
    twins: Twins, now_ms: int, kind: str, fence_floor: int
) -> None:
    twins.clock.advance(now_ms - twins.clock.now_ms())
    if fence_floor:
        twins.run(f"INSERT INTO {{schema}}.settings (name, value) VALUES ('fence_floor', {fence_floor})")
    rng = twins.generator(f"take a lease of a {kind}, above {fence_floor}")
    tables: list[tuple[str, Any]] = []
    situations = []
    states = SESSION_STATES if kind == "session" else PROCESS_STATES
    every = sorted(set(product(states, LEASE_STATES)))
    some = [(rng.choice(states), rng.choice(LEASE_STATES)) for _ in range(SITUATIONS // 3 - len(every))]
    for number, (state, lease_state) in enumerate([*every, *some]):
        found, stored_as = resources_of(number, kind, state)
        tables.extend(found)
        if found and found[0][1]:
            tables.append(("leases", lease_row(kind, stored_as, lease_state, now_ms)))
        situations.append((state, lease_state, named(number, kind), rng.choice((1, 400, 5_000))))
    twins.fill(rows_by_table(tables))
    fences = set()
    for situation in situations:
        state, lease_state, resource, ttl_ms = situation
        outcome, acted = twins.both(
            lambda store, resource=resource, ttl_ms=ttl_ms: store.leases.claim(resource, owner_id="w1", ttl_ms=ttl_ms),
            situation,
        )
        if state in ("lives", "lives again", "running"):
            # A live holder excludes every other owner; every other lease is granted.
            assert (outcome.error is None) is (lease_state != "other"), situation
        assert acted is (state != "never" or kind == "process"), situation
        if outcome.error is None:
            fences.add(outcome.value.fence)
    assert fences == {fence_floor + 1, 4}
    twins.compare_rows(lambda: "take a lease")


def leases_to_prove(
    rng: random.Random, now_ms: int, numbers: range, kind: str
) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Return rows of leases, and for each of them its states, a lease that may prove it, and a duration."""
    tables: list[tuple[str, Any]] = []
    situations = []
    for number in numbers:
        state = rng.choice(SESSION_STATES if kind == "session" else PROCESS_STATES)
        lease_state = rng.choice(("own", "own", "own", *LEASE_STATES))
        found, stored_as = resources_of(number, kind, state)
        tables.extend(found)
        if found and found[0][1]:
            tables.append(("leases", lease_row(kind, stored_as, lease_state, now_ms)))
        tampering = rng.choice(("right", "right", "right", "token", "fence"))
        proof = lease_proof(named(number, kind), tampering)
        situations.append((state, lease_state, tampering, proof, rng.choice((1, 400, 5_000))))
    return tables, situations


@KINDS
@CLOCKS
def test_extending_a_lease_at_once_moves_the_end_that_the_rule_moves(twins: Twins, now_ms: int, kind: str) -> None:
    twins.clock.advance(now_ms - twins.clock.now_ms())
    tables, situations = leases_to_prove(twins.generator(f"renew a lease of a {kind}"), now_ms, range(SITUATIONS), kind)
    twins.fill(rows_by_table(tables))
    extended = 0
    for situation in situations:
        *_, proof, ttl_ms = situation
        outcome, acted = twins.both(
            lambda store, proof=proof, ttl_ms=ttl_ms: store.leases.renew(proof, ttl_ms=ttl_ms), situation
        )
        extended += outcome.error is None
        assert acted, situation
    assert extended > SITUATIONS // 12
    twins.compare_rows(lambda: "renew a lease")
